"""What the pull of EWC + AFEC costs, as a part of a training step: `python bench/pull.py`.

Steps with and without the guard alternate in one run, and the best of several rounds of each are compared: on a shared
machine only ratios of neighbours mean anything. CPU time, one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import afec
from afec.nets.cnn6 import CNN6
from afec.nets.small import DigitsBackbone


def net_and_batch(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    if name == "digits":
        return nn.Sequential(DigitsBackbone(), nn.Linear(32, 10)), torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
    model = nn.Sequential(CNN6(), nn.Linear(256, 5)).to(memory_format=torch.channels_last)
    return model, torch.randn(256, 3, 32, 32).to(memory_format=torch.channels_last), torch.randint(0, 5, (256,))


def timed_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: nn.Module, inputs: Tensor, targets: Tensor
) -> Callable[[int], float]:
    """A function that takes so many steps and says how many seconds of the processor one took."""

    def steps(count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
        return (time.process_time() - start) / count

    return steps


def stepper(name: str) -> tuple[Callable[[int], float], afec.Guard, Callable[[], None]]:
    """A function that times some steps, the guard, and one that opens the second task's block."""
    torch.manual_seed(0)
    model, inputs, targets = net_and_batch(name)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-4), nn.CrossEntropyLoss()
    guard = afec.EWC(100.0) + afec.AFEC(0.1, epochs=1)
    steps = timed_steps(model, optimizer, loss, inputs, targets)

    def begin() -> None:
        guard.begin(model, optimizer, (inputs[:32], targets[:32]), loss, progress=False)

    begin()
    steps(1)
    guard.task.end()
    return steps, guard, begin


def measure(name: str, count: int, rounds: int) -> float:
    """The relative cost: the smallest step time under the guard over the smallest without, less one."""
    plain, _, _ = stepper(name)
    guarded, guard, begin = stepper(name)
    begin()
    plain(count), guarded(count)
    times = [(plain(count), guarded(count)) for _ in range(rounds)]
    guard.task.abort()
    best = min(with_pull for _, with_pull in times) / min(without for without, _ in times) - 1
    median = statistics.median(with_pull / without for without, with_pull in times) - 1
    step = min(without for without, _ in times)
    print(f"pull of EWC+AFEC, {name:8} {100 * best:6.2f} % of a step of {1e3 * step:.3g} ms", end=" ")
    print(f"(median of pairs {100 * median:.2f} %)")
    return best


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(
        "goal: at most 3 % of a step of the CIFAR CNN at batch 256, at most 10 % of a step of the digits net at batch 32"
    )
    measure("digits", count=20, rounds=150)
    measure("cifar", count=1, rounds=12)
