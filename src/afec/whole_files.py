"""Files that are whole or not there at all. It imports no PyTorch, as all that drives a cluster."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FileError", "replacing", "why_unwritable", "write_bytes", "write_text"]


class FileError(ValueError):
    """A file that is missing, damaged or not one of ours. Says which, what is wrong and what to do."""


def why_unwritable(folder: Path) -> str:
    """Why no file can be written into a folder, which need not exist yet; empty where one can. Leaves nothing behind."""
    folder = folder.absolute()
    above = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not above.is_dir():
        return f"{above} is a file"
    try:
        with tempfile.TemporaryFile(dir=above):
            return ""
    except OSError as error:
        return f"{above}: {error.strerror or error}"


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, just as it is; `path` has its old content or all of the new one, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data`; `path` has its old content or all of the new one, never a part."""
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path` that takes its place if the block ends well and is removed if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        # Its bytes reach the disk before its name does; otherwise a power cut could leave the name with nothing behind it.
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
