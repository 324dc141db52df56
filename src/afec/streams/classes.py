"""Which classes come in which order, and how many a task has: options of every stream of classes.

A class order is `seed` (drawn by the seed of the run), `sorted` (by the numbers that the dataset gives its classes), an order
of the literature by its name, or the path of a text file with one class a line, by name or by number.

`icarl` is the order of iCaRL's CIFAR-100.

`lucir-1993` is what NumPy's generator with the seed 1993 shuffles 0, 1, … to: the order of LUCIR and of PODNet's ImageNet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from afec.data.root import DataError, data_root
from afec.naming import did_you_mean, unknown
from afec.streams.task import Scenario

__all__ = ["ORDERS", "blocks", "check_scenario", "check_sizes", "first_of_each", "ordered"]

ORDERS = ("seed", "sorted", "lucir-1993", "icarl")
# fmt: off
ICARL = (
    87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86, 84, 96, 18, 24, 32,
    45, 88, 11, 4, 67, 69, 66, 77, 47, 79, 93, 29, 50, 57, 83, 17, 81, 41, 12, 37, 59, 25, 20, 80, 73,
    1, 28, 6, 46, 62, 82, 53, 9, 31, 75, 38, 63, 33, 74, 27, 22, 36, 3, 16, 21, 60, 19, 70, 90, 89,
    43, 5, 42, 65, 76, 40, 30, 23, 85, 2, 95, 56, 48, 71, 64, 98, 13, 99, 7, 34, 55, 54, 26, 35, 39,
)
# fmt: on


def ordered(
    stream: str,
    class_order: str,
    names: Sequence[str],
    by_seed: Callable[[], list[int]],
    root: str | os.PathLike[str] | None = None,
) -> list[int]:
    """The numbers of all classes of a stream, in this order; `by_seed` draws the one of the seed."""
    if class_order == "seed":
        return by_seed()
    if class_order == "sorted":
        return list(range(len(names)))
    if class_order == "lucir-1993":
        return [int(number) for number in np.random.RandomState(1993).permutation(len(names))]
    if class_order == "icarl":
        if len(names) != len(ICARL):
            raise ValueError(f"{stream} has {len(names)} classes, and class_order='icarl' is of the 100 of CIFAR-100")
        return list(ICARL)
    file = Path(str(class_order)).expanduser()
    file = file if file.is_file() else data_root(root) / file
    if not file.is_file():
        raise ValueError(
            f"{stream} got class_order={class_order!r}: {unknown('class order', str(class_order), ORDERS)}, or the path of a "
            "text file with one class a line"
        )
    return _listed(file, names)


def _listed(file: Path, names: Sequence[str]) -> list[int]:
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the class order {file} cannot be read ({error}); give a text file, a class a line") from error
    known = {**{str(number): number for number in range(len(names))}, **{name: k for k, name in enumerate(names)}}
    order: list[int] = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        if line not in known:
            raise DataError(f"the class order {file} has {line!r}, which is no class here{did_you_mean(line, names)}")
        if known[line] in order:
            raise DataError(f"the class order {file} has {line!r} twice; each class comes once")
        order.append(known[line])
    if missing := [name for number, name in enumerate(names) if number not in order]:
        raise DataError(
            f"the class order {file} lacks {len(missing)} of {len(names)} classes, such as {missing[0]!r}; list all of them"
        )
    return order


def check_sizes(stream: str, sizes: Sequence[int], most: int, scenario: Scenario = "task") -> list[int]:
    """The number of classes of each task, or an error that says what is wrong with it."""
    least = 2 if scenario == "task" else 1
    if not sizes or not all(type(n) is int and n >= least for n in sizes) or sum(sizes) > most:
        raise ValueError(
            f"{stream} got sizes={list(sizes)}; it needs the number of classes of each task, at least {least} each and {most} "
            "in all at most"
        )
    return list(sizes)


def check_scenario(stream: str, scenario: str) -> None:
    """Raise for a scenario that is none."""
    if scenario not in get_args(Scenario):
        raise ValueError(
            f"{stream} got scenario={scenario!r}: {unknown('scenario', str(scenario), get_args(Scenario))}"
        )


def blocks(order: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The order, cut into tasks; classes may be left over."""
    return [list(order[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def first_of_each(rows: Tensor, labels: Tensor, most: int) -> Tensor:
    """The first `most` rows of each class, in their order; `labels` has the class of each row."""
    kept = torch.zeros(len(rows), dtype=torch.bool)
    for one in set(labels.tolist()):
        kept[(labels == one).nonzero().flatten()[:most]] = True
    return rows[kept]
