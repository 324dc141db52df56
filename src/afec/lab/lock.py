"""One process at a time in a directory: a lock that opens when its holder ends, however it ends, and that says who holds it.

The file `lock` is held by the system (`flock`). Where a file system has no such locks, the existence of `lock-held` counts. A
holder of this host that is gone is noticed; one of another host cannot be, and whoever waits is told which file to delete.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from afec.experiments import NEVER, Stop, StoppedError

__all__ = ["BusyError", "locked"]

WAIT_SECONDS = 0.2
NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


class BusyError(Exception):
    """Another process holds the lock, and it was not to be waited for."""


@contextmanager
def locked(
    folder: Path, on_wait: Callable[[str], None] | None = None, *, stop: Stop = NEVER, patient: bool = True
) -> Iterator[None]:
    """A block that one process at a time is in.

    Args:
        folder: what is locked; it is made where it does not exist.
        on_wait: told who holds the lock, again and again while we wait.
        stop: ends the waiting by a `StoppedError`.
        patient: whether to wait at all; otherwise a `BusyError` is raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / "lock-holder"
    lock: BaseFileLock = FileLock(folder / "lock", fallback_to_soft=False)
    while True:
        try:
            lock.acquire(timeout=WAIT_SECONDS if patient else 0, poll_interval=WAIT_SECONDS / 4)
            break
        except Timeout:
            name = _name(holder)
            if isinstance(lock, SoftFileLock):
                name += f" (if that is gone, delete {lock.lock_file})"
            if not patient:
                raise BusyError(name) from None
            if stop.asked:
                raise StoppedError from None
            if on_wait:
                on_wait(name)
        except OSError as error:
            if isinstance(lock, SoftFileLock) or error.errno not in NO_FLOCK:
                raise
            lock = SoftFileLock(folder / "lock-held")
    try:
        with suppress(OSError):  # a full disk: it is locked all the same
            holder.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _name(holder: Path) -> str:
    with suppress(OSError, ValueError):
        return holder.read_text(encoding="utf-8").strip() or "another process"
    return "another process"
