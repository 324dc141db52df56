"""What Prior and Recycle cost, and how much work a column of the paper's Table 2 is: `python bench/pay.py`.

The column is fine-tuning and four regularisers with and without AFEC, one seed, at fixed epochs. It is counted as trainings
and as passes over a task's data. Ours are counted from the run directories: a training that an earlier row has done is
recalled. The released code trains everything in every row, θ_e beside θ from the first task on, with an F_e pass in every
epoch; its evaluation of the training data after each epoch is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import afec
from afec.experiments.supervised import build
from afec.lab import study
from pull import net_and_batch, timed_steps

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


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(
        "goal: Prior at most 2 % of a step, Recycle at most 3 % of a task, a column at most a third of the released work"
    )
    prior("digits", count=20, rounds=60)
    prior("cifar", count=1, rounds=10)
    recycle(epochs=10, rounds=6)
    column()
