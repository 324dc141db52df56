"""CIFAR-100 and CIFAR-10 class by class, as the paper divides them (Sec. 4.2).

`cifar100-sc`: 20 tasks, the five classes of a superclass each. `cifar100`: 20 tasks of five classes. `cifar10-100`: the ten
classes of CIFAR-10 as two tasks, then the 20 of `cifar100`.

Where the text and the released code differ, `split` chooses. `official`, the default: classes go by their numbers (0–4, 5–9,
…), the two tasks of CIFAR-10 keep their order, and the seed decides on the order of the 20. `paper`: classes are divided at
random by the seed ("randomly split"). In both, the training images of a task are permuted by the seed, the same way for every
task, and the first tenth is for validation; the draws are those of the released code, NumPy's `RandomState(seed)`. The test
images are those of the dataset, so they are the same for every seed.

Images stay bytes; `Task.prepare` normalises a batch at a time. Nothing is augmented unless `augment` says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from afec.data import CIFAR, load_cifar10, load_cifar100
from afec.naming import unknown
from afec.streams.classes import blocks, check_scenario, check_sizes, first_of_each, ordered
from afec.streams.images import CropFlip, Normalise
from afec.streams.task import Scenario, Split, Stream, Task

__all__ = ["CIFAR10_COLOURS", "CIFAR100_COLOURS", "ClassSplit", "cifar10_100", "cifar100", "cifar100_sc"]

ClassSplit = Literal["official", "paper"]
Root = str | os.PathLike[str] | None

CIFAR10_COLOURS = Normalise((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255))
CIFAR100_COLOURS = Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def cifar100_sc(
    seed: int,
    tasks: int = 20,
    validation: float = 0.1,
    images: int | None = None,
    augment: bool = False,
    scenario: Scenario = "task",
    class_order: str = "seed",
    images_per_class: int | None = None,
    *,
    root: Root = None,
) -> Stream:
    """The 20 superclasses of CIFAR-100, five classes each; a pure function of the files and of its arguments.

    Args:
        seed: the order of the tasks, and which images are for validation.
        tasks: how many of the 20 tasks, from the first of the order on.
        validation: the part of a task's training images to tune on; 0: none, for a schedule that needs none.
        images: at most so many images of each task to train on; validation and test shrink in the same proportion.
        augment: random crops and mirror images in training.
        scenario: `task`, or `class`: the task is not known when predicting.
        class_order: of the superclasses, whose classes stay together: `seed`, `sorted`, `lucir-1993`, or the path of a list.
        images_per_class: at most so many images of each class to train on; those for validation shrink in the same proportion,
            those for the test stay.
        root: where the data are; see `afec.data.data_root`.
    """
    _check("cifar100-sc", tasks, 20, validation, images, scenario, images_per_class=images_per_class)
    data = load_cifar100(root)
    members = dict(zip(data.train_labels.tolist(), data.train_coarse.tolist(), strict=True))
    make = _Maker(data, CIFAR100_COLOURS, seed, validation, images, augment, most=images_per_class)
    order = ordered("cifar100-sc", class_order, data.coarse_names, lambda: _shuffled(20, seed), root)
    found = [
        make(data.coarse_names[coarse], sorted(c for c, k in members.items() if k == coarse))
        for coarse in order[:tasks]
    ]
    return Stream("cifar100-sc", tuple(found), scenario)


def cifar100(
    seed: int,
    tasks: int | None = None,
    classes: int = 5,
    split: ClassSplit = "official",
    validation: float = 0.1,
    images: int | None = None,
    augment: bool = False,
    scenario: Scenario = "task",
    class_order: str = "seed",
    sizes: Sequence[int] | None = None,
    images_per_class: int | None = None,
    *,
    root: Root = None,
) -> Stream:
    """The 100 classes of CIFAR-100, five per task; a pure function of the files and of its arguments.

    Args:
        seed: the order of the tasks, which images are for validation and, for the split `paper`, which classes are together.
        tasks: how many tasks, from the first of the order on; all where it is not said.
        classes: how many classes a task has; a divisor of 100.
        split: of the class order `seed`: `official` (tasks of classes by their numbers, in random order) or `paper` (classes at
            random).
        validation: the part of a task's training images to tune on; 0: none, for a schedule that needs none.
        images: at most so many images of each task to train on; validation and test shrink in the same proportion.
        augment: random crops and mirror images in training.
        scenario: `task`, or `class`: the task is not known when predicting.
        class_order: `seed`, `sorted`, `lucir-1993`, `icarl`, or the path of a list (`afec.streams.classes`).
        sizes: how many classes each task has, instead of `classes`, e.g. `[50, 10, 10, 10, 10, 10]`. Classes may be left over.
        images_per_class: at most so many images of each class to train on; those for validation shrink in the same proportion,
            those for the test stay.
        root: where the data are; see `afec.data.data_root`.
    """
    if not isinstance(classes, int) or not 2 <= classes <= 100 or 100 % classes:
        raise ValueError(
            f"cifar100 got classes={classes!r}; a task has 2, 4, 5, 10, 20, 25, 50 or all 100 of the classes"
        )
    counts = [classes] * (100 // classes) if sizes is None else check_sizes("cifar100", sizes, 100, scenario)
    _check("cifar100", tasks, len(counts), validation, images, scenario, split, images_per_class)
    if sizes is not None and class_order == "seed" and split == "official":
        raise ValueError(
            "cifar100 got sizes= with class_order='seed' and split='official', which shuffles tasks of one size; use "
            "split='paper', or another class order, such as 'lucir-1993'"
        )
    data = load_cifar100(root)
    make = _Maker(data, CIFAR100_COLOURS, seed, validation, images, augment, most=images_per_class)
    if class_order == "seed":
        found = _blocks(100, counts, seed, split)
    else:
        found = blocks(ordered("cifar100", class_order, data.names, list, root), counts)
    return Stream("cifar100", tuple(make(f"cifar100 {_listed(block)}", block) for block in found[:tasks]), scenario)


def cifar10_100(
    seed: int,
    tasks: int = 22,
    split: ClassSplit = "official",
    validation: float = 0.1,
    images: int | None = None,
    augment: bool = False,
    scenario: Scenario = "task",
    *,
    root: Root = None,
) -> Stream:
    """CIFAR-10 as two tasks of five classes, then the 20 tasks of `cifar100`; options as there.

    The first two tasks have ten times the images of the others. Each dataset is normalised by its own colours.
    The classes of CIFAR-100 have the numbers from 10 on.
    """
    _check("cifar10-100", tasks, 22, validation, images, scenario, split)
    first = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] if split == "official" else _blocks(10, [5, 5], seed, split)
    make = _Maker(load_cifar10(root), CIFAR10_COLOURS, seed, validation, images, augment)
    found = [make(f"cifar10 {_listed(block)}", block) for block in first[:tasks]]
    if tasks > 2:
        del make  # and with it CIFAR-10: one dataset at a time is in memory as a whole
        make = _Maker(load_cifar100(root), CIFAR100_COLOURS, seed, validation, images, augment, first=10)
        found += [
            make(f"cifar100 {_listed(block)}", block) for block in _blocks(100, [5] * 20, seed, split)[: tasks - 2]
        ]
    return Stream("cifar10-100", tuple(found), scenario)


@dataclass(frozen=True)
class _Maker:
    """Makes tasks of a dataset."""

    data: CIFAR
    colours: Normalise
    seed: int
    validation: float
    images: int | None
    augment: bool
    first: int = 0
    """The number of the dataset's first class in the whole stream."""
    most: int | None = None
    """At most so many images of a class to train on."""

    def __call__(self, name: str, classes: Sequence[int]) -> Task:
        """The task of these classes, which are numbered from 0 in the order given."""
        numbers = torch.full((len(self.data.names),), -1)
        numbers[torch.tensor(classes)] = torch.arange(len(classes))
        learn, test = (
            (numbers[labels] >= 0).nonzero().flatten() for labels in (self.data.train_labels, self.data.test_labels)
        )
        learn = learn[torch.tensor(_shuffled(len(learn), self.seed))]
        tuning = max(1, round(self.validation * len(learn))) if self.validation else 0
        rows = [learn[tuning:], learn[:tuning], test]
        if len(rows[0]) == 0:
            raise ValueError(f"validation={self.validation} leaves none of {len(learn)} images to train on; lower it")
        if self.images is not None and self.images < len(rows[0]):
            part = self.images / len(rows[0])
            rows = [these[: max(1, round(part * len(these)))] for these in rows]  # of no validation images none
        if self.most is not None:
            labels, every = self.data.train_labels, max(1, len(rows[0]))
            shares = [self.most, -(-self.most * len(rows[1]) // every)]
            rows[:2] = [first_of_each(these, labels[these], most) for these, most in zip(rows[:2], shares, strict=True)]
        train, validation = (
            Split(self.data.train_images[these], numbers[self.data.train_labels[these]]) if len(these) else None
            for these in rows[:2]
        )
        assert train is not None, "seen to above"
        exam = Split(self.data.test_images[rows[2]], numbers[self.data.test_labels[rows[2]]])
        return Task(
            name, train, validation, exam, outputs=len(classes), loss="cross_entropy", prepare=self.colours,
            augment=CropFlip() if self.augment else None, class_names=tuple(self.data.names[k] for k in classes),
            classes=tuple(self.first + k for k in classes),
        )  # fmt: skip


def _shuffled(count: int, seed: int) -> list[int]:
    """0 … count − 1 in the order of the released code."""
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    return [int(number) for number in order]


def _blocks(count: int, sizes: Sequence[int], seed: int, split: ClassSplit) -> list[list[int]]:
    """The classes of each task, in the order of the tasks, by the seed."""
    if split == "official":  # all of one size
        by_number = blocks(range(count), sizes)
        return [by_number[k] for k in _shuffled(len(sizes), seed)]
    return [sorted(block) for block in blocks(_shuffled(count, seed), sizes)]


def _listed(classes: Sequence[int]) -> str:
    return " ".join(map(str, classes))


def _check(
    stream: str,
    tasks: int | None,
    most: int,
    validation: float,
    images: int | None,
    scenario: str,
    split: str = "official",
    images_per_class: int | None = None,
) -> None:
    check_scenario(stream, scenario)
    if tasks is not None and (not isinstance(tasks, int) or not 1 <= tasks <= most):
        raise ValueError(f"{stream} got tasks={tasks!r}; it has {most} tasks, so give a number from 1 to {most}")
    if not 0 <= validation < 1:
        raise ValueError(
            f"{stream} got validation={validation}; it is a part of the images, above 0 and below 1, or 0 for none"
        )
    if images is not None and (not isinstance(images, int) or images < 1):
        raise ValueError(
            f"{stream} got images={images!r}; give how many images of a task to train on at most, from 1 on"
        )
    if images_per_class is not None and (not isinstance(images_per_class, int) or images_per_class < 1):
        raise ValueError(
            f"{stream} got images_per_class={images_per_class!r}; give how many of each class to train on at most, from 1 on"
        )
    if split not in ("official", "paper"):
        raise ValueError(f"{stream} got split={split!r}: {unknown('split', str(split), ['official', 'paper'])}")
