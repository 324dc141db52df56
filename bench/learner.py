"""What our learner costs beside a hand-written channels_last loop on the CIFAR CNN: `python bench/learner.py`.

Epochs of both alternate in one run, and the best of several rounds of each are compared: on a shared machine only ratios of
neighbours mean anything. `--pair`: two seeds in two processes beside two bare loops in two processes, by wall time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from afec.learner import Fit, Machine, Schedule, StoppedError
from afec.learner.tasks import Batches, BatchLoss, stored
from afec.nets import MultiHead, make_backbone
from afec.streams import Split

IMAGES, BATCH = 1024, 256


def images(count: int) -> Split:
    return Split(torch.randn(count, 3, 32, 32), torch.randint(0, 5, (count,)))


def bare_loop(data: Split) -> Callable[[], None]:
    """One epoch of the loop that one would write by hand."""
    model = nn.Sequential(make_backbone("cnn6"), nn.Linear(256, 5)).to(memory_format=torch.channels_last)
    optimizer, criterion = torch.optim.Adam(model.parameters(), 1e-3, fused=True), nn.CrossEntropyLoss()
    inputs, targets = data.inputs.contiguous(memory_format=torch.channels_last), data.targets

    def epoch() -> None:
        model.train()
        for rows in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            criterion(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()

    return epoch


def our_loop(data: Split) -> Callable[[], None]:
    """One epoch of the learner's."""
    machine = Machine(channels_last=True)
    net = machine.placed(MultiHead(make_backbone("cnn6"), [5]))
    batches = Batches(stored(data, machine))
    schedule = Schedule(batch_size=BATCH, max_epochs=10**6, patience=None, best_weights=False)
    fit = Fit(net, batches, None, BatchLoss(0, "cross_entropy", machine), schedule, 0, machine)

    def epoch() -> None:
        with suppress(StoppedError):
            fit.run(stop=SimpleNamespace(asked=True))  # it goes on where it was, and stops after each epoch

    return epoch


def timed(epoch: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    epoch()
    return clock() - start


def alone(rounds: int) -> float:
    """The learner's epoch over the bare loop's, in CPU time."""
    data = images(IMAGES)
    bare, ours = bare_loop(data), our_loop(data)
    bare(), ours()
    times = [(timed(bare, time.process_time), timed(ours, time.process_time)) for _ in range(rounds)]
    return min(pair[1] for pair in times) / min(pair[0] for pair in times)


def one_of_two(barrier: Any, answers: Any, rounds: int) -> None:
    torch.set_num_threads(1)
    data = images(IMAGES)
    bare, ours = bare_loop(data), our_loop(data)
    bare(), ours()
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for which, epoch in enumerate((bare, ours)):
            barrier.wait()
            times[which].append(timed(epoch, time.perf_counter))
    answers.put(times)


def pair(rounds: int) -> float:
    """Two of ours side by side over two bare loops side by side, in wall time; a round lasts as long as its slower one."""
    context = get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    workers = [context.Process(target=one_of_two, args=(barrier, answers, rounds)) for _ in range(2)]
    for worker in workers:
        worker.start()
    one, other = answers.get(), answers.get()
    for worker in workers:
        worker.join()
    both = [min(max(a, b) for a, b in zip(one[which], other[which], strict=True)) for which in (0, 1)]
    return both[1] / both[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="store_true", help="two processes beside two bare loops")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.pair:
        print(f"two seeds on two cores: {pair(options.rounds):.3f} × two bare loops side by side (goal: at most 1.1)")
    else:
        print(f"an epoch of the learner: {alone(options.rounds):.3f} × a hand-written loop's (goal: at most 1.05)")
