"""What is in the data directory, whether it is whole, and how what is missing gets there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from afec.data.catalogue import Archive, Dataset, md5
from afec.data.download import download
from afec.data.root import DataError
from afec.data.unpack import unpack

__all__ = ["Finding", "check", "found", "get"]

OnFile = Callable[[str, int, int | None], None]
"""Called with the name of a file, how many of its bytes are there, and of how many where that is known."""


@dataclass(frozen=True)
class Finding:
    """What was found out about one file or about a dataset."""

    what: str
    good: bool
    words: str


def found(dataset: Dataset, root: Path) -> list[Path]:
    """The folders and archives of the dataset that are there; nothing in them is looked at."""
    places = [root / place for a in (*dataset.archives, *dataset.others) for place in (a.folder, a.name)]
    return [place for place in places if place.exists()]


def check(dataset: Dataset, root: Path) -> Iterator[Finding]:
    """The checksum of each file that is there, one by one, then whether the readers find all of it. Takes seconds."""
    if not found(dataset, root):
        yield Finding(dataset.name, False, f"not in {root}; `afec data get {dataset.name}` fetches it ({dataset.size})")
        return
    for archive in (*dataset.archives, *dataset.others):
        if (root / archive.name).is_file():
            yield _compared(root / archive.name, archive.md5)
        if (root / archive.folder).is_dir():
            for name, checksum in archive.files.items():
                yield _compared(root / archive.folder / name, checksum)
    yield _counted(dataset, root)


def _compared(file: Path, checksum: str) -> Finding:
    if not file.is_file():
        return Finding(str(file), False, "missing")
    actual = md5(file)
    good = actual == checksum
    return Finding(str(file), good, "MD5 as it should be" if good else f"MD5 {actual}, expected {checksum}: damaged")


def _counted(dataset: Dataset, root: Path) -> Finding:
    try:
        counts = dataset.count(root)
    except DataError as error:
        return Finding(dataset.name, False, str(error))
    words = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if counts == dataset.expected:
        return Finding(dataset.name, True, f"can be read: {words}")
    wanted = ", ".join(f"{count:,} {name}" for name, count in dataset.expected.items())
    return Finding(dataset.name, False, f"{words}; expected {wanted}")


def get(dataset: Dataset, root: Path, again: bool = False, on_file: OnFile | None = None) -> bool:
    """Fetch and unpack what is missing; whether there was anything to do.

    An archive that was put into the data directory by hand is taken instead of a download. `again` puts new files in the
    place of damaged ones.
    """
    if not again and found(dataset, root):
        whole = _counted(dataset, root)
        if whole.good:
            return False
        if any((root / archive.folder).exists() for archive in dataset.archives):
            raise DataError(f"{whole.words}\n`afec data get {dataset.name} --again` puts new files in their place")
    for archive in dataset.archives:
        _get_one(archive, root, on_file)
    whole = _counted(dataset, root)
    if not whole.good:
        raise DataError(f"{dataset.name} was fetched, but is not whole: {whole.words}")
    return True


def _get_one(archive: Archive, root: Path, on_file: OnFile | None) -> None:
    file, folder = root / archive.name, root / archive.folder
    by_hand = file.exists()
    download(archive.address, file, archive.md5, None if on_file is None else lambda n, of: on_file(file.name, n, of))
    old = folder.with_name(folder.name + ".old")
    if folder.exists():  # damaged, or the zip file could not come before it
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        if archive.unpack:
            unpack(file, root, archive.folder)
    except DataError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if archive.unpack and not by_hand:
        file.unlink()  # the folder has all that was in it, and its files can be checked one by one
