"""Which classes come in which order, and how many a task has: options of every stream of classes.

A class order is `seed` (drawn by the seed of the run), `sorted` (by the numbers that the dataset gives its classes), an order
of the literature by its name, or the path of a text file with one class a line, by name or by number.

`lucir-1993` is what NumPy's generator with the seed 1993 shuffles 0, 1, … to: the order of LUCIR and of PODNet's ImageNet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import get_args

import numpy as np

from afec.data.root import DataError, data_root
from afec.naming import did_you_mean, unknown
from afec.streams.task import Scenario

__all__ = ["ORDERS", "blocks", "check_scenario", "check_sizes", "ordered"]

ORDERS = ("seed", "sorted", "lucir-1993")


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
