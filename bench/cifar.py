"""What CIFAR-100 costs on the real files: `python bench/cifar.py` (AFEC_DATA says where they are).

Loading it; the memory of a run; and what `ewc+afec` costs beside `finetune` at ten epochs, from the second task on, where both
of AFEC's nets are learned. Both run at once, in one process each, and CPU time is compared: on a shared machine only ratios of
neighbours mean anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from afec.data import DataError, load_cifar100
from afec.lab import RunDirectory, find_runs

IMAGES = 500  # of each task; the cost of all phases grows alike with it


def loading(rounds: int = 3) -> float:
    """Seconds to read the official files, best of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        load_cifar100()
        times.append(time.perf_counter() - start)
    return min(times)


def studied(root: Path, *settings: str) -> dict[str, RunDirectory]:
    """A run of each method, by its name."""
    command = ["run", "cifar100-sc", "--method", "finetune", "ewc+afec", "--scale", "short", "--seeds", "1"]
    where = ["--runs", str(root), "--workers", "2", "--set", *settings]
    subprocess.run([sys.executable, "-m", "afec.cli", *command, *where], check=True, stdout=subprocess.DEVNULL)
    return {run.config.method: run for run in find_runs(root)}


def later_tasks(run: RunDirectory) -> float:
    """CPU seconds of all phases, from the second task on."""
    return sum(sum(task["cpu_seconds"].values()) for task in run.tasks()[1:])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        print(f"loading CIFAR-100: {loading():.2f} s (goal: under 2)")
    except DataError as error:
        print(f"bench/cifar.py needs the real CIFAR-100: {error}")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as directory:
        runs = studied(Path(directory), "stream.tasks=2", f"stream.images={IMAGES}")
        ratio = later_tasks(runs["ewc+afec"]) / later_tasks(runs["finetune"])
        print(f"ewc+afec at ten epochs: {ratio:.2f} × finetune, second task (goal: at most 2.2)")
    with tempfile.TemporaryDirectory() as directory:
        runs = studied(Path(directory), "stream.tasks=2", "training.max_epochs=1")
        for method, run in runs.items():
            peak = json.loads((run.path / "DONE").read_text())["peak_memory_mb"]
            print(f"a run of {method} on all images of two tasks: {peak:.0f} MB (goal: under 1500)")
