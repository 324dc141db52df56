"""Archives of tar, unpacked with care: plain files and folders inside of one named folder, and nothing else."""

from __future__ import annotations

import secrets
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from afec.data.root import DataError

__all__ = ["unpack"]

MOST_BYTES = 4 << 30  # several times what any dataset here unpacks to


def unpack(archive: Path, root: Path, folder: str, beside: Sequence[str] = ()) -> Path:
    """Unpack `archive` to `root/folder`; whole, or not at all.

    Every entry must be a plain file or a folder inside of `folder`. A path that leaves it, an absolute one, a link or a device
    refuses the whole archive; of what is outside, only the plain files that `beside` names are passed over. Owners and modes in
    the archive are not taken over.
    """
    goal = root / folder
    if goal.exists():
        raise DataError(f"{goal} is in the way of what {archive.name} unpacks to; move it away")
    work = root / f".{secrets.token_hex(8)}.tmp"
    try:
        work.mkdir(parents=True)
        _copy_out(archive, work, folder, beside)
        if not (work / folder).is_dir():
            raise DataError(f"{archive} has no folder {folder}/, so it is another archive; fetch it again")
        goal.parent.mkdir(parents=True, exist_ok=True)
        (work / folder).rename(goal)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return goal


def _copy_out(archive: Path, work: Path, folder: str, beside: Sequence[str]) -> None:
    written = 0
    try:
        with tarfile.open(archive, "r|*") as entries:
            for entry in entries:
                if entry.isreg() and entry.name.removeprefix("./") in beside:
                    continue
                target = work / _inside(entry.name, folder, archive)
                if entry.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                content = entries.extractfile(entry) if entry.isreg() else None
                if content is None:
                    raise DataError(
                        f"{archive}: {entry.name!r} is no plain file (a link or a device); nothing was unpacked"
                    )
                written += entry.size
                if written > MOST_BYTES:
                    raise DataError(f"{archive} unpacks to more than {MOST_BYTES:,} bytes; nothing was unpacked")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    except DataError:
        raise
    except FileExistsError as error:
        raise DataError(f"{archive} has {error.filename} twice; nothing was unpacked") from error
    except Exception as error:  # a damaged archive makes tarfile raise nearly anything
        message = error or type(error).__name__
        raise DataError(f"{archive} is damaged or no archive ({message}); nothing was unpacked") from error


def _inside(name: str, folder: str, archive: Path) -> PurePosixPath:
    """The entry's path, which must lie in the folder."""
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or ".." in parts or "\\" in name or ":" in name or parts[:1] != [folder]:
        raise DataError(
            f"{archive}: {name!r} is not inside of {folder}/, where all of it belongs; nothing was unpacked"
        )
    return PurePosixPath(*parts)
