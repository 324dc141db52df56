"""What an epoch of AGS-CL and of P&C's compress costs beside a plain one, on the CIFAR CNN: `python bench/strategies.py`.

The learners take turns, task by task, and the best epochs of each are compared: on a shared machine only ratios of neighbours
mean anything. CPU time, one thread. Real CIFAR-100 images where they are (AFEC_DATA), else random ones of the same size.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch

import afec
from afec.data import DataError
from afec.learner import Learner, Machine, Progress, Schedule
from afec.nets import MultiHead, make_backbone
from afec.streams import Split, Task, make_stream

BATCH, EPOCHS = 64, 3
METHODS = {
    "plain": lambda: None,
    "ags-cl": lambda: afec.AGSCL(1600, mu=10),
    "ags-cl by step": lambda: afec.AGSCL(16, mu=0.1, proximal="step"),
    "progress-compress": lambda: afec.ProgressCompress(20_000, fisher="batched"),
}


def tasks(count: int, images: int) -> list[Task]:
    try:
        return list(make_stream("cifar100-sc", 0, tasks=count, images=images).tasks)
    except DataError:
        splits = [Split(torch.randn(images, 3, 32, 32), torch.randint(0, 5, (images,))) for _ in range(3)]
        return [Task(f"random {n}", *splits, outputs=5, loss="cross_entropy") for n in range(count)]


class Timed:
    """A learner that notes the CPU time of each epoch, phase by phase, from its second task on."""

    def __init__(self, name: str, stream: list[Task]) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.last = time.process_time()
        net = MultiHead(make_backbone("cnn6"), [task.outputs for task in stream])
        schedule = Schedule(batch_size=BATCH, max_epochs=EPOCHS, patience=None, best_weights=False)
        machine = Machine(channels_last=True)
        self.learner = Learner(net, METHODS[name](), schedule=schedule, machine=machine, on_progress=self.note)

    def note(self, phase: Progress) -> None:
        """An epoch is over."""
        now = time.process_time()
        if phase.task > 0 and phase.epoch.number > 1:  # the first one has what comes before it, too
            self.times[phase.phase].append(now - self.last)
        self.last = now


def measure(rounds: int, images: int) -> dict[str, float]:
    """The best epoch of each method's phases over the best plain one."""
    stream = tasks(rounds + 1, images)
    timed = {name: Timed(name, stream) for name in METHODS}
    for task in stream:
        for one in timed.values():
            one.learner.learn(task)
    plain = min(timed["plain"].times["train"])
    print(f"a plain epoch of {images} images: {plain:.2f} s")
    return {
        f"{name}, {phase}": min(found) / plain
        for name, one in timed.items()
        for phase, found in one.times.items()
        if name != "plain"
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--images", type=int, default=256, help="of each task")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for what, ratio in measure(options.rounds, options.images).items():
        goal = "" if what.endswith("progress") else " (goal: at most 1.2)"
        print(f"{what}: {ratio:.3f} × a plain epoch{goal}")
