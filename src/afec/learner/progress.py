"""A bar for one training, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from afec.learner.fit import Epoch
from afec.randomness import forked

__all__ = ["NAMES", "shown"]

NAMES = {"theta_e": "expansion", "train": "learning", "joint": "learning all", "transfer": "head alone"}
"""How phases are called on a terminal; others, those of a strategy, by their own names."""


@contextmanager
def shown(wanted: bool | None, number: int, name: str, phase: str) -> Iterator[Callable[[Epoch], None]]:
    """A function to call after each epoch. How many there will be is not known: the plateau decides."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda epoch: None
        return
    with forked(0):  # rich draws from `random` when it is imported
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        row = bar.add_task(f"{NAMES.get(phase, phase)}, task {number + 1} ({name})", total=None, at="")
        yield lambda epoch: bar.update(
            row, at=f"epoch {epoch.number}, lr {epoch.lr:.1e}, validation loss {epoch.loss:.4g}"
        )
