"""A dataset as ImageNet lies: `PATH/train/<class>/<image>` and `PATH/val/<class>/<image>`, the same classes in both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from afec.data.folder import SUFFIXES
from afec.data.labelled import LabelledFiles
from afec.data.root import DataError, data_root
from afec.naming import did_you_mean

__all__ = ["ImageFolder", "class_names", "open_image_folder", "place_of", "read_class_list"]

PARTS = ("train", "val")


class ImageFolder(LabelledFiles):
    """The chosen classes, one after the other, `train` before `val`."""


def class_names(path: Path) -> list[str]:
    """The classes under `path`, by name; both parts must have them."""
    parts = {}
    for part in PARTS:
        if not (path / part).is_dir():
            raise DataError(
                f"there is no folder {path / part}; expected {path.name}/train/<class>/<image> and the same in val/"
            )
        parts[part] = {
            entry.name for entry in os.scandir(path / part) if entry.is_dir() and not entry.name.startswith(".")
        }
    if odd := sorted(parts["train"] ^ parts["val"]):
        where = "train" if odd[0] in parts["train"] else "val"
        raise DataError(f"{path}: the class {odd[0]} is in {where} only ({len(odd)} such in all); each must be in both")
    if not parts["train"]:
        raise DataError(f"{path / 'train'} has no folders; expected one for each class")
    return sorted(parts["train"])


def read_class_list(file: Path, known: Sequence[str], where: Path) -> list[str]:
    """The names in a list file, one a line (what follows the first word is a comment), each a class under `where`."""
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the list of classes {file} cannot be read ({error}); give a text file, a class a line"
        ) from error
    names = [words[0] for words in lines if words and not words[0].startswith("#")]
    if not names:
        raise DataError(f"the list of classes {file} names none; write the name of a class into each line")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"the list of classes {file} names {twice} twice")
    for name in names:
        if name not in known:
            raise DataError(
                f"the list of classes {file} names {name}, which {where} has not{did_you_mean(name, known)}"
            )
    return names


def open_image_folder(path: Path, names: Sequence[str]) -> ImageFolder:
    """The images of these classes, in this order."""
    files: list[Path] = []
    labels, for_training = [], []
    for number, name in enumerate(names):
        for part in PARTS:
            folder = path / part / name
            found = sorted(entry.name for entry in os.scandir(folder) if Path(entry.name).suffix.lower() in SUFFIXES)
            if not found:
                raise DataError(f"the class {folder} has no images ({', '.join(sorted(SUFFIXES))}); fill it")
            files += [folder / file for file in found]
            labels += [number] * len(found)
            for_training += [part == "train"] * len(found)
    return ImageFolder(path, tuple(files), torch.tensor(labels), torch.tensor(for_training), tuple(names))


def place_of(path: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The folder: as given where it is there, else in the data directory."""
    given = Path(path).expanduser()
    return given if given.is_absolute() or (root is None and given.is_dir()) else data_root(root) / given
