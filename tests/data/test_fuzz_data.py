"""Datasets, weights, images and caches: whatever is in a file, it is read, or there is a `DataError` with its name."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import official_layouts as layouts
from afec.data import cache, omniglot
from afec.data.catalogue import DATASETS
from afec.data.cifar import load_cifar10, load_cifar100
from afec.data.cub import load_cub
from afec.data.decode import decode_all
from afec.data.download import _copy
from afec.data.folder import read_images
from afec.data.image_folder import read_class_list
from afec.data.pickles import NotPlainError, load_plain
from afec.data.root import DataError
from afec.data.unpack import unpack
from afec.data.weights import load_weights
from afec.files import load_tree, save_tree
from damaged_files import changed, damaged, reads_or_says, try_all

pytestmark = pytest.mark.slow  # a thousand damaged inputs for each reader

WEIGHTS = {"features.0.weight": torch.arange(12.0).reshape(4, 3), "features.0.bias": torch.zeros(4).half()}


@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth", "weights.safetensors"])
def test_weights(tmp_path, name):
    file = tmp_path / name
    if name.endswith("safetensors"):
        save_file(WEIGHTS, file)
    else:
        torch.save(WEIGHTS, file, _use_new_zipfile_serialization=name == "zip.pth")
    try_all(file, lambda: load_weights(file), DataError)


def test_weights_that_were_a_bare_index_error(tmp_path):
    file = tmp_path / "weights.pth"
    file.write_bytes(b"\x87" + b"x" * 299)  # a pickle that makes a tuple of three from nothing
    with pytest.raises(
        DataError, match="weights.pth cannot be read as a weight file .list index out of range.; fetch it"
    ):
        load_weights(file)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        (10, "cifar-10-batches-py/data_batch_2"),
        (10, "cifar-10-batches-py/batches.meta"),
        (10, "cifar-10-batches-bin/test_batch.bin"),
        (10, "cifar-10-batches-bin/batches.meta.txt"),
        (100, "cifar-100-python/train"),
        (100, "cifar-100-python/meta"),
        (100, "cifar-100-binary/test.bin"),
        (100, "cifar-100-binary/fine_label_names.txt"),
    ],
)
def test_cifar(tmp_path, kind, file):
    write, load = (layouts.write_cifar10, load_cifar10) if kind == 10 else (layouts.write_cifar100, load_cifar100)
    write(tmp_path, "-bin" in file, *(1,) * (kind // 50 or 1))
    try_all(tmp_path / file, lambda: load(tmp_path), DataError, tmp_path)


@pytest.mark.parametrize("binary", [False, True])
def test_cifar_archives(tmp_path, binary):
    layouts.write_cifar10(tmp_path, binary, 1)
    archive = layouts.packed(next(tmp_path.iterdir()), f"cifar-10-{'binary' if binary else 'python'}.tar.gz")
    try_all(archive, lambda: load_cifar10(tmp_path), DataError)


def with_header(name: str, form: int, **fields: object) -> bytes:
    """A tar file of nothing but one header, which says these things and has the right checksum."""
    entry = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(entry, key, value)
    return entry.tobuf(form) + b"\0" * 1024


@pytest.mark.parametrize("size", [2**33 - 1, 10**18, 2**80])
@pytest.mark.parametrize("name", ["data_batch_1.bin", "batches.meta.txt"])
def test_an_archive_that_asks_for_all_the_memory(tmp_path, size, name):
    """A header has room for any size; no more than a file of CIFAR has is asked for."""
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(gzip.compress(with_header(f"cifar-10-batches-bin/{name}", tarfile.GNU_FORMAT, size=size)))
    assert not reads_or_says(lambda: load_cifar10(tmp_path), DataError, archive, f"{size} bytes")
    with pytest.raises(DataError, match=f"{size:,} bytes, expected at most 268,435,456"):
        load_cifar10(tmp_path)


def test_a_pickle_that_asks_for_all_the_memory():
    """It calls its object number 2^28: in a table of all numbers up to there that would be four gigabytes."""
    for content in (b"Nr\xff\xff\xff\x0f.", b"Nr\xff\xff\xff\xff."):
        assert reads_or_says(lambda content=content: load_plain(io.BytesIO(content)), NotPlainError, "", "six bytes")


def test_pickles():
    whole = layouts.python2_pickle(np.zeros((2, 3072), np.uint8), {"labels": [1, 2], "filenames": ["a", "b"]})

    def read(content: bytes) -> None:
        try:
            load_plain(io.BytesIO(content))
        except NotPlainError as error:
            raise NotPlainError(f"the pickle: {error}") from error

    for words, content in damaged(whole):
        reads_or_says(lambda content=content: read(content), NotPlainError, "the pickle", words)


@pytest.mark.parametrize("zipped", [True, False])
def test_omniglot(tmp_path, monkeypatch, zipped):
    monkeypatch.setattr(omniglot, "PARTS", {"images_background": 1, "images_evaluation": 1})
    names = {"images_background": ["Greek"], "images_evaluation": ["Latin"]}
    layouts.write_omniglot(tmp_path / "omniglot", zipped, 2, names)
    file = tmp_path / "omniglot" / "images_background.zip" if zipped else min(tmp_path.rglob("*.png"))

    def read():
        found = omniglot.open_omniglot(tmp_path)
        return [found.read(alphabet) for alphabet in found.alphabets]

    try_all(file, read, DataError, tmp_path / "omniglot" / "images_background" if not zipped else file)


def image_file(folder, kind):
    """A small photograph in one of the formats."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    image, options = Image.fromarray(pixels), {}
    if kind == "JPEG":
        options["exif"] = Image.Exif()
        options["exif"][274] = 6  # held upright
    if kind == "PNG":
        image = image.convert("P")
    file = folder / f"image.{kind.lower()}"
    image.save(file, kind, **options)
    return file


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF"])
def test_images(tmp_path, kind):
    file = image_file(tmp_path, kind)

    def read():
        (found,) = decode_all([file], 16)
        images = read_images([file], None, 8)
        assert images.good == (not isinstance(found, str),)  # both readers say the same
        if images.bad:
            raise DataError(f"{found}\n{images.bad[0]}")

    try_all(file, read, DataError)


def test_no_other_program_is_started_for_an_image(tmp_path):
    """Pillow gives a PostScript file to Ghostscript, by what is in it and not by its name."""
    file = tmp_path / "image.png"
    Image.new("RGB", (8, 8)).save(file, "EPS")
    with Image.open(file) as image:
        assert image.format == "EPS"
    (found,) = decode_all([file], 16)
    assert f"{file}: cannot identify image file" in found
    assert "cannot identify image file" in read_images([file], None, 8).bad[0]


@pytest.mark.parametrize("name", ["images", "image_class_labels", "train_test_split", "classes"])
def test_cub(tmp_path, name):
    folder = layouts.write_cub(tmp_path, 1, (4, 4))

    try_all(folder / f"{name}.txt", lambda: DATASETS["cub200"].count(tmp_path), DataError, folder, text=True)


def test_a_null_byte_in_a_list_of_images(tmp_path):
    file = layouts.write_cub(tmp_path, 1, (4, 4)) / "images.txt"
    file.write_bytes(file.read_bytes().replace(b"Bird_7_", b"Bird_7\0"))
    with pytest.raises(DataError, match=r"images.txt names '007.Bird_7/Bird_7\\x000000.png'"):
        load_cub(tmp_path)


def test_lists_of_classes(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("a first\n# a comment\nb\nc third\n")
    try_all(file, lambda: read_class_list(file, ["a", "b", "c"], tmp_path), DataError, text=True)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", ""])
def test_unpacking(tmp_path, kind):
    inside = tmp_path / "whole" / "data"
    inside.mkdir(parents=True)
    (inside / "file.txt").write_text("content " * 40)
    file = tmp_path / "archive.tar"
    with tarfile.open(file, f"w:{kind}") as archive:
        archive.add(inside, "data")

    def read():
        unpack(file, tmp_path / "new", "data").rename(tmp_path / "old")
        (tmp_path / "old" / "file.txt").unlink(missing_ok=True)
        (tmp_path / "old").rmdir()

    try_all(file, read, DataError)


@pytest.mark.parametrize(
    "headers",
    [
        {"path": "data/a\0b"},  # a null byte in a name
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "data/a"},
        {"GNU.sparse.map": "x,y", "GNU.sparse.size": "z"},
        {"size": "9" * 30},
    ],
)
def test_odd_headers_of_an_archive(tmp_path, headers):
    file = tmp_path / "archive.tar"
    file.write_bytes(with_header("data/a", tarfile.PAX_FORMAT, pax_headers=headers))
    reads_or_says(lambda: unpack(file, tmp_path, "data"), DataError, file, str(headers))


@pytest.mark.parametrize("length", ["", "-1", "many", "1e3", "²"])
def test_a_server_that_says_an_odd_length(tmp_path, length):
    answer, out = SimpleNamespace(read=io.BytesIO(b"content").read, headers={"Content-Length": length}), io.BytesIO()
    _copy(answer, out, 0, None)
    assert out.getvalue() == b"content"


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The folder of a cache of three images, and whether it is whole; nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for number, file in enumerate(files):
        Image.new("RGB", (4 + number, 3), (number, 2, 3)).save(file)
    folder = cache.open_images("small", files, tmp_path, 8, tmp_path).folder
    wanted = cache._fingerprint(files, tmp_path, 8)

    def read():
        if (found := cache._opened(folder, wanted)) is None:  # it would be made anew
            raise DataError(str(folder))
        assert [tuple(found[number].shape) for number in range(3)] == [(3, 4, 3), (3, 5, 3), (3, 6, 3)]
        assert all(bool((found[number][..., 0] == number).all()) for number in range(3))

    return folder, read


@pytest.mark.parametrize("name", ["index.safetensors", "pixels"])
def test_caches(cached, name):
    folder, read = cached
    try_all(folder / name, read, DataError, folder)


def test_caches_whose_index_has_another_content(cached):
    folder, read = cached
    whole = load_tree(folder / "index.safetensors")
    for words, tree in changed(whole):
        save_tree(folder / "index.safetensors", tree)
        reads_or_says(read, DataError, folder, words)
