"""What an epoch of each replay strategy costs beside a plain one over the same images: `python bench/replay.py`.

ResNet-32 in its second phase. The learners take turns, and the best epochs of each are compared: on a shared machine only
ratios of neighbours mean anything. CPU time, one thread. Real CIFAR-100 images where they are (AFEC_DATA), else random ones.

A phase with AFEC has θ_e's epochs, over the new images alone, and one pass for F_e, however many epochs there are: with few
epochs that pass weighs more than it does in any benchmark. So the phase has the 12 epochs of `short`, and its parts are told.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace

import torch

import afec
from afec.data import DataError
from afec.learner import Learner, Machine, Progress, Schedule
from afec.nets import make_backbone
from afec.strategy import Exemplars
from afec.streams import Split, Task, make_stream

EPOCHS, PER_CLASS = 12, 20
METHODS = {
    "er": afec.ER,
    "derpp": afec.DERPP,
    "icarl": afec.ICaRL,
    "lucir": afec.LUCIR,
    "podnet": lambda **options: afec.PODNet(finetune_epochs=0, **options),
}


def tasks(images: int) -> list[Task]:
    """Two phases of four classes each."""
    options = {"sizes": [4, 4], "class_order": "lucir-1993", "scenario": "class", "validation": 0, "augment": True}
    try:
        return list(make_stream("cifar100", 0, images_per_class=images, **options).tasks)
    except DataError:
        made = torch.Generator().manual_seed(0)
        pixels = torch.randn(4 * images, 3, 32, 32, generator=made)
        split = Split(pixels, torch.arange(4).repeat(images))
        task = Task("random", split, None, split, outputs=4, loss="cross_entropy", classes=(0, 1, 2, 3))
        return [task, replace(task, name="random again", classes=(4, 5, 6, 7))]


class Timed:
    """A learner that notes the CPU time of each epoch of its second phase."""

    def __init__(self, method: object, epochs: int) -> None:
        self.times, self.spent, self.last = list[float](), 0.0, time.process_time()
        self.epochs, self.parts = epochs, dict[str, float]()
        schedule = Schedule(batch_size=64, optimizer="sgd", lr=0.05, max_epochs=1, patience=None, best_weights=False)
        machine, backbone = Machine(channels_last=True), make_backbone("resnet32")
        self.learner = Learner(backbone, method, schedule=schedule, machine=machine, on_progress=self.note)  # type: ignore[arg-type]

    def note(self, at: Progress) -> None:
        """An epoch is over."""
        now = time.process_time()
        if at.task > 0 and at.phase == "train" and at.epoch.number > 1:
            self.times.append(now - self.last)
        self.last = now

    def learn(self, task: Task) -> None:
        """One phase; the first, which is not measured, has one epoch."""
        start = self.last = time.process_time()
        self.parts = self.learner.learn(task).cpu_seconds
        self.spent = time.process_time() - start
        self.learner.schedule = replace(self.learner.schedule, max_epochs=self.epochs)


def measure(images: int, epochs: int, methods: list[str]) -> None:
    """Print what each costs."""
    stream = tasks(images)
    timed = {}
    for name in methods:
        timed[name] = Timed(METHODS[name](per_class=PER_CLASS), epochs)
        with_afec = METHODS[name](per_class=PER_CLASS) + afec.AFEC(0.1, fisher="empirical")
        timed[f"{name}+afec"] = Timed(with_afec, epochs)
    for task in stream:
        for one in timed.values():
            one.learn(task)
    plain = min(
        timed["er"].times
    )  # the task's own loss over new images and exemplars: a plain epoch over the same images
    print(f"a plain epoch of {4 * images + 4 * PER_CLASS} images, ResNet-32: {plain:.2f} s")
    for name in methods:
        print(f"{name}: {min(timed[name].times) / plain:.3f} × a plain epoch over the same images (goal: at most 1.35)")
        phase = timed[f"{name}+afec"].spent / timed[name].spent
        print(f"{name}+afec: {phase:.2f} × {name}, a second phase of {epochs} epochs (goal: at most 2.1)")
        parts = {part: seconds / plain for part, seconds in timed[f"{name}+afec"].parts.items()}
        told = ", ".join(f"{part} {cost:.2f}" for part, cost in parts.items())
        without = ", ".join(f"{part} {seconds / plain:.2f}" for part, seconds in timed[name].parts.items())
        print(f"    in plain epochs: {told}; without AFEC {without}")
    memory = Exemplars(torch.zeros(2000, 3, 32, 32, dtype=torch.uint8), torch.zeros(2000, dtype=torch.int64))
    print(f"2,000 exemplars of CIFAR: {memory.megabytes():.1f} MB (goal: under 10)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory of this process, with {len(timed)} learners: {peak:.2f} GB (goal for one run: under 2)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50, help="of each class")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the second phase")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="er is always measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measure(options.images, options.epochs, list(dict.fromkeys(["er", *options.methods])))
