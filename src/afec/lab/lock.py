"""One process at a time in a directory: a lock that opens when its holder ends, however it ends, and that says who holds it.

The file `lock` is held by `flock`. Where a system or a file system has none, it is the existence of `lock-held` that counts: a
holder of this host that is gone is noticed, one of another host cannot be, and whoever waits is told which file to delete.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["locked"]

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

WAIT_SECONDS = 0.2
UNNAMED_SECONDS = 10.0  # a holder that has not written its name by then was killed before it could


class _NoFlockError(Exception):
    """Here such locks do not exist."""


@contextmanager
def locked(folder: Path, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """A block that one process at a time is in; `on_wait` is told whom we wait for, again and again, and may raise."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as file:
        try:
            while not _flocked(file):
                _wait(_name(folder / "lock") or "another process", on_wait)
        except _NoFlockError:
            with _held(folder / "lock-held", on_wait):
                yield
            return
        with suppress(OSError):  # a full disk: it is locked all the same
            file.truncate(0)
            file.write(_own_name())
            file.flush()
        yield


def _flocked(file: IO[str]) -> bool:
    if fcntl is None:
        raise _NoFlockError
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise _NoFlockError from error
    return True


@contextmanager
def _held(file: Path, on_wait: Callable[[str], None] | None) -> Iterator[None]:
    while True:
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(_own_name())
            break
        except FileExistsError:
            holder = _name(file)
            if _gone(file, holder):
                file.unlink(missing_ok=True)
            else:
                _wait(f"{holder or 'another process'} (if that is gone, delete {file})", on_wait)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _gone(file: Path, holder: str) -> bool:
    """Whether the holder has certainly ended without giving the lock back."""
    if not holder:
        with suppress(OSError):
            return time.time() - file.stat().st_mtime > UNNAMED_SECONDS
        return False
    number, _, host = holder.removeprefix("process ").partition(" on ")
    if host != platform.node() or os.name != "posix" or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)  # asks, and sends nothing
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):  # somebody else's, or no number of a process
        return False
    return False


def _own_name() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def _name(file: Path) -> str:
    with suppress(OSError, ValueError):
        return file.read_text(encoding="utf-8").strip()
    return ""


def _wait(holder: str, on_wait: Callable[[str], None] | None) -> None:
    if on_wait:
        on_wait(holder)
    time.sleep(WAIT_SECONDS)
