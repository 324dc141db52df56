"""What Prior and Recycle cost, and how much work a column of the paper's Table 2 is: `python bench/pay.py`.

The column is fine-tuning and four regularisers with and without AFEC, one seed, at fixed epochs. It is counted as trainings
and as passes over a task's data. Ours are counted from the run directories: a training that an earlier row has done is
recalled. The released code trains everything in every row, θ_e beside θ from the first task on, with an F_e pass in every
epoch; its evaluation of the training data after each epoch is not counted. `bench/column.py` measures a column in CPU time.
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
IMAGES, BATCH = 2240, 64
"""Of the task that Recycle ends: about as many as one of CIFAR-100-SC has."""


def prior(name: str, count: int, rounds: int) -> None:
    """A step under Prior over a step without, less one, and the part that any guard has: in turns, the quick ones of each."""
    torch.manual_seed(0)
    model, inputs, targets = net_and_batch(name)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-4), nn.CrossEntropyLoss()
    data = inputs[:32], targets[:32]
    steps, times = timed_steps(model, optimizer, loss, inputs, targets), ([], [], [])
    idle, guard = afec.Prior(0.1), afec.Prior(0.1)  # in its first task Prior does nothing: the guard only watches
    guard.begin(model, optimizer, data, loss, progress=False).end()
    for _ in range(rounds):
        for one, found in zip((None, idle, guard), times, strict=True):
            task = one and one.begin(model, optimizer, data, loss, progress=False)
            steps(1)
            found += [steps(1) for _ in range(count)]
            if task:
                task.abort()
    # On a shared machine no single step is typical, not even the quickest: one in twenty is quicker than these.
    plain, watched, pulled = (sorted(found)[len(found) // 20] for found in times)
    print(
        f"Prior, {name:8} {100 * (pulled / plain - 1):6.2f} % of a step of {1e3 * plain:.3g} ms; "
        f"{100 * (watched / plain - 1):.2f} % of it a guard that does nothing"
    )


def recycle(rounds: int) -> None:
    """Entry and end of a task under Recycle, as a part of its epochs over the same images (the CIFAR CNN, `IMAGES` of them).

    One unit is dead, so that the pass goes to its end. What entry and end of any guard take is apart.
    """
    torch.manual_seed(0)
    model, inputs, targets = net_and_batch("cifar")
    inputs, targets = (t.repeat(-(-IMAGES // len(t)), *[1] * (t.dim() - 1))[:IMAGES] for t in (inputs, targets))
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-4), nn.CrossEntropyLoss()

    def epoch() -> None:
        for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

    def block(guard: afec.guard.Guard) -> None:
        with torch.no_grad():
            model.get_submodule("0.hidden.1").bias[0] = -100.0
        with guard.learning(model, optimizer, (inputs, targets), loss, batch_size=BATCH, progress=False):
            pass

    runs = {
        "epoch": epoch,
        "guard": lambda: block(afec.Prior(0.1)),  # does nothing in its first task
        "last": lambda: block(afec.Recycle()),
        "all": lambda: block(afec.Recycle("all")),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    for layers in ("last", "all"):
        own, whole = ((best[layers] - less) / best["epoch"] for less in (best["guard"], 0.0))
        parts = ", ".join(f"{100 * own / epochs:.2f} % of {epochs}" for epochs in (10, 20, 50, 100))
        print(f"Recycle, {layers}: {own:.3f} of an epoch (with what any guard takes {whole:.3f}): {parts} epochs")


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
    prior("digits", count=25, rounds=150)
    prior("cifar", count=2, rounds=10)
    recycle(rounds=6)
    column()
