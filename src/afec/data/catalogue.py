"""The datasets that have a name: their files, where these come from officially, and their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afec.data.cifar import CIFAR, load_cifar10, load_cifar100
from afec.data.cub import FOLDER, load_cub
from afec.data.image_folder import ImageFolder, class_names, open_image_folder
from afec.data.omniglot import Omniglot, open_omniglot
from afec.data.root import DataError
from afec.data.weights import load_weights
from afec.naming import unknown

__all__ = ["ALEXNET", "ALEXNET_CONV", "DATASETS", "Archive", "Dataset", "checksum", "dataset"]

_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_CUB = "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz"
_TORCHVISION = "https://download.pytorch.org/models/"

ALEXNET = "alexnet-owt-7be5be79.pth"
ALEXNET_CONV = "alexnet_conv_imagenet_fp16.pth"
"""The five convolutions alone, in half precision: not published by itself, read where it is there."""


@dataclass(frozen=True)
class Archive:
    """One official file, and what it unpacks to."""

    name: str
    """Below the data root, with the folder it belongs in."""
    address: str
    checksum: str
    """As it is published: 32 digits are an MD5, 64 a SHA-256."""
    folder: str | None
    """What it unpacks to, below the data root; None: it is used as it is."""
    files: Mapping[str, str] = field(default_factory=dict)
    """MD5 of the files in the folder; empty where there are too many of them to tell one by one."""
    unpack: bool = True
    """Whether `get` unpacks it: files that are as quick to read packed stay so."""
    beside: tuple[str, ...] = ()
    """What the archive has outside of its folder, and nobody needs."""


@dataclass(frozen=True)
class Dataset:
    """One dataset that can be named."""

    name: str
    title: str
    size: str
    archives: tuple[Archive, ...]
    """What `get` fetches: all of them. Empty: it cannot be fetched, see `by_hand`."""
    others: tuple[Archive, ...]
    """Other versions of the same data, which are read as well."""
    licence: str
    count: Callable[[Path], dict[str, int]]
    """Reads what is under a data root and counts it, or raises `DataError`."""
    expected: Mapping[str, int]
    """What `count` finds in the official files, of what is always the same."""
    images: Callable[[Path], Sequence[Path]] | None = None
    """The images under a data root that have no checksums, so that only decoding them tells whether they are whole."""
    by_hand: str = ""
    """Where it comes from, if it cannot be fetched."""
    folder: str = ""
    """Where it belongs, if it cannot be fetched."""

    @property
    def places(self) -> tuple[str, ...]:
        """Whatever of it may be below a data root."""
        found = [place for a in (*self.archives, *self.others) for place in (a.folder, a.name)]
        return tuple(dict.fromkeys(place for place in (*found, self.folder) if place))


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


_BIRDS = Archive(
    "CUB_200_2011.tgz", _CUB, "97eceeb196236b17998738112f37df78", FOLDER, beside=("attributes.txt",),
)  # fmt: skip
_ALEXNET = Archive(
    ALEXNET, _TORCHVISION + ALEXNET, "7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02", None, unpack=False,
)  # fmt: skip
_ALEXNET_CONV = Archive(
    ALEXNET_CONV, "", "4290eaf7f01de9e3836a443c61d50e12c7449a9af54c169e2c369a0dcc24cd50", None, unpack=False,
)  # fmt: skip


def _count_cub(root: Path) -> dict[str, int]:
    data = load_cub(root)
    if missing := [file for file in data.files if not os.path.isfile(file)]:  # False for a name that is too long, too
        raise DataError(
            f"{missing[0]} is missing ({len(missing)} such in all); get it anew: `afec data get cub200 --again`"
        )
    return {"classes": len(data.names), "images": len(data.files), "training images": int(data.for_training.sum())}


def _imagenet(root: Path) -> ImageFolder:
    folder = root / "imagenet100"
    return open_image_folder(folder, class_names(folder))


def _count_imagenet(root: Path) -> dict[str, int]:
    data = _imagenet(root)
    training = int(data.for_training.sum())
    return {"classes": len(data.names), "training images": training, "test images": len(data.files) - training}


def _count_alexnet(root: Path) -> dict[str, int]:
    names = [name for name in (ALEXNET, ALEXNET_CONV) if (root / name).is_file()]
    if not names:
        raise DataError(f"{root / ALEXNET} is missing; get it: `afec data get alexnet`")
    weights = load_weights(root / names[0])
    layers = {name.rpartition(".")[0] for name in weights}
    return {
        "convolutions": sum(name.startswith("features.") for name in layers),
        "hidden layers": len(layers & {"classifier.1", "classifier.4"}),
    }


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
        Dataset(
            "cub200", "CUB-200-2011: 11,788 photographs of 200 kinds of birds", "1.1 GB",
            (_BIRDS,), (), "non-commercial research; cite Wah et al. (2011)",
            _count_cub, {"classes": 200, "images": 11_788, "training images": 5_994}, lambda root: load_cub(root).files,
        ),
        Dataset(
            "imagenet100", "100 classes of ImageNet (ILSVRC-2012), as folders train/<class>/ and val/<class>/", "about 13 GB",
            (), (), "non-commercial research, for those who have registered; cite Russakovsky et al. (2015)",
            _count_imagenet, {"classes": 100}, lambda root: _imagenet(root).files, folder="imagenet100",
            by_hand="ImageNet is given out at image-net.org to those who have registered there; put 100 of its classes here",
        ),
        Dataset(
            "alexnet", "AlexNet's ImageNet weights, torchvision's file", "233 MB",
            (_ALEXNET,), (_ALEXNET_CONV,), "BSD-3-Clause (torchvision)",
            _count_alexnet, {"convolutions": 5},
        ),
    )
}  # fmt: skip


def dataset(name: str) -> Dataset:
    """The dataset called `name`."""
    if name not in DATASETS:
        raise ValueError(unknown("dataset", name, DATASETS))
    return DATASETS[name]


def checksum(path: Path, like: str) -> str:
    """The MD5 of a file, or its SHA-256 where `like` is one. An MD5 tells damage, not malice: it is what the datasets give."""
    with path.open("rb") as file:
        kind = "sha256" if len(like) == 64 else "md5"
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
