"""A progress bar on a terminal: the one place that draws it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from afec.randomness import forked

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(what: str, total: int | None = None, *, wanted: bool | None = None) -> Iterator[Callable[[str], None]]:
    """A bar while the block runs; yields a function to call after each step, with a text that stands beside the bar.

    Args:
        what: stands before the bar.
        total: how many steps there will be; None where nobody knows.
        wanted: whether there is a bar; by default where standard error is a terminal.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda text: None
        return
    with forked(0):  # rich draws from `random` when it is imported
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(what, total=total, text="")
        yield lambda text: bar.update(row, advance=1, text=text)
