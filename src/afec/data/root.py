"""Where the datasets are. A place on one machine is no part of an experiment, so no config has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from afec.whole_files import FileError

__all__ = ["VARIABLE", "DataError", "data_root", "data_root_is"]

VARIABLE = "AFEC_DATA"
_ROOT: ContextVar[Path | None] = ContextVar("data_root", default=None)


class DataError(FileError):
    """A dataset that is missing, incomplete or damaged. Says which file, where it belongs and how to get it."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The directory that the datasets are in: `root`, else that of the present job, else AFEC_DATA, else `~/.cache/afec/data`.

    It need not exist yet. The default follows XDG_CACHE_HOME where that is set.
    """
    if given := root or _ROOT.get() or os.environ.get(VARIABLE):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "afec" / "data"


@contextmanager
def data_root_is(root: Path | None) -> Iterator[None]:
    """The block whose data are in `root`: the data directory is part of a job. None changes nothing."""
    token = _ROOT.set(root or _ROOT.get())
    try:
        yield
    finally:
        _ROOT.reset(token)
