"""`afec data list | check | get`: which datasets there are, where they belong, whether they are whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from afec.data.catalogue import Dataset

__all__ = ["Data", "data"]

data = typer.Typer(help="The datasets: what there is, what is here, and fetching the rest.", no_args_is_help=True)


Data = Annotated[Path | None, typer.Option("--data", help="Where the datasets are; else AFEC_DATA, else a cache.")]
Names = Annotated[list[str] | None, typer.Argument(help="Names of datasets; all where none is given.")]


@data.command("list")
def list_(data: Data = None) -> None:
    """Show the datasets, where their files come from, and which are here."""
    from rich.table import Table

    from afec.data.catalogue import DATASETS
    from afec.data.root import data_root
    from afec.data.store import found

    console, root = _console(), data_root(data)
    console.print(f"data directory: {root}\n", highlight=False, soft_wrap=True)
    for record in DATASETS.values():
        here = found(record, root)
        state = ", ".join(str(place.relative_to(root)) for place in here) if here else "not here"
        table = Table(box=None, padding=(0, 1), show_header=False, title_justify="left", title_style="bold")
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.title = f"{record.name}  {record.title} ({record.size})"
        table.add_row("  here", state)
        for archive in record.archives:
            kind = "SHA-256" if len(archive.checksum) == 64 else "MD5"
            table.add_row("  from", f"{archive.address}  ({kind} {archive.checksum})")
            table.add_row("  into", f"{archive.name}{f', unpacked to {archive.folder}/' if archive.unpack else ''}")
        if not record.archives:
            table.add_row("  from", record.by_hand)
            table.add_row("  into", f"{record.folder}/")
        table.add_row("  terms", record.licence)
        console.print(table, highlight=False)


@data.command("check")
def check_(names: Names = None, data: Data = None) -> None:
    """Compare the checksums of what is here and read it; the exit code is 1 where something is wrong or missing."""
    from afec.data.root import data_root
    from afec.data.store import check, found

    console, root = _console(), data_root(data)
    bad = 0
    for record in _records(names):
        if names or found(record, root):
            for finding in check(record, root):
                bad += not finding.good
                mark = "ok   " if finding.good else "WRONG"
                console.print(f"{mark} {finding.what}: {finding.words}", highlight=False, markup=False, soft_wrap=True)
        else:
            console.print(f"      {record.name}: not here", highlight=False)
    if bad:
        raise typer.Exit(1)


@data.command("get")
def get_(
    names: Annotated[list[str], typer.Argument(help="Names of datasets.")],
    data: Data = None,
    again: Annotated[bool, typer.Option("--again", help="Put new files in the place of damaged ones.")] = False,
) -> None:
    """Fetch datasets from their official addresses; one that broke off goes on where it was."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from afec.data.root import data_root
    from afec.data.store import get

    console, root = _console(), data_root(data)
    for record in _records(names):
        with Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console,
            disable=not sys.stdout.isatty(),
        ) as bars:  # fmt: skip
            rows: dict[str, TaskID] = {}

            def show(
                name: str, done: int, total: int | None, bars: Progress = bars, rows: dict[str, TaskID] = rows
            ) -> None:
                if name not in rows:
                    rows[name] = bars.add_task(name, total=total)
                bars.update(rows[name], completed=done, total=total)

            fetched = get(record, root, again, show)
        what = "is now in" if fetched else "was already in"
        console.print(f"{record.name} {what} {root}", highlight=False, soft_wrap=True)


def _records(names: list[str] | None) -> list[Dataset]:
    from afec.data.catalogue import DATASETS, dataset
    from afec.data.root import DataError

    try:
        return [dataset(name) for name in names] if names else list(DATASETS.values())
    except ValueError as error:
        raise DataError(str(error)) from error


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=160)
