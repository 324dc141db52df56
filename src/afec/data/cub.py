"""CUB-200-2011 by its official file lists: which images there are, of which class, and which are for training.

CUB_200_2011/images.txt               1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
CUB_200_2011/image_class_labels.txt   1 1
CUB_200_2011/train_test_split.txt     1 0        (1: for training)
CUB_200_2011/classes.txt              1 001.Black_footed_Albatross
CUB_200_2011/images/…                 the images; any size
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from afec.data.labelled import LabelledFiles
from afec.data.root import DataError, data_root

__all__ = ["CUB", "FOLDER", "load_cub"]

FOLDER = "CUB_200_2011"
CLASSES = 200
Value = TypeVar("Value")
AGAIN = "`afec data check cub200` says more"


class CUB(LabelledFiles):
    """In the order of their names; `for_training` is the official split, 29 or 30 images of each class."""


def load_cub(root: str | os.PathLike[str] | None = None) -> CUB:
    """CUB-200-2011: 11,788 images of 200 kinds of birds. `root`: see `data_root`."""
    folder = data_root(root) / FOLDER
    if not folder.is_dir():
        raise DataError(
            f"CUB-200-2011 is not in the data directory {data_root(root)}.\nPut its folder {FOLDER}/ there, with images/ and "
            "the lists beside it; `afec data get cub200` downloads it; --data or AFEC_DATA names another data directory"
        )
    paths = _listed(folder / "images.txt", str)
    labels = _listed(folder / "image_class_labels.txt", int)
    official = _listed(folder / "train_test_split.txt", int)
    names = _listed(folder / "classes.txt", str)
    for name, found in (("image_class_labels.txt", labels), ("train_test_split.txt", official)):
        if found.keys() != paths.keys():
            raise DataError(
                f"{folder / name} is about {len(found)} images, and images.txt about {len(paths)}, not all the same; {AGAIN}"
            )
    if sorted(names) != list(range(1, CLASSES + 1)) or set(labels.values()) != set(names):
        raise DataError(
            f"{folder}: {len(names)} classes in classes.txt and {len(set(labels.values()))} in image_class_labels.txt; "
            f"expected the {CLASSES} that are numbered from 1; {AGAIN}"
        )
    if odd := [path for path in paths.values() if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path]:
        raise DataError(f"{folder / 'images.txt'} names {odd[0]!r}, which is not inside of images/; {AGAIN}")
    order = sorted(paths, key=lambda number: (labels[number], paths[number]))
    return CUB(
        folder / "images",
        tuple(folder / "images" / paths[number] for number in order),
        torch.tensor([labels[number] - 1 for number in order]),
        torch.tensor([official[number] == 1 for number in order]),
        tuple(names[number] for number in sorted(names)),
    )


def _listed(file: Path, read: Callable[[str], Value]) -> dict[int, Value]:
    """The lines of a list: a number, and what belongs to it."""
    found: dict[int, Value] = {}
    try:
        for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            number, _, rest = line.strip().partition(" ")
            try:
                found[int(number)] = read(rest)
            except ValueError:
                message = f"expected a number and what belongs to it; got {line[:60]!r}"
                raise DataError(f"{file}, line {place}: {message}; {AGAIN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}); get it anew: `afec data get cub200 --again`") from error
    return found
