"""CIFAR-10 and CIFAR-100 from their official files: 32×32 colour images as one uint8 tensor each for training and test.

Both versions are read, in their folders or in the archives they come in, whichever is found first under the data root:

    CIFAR-10    cifar-10-batches-py/  cifar-10-batches-bin/  cifar-10-python.tar.gz  cifar-10-binary.tar.gz
    CIFAR-100   cifar-100-python/     cifar-100-binary/      cifar-100-python.tar.gz cifar-100-binary.tar.gz

Images are in the order of the files, which is the same in both versions. Nothing is kept here after a call: reading takes
less than the second that a cache would save, and a cache would hold 180 MB for as long as the process lives.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from afec.data.pickles import load_plain
from afec.data.root import DataError, data_root

__all__ = ["CIFAR", "load_cifar10", "load_cifar100"]

MOST_BYTES = 1 << 28  # of one file; the largest official one has 155 MB
PIXELS = 3 * 32 * 32


@dataclass(frozen=True, repr=False)
class CIFAR:
    """All images, uint8 of shape (images, 3, 32, 32), and their labels, int64, in the order of the files.

    Labels are the classes (of CIFAR-100: the fine ones). `train_coarse`, `test_coarse` and `coarse_names` are the 20
    superclasses of CIFAR-100, and empty for CIFAR-10.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    names: tuple[str, ...]
    train_coarse: Tensor
    test_coarse: Tensor
    coarse_names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"CIFAR({len(self.names)} classes, {len(self.train_labels)} images to train, {len(self.test_labels)} to test)"


@dataclass(frozen=True)
class _Part:
    """What one file has: images and one column of labels, or two (coarse, fine)."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class _Kind:
    """One version of one of the two datasets."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    names: tuple[str, ...]
    """The file or files with the names of the classes, the coarse ones first."""
    pickled: bool


_CIFAR10 = (
    _Kind(
        "cifar-10-batches-py", "cifar-10-python.tar.gz",
        tuple(f"data_batch_{k}" for k in range(1, 6)), "test_batch", ("batches.meta",), pickled=True,
    ),
    _Kind(
        "cifar-10-batches-bin", "cifar-10-binary.tar.gz",
        tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin", ("batches.meta.txt",), pickled=False,
    ),
)  # fmt: skip
_CIFAR100 = (
    _Kind("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", ("meta",), pickled=True),
    _Kind(
        "cifar-100-binary", "cifar-100-binary.tar.gz",
        ("train.bin",), "test.bin", ("coarse_label_names.txt", "fine_label_names.txt"), pickled=False,
    ),
)  # fmt: skip


def load_cifar10(root: str | os.PathLike[str] | None = None) -> CIFAR:
    """CIFAR-10: 50,000 images to train on and 10,000 to test on, ten classes. `root`: see `data_root`."""
    return _load("CIFAR-10", "cifar10", _CIFAR10, (10,), data_root(root))


def load_cifar100(root: str | os.PathLike[str] | None = None) -> CIFAR:
    """CIFAR-100: 50,000 images to train on and 10,000 to test on, 100 classes in 20 superclasses. `root`: see `data_root`."""
    data = _load("CIFAR-100", "cifar100", _CIFAR100, (20, 100), data_root(root))
    pairs = set(zip(data.train_labels.tolist(), data.train_coarse.tolist(), strict=True))
    if len(pairs) != 100:
        raise DataError(
            f"CIFAR-100 under {data_root(root)}: {len(pairs)} pairs of a class and its superclass, where 100 were "
            "expected: a class has one superclass. The files are damaged; `afec data check cifar100` says which"
        )
    return data


def _load(title: str, name: str, kinds: tuple[_Kind, ...], classes: tuple[int, ...], root: Path) -> CIFAR:
    kind, source = _find(title, name, kinds, root)
    parts: dict[str, _Part] = {}
    texts: dict[str, list[tuple[str, ...]]] = {}
    where = f"{source}"
    try:
        for file, stream, size in _opened(kind, source):
            where = f"{source / file}" if source.is_dir() else f"{source}, {file}"
            if size > MOST_BYTES:
                raise _FormError(f"{size:,} bytes, expected at most {MOST_BYTES:,}")
            if file in kind.names:
                texts[file] = _read_names(stream, kind.pickled, len(classes))
            else:
                parts[file] = (_read_pickle if kind.pickled else _read_records)(stream, size, len(classes))
                _check_labels(parts[file].labels, classes)
    except Exception as error:  # a damaged archive makes tarfile raise nearly anything
        raise DataError(
            f"{where}: {error or type(error).__name__}. It is damaged or another file; `afec data check {name}` says more"
        ) from error
    if missing := [file for file in (*kind.train, kind.test, *kind.names) if file not in parts and file not in texts]:
        raise DataError(f"{source} lacks {', '.join(missing)}; get it anew: `afec data get {name}`")
    names = [column for file in kind.names for column in texts[file]]
    for column, expected in zip(names, classes, strict=True):
        if len(column) != expected:
            raise DataError(f"{source}: {len(column)} names of classes, expected {expected}; `afec data check {name}`")
    train = _together([parts.pop(file) for file in kind.train], f"{title} in {source}, training", name)
    test = _together([parts.pop(kind.test)], f"{title} in {source}, test", name)
    none = torch.empty(0, dtype=torch.long)
    coarse = len(classes) == 2
    return CIFAR(
        train[0], train[1][:, -1].contiguous(), test[0], test[1][:, -1].contiguous(), names[-1],
        train[1][:, 0].contiguous() if coarse else none, test[1][:, 0].contiguous() if coarse else none,
        names[0] if coarse else (),
    )  # fmt: skip


def _find(title: str, name: str, kinds: tuple[_Kind, ...], root: Path) -> tuple[_Kind, Path]:
    """The first version whose folder has all its files or whose archive is there, and that folder or archive."""
    lacking = []
    for kind in kinds:
        folder = root / kind.folder
        missing = [file for file in (*kind.train, kind.test, *kind.names) if not (folder / file).is_file()]
        if not missing:
            return kind, folder
        if folder.is_dir():
            lacking.append(f"{folder} is there, but lacks {', '.join(missing)}.\n")
    for kind in kinds:
        if (root / kind.archive).is_file():
            return kind, root / kind.archive
    wanted = "\n".join(f"  {root / kind.archive}  or the folder  {kind.folder}/  from it" for kind in kinds)
    raise DataError(
        f"{title} is not in the data directory {root}.\n{''.join(lacking)}Put one of these there:\n{wanted}\n"
        f"`afec data get {name}` downloads it; --data or AFEC_DATA names another data directory"
    )


def _opened(kind: _Kind, source: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    """The files of a folder or of an archive that are wanted: name, open file, size in bytes."""
    wanted = (*kind.train, kind.test, *kind.names)
    if source.is_dir():
        for file in wanted:
            with (source / file).open("rb") as stream:
                yield file, stream, (source / file).stat().st_size
        return
    # One pass, in the order of the archive; nothing is extracted.
    with tarfile.open(source, "r|gz", bufsize=1 << 20) as archive:
        for member in archive:
            folder, _, file = member.name.removeprefix("./").partition("/")
            if folder == kind.folder and file in wanted and member.isreg():
                content = archive.extractfile(member)
                assert content is not None  # it is a regular file
                yield file, content, member.size


class _FormError(Exception):
    """What is wrong with the content of a file."""


def _read_records(stream: IO[bytes], size: int, columns: int) -> _Part:
    """A file of the binary version: records of one or two labels and 3,072 bytes of image."""
    record = columns + PIXELS
    if size == 0 or size % record:
        raise _FormError(f"{size:,} bytes, expected a multiple of {record:,}, the size of one image with its labels")
    content = np.frombuffer(stream.read(size), np.uint8)
    if len(content) != size:
        raise _FormError(f"{len(content):,} bytes, expected {size:,}")
    rows = content.reshape(-1, record)
    return _Part(rows[:, columns:], rows[:, :columns])


def _read_pickle(stream: IO[bytes], _size: int, columns: int) -> _Part:
    """A file of the Python version: a pickled dict with the images and lists of labels."""
    content = load_plain(stream)
    keys = (b"labels",) if columns == 1 else (b"coarse_labels", b"fine_labels")
    missing = [key.decode() for key in (b"data", *keys) if not isinstance(content, dict) or key not in content]
    if missing:
        raise _FormError(f"it has no {' and no '.join(missing)}")
    images = content[b"data"]
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
        raise _FormError(f"its data are {_message(images)}, expected an array of shape (images, {PIXELS})")
    lists = [content[key] for key in keys]
    for key, labels in zip(keys, lists, strict=True):
        if not isinstance(labels, list) or len(labels) != len(images) or not all(type(k) is int for k in labels):
            raise _FormError(
                f"its {key.decode()} are {_message(labels)}, expected a list of {len(images)} class numbers"
            )
    return _Part(images, np.array(lists).T)


def _read_names(stream: IO[bytes], pickled: bool, columns: int) -> list[tuple[str, ...]]:
    if not pickled:
        return [tuple(stream.read().decode(errors="replace").split())]
    content = load_plain(stream)
    keys = (b"label_names",) if columns == 1 else (b"coarse_label_names", b"fine_label_names")
    found = []
    for key in keys:
        names = content.get(key) if isinstance(content, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
            raise _FormError(f"its {key.decode()} are {_message(names)}, expected a list of names")
        found.append(tuple(name.decode(errors="replace") for name in names))
    return found


def _check_labels(labels: np.ndarray, classes: tuple[int, ...]) -> None:
    for column, count in zip(labels.T, classes, strict=True):
        if column.min() < 0 or column.max() >= count:
            raise _FormError(f"it has labels from {column.min()} to {column.max()}, expected 0 to {count - 1}")


def _together(parts: list[_Part], where: str, name: str) -> tuple[Tensor, Tensor]:
    """Images and labels of several files; every class must have as many images as any other, as in the official files."""
    images = np.concatenate([part.images for part in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([part.labels for part in parts]).astype(np.int64)
    counts = np.unique(labels[:, -1], return_counts=True)[1]
    if counts.min() != counts.max():
        raise DataError(
            f"{where}: between {counts.min()} and {counts.max()} images per class, expected as many of each; part of the data "
            f"is missing: `afec data check {name}`"
        )
    return torch.from_numpy(images), torch.from_numpy(labels)


def _message(value: object) -> str:
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    return f"{type(value).__name__}{shape}{f' of {len(value)}' if isinstance(value, list) else ''}"
