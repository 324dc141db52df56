"""The official CIFAR files are read as they are, and damaged or hostile ones are refused."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from afec.data import DataError, data_root, load_cifar10, load_cifar100
from official_layouts import CIFAR10_NAMES, packed, python2_pickle, write_cifar10, write_cifar100

ARCHIVES = {
    "cifar-10-batches-py": "cifar-10-python.tar.gz",
    "cifar-10-batches-bin": "cifar-10-binary.tar.gz",
    "cifar-100-python": "cifar-100-python.tar.gz",
    "cifar-100-binary": "cifar-100-binary.tar.gz",
}


def put_into_archive(root: Path) -> None:
    for folder in list(root.iterdir()):
        packed(folder, ARCHIVES[folder.name])


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("binary", [False, True], ids=["python", "binary"])
def test_cifar10_is_read_in_file_order(tmp_path, binary, archived):
    parts = write_cifar10(tmp_path, binary)
    if archived:
        put_into_archive(tmp_path)
    data = load_cifar10(tmp_path)
    images = np.concatenate([parts[f"data_batch_{k}"][0] for k in range(1, 6)])
    labels = np.concatenate([parts[f"data_batch_{k}"][1][:, 0] for k in range(1, 6)])
    assert data.train_images.dtype == torch.uint8
    assert torch.equal(data.train_images, torch.from_numpy(images.reshape(-1, 3, 32, 32)))
    assert data.train_labels.tolist() == labels.tolist()
    assert torch.equal(data.test_images.flatten(1), torch.from_numpy(parts["test_batch"][0]))
    assert data.test_labels.tolist() == parts["test_batch"][1][:, 0].tolist()
    assert data.names == CIFAR10_NAMES
    assert data.train_coarse.numel() == 0
    data.train_images.zero_()  # memory of its own: no window on something read-only


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("binary", [False, True], ids=["python", "binary"])
def test_cifar100_has_fine_and_coarse_labels(tmp_path, binary, archived):
    parts = write_cifar100(tmp_path, binary)
    if archived:
        put_into_archive(tmp_path)
    data = load_cifar100(tmp_path)
    for name, images, fine, coarse in (
        ("train", data.train_images, data.train_labels, data.train_coarse),
        ("test", data.test_images, data.test_labels, data.test_coarse),
    ):
        assert torch.equal(images.flatten(1), torch.from_numpy(parts[name][0]))
        assert fine.tolist() == parts[name][1][:, 1].tolist()
        assert coarse.tolist() == parts[name][1][:, 0].tolist()
    assert data.names[99] == "thing_99"
    assert data.coarse_names[19] == "things_19"


def test_the_first_pixel_is_red_of_the_top_left(tmp_path):
    """1,024 reds row by row, then greens, then blues: the layout that the dataset's page describes."""
    write_cifar10(tmp_path, binary=True)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    records = np.fromfile(file, np.uint8).reshape(-1, 3073)
    records[0, 1:] = 0
    records[0, 1 + 1], records[0, 1 + 1024 + 32], records[0, 1 + 2048] = 11, 22, 33
    records.tofile(file)
    image = load_cifar10(tmp_path).train_images[0]
    assert image.nonzero().tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 0]]
    assert (image[0, 0, 1], image[1, 1, 0], image[2, 0, 0]) == (11, 22, 33)


def test_nothing_there_says_what_to_put_where(tmp_path):
    with pytest.raises(DataError, match="afec data get cifar100") as caught:
        load_cifar100(tmp_path)
    for name in ("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz", "cifar-100-python/", "AFEC_DATA"):
        assert name in str(caught.value)


def test_a_folder_that_lacks_a_file_is_named_and_the_archive_beside_it_is_used(tmp_path):
    write_cifar10(tmp_path, binary=True)
    packed(tmp_path / "cifar-10-batches-bin", "cifar-10-binary.tar.gz")
    write_cifar10(tmp_path, binary=True)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    assert len(load_cifar10(tmp_path).train_labels) == 250
    (tmp_path / "cifar-10-binary.tar.gz").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin is there, but lacks data_batch_3.bin"):
        load_cifar10(tmp_path)


def change(content: bytes, at: int, byte: int) -> bytes:
    return content[:at] + bytes([byte]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "expected a multiple of 3,073"),
        (lambda content: b"", "0 bytes"),
        (lambda content: content[:-3073], "images per class, expected as many of each"),
        (lambda content: change(content, 0, 10), "labels from 0 to 10, expected 0 to 9"),
    ],
)
def test_damaged_records_are_refused(tmp_path, damage, message):
    write_cifar10(tmp_path, binary=True)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load_cifar10(tmp_path)
    assert "afec data check cifar10" in str(caught.value)


def test_a_class_of_two_superclasses_is_refused(tmp_path):
    write_cifar100(tmp_path, binary=True)
    file = tmp_path / "cifar-100-binary" / "train.bin"
    content = file.read_bytes()
    file.write_bytes(change(content, 0, (content[0] + 1) % 20))
    with pytest.raises(DataError, match="101 pairs of a class and its superclass"):
        load_cifar100(tmp_path)


def test_damaged_archives_are_refused(tmp_path):
    write_cifar100(tmp_path, binary=False)
    archive = packed(tmp_path / "cifar-100-python", "cifar-100-python.tar.gz")
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:20], b"no archive at all", b""):
        archive.write_bytes(content)
        with pytest.raises(DataError, match="afec data (check|get) cifar100"):
            load_cifar100(tmp_path)


class Calls:
    """Pickled, it asks for a function to be called when it is read."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Calls(os.mkdir, "made-by-the-pickle"), "asks for posix.mkdir"),
        (Calls(eval, "1"), "asks for (builtins|__builtin__).eval"),
        (Calls(np.fromfile, "secret"), "asks for numpy"),
        ([1, 2], "it has no data"),
        ({b"data": 1}, "asks for _codecs.encode"),
        ({"data": np.zeros(3, dtype=object)}, "asks for"),
    ],
)
def test_a_pickle_can_call_nothing(tmp_path, monkeypatch, value, message):
    write_cifar100(tmp_path, binary=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(pickle.dumps(value, protocol=2))
    with pytest.raises(DataError, match=message):
        load_cifar100(tmp_path)
    assert not (tmp_path / "made-by-the-pickle").exists()


def official(images: np.ndarray, changed: bytes = b"", into: bytes = b"") -> bytes:
    content = python2_pickle(images, {"fine_labels": [0], "coarse_labels": [0]})
    assert changed in content
    return content.replace(changed, into)


@pytest.mark.parametrize(
    ("changed", "into", "message"),
    [
        (b"U\x02u1", b"U\x01O", "not one of bytes"),  # an array of objects: its bytes would be taken for addresses
        (b"\x00\x0c\x00\x00\x86", b"\x00\x0d\x00\x00\x86", "cannot reshape"),  # a shape larger than its bytes
        (b"tb\x89T", b"tb\x88T", "not one of bytes"),  # column by column
        (b"U\x04data", b"U\x04dats", "it has no data"),
        (b"K\x00e", b"e", "expected a list of 1 class numbers"),
        (b"tbu.", b"tb", "cannot be read as a pickle"),
    ],
)
def test_changed_arrays_are_refused(tmp_path, changed, into, message):
    write_cifar100(tmp_path, binary=False)
    content = official(np.zeros((1, 3072), np.uint8), changed, into)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_cifar100(tmp_path)


def test_a_pickle_cannot_change_the_reader(tmp_path):
    """BUILD sets attributes of what a pickle names: what it names is made for it, so the next file is read as ever."""
    write_cifar100(tmp_path, binary=False)
    file = tmp_path / "cifar-100-python" / "train"
    whole = file.read_bytes()
    file.write_bytes(b"\x80\x02cnumpy\nndarray\nN}U\x0c__setstate__K\x01s\x86b.")
    with pytest.raises(DataError):
        load_cifar100(tmp_path)
    file.write_bytes(whole)
    assert len(load_cifar100(tmp_path).train_labels) == 1000


def test_where_the_data_are(tmp_path, monkeypatch):
    monkeypatch.setenv("AFEC_DATA", str(tmp_path / "b"))
    assert data_root(tmp_path / "a") == tmp_path / "a"
    assert data_root() == tmp_path / "b"
    monkeypatch.delenv("AFEC_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert data_root() == tmp_path / "c" / "afec" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "afec" / "data"
    assert data_root("~/x") == tmp_path / "x"


REAL = Path(os.environ.get("AFEC_DATA", "no data"))


@pytest.mark.skipif(not (REAL / "cifar-100-python" / "train").is_file(), reason="AFEC_DATA has no cifar-100-python")
def test_the_real_cifar100():
    data = load_cifar100()
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert (data.train_labels.bincount() == 500).all()
    assert (data.test_coarse.bincount() == 500).all()
    assert (data.names[0], data.names[99], data.coarse_names[0]) == ("apple", "worm", "aquatic_mammals")
    assert [data.names[k] for k in data.train_labels[:3]] == ["cattle", "dinosaur", "apple"]
    pixels = hashlib.md5((REAL / "cifar-100-python" / "test").read_bytes()[-30_720_004:-4]).hexdigest()
    assert hashlib.md5(data.test_images.numpy().tobytes()).hexdigest() == pixels


@pytest.mark.skipif(
    not (REAL / "cifar-10-batches-bin" / "test_batch.bin").is_file(), reason="AFEC_DATA has no cifar-10-batches-bin"
)
def test_the_real_cifar10():
    data = load_cifar10()
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert (data.train_labels.bincount() == 5_000).all()
    assert (data.test_labels.bincount() == 1_000).all()
    assert [data.names[k] for k in data.train_labels[:3]] == ["frog", "truck", "truck"]
