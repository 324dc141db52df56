"""The command line: `afec run | tune | resume | list | data`."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from afec.cli.data import Data
from afec.cli.data import data as data_app
from afec.data.root import VARIABLE
from afec.files import FileError, write_text
from afec.lab import (
    REFERENCES,
    Job,
    Outcome,
    RunError,
    SpecError,
    available_cores,
    benchmark_names,
    check_buildable,
    execute,
    load_benchmark,
    plan,
    unfinished,
)
from afec.lab.config import grid
from afec.lab.estimate import estimate
from afec.lab.spec import FULL, load_tuned
from afec.lab.tuning import Plan, trials_of
from afec.lab.tuning import tune as tune_method
from afec.lab.watch import Watch
from afec.methods.expression import FINETUNE, METHODS
from afec.naming import unknown
from afec.nets import NETS
from afec.report.picture import draw_study
from afec.report.search import draw_search, trials_table
from afec.report.table import Line, comparisons, lines, problems, study_table
from afec.streams import STREAMS

__all__ = ["app", "main"]

app = typer.Typer(
    help="Continual learning with active forgetting.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
app.add_typer(data_app, name="data")
PICTURES = (".png", ".svg", ".pdf")
STOPPED = (
    "stopped; finished runs are kept: the same command goes on, and `afec resume {}` finishes the runs that were begun"
)
LEGEND = (
    "AAC: mean accuracy of all tasks at the end; old tasks, new task: its two parts; each new task: just after learning it;\n"
    "BWT: what old tasks gained or lost since; transfer: other tasks, by heads alone on the final features;\n"
    "compute: samples with gradients, θ_e and Fisher included, relative to finetune"
)
SEVERAL = ("--method", "-m", "--set")  # options that take all the words up to the next option


@app.callback()
def _afec() -> None:
    """Continual learning with active forgetting."""


@app.command()
def run(
    benchmarks: Annotated[
        list[str], typer.Argument(help="Names of benchmarks (see `afec list`), or paths of TOML files.")
    ],
    method: Annotated[
        list[str],
        typer.Option(
            "--method", "-m", help="One or more: finetune, ewc, ewc+afec, ewc@equal-compute, joint, scratch, …"
        ),
    ] = ["finetune", "ewc", "ewc+afec"],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    scale: Annotated[str, typer.Option(help="A scale of the benchmark; `smoke` takes seconds.")] = FULL,
    set_: Annotated[
        list[str], typer.Option("--set", help="section.key=value, or several values: method.ewc.strength=10,100")
    ] = [],  # noqa: B006
    runs: Annotated[Path, typer.Option(help="Where the run directories are.")] = Path("runs"),
    workers: Annotated[int, typer.Option(min=0, help="Processes of one thread each; 0: one per core.")] = 0,
    data: Data = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the outcome into this file (.png, .svg).")] = None,
    tuned: Annotated[Path | None, typer.Option(help="Settings that `afec tune` has written.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run and how long it may take.")] = False,
) -> None:
    """Run methods on benchmarks over seeds, one process per core; finished runs are not run again."""
    found = load_tuned(tuned) if tuned else None
    jobs = plan(benchmarks, method, range(first_seed, first_seed + seeds), scale, set_, found)
    if dry_run:
        _say_what(jobs, runs, workers or available_cores())
    else:
        _do(jobs, runs, workers, picture)


@app.command()
def tune(
    benchmark: Annotated[str, typer.Argument(help="The name of a benchmark, or the path of a TOML file.")],
    method: Annotated[str, typer.Option("--method", "-m", help="The method: ewc, mas+afec, …")],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each trial has.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them; not one that is reported.")] = 100,
    scale: Annotated[str, typer.Option(help="A scale of the benchmark.")] = FULL,
    search: Annotated[
        str, typer.Option(help="grid: the benchmark's own; tpe: between its smallest and largest value.")
    ] = "grid",
    trials: Annotated[int, typer.Option(min=0, help="Of each stage; 0: the whole grid, or 20 of TPE.")] = 0,
    together: Annotated[bool, typer.Option("--together", help="Search λ and λ_e at once, not λ first.")] = False,
    beta: Annotated[bool, typer.Option("--beta", help="Search β in place of λ_e.")] = False,
    set_: Annotated[list[str], typer.Option("--set", help="section.key=value")] = [],  # noqa: B006
    runs: Annotated[Path, typer.Option(help="Where the run directories are.")] = Path("runs"),
    workers: Annotated[int, typer.Option(min=0, help="Processes of one thread each; 0: one per core.")] = 0,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="The TOML with what was found; by default under RUNS.")] = None,
) -> None:
    """Tune a method on validation accuracy: λ first, without AFEC, then λ_e with that λ kept, as in the paper."""
    if search not in ("grid", "tpe"):
        raise SpecError(f"--search {search}: {unknown('search', search, ['grid', 'tpe'])}")
    changes = grid(set_)
    if len(changes) > 1:
        raise SpecError("afec tune takes one value for each --set; what is searched is the grid of the benchmark")
    how = Plan(
        load_benchmark(benchmark), method, scale, changes[0], range(first_seed, first_seed + seeds),
        "tpe" if search == "tpe" else "grid", trials or None, together, beta,
    )  # fmt: skip
    _tune(how, runs, workers or available_cores(), out)


@app.command()
def resume(
    runs: Annotated[Path, typer.Argument(help="Where the run directories are.")] = Path("runs"),
    workers: Annotated[int, typer.Option(min=0, help="Processes of one thread each; 0: one per core.")] = 0,
    data: Data = None,
) -> None:
    """Finish the runs that were begun and not finished, each from its last checkpoint."""
    if not runs.is_dir():
        raise RunError(f"there is no directory {runs}; give the one that `afec run` wrote to")
    jobs = unfinished(runs)
    if not jobs:
        Console().print(f"nothing to resume: every run under {runs} is done", soft_wrap=True)
        return
    _do(jobs, runs, workers, None)


@app.command("list")
def list_() -> None:
    """Show the benchmarks, methods, streams and nets that can be named."""
    console = _console()
    table = _listing("benchmarks", "scales", "variants", "")
    for name in benchmark_names():
        found = load_benchmark(name)
        table.add_row(name, ", ".join(found.scales), ", ".join(found.variant), found.description)
    console.print(table)
    table = _listing("methods", "")
    table.add_row(FINETUNE, "no guard: what the others are compared with")
    for record in METHODS.values():
        table.add_row(record.name, record.description)
    for name, description in REFERENCES.items():
        table.add_row(name, description)
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
    before = os.environ.get(VARIABLE)
    try:
        code = app(expanded(given), standalone_mode=False, prog_name="afec")
    except (SpecError, RunError, FileError) as error:
        print(f"afec: {error}", file=sys.stderr)
        return 2
    except typer.Exit as leave:
        return leave.exit_code
    except (typer.Abort, KeyboardInterrupt):  # outside of a study; inside of one, `_do` says more
        return 130
    except Exception as error:
        show = getattr(error, "show", None)  # what the command line's parser has to say
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))
    finally:  # --data is of this command alone
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
    return int(code or 0)


def entry() -> None:
    """The installed command."""
    sys.exit(main())


def expanded(arguments: Sequence[str]) -> list[str]:
    """`--method a b c` as `--method a --method b --method c`."""
    result: list[str] = []
    several = ""
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue="-"):
        if word.startswith("-") and word != "-":
            several = word if word in SEVERAL else ""
            result.append(word)
            if several and following.startswith("-"):
                raise SpecError(f"{word} needs at least one word after it; `afec run --help` has examples")
        elif several and result[-1] != several:
            result += [several, word]
        else:
            result.append(word)
    return result


def _say_what(jobs: Sequence[Job], runs: Path, workers: int) -> None:
    console = _console()
    for label in dict.fromkeys(f"{job.config.benchmark}, {Line(job.config).label}" for job in jobs):
        console.print(label, highlight=False, soft_wrap=True)
    console.print(
        f"{estimate(jobs, runs, workers)}, on {workers} processes; nothing was run", highlight=False, soft_wrap=True
    )


def _tune(how: Plan, runs: Path, workers: int, out: Path | None) -> None:
    console = _console()
    with Watch(console, trials_of(how) * len(how.seeds), workers) as watch:
        try:
            tuned = tune_method(how, runs, workers, watch)
        except KeyboardInterrupt as stop:
            print("stopped; the same command goes on where it was", file=sys.stderr)
            raise typer.Exit(130) from stop
    console.print(trials_table(tuned))
    folder = runs / how.benchmark.name / "tune"
    name = f"{tuned.method}-{how.scale}"
    file = out or folder / f"{name}.toml"
    command = " ".join(["afec", *sys.argv[1:]])
    write_text(file, tuned.to_toml(f"found by `{command}` on validation images of the seeds {list(how.seeds)}"))
    write_text(file.with_suffix(".csv"), tuned.to_csv())
    draw_search(file.with_suffix(".png"), tuned, f"tuning of {tuned.method} on {how.benchmark.name}, scale {how.scale}")
    console.print(
        f"found: {file}\npicture: {file.with_suffix('.png')}\nuse it: afec run {how.benchmark.name} --method {tuned.method} "
        f"--scale {how.scale} --tuned {file}", highlight=False, soft_wrap=True,
    )  # fmt: skip


def _do(jobs: Sequence[Job], runs: Path, workers: int, picture: Path | None) -> None:
    if picture:
        _check_picture(picture, jobs)
    check_buildable(jobs)
    console, workers = _console(), workers or available_cores()
    console.print(f"{len(jobs)} runs on {workers} processes, into {runs}", highlight=False, soft_wrap=True)
    with Watch(console, len(jobs), workers) as watch:
        try:
            outcomes = execute(jobs, runs, workers, watch)
        except KeyboardInterrupt as stop:
            print(STOPPED.format(runs), file=sys.stderr)
            raise typer.Exit(130) from stop
    failed = [outcome for outcome in outcomes if outcome.error]
    _show(console, outcomes)
    drawn = [(o.job.config, o.directory) for o in outcomes if not o.error and o.job.config.method != "scratch"]
    if picture and drawn:
        draw_study(picture, drawn)
        console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    elif picture:
        console.print("no picture: no method's run is finished", highlight=False)
    for outcome in failed:
        print(f"\n{outcome.job} failed:\n{outcome.error}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(outcomes)} runs failed; their directories have the tracebacks", file=sys.stderr)
        raise typer.Exit(1)


def _check_picture(picture: Path, jobs: Sequence[Job]) -> None:
    """Before hours of work, not after them."""
    if picture.suffix not in PICTURES:
        raise SpecError(f"--picture {picture}: expected a file name that ends in {', '.join(PICTURES)}")
    if len({job.config.benchmark for job in jobs}) > 1:
        raise SpecError("--picture draws one benchmark; give one, or leave --picture out")


def _show(console: Console, outcomes: Sequence[Outcome]) -> None:
    rows = lines([(outcome.job.config, outcome.directory) for outcome in outcomes])
    for mark, mine in problems(rows):  # other tasks or another net are another table
        console.print(study_table(mine, mark))
        for sentence in [*comparisons(mine), *comparisons(mine, "transfer")]:
            console.print(sentence, highlight=False, soft_wrap=True)
    if rows:
        console.print(LEGEND, style="dim", highlight=False, soft_wrap=True)


def _console() -> Console:
    # Where no terminal says how wide it is, lines must not be cut.
    return Console() if sys.stdout.isatty() else Console(width=160)


def _listing(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name != "")
    return table
