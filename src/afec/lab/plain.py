"""Files of a run directory as plain files: no link that leads out of it, no pipe that never ends, no more than is sensible.

Run directories are handed around. Whoever reads one trusts its numbers, not its files.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["check_plain", "plain_text"]

MOST_TEXT = 64 * 2**20
MOST_WEIGHTS = 4 * 2**30


def plain_text(path: Path, most: int = MOST_TEXT, *, errors: str = "strict") -> str:
    """The text of a plain file, UTF-8; an OSError where it is a link, no file, or has more than `most` bytes."""
    # Without O_NONBLOCK the opening of a pipe waits for somebody to write into it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise OSError(f"{path} is a link; the files of a run are read from its own directory only")
    number = os.open(path, flags)
    try:
        _check(path, os.fstat(number), most)
        with os.fdopen(number, "rb", closefd=False) as file:
            return file.read(most + 1).decode("utf-8", errors)
    finally:
        os.close(number)


def check_plain(path: Path, most: int = MOST_WEIGHTS) -> None:
    """Raise an OSError where `path`, or the folder that it is in, is a link, or it is no file of a sensible size."""
    for one in (path, path.parent):
        if one.is_symlink():
            raise OSError(f"{one} is a link; the files of a run are read from its own directory only")
    _check(path, path.stat(), most)


def _check(path: Path, found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no plain file")
    if found.st_size > most:
        raise OSError(f"{path} has {found.st_size / 2**20:.0f} MB; expected at most {most / 2**20:.0f}")
