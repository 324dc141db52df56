"""How much memory a guard takes, in copies of the weights: `python bench/memory.py`.

A net with large weights and small activations learns two tasks with Adam. Counted are live tensors, beyond those of the same
training without a guard: at rest (between two steps of the second task), and at the peaks of its entry, its steps and its exit.
The rest is what a block takes for as long as it lasts; entry and exit are short.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable

import torch
from torch import nn

import afec
from live_memory import Course, watched

WIDTH, LAYERS = 1024, 6

METHODS: dict[str, Callable[[], afec.Guard | None]] = {
    "no guard": lambda: None,
    "ewc": lambda: afec.EWC(100.0, fisher="empirical"),
    'ewc, store="bfloat16"': lambda: afec.EWC(100.0, fisher="empirical", store="bfloat16"),
    "ewc+afec": lambda: both(),
    'ewc+afec, expand_from="main"': lambda: both(expand_from="main"),
    'ewc+afec, store="bfloat16"': lambda: both("bfloat16"),
    'ewc+afec, store="bfloat16", expand_from="main"': lambda: both("bfloat16", expand_from="main"),
}


def both(store: str | None = None, **options: str) -> afec.Guard:
    ewc = afec.EWC(100.0, fisher="empirical", store=store)
    return ewc + afec.AFEC(1.0, epochs=3, fisher="empirical", store=store, **options)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def run(guard: afec.Guard | None, course: Course) -> None:
    model = net()
    optimizer, loss_fn = torch.optim.Adam(model.parameters(), 1e-4), nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(0)

    def steps(x: torch.Tensor, y: torch.Tensor) -> None:
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            loss_fn(model(x), y).backward()
            optimizer.step()

    for number in (1, 2):
        data = torch.randn(8, WIDTH, generator=generator), torch.randint(0, 10, (8,), generator=generator)
        course.mark(f"before {number}")
        task = None if guard is None else guard.begin(model, optimizer, data, loss_fn, progress=False, seed=0)
        course.mark(f"entered {number}")
        steps(*data)
        course.mark(f"learned {number}")
        if task is not None:
            task.end()
        del task
        course.mark(f"ended {number}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    copy = 4 * sum(weight.numel() for weight in net().parameters())
    print(f"copies of the weights ({copy / 4e6:.1f} M of them, float32) beyond training without a guard, second task")
    print(f"  {'':<48}{'at rest':>9}{'entry':>9}{'steps':>9}{'exit':>9}{'between tasks':>15}")
    plain = None
    for name, guard in METHODS.items():
        gc.collect()
        course = watched(lambda course, guard=guard: run(guard(), course))
        if plain is None:
            plain = course
        rest = plain.at("learned 2")
        found = [
            course.at("learned 2") - rest,
            course.peak("before 2", "entered 2") - rest,
            course.peak("entered 2", "learned 2") - plain.peak("entered 2", "learned 2"),
            course.peak("learned 2", "ended 2") - rest,
            course.at("ended 2") - rest,
        ]
        if course is plain:
            print(f"  {name:<48}{'weights, gradients and Adam: ' + format(rest / copy, '.2f')}")
            continue
        print(f"  {name:<48}" + "".join(f"{'+' + format(one / copy, '.2f'):>9}" for one in found[:-1]), end="")
        print(f"{'+' + format(found[-1] / copy, '.2f'):>15}")


if __name__ == "__main__":
    main()
