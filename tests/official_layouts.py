"""Tiny datasets in the official layouts: what the readers are given where no real data are."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar(classes: int, per_class: int, seed: int, coarse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3072) whose mean brightness tells their class, and labels (n, 1) or, coarse first, (n, 2); shuffled."""
    draws = np.random.default_rng(seed)
    fine = draws.permutation(np.repeat(np.arange(classes), per_class))
    images = (draws.integers(0, 56, (len(fine), 3072)) + fine[:, None] * 199 // (classes - 1)).astype(np.uint8)
    # Class k has superclass 7k mod 20: each of the 20 has five, and they are not in order.
    return images, np.stack((fine * 7 % 20, fine), axis=1) if coarse else fine[:, None]


def write_cifar10(root: Path, binary: bool, per_class: int = 5) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Five files to train and one to test, of ten images per class in all; returns what was written in each."""
    folder = root / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    parts = {f"data_batch_{k}": cifar(10, per_class, k) for k in range(1, 6)} | {"test_batch": cifar(10, per_class, 9)}
    for name, (images, labels) in parts.items():
        if binary:
            np.concatenate((labels.astype(np.uint8), images), axis=1).tofile(folder / f"{name}.bin")
        else:
            (folder / name).write_bytes(python2_pickle(images, {"labels": labels[:, 0].tolist()}))
    if binary:
        (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_NAMES) + "\n\n")
    else:
        (folder / "batches.meta").write_bytes(python2_pickle(None, {"label_names": list(CIFAR10_NAMES)}))
    return parts


def write_cifar100(
    root: Path, binary: bool, train: int = 10, test: int = 4
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`train` and `test` images of each of the 100 classes; returns what was written in each file."""
    folder = root / ("cifar-100-binary" if binary else "cifar-100-python")
    folder.mkdir(parents=True)
    parts = {"train": cifar(100, train, 1, coarse=True), "test": cifar(100, test, 2, coarse=True)}
    fine, coarse = [f"thing_{k}" for k in range(100)], [f"things_{k}" for k in range(20)]
    for name, (images, labels) in parts.items():
        if binary:
            np.concatenate((labels.astype(np.uint8), images), axis=1).tofile(folder / f"{name}.bin")
        else:
            lists = {"fine_labels": labels[:, 1].tolist(), "coarse_labels": labels[:, 0].tolist()}
            (folder / name).write_bytes(python2_pickle(images, lists))
    if binary:
        (folder / "fine_label_names.txt").write_text("\n".join(fine) + "\n")
        (folder / "coarse_label_names.txt").write_text("\n".join(coarse) + "\n")
    else:
        (folder / "meta").write_bytes(python2_pickle(None, {"fine_label_names": fine, "coarse_label_names": coarse}))
    return parts


def packed(folder: Path, archive: str) -> Path:
    """The folder as the archive it comes in, in its place."""
    path = folder.parent / archive
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, folder.name)
    for part in folder.iterdir():
        part.unlink()
    folder.rmdir()
    return path


def python2_pickle(images: np.ndarray | None, lists: dict[str, list[int] | list[str]]) -> bytes:
    """A dict as Python 2 pickled it with protocol 2: byte strings, and the array as NumPy of that time had it."""
    out = io.BytesIO()
    out.write(b"\x80\x02}(")
    for key, values in lists.items():
        out.write(_string(key.encode()) + b"](")
        for value in values:
            out.write(_string(value.encode()) if isinstance(value, str) else b"K" + bytes([value]))
        out.write(b"e")
    if images is not None:
        rows, columns = (b"J" + struct.pack("<i", size) for size in images.shape)
        out.write(
            _string(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _string(b"b")
        )
        out.write(b"\x87R(K\x01" + rows + columns + b"\x86cnumpy\ndtype\n" + _string(b"u1") + b"K\x00K\x01\x87R(K\x03")
        out.write(_string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
        out.write(b"T" + struct.pack("<i", images.size) + images.tobytes() + b"tb")
    return out.getvalue() + b"u."


def _string(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def write_omniglot(folder: Path, zipped: bool, drawings: int = 6, names: dict[str, list[str]] | None = None) -> None:
    """30 + 20 alphabets with two or three characters, as folders or as zip files; character k is a bar of k + 1 columns.

    The drawings of a character differ by how far down their bar reaches: 40 rows for the first, 41 for the second, …
    """
    number = 0
    for part, count in {"images_background": 30, "images_evaluation": 20}.items():
        files = {}
        for alphabet in (names or {}).get(part) or [f"{part[7:11]}_{k:02d}" for k in range(count)]:
            for character in range(2 + number % 2):
                for drawing in range(drawings):
                    ink = np.zeros((105, 105), bool)
                    ink[: 40 + drawing, : character + 1] = True
                    name = f"{part}/{alphabet}/character{character + 1:02d}/{number:04d}_{drawing + 1:02d}.png"
                    files[name] = png(ink)
            number += 1
        folder.mkdir(parents=True, exist_ok=True)
        if zipped:
            with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
                archive.writestr(f"{part}/", "")
                for name, content in files.items():
                    archive.writestr(name, content)
        else:
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)


def png(ink: np.ndarray) -> bytes:
    """Black ink on white paper, one bit per pixel."""
    out = io.BytesIO()
    Image.fromarray(~ink).save(out, "PNG")
    return out.getvalue()


def write_cub(root: Path, per_class: int = 5, size: tuple[int, int] = (28, 22)) -> Path:
    """CUB-200-2011's lists and images: 200 classes whose number is their colour; every second image is for training."""
    folder = root / "CUB_200_2011"
    names = [f"{k:03d}.Bird_{k}" for k in range(1, 201)]
    lists: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    number = 0
    for label, name in enumerate(names, start=1):
        (folder / "images" / name).mkdir(parents=True)
        for k in range(per_class):
            number += 1
            path = f"{name}/Bird_{label}_{k:04d}.png"
            pixels = np.full((size[1], size[0], 3), (label, k, 255 - label), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / path)
            lists["images"].append(f"{number} {path}")
            lists["image_class_labels"].append(f"{number} {label}")
            lists["train_test_split"].append(f"{number} {k % 2}")
    lists["classes"] = [f"{k} {name}" for k, name in enumerate(names, start=1)]
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_image_folder(folder: Path, names: list[str], train: int = 3, test: int = 2) -> Path:
    """`train/<class>/` and `val/<class>/`; the place of a class is its colour."""
    for label, name in enumerate(names):
        for part, count in (("train", train), ("val", test)):
            (folder / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = np.full((20, 24, 3), (label, k, 200), np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{name}_{k}.png")
    return folder
