"""What an epoch of each replay strategy costs beside a plain one over the same images: `python bench/replay.py`.

ResNet-32 in its second phase. The learners take turns, epoch by epoch, and the best epochs of each are compared: on a shared
machine only ratios of neighbours mean anything. CPU time, one thread. Real CIFAR-100 images where they are (AFEC_DATA), else
random ones.

A phase with AFEC has θ_e's epochs, over the new images alone, and one pass for F_e, however many epochs there are. So a phase
is reckoned as it is at the scale `short`, with 12 epochs: 12 times the best epoch of each training, and once what is done once.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

import afec
from afec.data import DataError
from afec.learner import Learner, Machine, Progress, Schedule
from afec.nets import make_backbone
from afec.strategy import Exemplars
from afec.streams import Split, Task, make_stream

EPOCHS, PER_CLASS, MEASURED = 12, 20, 6
"""The epochs of a phase, the exemplars of a class, and of how many epochs the best is taken."""
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


class Turns:
    """Lets one thread go on at a time, each for one epoch."""

    def __init__(self) -> None:
        self.line, self.changed = list[object](), threading.Condition()

    def wait(self, who: object) -> None:
        """Until it is this one's turn."""
        with self.changed:
            self.changed.wait_for(lambda: self.line[0] is who)

    def pass_on(self, who: object, *, over: bool = False) -> None:
        """Let the next one go on; who is not over comes again behind all others."""
        with self.changed:
            self.line.remove(who)
            self.line += [] if over else [who]
            self.changed.notify_all()


class Timed:
    """A learner that notes the CPU time of each epoch of its second phase, but for the first of each training."""

    def __init__(self, method: object, turns: Turns) -> None:
        self.turns = turns
        self.times: dict[str, list[float]] = defaultdict(list)
        self.once, self.last = 0.0, time.process_time()
        schedule = Schedule(batch_size=64, optimizer="sgd", lr=0.05, max_epochs=1, patience=None, best_weights=False)
        machine, backbone = Machine(channels_last=True), make_backbone("resnet32")
        self.learner = Learner(backbone, method, schedule=schedule, machine=machine, on_progress=self.note)  # type: ignore[arg-type]

    def note(self, at: Progress) -> None:
        """An epoch is over."""
        now = time.process_time()
        if at.task > 0 and at.epoch.number > 1:
            self.times[at.phase].append(now - self.last)
        self.turns.pass_on(self)
        self.turns.wait(self)
        self.last = time.process_time()

    def learn(self, stream: Sequence[Task]) -> None:
        """Two phases; the first, which is not measured, has one epoch. `fisher` is all that is no training."""
        self.turns.wait(self)
        try:
            for task in stream:
                self.once = self.learner.learn(task).cpu_seconds["fisher"]
                self.learner.schedule = replace(self.learner.schedule, max_epochs=MEASURED)
        finally:
            self.turns.pass_on(self, over=True)

    def epoch(self, phase: str) -> float:
        """The best epoch of a training; 0 where there is none of it."""
        return min(self.times[phase], default=0.0)

    def phase(self, epochs: int) -> float:
        """A phase of so many epochs: of θ_e, where there is one, and of the strategy's own net."""
        return epochs * (self.epoch("theta_e") + self.epoch("train")) + self.once


def measure(images: int, epochs: int, methods: list[str]) -> None:
    """Print what each costs."""
    stream, turns = tasks(images), Turns()
    timed = {}
    for name in methods:
        timed[name] = Timed(METHODS[name](per_class=PER_CLASS), turns)
        with_afec = METHODS[name](per_class=PER_CLASS) + afec.AFEC(0.1, fisher="empirical")
        timed[f"{name}+afec"] = Timed(with_afec, turns)
    turns.line += timed.values()
    threads = [threading.Thread(target=one.learn, args=[stream]) for one in timed.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plain = timed["er"].epoch("train")  # the task's own loss over new images and exemplars: plain, over the same images
    print(f"a plain epoch of {4 * images + 4 * PER_CLASS} images, ResNet-32: {plain:.2f} s")
    for name in methods:
        alone, both = timed[name], timed[f"{name}+afec"]
        epoch = alone.epoch("train") / plain
        print(f"{name}: {epoch:.3f} × a plain epoch over the same images (goal: at most 1.35)")
        phase = both.phase(epochs) / alone.phase(epochs)
        print(f"{name}+afec: {phase:.2f} × {name}, a second phase of {epochs} epochs (goal: at most 2.1)")
        told = [f"{both.epoch(one) / plain:.2f} an epoch of {one}" for one in ("theta_e", "train")]
        told += [f"{both.once / plain:.2f} once", f"without AFEC {epoch:.2f} and {alone.once / plain:.2f}"]
        print(f"    in plain epochs: {', '.join(told)}")
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
