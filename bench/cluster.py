"""What a cluster costs: the Ray pool against local processes, queues of many jobs, and one run in two processes.

    python bench/cluster.py overhead     # CPU seconds of a command beside those of its runs, by the local pool and by Ray
    python bench/cluster.py queue        # 1,000 jobs of no work through the Ray pool
    python bench/cluster.py driver       # the memory of a driver with 10,000 jobs queued
    python bench/cluster.py speed        # the CIFAR CNN at batch 256: one process, and its share of two
    python bench/cluster.py grid RUNS    # Table 2 by benchmark, from the finished runs under RUNS, as Markdown

What is printed is JSON. `overhead` and `speed` count CPU seconds: on a busy machine wall time is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import torch

from afec.lab import find_runs
from afec.lab.forecast import forecast
from afec.lab.ray_cluster import RayCluster
from afec.lab.ray_pool import RayPool
from afec.lab.studies import load_study
from afec.lab.torchrun import joined, processes_of_torchrun
from afec.parallel import grouped
from ray_kills import METHODS, SETS


def study(seeds: int, epochs: int, *more: str) -> list[str]:
    """A command of small runs."""
    sets = [text.replace("max_epochs=25", f"max_epochs={epochs}") for text in SETS]
    given = ["--method", *METHODS, "--seeds", str(seeds), "--set", *sets]
    return [sys.executable, "-m", "afec", "run", "digits", *given, *more]


def nothing(channel: object) -> None:
    return None


def cpu_seconds(words: list[str]) -> float:
    """Of a command and of all processes that came of it: workers, Ray's own. What each had used when it was last seen."""
    import psutil

    command = psutil.Popen(words, stdout=subprocess.DEVNULL)
    used: dict[int, float] = {}
    while command.poll() is None:
        for one in (command, *command.children(recursive=True)):
            with suppress(psutil.Error):
                used[one.pid] = sum(one.cpu_times()[:2])
        time.sleep(0.1)
    assert command.returncode == 0, command.returncode
    return sum(used.values())


def overhead(rounds: int, epochs: int) -> dict[str, object]:
    """What a command of four runs takes beside its runs: it starts two processes, which import torch, and so on.

    Wall times of two processes on a machine that others use say nothing. CPU seconds do, and what they say is an upper bound:
    a cluster waits with more processes.
    """
    folder = Path(tempfile.mkdtemp())
    beside: dict[str, list[float]] = {"local": [], "ray": []}
    taken: list[float] = []
    for number in range(rounds):
        for name, found in beside.items():
            root = folder / f"{name}{number}"
            whole = cpu_seconds(study(1, epochs, "--workers", "2", "--runs", str(root), "--pool", name))
            runs = [float(json.loads((run.path / "DONE").read_text())["cpu_seconds"]) for run in find_runs(root)]
            taken.append(sum(runs) / len(runs))
            found.append(whole - sum(runs))
    more = statistics.median(beside["ray"]) - statistics.median(beside["local"])
    return {"run_seconds": taken, "beside": beside, "more": more, "of_runs_of_a_minute": more / (4 * 60)}


def queue(count: int) -> dict[str, object]:
    with RayCluster(None, 2) as cluster:
        cluster.connect()
        pool = RayPool(cluster.ray)
        start, done, index = time.perf_counter(), 0, 0
        while done < count:
            while index < count and pool.free:
                pool.start(index, nothing)
                index += 1
            done += sum(message.kind == "result" for message in pool.poll(0.2))
        seconds = time.perf_counter() - start
        pool.stop()
    return {"jobs": count, "seconds": seconds}


def grid(root: Path) -> None:
    """What is left of the paper's Table 2, benchmark by benchmark."""
    jobs = load_study("classification-table").jobs(lambda *_: None)
    print("| benchmark | runs | core hours | hours on 2 CPUs | on 16 | on 128 |\n| --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(job.config.benchmark for job in jobs):
        found = forecast([job for job in jobs if job.config.benchmark == name], root)
        hours = [sum(found.seconds) / 3600, *(found.hours_on(cpus) for cpus in (2, 16, 128))]
        cells = [f"{hour:,.0f}" if found.seconds else "not known" for hour in hours]
        print(f"| {name} | {len(found.seconds) + found.unknown} | {' | '.join(cells)} |")


def driver(count: int) -> dict[str, object]:
    """The memory of `afec run --pool ray` with so many runs, until 20 of them are done; then it is stopped."""
    import psutil

    folder = Path(tempfile.mkdtemp())
    words = study(count // len(METHODS), 1, "--pool", "ray", "--runs", str(folder / "runs"))
    command = psutil.Popen(words, stdout=subprocess.DEVNULL)
    most, torch_is_there, done = {"rss": 0}, False, 0
    while done < 20:
        done = len(list(folder.glob("runs/*/*/*/*/DONE")))
        found = command.memory_full_info()
        torch_is_there = torch_is_there or any("libtorch" in one.path for one in command.memory_maps())
        if found.rss > most["rss"]:
            most = {key: getattr(found, key) for key in ("rss", "pss", "uss")}
        time.sleep(0.2)
    command.send_signal(signal.SIGINT)
    command.wait()
    return {"jobs": count, "torch": torch_is_there, **{f"{key}_mb": value / 2**20 for key, value in most.items()}}


def step_seconds() -> dict[str, float]:
    """One epoch of the CIFAR CNN over random images of CIFAR's shape, at batch 256, in as many processes as there are."""
    from afec.learner.fit import Fit
    from afec.learner.machine import Machine
    from afec.learner.tasks import Batches, BatchLoss
    from afec.nets import MultiHead, make_backbone
    from afec.strategy import Schedule
    from afec.streams import Split

    torch.set_num_threads(1)
    torch.manual_seed(0)
    machine = Machine(channels_last=True)
    net = MultiHead(make_backbone("cnn6"), [10])
    machine.placed(net)
    images = Split(machine.stored(torch.rand(2560, 3, 32, 32)), torch.randint(10, (2560,)))
    schedule = Schedule(batch_size=256, max_epochs=3, patience=None, best_weights=False)
    with joined() if processes_of_torchrun() > 1 else nullcontext() as group, grouped(group):
        fit = Fit(net, Batches(images), None, BatchLoss(0, "cross_entropy", machine), schedule, 0, machine)
        marks: list[tuple[float, float]] = []
        fit.run(on_epoch=lambda epoch: marks.append((time.perf_counter(), time.process_time())))
        rank = 0 if group is None else group.rank
    found = {"wall": marks[-1][0] - marks[0][0], "cpu": marks[-1][1] - marks[0][1]}
    if rank == 0 and processes_of_torchrun() > 1:
        print(json.dumps(found))
    return found


def speed() -> dict[str, object]:
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "step"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = json.loads(subprocess.run(two, capture_output=True, text=True, env=environment, check=True).stdout)
    one = step_seconds()
    return {"one": one, "two": both, "wall_ratio": one["wall"] / both["wall"], "cpu_ratio": one["cpu"] / both["cpu"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "queue", "driver", "speed", "grid", "step"])
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs"), help="of grid: where finished runs are")
    parser.add_argument("--rounds", type=int, default=1, help="of overhead")
    parser.add_argument("--epochs", type=int, default=1000, help="of overhead: how long its runs are")
    arguments = parser.parse_args()
    if arguments.what == "step":
        step_seconds()
        return
    if arguments.what == "grid":
        grid(arguments.runs)
        return
    works = {
        "overhead": lambda: overhead(arguments.rounds, arguments.epochs),
        "queue": lambda: queue(1000),
        "driver": lambda: driver(10_000),
        "speed": speed,
    }
    print(json.dumps(works[arguments.what]()))


if __name__ == "__main__":
    main()
