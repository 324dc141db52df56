"""`afec study list | show | run`: runs that belong together, and the tables and figures that come out of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from afec.cli.data import Data
from afec.cli.pools import Address, Board, Cpus, Gpus, PoolName, RunsFolder, Ship, Wandb, Workers

if TYPE_CHECKING:
    from afec.cli.work import How
    from afec.lab import Job, Place
    from afec.lab.spec import Changes
    from afec.lab.studies import Study, TunedFor

__all__ = ["study"]

study = typer.Typer(
    help="Studies: every table and figure of the paper, and our own, each from one command.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The name of a study, or the path of a TOML file.")]
Scale = Annotated[str, typer.Option(help="A scale of the study.")]


@study.command("list")
def list_() -> None:
    """Show the studies that come with the package."""
    from rich.table import Table

    from afec.lab.studies import load_study, study_names

    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("study", "paper", "scales", ""):
        table.add_column(name, no_wrap=name != "")
    for name in study_names():
        found = load_study(name)
        table.add_row(name, found.paper, ", ".join(found.scales), found.description)
    _console().print(table)


@study.command("show")
def show(name: Name, scale: Scale = "full", runs: RunsFolder = Path("runs"), data: Data = None) -> None:
    """Show what a study runs, how much of it is done, how long the rest may take, and what it writes."""
    from afec.cli import work
    from afec.lab.studies import load_study

    console, found = _console(), load_study(name).at(scale)
    about = f" ({found.paper} of the paper)" if found.paper else ""
    console.print(f"{found.name}{about}: {found.description}", highlight=False, soft_wrap=True)
    for search in found.tune:
        seeds = f"{search.seeds} seed{'s' * (search.seeds > 1)} from {search.first_seed} on"
        methods = ", ".join(search.methods)
        trials = f", {search.trials} trial{'s' * (search.trials > 1)} of each grid" if search.trials else ""
        text = f"tune: {search.benchmark} at {search.scale}: {methods}; {seeds}{trials}"
        console.print(text, highlight=False, soft_wrap=True)
    work.say_what(found.jobs(_tuned(found, runs)), work.How(runs))
    for output in found.outputs:
        figure = f"figure {output.figure} " if output.figure else ""
        of = f"of {' '.join(output.where)}" if output.where else ""
        console.print(f"writes {output.file}  {figure}{of}".rstrip(), highlight=False, soft_wrap=True)


@study.command("run")
def run(
    name: Name,
    scale: Scale = "full",
    runs: RunsFolder = Path("runs"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the results go; by default results/NAME.")
    ] = None,
    workers: Workers = 0,
    pool: PoolName = "local",
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    ship: Ship = None,
    data: Data = None,
    tensorboard: Board = None,
    wandb: Wandb = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run and how long it may take.")] = False,
) -> None:
    """Run what is missing of a study, then write its tables and figures; a study that was stopped goes on where it was."""
    if dry_run:
        show(name, scale, runs, data)
        return
    from afec.cli import pools, work

    place = pools.place_of(pool, data)
    found, jobs = pools.planned(pool, _planned, name, scale, runs, place)
    folder = out or Path("results") / (found.name if scale == "full" else f"{found.name}-{scale}")
    work.check_writable("--out", folder, folder)
    with pools.opened(pool, address, cpus, gpus, ship, workers, runs) as made:
        how = work.How(runs, workers, tensorboard, made, wandb)
        if found.tune:
            _tune(found, how, place)
            _, jobs = _planned(name, scale, runs, place)
        own = work.do(jobs, how, None)
    from afec.cli import reports
    from afec.data.root import data_root, data_root_is

    with data_root_is(data_root(data)):
        for output in found.outputs:
            reports.write(_console(), own, folder / output.file, output.figure, output.where, runs)


def _planned(name: str, scale: str, runs: Path, place: Place) -> tuple[Study, list[Job]]:
    """The study, and its runs as far as the searches are done."""
    from afec.lab.studies import load_study

    found = load_study(name).at(scale)
    return found, found.jobs(_tuned(found, runs), place)


def _tune(found: Study, how: How, place: Place) -> None:
    """Search what the study wants searched."""
    from afec.cli import work
    from afec.lab.config import grid
    from afec.lab.spec import load_benchmark
    from afec.lab.tuning import Plan

    for search in found.tune:
        (changes,) = grid(search.set)
        seeds = range(search.first_seed, search.first_seed + search.seeds)
        benchmark = load_benchmark(search.benchmark)
        for method in search.methods:
            plan = Plan(
                benchmark,
                method,
                search.scale,
                changes,
                seeds,
                trials=search.trials,
                together=search.together,
                place=place,
            )
            file = _tuned_file(found, how.runs, search.benchmark, method, search.scale)
            work.tune(plan, how, search.benchmark, file)


def _tuned(found: Study, runs: Path) -> TunedFor:
    """What the searches of the study have chosen so far, for each method that was searched."""
    from afec.lab.spec import load_tuned

    searched = {(one.benchmark, method, one.scale) for one in found.tune for method in one.methods}

    def chosen(benchmark: str, method: str, scale: str) -> Changes | None:
        file = _tuned_file(found, runs, benchmark, method, scale)
        return load_tuned(file) if (benchmark, method, scale) in searched and file.exists() else None

    return chosen


def _tuned_file(found: Study, runs: Path, benchmark: str, method: str, scale: str) -> Path:
    from afec.lab.directory import TUNING

    return runs / TUNING / found.name / f"{Path(benchmark).stem}-{method}-{scale}.toml"


def _console() -> Console:
    from afec.cli.work import console_here

    return console_here()
