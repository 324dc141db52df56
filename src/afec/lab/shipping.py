"""A run directory on its way between machines: packed whole, and put into place whole or not at all.

A parcel has the bytes of every file and a checksum. Nothing of it is put into place before all of it is there and its checksum
is right. Then each file takes the place of the old one as a whole, in an order in which every moment is one that a run on this
machine could have been killed at: the checkpoint after what it belongs to, `DONE` last. So whoever is killed while a parcel is
put into place leaves a directory from which the run goes on, to the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from afec.lab.directory import RunDirectory
from afec.whole_files import write_bytes

__all__ = ["Parcel", "ShippingError", "pack", "unpack"]

STAYS = ("lock", "lock-holder", "lock-held")
LAST = ("scores.csv", "events.jsonl", "checkpoint-before.safetensors", "checkpoint.safetensors", "FAILED", "DONE")


class ShippingError(ValueError):
    """A parcel that was damaged on its way."""


@dataclass(frozen=True)
class Parcel:
    """The files of a run directory by their names in it, and a checksum of them all."""

    files: tuple[tuple[str, bytes], ...]
    checksum: int

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(len(content) for _, content in self.files)


def pack(directory: RunDirectory, *, before: bool = False) -> Parcel:
    """All files of the directory but its locks; `before` adds the checkpoint before the last, which a receiver has mostly."""
    files = []
    for path in sorted(directory.path.rglob("*")):
        name = path.relative_to(directory.path).as_posix()
        passing = path.suffix in (".tmp", ".link") or path.name in STAYS
        if path.is_file() and not passing and (before or path != directory.checkpoints[1]):
            files.append((name, path.read_bytes()))
    return Parcel(tuple(files), _checksum(files))


def unpack(parcel: Parcel, directory: RunDirectory) -> None:
    """Put the files of a parcel into place; the lock of the directory is held by the caller."""
    if _checksum(parcel.files) != parcel.checksum:
        raise ShippingError(f"what was shipped for {directory.path} was damaged on its way; nothing of it was taken")
    files = dict(parcel.files)
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ShippingError(f"what was shipped for {directory.path} has a file {name!r} outside of it")
    if "FAILED" not in files:
        (directory.path / "FAILED").unlink(missing_ok=True)
    last = [name for name in LAST if name in files]
    for name in [*(name for name in files if name not in LAST), *last]:
        if name == directory.checkpoint.name:
            directory.keep_checkpoint_before()
        write_bytes(directory.path / name, files[name])
    if directory.done:
        directory.tidy()


def _checksum(files: Iterable[tuple[str, bytes]]) -> int:
    found = 0
    for name, content in files:
        found = zlib.crc32(content, zlib.crc32(f"{name}\0{len(content)}\0".encode(), found))
    return found
