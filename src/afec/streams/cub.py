"""`cub200`: the 200 birds of CUB-200-2011 as ten tasks of 20 (paper, Sec. 4.2).

Where the text and the released code differ, `split` chooses the images to train on. `official`, the default: of each class the
first four fifths of its files by name (rounded up), as the released code has it. `paper`: the dataset's own list, 29 or 30
images of each class, "30 images per class for training while the rest for testing". The seed gives each class its task and its
number there, by NumPy's `RandomState(seed)` as in the released code. There are no validation images.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from afec.data.cache import open_images
from afec.data.cub import CLASSES, CUB, load_cub
from afec.data.root import DataError
from afec.naming import unknown
from afec.streams.classes import blocks, ordered
from afec.streams.images import Normalise
from afec.streams.photographs import Photographs, check_large, order_of_seed, stored_short
from afec.streams.task import Scenario, Stream

__all__ = ["cub200"]

COLOURS = Normalise((0.485, 0.500, 0.432), (0.232, 0.227, 0.266))


def cub200(
    seed: int,
    tasks: int | None = None,
    classes: int = 20,
    split: Literal["official", "paper"] = "official",
    size: int = 224,
    images: int | None = None,
    scenario: Scenario = "task",
    class_order: str = "seed",
    sizes: Sequence[int] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
) -> Stream:
    """The 200 classes of CUB-200-2011, 20 per task; a pure function of the files and of its arguments.

    Args:
        seed: which classes are together, their numbers, and the order of the tasks.
        tasks: how many tasks, from the first on; all where it is not said.
        classes: how many classes a task has; a divisor of 200.
        split: `official` (the released code: four fifths of each class) or `paper` (the dataset's own list).
        size: what a net is given, in pixels.
        images: at most so many images of each task to train on; test images shrink in the same proportion.
        scenario: `task`, or `class`: the task is not known when predicting.
        class_order: `seed`, `sorted`, `lucir-1993`, or the path of a list (`afec.streams.classes`).
        sizes: how many classes each task has, instead of `classes`. Classes may be left over.
        root: where the data are; see `afec.data.data_root`.
    """
    counts = check_large("cub200", tasks, classes, CLASSES, size, images, scenario, sizes)
    if split not in ("official", "paper"):
        raise ValueError(f"cub200 got split={split!r}: {unknown('split', str(split), ['official', 'paper'])}")
    data = load_cub(root)
    learn = data.for_training if split == "paper" else _four_fifths(data)
    _check_classes(data, learn)
    pixels = open_images("cub200", data.files, data.base, stored_short(size), root)
    names = tuple(name.partition(".")[2].replace("_", " ") for name in data.names)  # 012.Yellow_headed_Blackbird
    make = Photographs(pixels, data.labels, learn, size, COLOURS, seed, images, names)
    order = ordered("cub200", class_order, names, lambda: order_of_seed(CLASSES, seed), root)
    found = [make(f"birds {number}", block) for number, block in enumerate(blocks(order, counts), start=1)]
    return Stream("cub200", tuple(found), scenario)


def _four_fifths(data: CUB) -> Tensor:
    """Of each class the first ⌈0.8 n⌉ files by name: the files are in that order."""
    learn = torch.zeros(len(data.labels), dtype=torch.bool)
    for number in range(len(data.names)):
        rows = (data.labels == number).nonzero().flatten()
        learn[rows[: -(-4 * len(rows) // 5)]] = True
    return learn


def _check_classes(data: CUB, learn: Tensor) -> None:
    """Raise where a class has nothing to train on or nothing to test on."""
    for rows, what in ((data.labels[learn], "training"), (data.labels[~learn], "the test")):
        counts = torch.bincount(rows, minlength=len(data.names))
        if (counts == 0).any():
            number = int((counts == 0).nonzero()[0])
            total = int((data.labels == number).sum())
            raise DataError(
                f"the class {data.names[number]} has too few images: {total}, and none of them for {what}; it needs at "
                "least one to train on and one to test on. Get the dataset anew: `afec data get cub200 --again`"
            )
