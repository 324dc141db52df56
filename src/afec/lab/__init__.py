"""Runs of experiments: benchmarks as TOML, run directories, resume, one process per core."""

from afec.lab.config import RunConfig, resolve
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job, Outcome, available_cores, execute
from afec.lab.plan import check_runnable, plan, study, unfinished
from afec.lab.pool import Channel, Message, Pool
from afec.lab.run import Place, run
from afec.lab.spec import Benchmark, SpecError, benchmark_names, load_benchmark

__all__ = [
    "Benchmark",
    "Channel",
    "Job",
    "Message",
    "Outcome",
    "Place",
    "Pool",
    "RunConfig",
    "RunDirectory",
    "RunError",
    "SpecError",
    "available_cores",
    "benchmark_names",
    "check_runnable",
    "execute",
    "find_runs",
    "load_benchmark",
    "plan",
    "resolve",
    "run",
    "study",
    "unfinished",
]
