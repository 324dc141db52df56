"""Your own images, in folders: what is there, and whether it can be learned from.

    PATH/<task>/<train|test>/<class>/<image>      you say what is for the test
    PATH/<task>/<class>/<image>                   nobody does: the stream divides it

Both forms may stand side by side. Hidden files and files that do not end like an image (`SUFFIXES`) are passed over and
counted. Everything else that does not fit is an error that names the folder: a task with fewer than two classes, a class
without images, a class that is in `train` and not in `test` or the other way round, images or folders where none belong.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from afec.data.decode import converted, opened
from afec.data.root import DataError

__all__ = ["SUFFIXES", "FolderTask", "Images", "find_tasks", "read_images"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SPLITS = {"train", "test"}
GREY = {"1", "L", "LA", "I", "I;16", "F"}


@dataclass(frozen=True)
class FolderTask:
    """One task: the files of each class, by name, in the order of their names."""

    name: str
    classes: tuple[str, ...]
    train: Mapping[str, Sequence[Path]]
    test: Mapping[str, Sequence[Path]] | None
    """None where the folder does not say."""
    passed_over: int
    """Files that are no images by their names."""


@dataclass(frozen=True)
class Images:
    """What was read: bytes of shape (images, channels, height, width), one row for each good file."""

    pixels: Tensor
    good: tuple[bool, ...]
    """For each file that was asked for, whether it could be read; others are left out of `pixels`."""
    bad: tuple[str, ...]
    """What is wrong with each bad file, with its path."""


def find_tasks(path: Path) -> list[FolderTask]:
    """The tasks under `path`, by name; no image is opened yet."""
    if not path.is_dir():
        raise DataError(f"there is no folder {path.absolute()}; give one with a folder for each task")
    tasks = [_task(folder) for folder in _folders(path, "a folder for each task")[0]]
    if not tasks:
        raise DataError(
            f"{path} has no folders; expected PATH/<task>/<class>/<image> or PATH/<task>/<train|test>/<class>/<image>"
        )
    return tasks


def _task(folder: Path) -> FolderTask:
    inside, passed = _folders(folder, "a folder for each class, or train and test")
    names = {part.name for part in inside}
    if not names >= SPLITS:
        found, more = _classes(folder, inside)
        return _checked(folder, found, None, passed + more)
    if names != SPLITS:
        others = ", ".join(sorted(names - SPLITS))
        raise DataError(
            f"{folder} has train and test, and {others} beside them; move that away, or into train and test"
        )
    parts = {}
    for part in sorted(SPLITS):
        below, more = _folders(folder / part, "a folder for each class")
        parts[part], most = _classes(folder / part, below)
        passed += more + most
    if odd := parts["train"].keys() ^ parts["test"].keys():
        where = [f"{name} is in {'train' if name in parts['train'] else 'test'} only" for name in sorted(odd)]
        raise DataError(f"{folder}: {'; '.join(where)}. Each class must be in both")
    return _checked(folder, parts["train"], parts["test"], passed)


def _checked(folder: Path, train: dict[str, list[Path]], test: dict[str, list[Path]] | None, passed: int) -> FolderTask:
    if len(train) < 2:
        hint = ""
        if train.keys() & SPLITS:
            hint = f" ({next(iter(train))} is taken for a class, since there is no {'/'.join(SPLITS - train.keys())} beside it)"
        raise DataError(f"{folder} has {len(train)} class{'es' if not train else ''}{hint}; a task needs at least two")
    return FolderTask(folder.name, tuple(train), train, test, passed)


def _classes(folder: Path, inside: list[Path]) -> tuple[dict[str, list[Path]], int]:
    """The images of each class."""
    found, passed = {}, 0
    for part in inside:
        entries = _visible(part)
        if nested := [entry for entry in entries if entry.is_dir()]:
            raise DataError(f"{part} is a class, and has the folder {nested[0].name} in it; images lie in it directly")
        found[part.name] = [entry for entry in entries if entry.suffix.lower() in SUFFIXES]
        passed += len(entries) - len(found[part.name])
        if not found[part.name]:
            raise DataError(f"the class {part} has no images ({', '.join(sorted(SUFFIXES))}); fill it or take it away")
    return found, passed


def _folders(folder: Path, expected: str) -> tuple[list[Path], int]:
    """The folders in a folder, and how many other things there are; images have no place there."""
    entries = _visible(folder)
    if images := [entry for entry in entries if entry.is_file() and entry.suffix.lower() in SUFFIXES]:
        raise DataError(
            f"{folder} has images in it ({images[0].name}, {len(images)} in all), and should have {expected}"
        )
    folders = [entry for entry in entries if entry.is_dir()]
    return folders, len(entries) - len(folders)


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def read_images(files: Sequence[Path], mode: str | None, size: int | None) -> Images:
    """The images as one tensor.

    Args:
        files: which.
        mode: `grey` or `rgb`, into which all are turned; None: they must be all grey or all colour.
        size: all become size × size pixels: scaled so that the short side fits, the middle cut out. None: they must all have
            one size, and are left as they are.

    Transparency is dropped, and a photograph is turned as its camera says.
    """
    arrays: list[np.ndarray] = []
    good, bad = [], []
    kinds: dict[str, Path] = {}
    sizes: dict[tuple[int, int], Path] = {}
    for file in files:
        try:
            with warnings.catch_warnings(action="ignore"):  # Pillow's do not say which file they are about
                image = opened(file)
                kind = "grey" if image.mode in GREY else "rgb"
                kinds.setdefault(kind, file)
                sizes.setdefault(image.size, file)
                arrays.append(_array(image, mode or kind, size) if size or len(sizes) == 1 else np.empty(0))
        except Exception as error:
            bad.append(f"{file}: {error or type(error).__name__}")
            good.append(False)
        else:
            good.append(True)
    if mode is None and len(kinds) > 1:
        raise DataError(
            f'{kinds["grey"]} is grey and {kinds["rgb"]} is in colour; say what all shall be: mode = "grey" or mode = "rgb"'
        )
    if size is None and len(sizes) > 1:
        seen = ", ".join(f"{w}×{h} ({file})" for (w, h), file in list(sizes.items())[:3])
        raise DataError(
            f"images of {len(sizes)} sizes: {seen}; give size = …, and all become squares of so many pixels"
        )
    return Images(torch.from_numpy(np.stack(arrays)) if arrays else torch.empty(0), tuple(good), tuple(bad))


def _array(image: Image.Image, mode: str, size: int | None) -> np.ndarray:
    """Bytes of shape (channels, height, width)."""
    image = converted(image, "L" if mode == "grey" else "RGB")
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
