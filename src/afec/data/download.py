"""A file from its address to the disk: whole and checked, or not there at all.

What has arrived is kept in `NAME.part` beside the target. A download that breaks off goes on from there, by itself a few times
and with the next call otherwise (HTTP ranges); a server that cannot do this is asked for all of it again. Only when the
checksum fits does the file get its name.
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from afec.data.catalogue import checksum as checksum_of
from afec.data.root import DataError

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["OnBytes", "download"]

OnBytes = Callable[[int, int | None], None]
"""Called with how many bytes are there, and of how many where that is known."""

BLOCK = 1 << 16
TRIES = 4  # in a row without a single byte more
PAUSE = 1.0  # seconds before the second try; twice as long before each further one
TIMEOUT = 30.0  # seconds without a byte


class _NoneLeftError(Exception):
    """The server says that there is nothing after what we have."""


def download(address: str, target: Path, checksum: str, on_bytes: OnBytes | None = None) -> None:
    """Fetch `address` into `target`, unless `target` is there already and has that checksum (MD5 or SHA-256).

    Raises:
        DataError: it cannot be reached, or what arrives is not the file. Says what to fetch by hand, and where to put it.
    """
    if target.is_file() and checksum_of(target, checksum) == checksum:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with _alone(part, target):
        resumed = part.stat().st_size > 0
        _fetch(address, part, target, on_bytes)
        if checksum_of(part, checksum) != checksum and resumed:
            # The beginning may be of an older version, or of something else altogether: once more, from nothing.
            os.truncate(part, 0)
            _fetch(address, part, target, on_bytes)
        if (found := checksum_of(part, checksum)) != checksum:
            part.unlink()
            raise DataError(
                f"{address}: what arrived has the checksum {found}, expected {checksum}; it was not kept. {_by_hand(target)}"
            )
        os.replace(part, target)


@contextmanager
def _alone(part: Path, target: Path) -> Iterator[None]:
    """The file for what arrives, for this process only."""
    with part.open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"another process is fetching {target}; wait until it is done") from None
        try:
            yield
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()


def _fetch(address: str, part: Path, target: Path, on_bytes: OnBytes | None) -> None:
    """Everything after what is there, in as many requests as it takes."""
    failures = 0
    while True:
        before = part.stat().st_size
        try:
            _request(address, part, on_bytes)
            return
        except _NoneLeftError:
            return  # the checksum will tell
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            failures = 1 if part.stat().st_size > before else failures + 1
            if refused or failures >= TRIES:
                raise DataError(f"{address} cannot be fetched ({error}). {_by_hand(target)}") from error
            time.sleep(PAUSE * 2 ** (failures - 1))


def _request(address: str, part: Path, on_bytes: OnBytes | None) -> None:
    have = part.stat().st_size
    headers = {"User-Agent": "afec", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            raise _NoneLeftError from error
        raise
    with answer, part.open("r+b") as file:
        if answer.status != 206 or not _continues(answer, have):
            have = 0  # all of it comes again
        file.truncate(have)
        file.seek(have)
        _copy(answer, file, have, on_bytes)


def _continues(answer: Any, have: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")


def _copy(answer: Any, file: IO[bytes], have: int, on_bytes: OnBytes | None) -> None:
    length = answer.headers.get("Content-Length")
    total = have + int(length) if length and length.isdecimal() else None
    while block := answer.read(BLOCK):
        file.write(block)
        have += len(block)
        if on_bytes:
            on_bytes(have, total)
    if total is not None and have < total:  # a read of some bytes does not tell that the connection was lost
        raise ConnectionError(f"it broke off after {have:,} of {total:,} bytes")


def _by_hand(target: Path) -> str:
    return f"To go on without it, fetch that file by hand and put it here:\n  {target}\nthen run the same command again"
