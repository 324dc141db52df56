"""The page of 500 runs of 20 tasks: seconds, megabytes, and what of it is reading. Goals: under 10 s, under 5 MB."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from afec.experiments import Score
from afec.lab import RunDirectory, find_runs, load_benchmark, resolve
from afec.report.page import page
from afec.report.reading import read
from afec.whole_files import write_text

METHODS = (
    *("finetune", "ewc", "ewc@equal-compute", "ewc+afec", "mas", "mas@equal-compute", "mas+afec"),
    *("si", "si+afec", "scratch"),
)


def write_runs(root: Path, runs: int, tasks: int, epochs: int, apart: bool = False) -> None:
    """Runs as `afec run` leaves them, with an event for every epoch."""
    benchmark, chance = load_benchmark("cifar100-sc"), np.random.default_rng(0)
    seeds = 5
    for number in range(runs):
        grid, place = divmod(number, len(METHODS) * seeds)
        sets = {"stream": {"images": 100 + grid}} if apart else {"training": {"lr": 0.001 * (grid + 1)}}
        run = RunDirectory.of(root, config := resolve(benchmark, METHODS[place // seeds], sets=sets), place % seeds)
        write_text(run.path / "config.toml", config.to_toml())
        write_text(run.path / "env.json", json.dumps({"afec": "0.1.0", "torch": "2.13.0", "host": "bench"}))
        table = chance.uniform(0.2, 0.8, (tasks + 1, tasks))
        run.write_scores(
            [Score(i, j + 1, f"task {j + 1}", 0.5, table[i, j], 500) for i in range(tasks + 1) for j in range(tasks)]
        )
        lines = []
        for task in range(1, tasks + 1):
            lines += [
                {
                    "event": "progress",
                    "unit": "epoch",
                    "task": task,
                    "phase": "train",
                    "number": e + 1,
                    "lr": 1e-3,
                    "loss": 1.1,
                    "best": False,
                }
                for e in range(epochs)
            ]
            lines.append(
                {"event": "task", "task": task, "epochs": epochs, "epochs_theta_e": 0, "samples": 2500 * epochs}
            )
        (run.path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        run.finish({"wall_seconds": 100.0, "cpu_seconds": 90.0, "peak_memory_mb": 500.0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--apart", action="store_true", help="ten studies of fifty runs, not one of five hundred")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), given.runs, given.tasks, given.epochs, given.apart)
        start, cpu = time.perf_counter(), time.process_time()
        readings = [read(run.config, run) for run in find_runs(Path(folder))]
        middle, cpu_middle = time.perf_counter(), time.process_time()
        text = page(readings, "runs", "bench/report.py")
        end, cpu_end = time.perf_counter(), time.process_time()
    print(f"report of {len(readings)} runs × {given.tasks} tasks × {given.epochs} epochs")
    print(f"  reading   {middle - start:6.2f} s  (CPU {cpu_middle - cpu:.2f} s)")
    print(f"  page      {end - middle:6.2f} s  (CPU {cpu_end - cpu_middle:.2f} s)")
    print(f"  together  {end - start:6.2f} s  (CPU {cpu_end - cpu:.2f} s; goal: under 10)")
    print(f"  size      {len(text.encode()) / 1e6:6.2f} MB (goal: under 5)")


if __name__ == "__main__":
    main()
