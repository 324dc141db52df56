"""What Prior and Recycle cost, and how much work a column of the paper's Table 2 is: `python bench/pay.py`.

`python bench/pay.py --column` measures a column in CPU time as well, on CIFAR-100 (minutes).

The column is fine-tuning and four regularisers with and without AFEC, one seed, at fixed epochs. It is counted as trainings
and as passes over a task's data. Ours are counted from the run directories: a training that an earlier row has done is
recalled. The released code trains everything in every row, θ_e beside θ from the first task on, with an F_e pass in every
epoch; its evaluation of the training data after each epoch is not counted.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import afec
from afec.experiments.supervised import build
from afec.lab import study
from afec.nets.cnn6 import CNN6
from afec.streams import make_stream
from pull import net_and_batch, timed_steps

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "methods"))
from released_rule import Data, Released

REGULARISERS = ("ewc", "mas", "si", "rwalk")
ROWS = ("finetune", *REGULARISERS, *(f"{name}+afec" for name in REGULARISERS))
PASSES = {"finetune": 0, "ewc": 1, "mas": 1, "si": 0, "rwalk": 1}
"""Importance passes of the released code at the end of a task."""
EPOCHS = 8
IMAGES, BATCH = 2560, 64
"""Of the task that Recycle ends: about as many as one of CIFAR-100-SC has."""


def prior(name: str, count: int, rounds: int) -> float:
    """A step under Prior over a step without, less one: the smallest of each, measured in turns."""
    torch.manual_seed(0)
    model, inputs, targets = net_and_batch(name)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-4), nn.CrossEntropyLoss()
    guard = afec.Prior(0.1)
    guard.begin(model, optimizer, (inputs[:32], targets[:32]), loss, progress=False).end()
    steps = timed_steps(model, optimizer, loss, inputs, targets)
    times = []
    for _ in range(rounds):
        plain = steps(count)
        task = guard.begin(model, optimizer, (inputs[:32], targets[:32]), loss, progress=False)
        times.append((plain, steps(count)))
        task.abort()
    cost = min(one for _, one in times) / min(plain for plain, _ in times) - 1
    print(f"Prior, {name:8} {100 * cost:6.2f} % of a step")
    return cost


def recycle(epochs: int, rounds: int) -> float:
    """Entry and end of a task under Recycle, as a part of its epochs over the same images (the CIFAR CNN, `IMAGES` of them)."""
    torch.manual_seed(0)
    model, inputs, targets = net_and_batch("cifar")
    inputs, targets = (t.repeat(-(-IMAGES // len(t)), *[1] * (t.dim() - 1))[:IMAGES] for t in (inputs, targets))
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-4), nn.CrossEntropyLoss()
    ends, trained = [], []
    for _ in range(rounds):
        start = time.process_time()
        for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        trained.append(time.process_time() - start)
        start = time.process_time()
        with afec.Recycle().learning(model, optimizer, (inputs, targets), loss, batch_size=BATCH, progress=False):
            pass
        ends.append(time.process_time() - start)
    cost = min(ends) / (epochs * min(trained))
    print(f"Recycle, cifar  {100 * cost:6.2f} % of a task of {epochs} epochs, entry and exit together")
    return cost


def column() -> None:
    """Trainings and passes of the nine rows, ours and the released code's."""
    ours = [0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        fixed = [f"training.max_epochs={EPOCHS}", "training.patience=off", "training.lr_min=0"]
        found = study(["digits"], ROWS, [0], sets=fixed, root=Path(folder), workers=1)
        for outcome in found:
            assert outcome.directory is not None, outcome.error
            stream, _ = build(outcome.directory.config, 0)
            for task, data in zip(outcome.directory.tasks(), stream.tasks, strict=True):
                trainings = {"train": task["epochs"], "theta_e": task["epochs_theta_e"]}
                done = {name: epochs for name, epochs in trainings.items() if epochs and name not in task["recalled"]}
                spared = sum(epochs for name, epochs in trainings.items() if name in task["recalled"])
                ours[0] += len(done)
                ours[1] += task["samples"] / data.train.size - spared
        tasks = len(stream.tasks)
    theirs = [0, 0.0]
    for row in ROWS:
        base, _, more = row.partition("+")
        theirs[0] += tasks * (2 if more else 1)
        theirs[1] += tasks * (EPOCHS + PASSES[base] + (2 * EPOCHS if more else 0))
    print(f"a column of Table 2, {len(ROWS)} rows, {tasks} tasks of {EPOCHS} epochs:")
    print(f"  trainings: ours {ours[0]}, released {theirs[0]}: {theirs[0] / ours[0]:.2f} ×")
    print(f"  passes:    ours {ours[1]:.0f}, released {theirs[1]:.0f}: {theirs[1] / ours[1]:.2f} ×")


class Heads(nn.Module):
    """The paper's net with a head for each task, as the released rule wants it; all heads answer, and one counts."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.backbone, self.heads = CNN6(), nn.ModuleList(nn.Linear(256, 5) for _ in range(tasks))

    def forward(self, x: torch.Tensor, task: int) -> torch.Tensor:  # noqa: D102
        features = self.backbone(x)
        return [head(features) for head in self.heads][task]


def column_in_cpu_time(tasks: int = 5, epochs: int = 4, images: int = 40) -> None:
    """CPU seconds of the rows but RWALK's, ours by `afec run` and by the released update rule as a plain loop.

    The loop is that of the tests: images as PyTorch has them by default, the penalty through autograd, a new F_e in every
    epoch. What the released code evaluates besides validation is not in it. Both have `images` of each class and batches of 64.
    """
    rows = [row for row in ROWS if not row.startswith("rwalk")]
    options = {"tasks": tasks, "images_per_class": images}
    stream = make_stream("cifar100-sc", 0, **options)

    def normalised(split: afec.streams.Split, task: afec.streams.Task) -> tuple[torch.Tensor, torch.Tensor]:
        return task.prepare(split.inputs), split.targets

    data = [Data(*normalised(task.train, task), *normalised(task.validation, task)) for task in stream.tasks]
    theirs = time.process_time()
    for row in rows:
        torch.manual_seed(0)
        base, _, more = row.partition("+")
        rule = Released(
            "ewc" if base == "finetune" else base, 0.0 if base == "finetune" else 1.0, torch.randperm,
            forgetting=1.0 if more else 0.0, epochs=epochs, patience=5, lr=1e-3, batch=64,
        )  # fmt: skip
        rule.learn(Heads(tasks), data)
    theirs = time.process_time() - theirs
    before = _cpu()
    with tempfile.TemporaryDirectory() as folder:
        sets = [f"stream.tasks={tasks}", f"stream.images_per_class={images}", "training.batch_size=64"]
        sets += [f"training.max_epochs={epochs}", "training.patience=off"]
        found = study(["cifar100-sc"], rows, [0], sets=sets, root=Path(folder), workers=1)
        assert all(outcome.directory is not None for outcome in found), found
    ours = _cpu() - before
    print(f"a column without RWALK, {len(rows)} rows, {tasks} tasks of {epochs} epochs, CPU seconds:")
    print(f"  ours {ours:.0f}, the released rule {theirs:.0f}: {theirs / ours:.2f} ×")


def _cpu() -> float:
    """Of this process and of those that it has waited for."""
    times = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", action="store_true", help="only a column in CPU time, on CIFAR-100")
    torch.set_num_threads(1)
    if parser.parse_args().column:
        sys.exit(column_in_cpu_time())
    print(
        "goal: Prior at most 2 % of a step, Recycle at most 3 % of a task, a column at most a third of the released work"
    )
    prior("digits", count=20, rounds=60)
    prior("cifar", count=1, rounds=10)
    recycle(epochs=10, rounds=6)
    column()
