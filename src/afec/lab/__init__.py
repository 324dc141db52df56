"""Experiments: benchmarks as TOML, run directories, resume, one process per core."""

from afec.lab.config import REFERENCES, RunConfig, resolve
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job, Outcome, available_cores, execute
from afec.lab.run import build, run
from afec.lab.spec import Benchmark, SpecError, benchmark_names, load_benchmark
from afec.lab.study import check_buildable, plan, study, unfinished

__all__ = [
    "REFERENCES",
    "Benchmark",
    "Job",
    "Outcome",
    "RunConfig",
    "RunDirectory",
    "RunError",
    "SpecError",
    "available_cores",
    "benchmark_names",
    "build",
    "check_buildable",
    "execute",
    "find_runs",
    "load_benchmark",
    "plan",
    "resolve",
    "run",
    "study",
    "unfinished",
]
