"""What a cluster costs: the Ray pool against local processes, queues of many jobs, and one run in two processes.

    python bench/cluster.py overhead     # a study on two workers, by the local pool and by Ray, in turn
    python bench/cluster.py queue        # 1,000 jobs of no work through the Ray pool
    python bench/cluster.py driver       # the memory of a driver with 10,000 jobs queued
    python bench/cluster.py speed        # the CIFAR CNN at batch 256: one process, and its share of two

What is printed is JSON. `speed` counts CPU seconds of a process as well as wall time: on a busy machine wall time is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import torch

from afec.lab import execute, plan
from afec.lab.ray_pool import RayCluster, RayPool
from afec.lab.torchrun import joined, processes_of_torchrun
from afec.parallel import grouped
from ray_kills import METHODS, QUICK


def nothing(channel: object) -> None:
    return None


def overhead(rounds: int) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp())
    (folder / "quick.toml").write_text(QUICK.replace("max_epochs = 25", "max_epochs = 100"))
    jobs = plan([str(folder / "quick.toml")], METHODS, range(2))
    took: dict[str, list[float]] = {"local": [], "ray": []}
    with RayCluster(None, 2) as cluster:
        execute(jobs[:2], folder / "warm", pool=cluster)
        for number in range(rounds):
            for name in took:
                start = time.perf_counter()
                execute(jobs, folder / f"{name}{number}", 2, pool=cluster if name == "ray" else None)
                took[name].append(time.perf_counter() - start)
    return {"runs": len(jobs), **took, "ratio": statistics.median(took["ray"]) / statistics.median(took["local"])}


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


def resident() -> dict[str, float]:
    import psutil

    found = psutil.Process().memory_full_info()
    return {"rss_mb": found.rss / 2**20, "own_mb": found.uss / 2**20}


def driver(count: int) -> dict[str, object]:
    """A study of so many runs is planned and begun on a cluster, and stopped after a few."""
    folder = Path(tempfile.mkdtemp())
    (folder / "quick.toml").write_text(QUICK.replace("max_epochs = 25", "max_epochs = 1"))
    before = resident()
    jobs = plan([str(folder / "quick.toml")], ["finetune"], range(count))
    seen: list[dict[str, float]] = []

    class Enough:
        def on_outcome(self, outcome: object) -> None:
            seen.append(resident())
            if len(seen) == 20:
                raise KeyboardInterrupt

        def on_progress(self, *arguments: object) -> None:
            pass

        on_wait = on_stop = on_progress

        def on_tick(self) -> None:
            pass

    with RayCluster(None, 2) as cluster, suppress(KeyboardInterrupt):
        execute(jobs, folder / "runs", watcher=Enough(), pool=cluster)  # type: ignore[arg-type]
    return {"jobs": len(jobs), "before": before, "most": max(seen, key=lambda found: found["rss_mb"])}


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
    parser.add_argument("what", choices=["overhead", "queue", "driver", "speed", "step"])
    parser.add_argument("--rounds", type=int, default=3, help="of overhead")
    arguments = parser.parse_args()
    if arguments.what == "step":
        step_seconds()
        return
    works = {
        "overhead": lambda: overhead(arguments.rounds),
        "queue": lambda: queue(1000),
        "driver": lambda: driver(10_000),
        "speed": speed,
    }
    print(json.dumps(works[arguments.what]()))


if __name__ == "__main__":
    main()
