"""Images decoded once: a file of bytes that every method, seed and process maps into its memory.

    CACHE/<name>-<short>px/pixels               the images one after the other, each (height, width, 3) bytes
    CACHE/<name>-<short>px/index.safetensors    their sizes, a CRC-32 of each, and which files they were made of

Images keep their shape; the short side has at most `short` pixels. The cache is in `.decoded` of the data directory, or where
AFEC_CACHE says. It is made of files as they were: where names, sizes or times of the files have changed, or the cache is of
another size or format, it is made anew. A new one takes its place when it is whole; of several processes one makes it, and the
others wait. What is read is held against its checksum the first time that a process reads it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from afec.data.decode import decode_all, listed
from afec.data.root import DataError, data_root
from afec.files import load_tree, save_tree
from afec.progress import progress_bar

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["CACHE", "ImageCache", "open_images"]

CACHE = "AFEC_CACHE"
FORMAT = 1


class ImageCache:
    """Decoded images by number. Two of the same content have the same `repr`, which tells it from any other."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder = folder
        self.heights: Tensor = index["heights"]
        self.widths: Tensor = index["widths"]
        self.short: int = index["short"]
        self.checksum: str = index["checksum"]
        self._crcs: list[int] = index["crcs"].tolist()
        sizes = self.sizes
        self._starts: list[int] = (sizes.cumsum(0) - sizes).tolist()
        # Copy-on-write, so that nobody can write into the file; nothing is read before it is asked for.
        self._pixels = torch.from_numpy(np.memmap(folder / "pixels", np.uint8, "c", shape=(int(sizes.sum()),)))
        self._checked = torch.zeros(len(sizes), dtype=torch.bool)

    @property
    def sizes(self) -> Tensor:
        """The bytes of each image in the file: three for each pixel."""
        return 3 * self.heights * self.widths

    def __len__(self) -> int:
        return len(self._crcs)

    def __repr__(self) -> str:
        return f"ImageCache({len(self)} images, short side {self.short}, {self.checksum})"

    def __getitem__(self, number: int) -> Tensor:
        """The image with this number, (height, width, 3): a window on the file."""
        height, width, start = int(self.heights[number]), int(self.widths[number]), self._starts[number]
        flat = self._pixels[start : start + 3 * height * width]
        if not self._checked[number]:
            if zlib.crc32(flat.numpy().data) != self._crcs[number]:
                raise DataError(
                    f"{self.folder / 'pixels'}: image {number} is not what was written, so the file is damaged; remove "
                    f"the folder {self.folder}, and it is made anew"
                )
            self._checked[number] = True
        return flat.view(height, width, 3)


def open_images(
    name: str, files: Sequence[Path], base: Path, short: int, root: str | os.PathLike[str] | None = None
) -> ImageCache:
    """The images of `files` in their order, from the cache; made first where there is none, or another one.

    Args:
        name: of the cache: letters, digits and dashes.
        files: which images.
        base: what the files are below of, so that a dataset in another place has the same names.
        short: the short side of a larger image, in pixels.
        root: the data directory; see `data_root`.
    """
    folder = _place(root) / f"{name}-{short}px"
    wanted = _fingerprint(files, base, short)
    if (found := _opened(folder, wanted)) is not None:
        return found
    with _alone(folder):
        if (found := _opened(folder, wanted)) is None:  # another process may have made it meanwhile
            _make(folder, name, files, short, wanted)
            found = _opened(folder, wanted)
    assert found is not None, "it has just been made"
    return found


def _place(root: str | os.PathLike[str] | None) -> Path:
    given = os.environ.get(CACHE)
    return Path(given).expanduser() if given else data_root(root) / ".decoded"


def _fingerprint(files: Sequence[Path], base: Path, short: int) -> str:
    """Of the files as they are now: no image is opened."""
    digest = hashlib.blake2b(repr((FORMAT, short, len(files))).encode(), digest_size=16)
    try:
        for file in files:
            at = file.stat()
            digest.update(f"{file.relative_to(base).as_posix()}\0{at.st_size}\0{at.st_mtime_ns}\n".encode())
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}; the dataset is not whole, get it anew") from error
    return digest.hexdigest()


def _opened(folder: Path, wanted: str) -> ImageCache | None:
    """The cache, if it is there, whole and made of these files."""
    try:
        index = load_tree(folder / "index.safetensors")
        sizes = {name: index[name] for name in ("heights", "widths", "crcs")}
        known = index["format"] == FORMAT and index["fingerprint"] == wanted and index["checksum"] == _checksum(sizes)
        if not known or any(size.dim() != 1 for size in sizes.values()):
            return None
        size = 3 * int((index["heights"] * index["widths"]).sum())
        return ImageCache(folder, index) if (folder / "pixels").stat().st_size == size else None
    except Exception:  # whatever it is, it is no index of ours
        return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the others wait."""
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"another process is decoding images into {folder}; waiting for it", file=sys.stderr)
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DataError(_not_written(folder, error)) from error


def _make(folder: Path, name: str, files: Sequence[Path], short: int, fingerprint: str) -> None:
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed: nobody else is at work here
    work = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.tmp")
    try:
        work.mkdir(parents=True)
        index = _decoded(work, name, files, short)
        save_tree(work / "index.safetensors", {"format": FORMAT, "fingerprint": fingerprint, "short": short, **index})
        old = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.tmp")
        if folder.exists():  # of other files, or damaged; who has it open keeps it open
            folder.rename(old)
        work.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _decoded(work: Path, name: str, files: Sequence[Path], short: int) -> dict[str, Any]:
    """Write the pixels; sizes and checksums of what was written."""
    heights, widths, crcs, bad = [], [], [], []
    with (work / "pixels").open("xb") as out, progress_bar(f"decoding {name}, once", len(files)) as show:
        for found in decode_all(files, short):
            show("")
            if isinstance(found, str):
                bad.append(found)
                continue
            pixels = np.ascontiguousarray(found)
            if not bad:  # else nothing will come of it: the rest is only looked at
                out.write(pixels.data)
                heights.append(pixels.shape[0])
                widths.append(pixels.shape[1])
                crcs.append(zlib.crc32(pixels.data))
        if bad:
            raise DataError(
                f"{len(bad)} of {len(files)} images of {name} cannot be read:{listed(bad)}\n"
                "Get these files anew, or mend them; nothing was kept"
            )
        out.flush()
        os.fsync(out.fileno())
    sizes = {"heights": torch.tensor(heights), "widths": torch.tensor(widths), "crcs": torch.tensor(crcs)}
    return {**sizes, "checksum": _checksum(sizes)}


def _checksum(sizes: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for value in sizes.values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def _not_written(folder: Path, error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"it cannot be written ({error})"
    return (
        f"{folder}: {what}; decoded images go there. {'Free some space' if full else 'Make it writable'}, or set {CACHE} to "
        "another directory; nothing half-written was kept"
    )
