"""The command line: `afec run | tune | resume | report | play | list | data | study | posterior`.

A command imports what it needs when it runs: importing PyTorch takes a second or two, and `afec --help` does without.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afec.cli.data import Data
from afec.cli.data import data as data_app
from afec.cli.pools import Address, Board, Cpus, Gpus, PoolName, Runs, RunsFolder, Ship, Wandb, Workers
from afec.cli.posterior import posterior as posterior_app
from afec.cli.study import study as study_app

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["app", "main"]

app = typer.Typer(
    help="Continual learning with active forgetting.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")
app.add_typer(posterior_app, name="posterior")
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda (shared out, one GPU for each process), cuda:1, …; short for --set training.device=…"),
]
SEVERAL = ("--method", "-m", "--set", "--where")  # options that take all the words up to the next option


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"afec {metadata.version('afec')}")
        raise typer.Exit


@app.callback()
def _afec(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Continual learning with active forgetting."""


@app.command()
def run(
    benchmarks: Annotated[
        list[str],
        typer.Argument(
            help="Names of benchmarks (see `afec list`), paths of TOML files, or folder:PATH for your images."
        ),
    ],
    method: Annotated[
        list[str],
        typer.Option(
            "--method", "-m", help="One or more: finetune, ewc, ewc+afec, ewc@equal-compute, joint, scratch, …"
        ),
    ] = ["finetune", "ewc", "ewc+afec"],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow it.")] = 0,
    scale: Annotated[str, typer.Option(help="A scale of the benchmark; `smoke` takes seconds.")] = "full",
    set_: Annotated[
        list[str], typer.Option("--set", help="section.key=value, or several values: method.ewc.strength=10,100")
    ] = [],  # noqa: B006
    runs: RunsFolder = Path("runs"),
    workers: Workers = 0,
    pool: PoolName = "local",
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    ship: Ship = None,
    data: Data = None,
    device: Device = None,
    tensorboard: Board = None,
    wandb: Wandb = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the outcome into this file (.png, .svg).")] = None,
    tuned: Annotated[Path | None, typer.Option(help="The settings that `afec tune` has written, as a file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run and how long it may take.")] = False,
) -> None:
    """Run methods on benchmarks over seeds, one process per core; finished runs are not run again."""
    from afec.cli import pools, work
    from afec.lab import plan
    from afec.lab.spec import load_tuned

    found = load_tuned(tuned) if tuned else None
    sets = _with_device(set_, device)
    all_seeds, place = range(first_seed, first_seed + seeds), pools.place_of(pool, data)
    jobs = pools.planned(pool, plan, benchmarks, method, all_seeds, scale, sets, found, place)
    with pools.opened(pool, address, cpus, gpus, ship, workers, runs, device) as made:
        how = work.How(runs, workers, tensorboard, made, wandb)
        if dry_run:
            work.say_what(jobs, how)
        else:
            work.do(jobs, how, picture)


@app.command()
def tune(
    benchmark: Annotated[str, typer.Argument(help="A benchmark's name, a TOML file's path, or folder:PATH.")],
    method: Annotated[str, typer.Option("--method", "-m", help="The method: ewc, mas+afec, …")],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each trial has.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed; take none that is reported.")] = 100,
    scale: Annotated[str, typer.Option(help="A scale of the benchmark.")] = "full",
    search: Annotated[
        str, typer.Option(help="grid: the benchmark's own; tpe: between its smallest and largest value.")
    ] = "grid",
    trials: Annotated[
        int, typer.Option(min=0, help="How many trials a stage has; 0: the whole grid, or 20 with TPE.")
    ] = 0,
    together: Annotated[bool, typer.Option("--together", help="Search λ and λ_e at once, not λ first.")] = False,
    beta: Annotated[bool, typer.Option("--beta", help="Search β in place of λ_e.")] = False,
    set_: Annotated[list[str], typer.Option("--set", help="section.key=value")] = [],  # noqa: B006
    runs: RunsFolder = Path("runs"),
    workers: Workers = 0,
    pool: PoolName = "local",
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    ship: Ship = None,
    data: Data = None,
    device: Device = None,
    tensorboard: Board = None,
    wandb: Wandb = None,
    out: Annotated[Path | None, typer.Option(help="The TOML with what was found; by default under RUNS.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tried and how long it may take.")
    ] = False,
) -> None:
    """Tune a method on validation accuracy: λ first, without AFEC, then λ_e with that λ kept, as in the paper."""
    from afec.cli import pools, work
    from afec.lab import SpecError, load_benchmark
    from afec.lab.config import grid
    from afec.lab.tuning import Plan
    from afec.naming import unknown

    if search not in ("grid", "tpe"):
        raise SpecError(f"--search {search}: {unknown('search', search, ['grid', 'tpe'])}")
    changes = grid(_with_device(set_, device))
    if len(changes) > 1:
        raise SpecError("afec tune takes one value for each --set; what is searched is the grid of the benchmark")
    how = Plan(
        load_benchmark(benchmark), method, scale, changes[0], range(first_seed, first_seed + seeds),
        "tpe" if search == "tpe" else "grid", trials or None, together, beta, pools.place_of(pool, data),
    )  # fmt: skip
    with pools.opened(pool, address, cpus, gpus, ship, workers, runs, device) as made:
        place = work.How(runs, workers, tensorboard, made, wandb)
        if dry_run:
            work.say_trials(how, place)
        else:
            work.tune(how, place, benchmark, out)


@app.command()
def resume(
    runs: Runs = Path("runs"),
    workers: Workers = 0,
    pool: PoolName = "local",
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    ship: Ship = None,
    data: Data = None,
    device: Annotated[
        str | None, typer.Option(help="Go on there, and not where the runs were begun; their events say so.")
    ] = None,
    tensorboard: Board = None,
    wandb: Wandb = None,
) -> None:
    """Finish the runs that were begun and not finished, each from its last checkpoint."""
    from afec.cli import pools, work
    from afec.lab import RunError, unfinished

    if not runs.is_dir():
        raise RunError(f"there is no directory {runs}; give the one that `afec run` wrote to")
    jobs = unfinished(runs, pools.place_of(pool, data, device))
    if not jobs:
        work.console_here().print(f"nothing to resume: every run under {runs} is done", soft_wrap=True)
        return
    with pools.opened(pool, address, cpus, gpus, ship, workers, runs, device) as made:
        work.do(jobs, work.How(runs, workers, tensorboard, made, wandb), None)


@app.command()
def report(
    runs: Runs = Path("runs"),
    figure: Annotated[
        str | None,
        typer.Option(
            help="study (circles or curves), accuracy, new-tasks, transfer, matrix, strength, trade-off, cost, compute; "
            "of games learning, accumulated; of the scenario `class` confusion."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The page (.html), a figure (.png, .svg, .pdf), every seed (.csv), or the tables (.md, .tex).",
        ),
    ] = None,
    where: Annotated[
        list[str],
        typer.Option("--where", help="Only runs with key=value: scale=short net.name=lenet method=ewc,ewc+afec"),
    ] = [],  # noqa: B006
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep the page fresh while a study runs, until Ctrl-C.")
    ] = False,
    pictures: Annotated[
        bool, typer.Option(help="Circles and Grad-CAM in the page, from weights and data; the rest needs neither.")
    ] = True,
    data: Data = None,
) -> None:
    """Show the tables of the finished runs, draw a figure of them, or write the page about them."""
    from afec.cli import reports, work
    from afec.data.root import data_root, data_root_is

    with data_root_is(data_root(data)):
        reports.report(work.console_here(), runs, figure, out, where, watch, pictures)


@app.command()
def play(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/BENCHMARK/METHOD/HASH/seedN.")],
    game: Annotated[str, typer.Option("--game", "-g", help="The game to play, one of the run's.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="One episode as moving pictures: .gif, or .mp4 where ffmpeg is.")
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Play so many episodes to their ends, and say their mean return.")
    ] = 0,
    after: Annotated[
        str | None, typer.Option(help="The agent as it was after this game, or at the `start`; by default the last.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes.")] = 0,
    sampled: Annotated[bool, typer.Option("--sampled", help="Draw the actions; else take the likeliest ones.")] = False,
    most: Annotated[int, typer.Option(min=1, help="At most so many steps of --out.")] = 1000,
) -> None:
    """The agent of a finished run of games at play, on any of its games, after any of them: pictures, or scores."""
    from afec.cli import work
    from afec.cli.play import play as show

    show(work.console_here(), run, game, after, out, episodes, seed, sampled, most)


@app.command("list")
def list_() -> None:
    """Show the benchmarks, methods, streams and nets that can be named."""
    from rich.console import Console

    from afec.experiments import EXPERIMENTS, find_experiment
    from afec.lab import benchmark_names, load_benchmark
    from afec.methods.expression import FINETUNE, METHODS
    from afec.nets import NETS
    from afec.streams import STREAMS
    from afec.streams.folder import PREFIX
    from afec.streams.registry import FOLDER

    # Where no terminal says how wide it is, lines must not be cut.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = _listing("benchmarks", "scales", "variants", "")
    for name in benchmark_names():
        found = load_benchmark(name)
        table.add_row(name, ", ".join(found.scales), ", ".join(found.variant), found.description)
    found = load_benchmark(f"{PREFIX}my/images")
    table.add_row(FOLDER, ", ".join(found.scales), ", ".join(found.variant), found.description)
    console.print(table)
    table = _listing("methods", "")
    table.add_row(FINETUNE, "no guard: what the others are compared with")
    for record in METHODS.values():
        table.add_row(record.name, record.description)
    for kind in map(find_experiment, EXPERIMENTS):
        for name, place in kind.references.items():
            table.add_row(name, find_experiment(place).description)
    console.print(table)
    console.print("methods add: ewc+afec, mas+afec, …; `@` takes a variant of the benchmark: ewc@equal-compute\n")
    for title, records in (("streams", STREAMS), ("nets", NETS)):
        table = _listing(title, "")
        for entry in records.values():
            table.add_row(entry.name, entry.description)
        console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (by default those of the process) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(expanded(given), standalone_mode=False, prog_name="afec")
    except typer.Exit as leave:
        return leave.exit_code
    except (typer.Abort, KeyboardInterrupt):  # outside of a study; inside of one, `work` says more
        return 130
    except Exception as error:
        show = getattr(error, "show", None)  # what the command line's parser has to say
        if show is not None:
            show()
            return int(getattr(error, "exit_code", 2))
        from afec.lab import RunError, SpecError
        from afec.whole_files import FileError

        if not isinstance(error, SpecError | RunError | FileError):
            raise
        print(f"afec: {error}", file=sys.stderr)
        return 2
    return int(code or 0)


def entry() -> None:
    """Run the installed command `afec`, and exit with its code."""
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from afec.lab.torchrun import leave

        leave(code)
    sys.exit(code)


def expanded(arguments: Sequence[str]) -> list[str]:
    """`--method a b c` as `--method a --method b --method c`."""
    result: list[str] = []
    several = ""
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue="-"):
        if word.startswith("-") and word != "-":
            several = word if word in SEVERAL else ""
            result.append(word)
            if several and following.startswith("-"):
                from afec.lab import SpecError

                raise SpecError(f"{word} needs at least one word after it; `afec run --help` has examples")
        elif several and result[-1] != several:
            result += [several, word]
        else:
            result.append(word)
    return result


def _with_device(sets: Sequence[str], device: str | None) -> list[str]:
    from afec.lab import SpecError

    if device and any(text.partition("=")[0].strip() == "training.device" for text in sets):
        raise SpecError(f"--device {device}: --set training.device says it as well; give one of the two")
    return [*sets, f"training.device={device}"] if device else list(sets)


def _listing(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name != "")
    return table
