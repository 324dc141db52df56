"""What is in the data directory, whether it is whole, and how what is missing gets there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from afec.data.catalogue import Archive, Dataset, checksum
from afec.data.decode import decode_all, listed
from afec.data.download import download
from afec.data.root import DataError
from afec.data.unpack import unpack
from afec.progress import progress_bar

__all__ = ["Finding", "check", "found", "get"]

SMALL = 32  # pixels: the images of a check are looked at, and not kept
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
    return [root / place for place in dataset.places if (root / place).exists()]


def check(dataset: Dataset, root: Path) -> Iterator[Finding]:
    """The checksum of each file that is there, one by one, then whether the readers find all of it.

    Takes seconds; where a dataset is a folder of images, which have no checksums, each is decoded: minutes.
    """
    if not found(dataset, root):
        how = (
            f"`afec data get {dataset.name}` fetches it ({dataset.size})"
            if dataset.archives
            else _by_hand(dataset, root)
        )
        yield Finding(dataset.name, False, f"not in {root}; {how}")
        return
    for archive in (*dataset.archives, *dataset.others):
        if (root / archive.name).is_file():
            yield _compared(root / archive.name, archive.checksum)
        if archive.folder is not None and (root / archive.folder).is_dir():
            for name, expected in archive.files.items():
                yield _compared(root / archive.folder / name, expected)
    counted = _counted(dataset, root)
    yield counted
    if counted.good and dataset.images is not None:
        yield _read(dataset.name, dataset.images(root))


def _read(name: str, files: Sequence[Path]) -> Finding:
    """Whether each of these images can be decoded."""
    bad = []
    with progress_bar(f"reading {name}", len(files)) as show:
        for one in decode_all(files, SMALL):
            show("")
            if isinstance(one, str):
                bad.append(one)
    if not bad:
        return Finding(name, True, f"each of the {len(files):,} images can be decoded")
    words = f"{len(bad):,} of {len(files):,} images cannot be read:{listed(bad)}\nGet these files anew, or mend them"
    return Finding(name, False, words)


def _by_hand(dataset: Dataset, root: Path) -> str:
    return f"{dataset.by_hand}:\n  {root / dataset.folder}"


def _compared(file: Path, expected: str) -> Finding:
    if not file.is_file():
        return Finding(str(file), False, "missing")
    actual, kind = checksum(file, expected), "SHA-256" if len(expected) == 64 else "MD5"
    good = actual == expected
    return Finding(
        str(file), good, f"{kind} as it should be" if good else f"{kind} {actual}, expected {expected}: damaged"
    )


def _counted(dataset: Dataset, root: Path) -> Finding:
    try:
        counts = dataset.count(root)
    except DataError as error:
        return Finding(dataset.name, False, str(error))
    words = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if all(counts.get(name) == count for name, count in dataset.expected.items()):
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
        if any(archive.folder and (root / archive.folder).exists() for archive in dataset.archives):
            raise DataError(f"{whole.words}\n`afec data get {dataset.name} --again` puts new files in their place")
    if not dataset.archives:
        raise DataError(f"{dataset.name} cannot be fetched. {_by_hand(dataset, root)}")
    for archive in dataset.archives:
        _get_one(archive, root, on_file)
    whole = _counted(dataset, root)
    if not whole.good:
        raise DataError(f"{dataset.name} was fetched, but is not whole: {whole.words}")
    return True


def _get_one(archive: Archive, root: Path, on_file: OnFile | None) -> None:
    file = root / archive.name
    by_hand = file.exists()
    show = None if on_file is None else lambda n, of: on_file(file.name, n, of)
    download(archive.address, file, archive.checksum, show)
    if archive.folder is None:
        return
    folder = root / archive.folder
    old = folder.with_name(folder.name + ".old")
    if folder.exists():  # damaged, or the zip file could not come before it
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        if archive.unpack:
            unpack(file, root, archive.folder, archive.beside)
    except DataError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if archive.unpack and not by_hand:
        file.unlink()  # the folder has all that was in it, and its files can be checked one by one
