"""The datasets that have a name: their files, where these come from officially, and their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from afec.data.cifar import CIFAR, load_cifar10, load_cifar100
from afec.data.omniglot import Omniglot, open_omniglot
from afec.naming import unknown

__all__ = ["DATASETS", "Archive", "Dataset", "dataset", "md5"]

_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


@dataclass(frozen=True)
class Archive:
    """One official file, and what it unpacks to."""

    name: str
    """Below the data root, with the folder it belongs in."""
    address: str
    md5: str
    folder: str
    """What it unpacks to, below the data root."""
    files: Mapping[str, str] = field(default_factory=dict)
    """MD5 of the files in the folder; empty where there are too many of them to tell one by one."""
    unpack: bool = True
    """Whether `get` unpacks it: files that are as quick to read packed stay so."""


@dataclass(frozen=True)
class Dataset:
    """One dataset that can be named."""

    name: str
    title: str
    size: str
    archives: tuple[Archive, ...]
    """What `get` fetches: all of them."""
    others: tuple[Archive, ...]
    """Other versions of the same data, which are read as well."""
    licence: str
    count: Callable[[Path], dict[str, int]]
    """Reads what is under a data root and counts it, or raises `DataError`."""
    expected: Mapping[str, int]
    """What `count` finds in the official files."""


_CIFAR10_PYTHON = Archive(
    "cifar-10-python.tar.gz", _CIFAR + "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py",
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
)  # fmt: skip
_CIFAR10_BINARY = Archive(
    "cifar-10-binary.tar.gz", _CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin",
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)  # fmt: skip
_CIFAR100_PYTHON = Archive(
    "cifar-100-python.tar.gz", _CIFAR + "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python",
    {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)  # fmt: skip
_CIFAR100_BINARY = Archive(
    "cifar-100-binary.tar.gz", _CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary",
    {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
)  # fmt: skip
_BACKGROUND, _EVALUATION = (
    Archive(f"omniglot/{part}.zip", f"{_OMNIGLOT}{part}.zip", checksum, f"omniglot/{part}", unpack=False)
    for part, checksum in (
        ("images_background", "68d2efa1b9178cc56df9314c21c6e718"),
        ("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
    )
)


def _count_cifar(data: CIFAR) -> dict[str, int]:
    return {"training images": len(data.train_labels), "test images": len(data.test_labels)}


def _count_omniglot(data: Omniglot) -> dict[str, int]:
    counts = [data.count(name) for name in data.alphabets]
    return {"alphabets": len(counts), "characters": sum(c for c, _ in counts), "drawings": sum(d for _, d in counts)}


DATASETS: dict[str, Dataset] = {
    record.name: record
    for record in (
        Dataset(
            "cifar10", "CIFAR-10: 60,000 colour images of 32×32 pixels, ten classes", "170 MB",
            (_CIFAR10_PYTHON,), (_CIFAR10_BINARY,), "free for research; cite Krizhevsky (2009)",
            lambda root: _count_cifar(load_cifar10(root)), {"training images": 50_000, "test images": 10_000},
        ),
        Dataset(
            "cifar100", "CIFAR-100: 60,000 colour images of 32×32 pixels, 100 classes in 20 superclasses", "169 MB",
            (_CIFAR100_PYTHON,), (_CIFAR100_BINARY,), "free for research; cite Krizhevsky (2009)",
            lambda root: _count_cifar(load_cifar100(root)), {"training images": 50_000, "test images": 10_000},
        ),
        Dataset(
            "omniglot", "Omniglot: 32,460 drawings of the 1,623 characters of 50 alphabets", "15 MB",
            (_BACKGROUND, _EVALUATION), (), "MIT; cite Lake et al. (2015)",
            lambda root: _count_omniglot(open_omniglot(root)), {"alphabets": 50, "characters": 1_623, "drawings": 32_460},
        ),
    )
}  # fmt: skip


def dataset(name: str) -> Dataset:
    """The dataset called `name`."""
    if name not in DATASETS:
        raise ValueError(unknown("dataset", name, DATASETS))
    return DATASETS[name]


def md5(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """The checksum of a file. It tells damage, not malice: MD5 is what the datasets' own pages give."""
    found = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
            if on_bytes:
                on_bytes(len(block))
    return found.hexdigest()
