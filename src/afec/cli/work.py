"""What `afec run`, `afec tune` and `afec resume` do once their arguments are read.

Apart from the commands, because tables take a second to import. Tables and pictures are imported when they are made: a command
that drives a cluster for days holds neither PyTorch nor matplotlib.
"""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from afec.lab import Job, RunConfig, RunDirectory, SpecError, check_runnable, execute
from afec.lab.directory import TUNING
from afec.lab.engine import MakePool, Watcher, workers_for
from afec.lab.estimate import Estimate, estimate
from afec.lab.progress import LiveProgress
from afec.lab.tensorboard import check_tensorboard
from afec.lab.wandb import WandbLog, check_wandb
from afec.whole_files import FileError, why_unwritable, write_text

if TYPE_CHECKING:
    from afec.lab.tuning import Plan

__all__ = ["How", "check_writable", "console_here", "do", "say_trials", "say_what", "tune"]

STOPPED = (
    "stopped; finished runs are kept: the same command goes on, and `afec resume {}` finishes the runs that were begun"
)


@dataclass(frozen=True)
class How:
    """Where runs go, how many processes run them, and what is logged."""

    runs: Path
    workers: int = 0
    """0: one per core, or per GPU."""
    board: Path | None = None
    """Where to log for TensorBoard."""
    pool: MakePool | None = None
    """What makes the pools; None: processes of this machine."""
    wandb: str | None = None
    """The project of Weights & Biases to log to."""

    def __post_init__(self) -> None:
        if self.board is not None:
            check_tensorboard()
        if self.wandb is not None:
            check_wandb()

    def watching(self, watch: LiveProgress) -> Watcher:
        """The progress, and the log behind it."""
        return watch if self.wandb is None else WandbLog(self.wandb, watch)


def say_what(jobs: Sequence[Job], how: How) -> None:
    """The runs of a study, and how long they may take."""
    from afec.lab.forecast import forecast
    from afec.report.rows import Row

    console, workers = console_here(), how.workers or workers_for(jobs)
    for label in dict.fromkeys(f"{job.config.benchmark}, {Row(job.config).label}" for job in jobs):
        console.print(label, highlight=False, soft_wrap=True)
    console.print(
        f"{estimate(jobs, how.runs, workers)}, on {workers} processes; nothing was run",
        highlight=False,
        soft_wrap=True,
    )
    for line in forecast(jobs, how.runs).lines(workers):
        console.print(line, highlight=False, soft_wrap=True)


def say_trials(plan: Plan, how: How) -> None:
    """The trials of a tuning, and how long they may take."""
    from afec.lab.tuning import rehearse

    console, root = console_here(), how.runs / TUNING
    _say_default_grids(console, plan)
    cost = Estimate(0, 0, 0, 0.0)
    earlier: tuple[str, ...] = ()
    for stage, points, jobs in rehearse(plan, root):
        workers = how.workers or workers_for(jobs)
        known = all(RunDirectory.of(root, job.config, job.seed).done for job in jobs)
        kept = ", ".join(f"{key} as found" if key in earlier else f"{key}={v:g}" for key, v in stage.kept.items())
        if plan.search == "tpe":
            ranges = ", ".join(f"{key} from {min(v):g} to {max(v):g}" for key, v in stage.space.items())
            points_shown = [f"{len(points)} trials by TPE, {ranges}"]
        else:
            points_shown = [", ".join(f"{key}={value:g}" for key, value in point.items()) for point in points]
        for point in points_shown:
            console.print(f"{stage.method}: {kept}{', ' if kept else ''}{point}", highlight=False, soft_wrap=True)
        cost += estimate(jobs, root, workers, also=how.runs)
        earlier = earlier if known and plan.search == "grid" else (*earlier, *stage.space)
    seeds = f"{len(plan.seeds)} seed{'s' if len(plan.seeds) > 1 else ''} for each trial"
    images = f", about {stage.images:.0f} validation images" if math.isfinite(stage.images) else ""
    console.print(f"{seeds}{images}", highlight=False)
    console.print(f"{cost}, on {workers} processes; nothing was run", highlight=False, soft_wrap=True)


def _say_default_grids(console: Console, plan: Plan) -> None:
    from afec.lab.tuning import without_grid

    for term in without_grid(plan):
        text = f"{plan.benchmark.name} has no grid for {term}: the default one is searched; [tune.{term}] gives another"
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def tune(plan: Plan, how: How, benchmark: str, out: Path | None) -> None:
    """Tune, and write what was found; `benchmark` is how the user has called it."""
    from afec.lab import tuning
    from afec.report.search import draw_search, trials_table
    from afec.report.table import print_table

    check_writable("--runs", how.runs, how.runs)
    if out:
        check_writable("--out", out, out.parent)
    console = console_here()
    _say_default_grids(console, plan)
    with LiveProgress(console, tuning.trials_of(plan) * len(plan.seeds)) as watch:
        try:
            tuned = tuning.tune(
                plan, how.runs / TUNING, how.workers, how.watching(watch), board=how.board, pool=how.pool
            )
        except KeyboardInterrupt as stop:
            print("stopped; the same command goes on where it was", file=sys.stderr)
            raise typer.Exit(130) from stop
    print_table(console, trials_table(tuned))
    for text in tuned.remarks:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    file = out or how.runs / plan.benchmark.name / "tune" / f"{tuned.method}-{plan.scale}.toml"
    command = shlex.join(["afec", *sys.argv[1:]])
    write_text(file, tuned.to_toml(f"found by `{command}` on validation images of the seeds {list(plan.seeds)}"))
    write_text(file.with_suffix(".csv"), tuned.to_csv())
    draw_search(
        file.with_suffix(".png"), tuned, f"tuning of {tuned.method} on {plan.benchmark.name}, scale {plan.scale}"
    )
    use = ["afec", "run", benchmark, "--method", tuned.method, "--scale", plan.scale, "--tuned", str(file)]
    console.print(
        f"found: {file}\npicture: {file.with_suffix('.png')}\nuse it: {shlex.join(use)}",
        highlight=False,
        soft_wrap=True,
    )


def do(jobs: Sequence[Job], how: How, picture: Path | None) -> list[tuple[RunConfig, RunDirectory]]:
    """Run, and show what came out; returns the runs."""
    if picture:
        _check_picture(picture, jobs)
    if not all(RunDirectory.of(how.runs, job.config, job.seed).done for job in jobs):
        check_writable("--runs", how.runs, how.runs)
    origins = check_runnable(jobs) if how.pool is None else []  # every node of a cluster does it for itself
    console, workers, runs = console_here(), how.workers or workers_for(jobs), how.runs
    for words in origins:
        console.print(words, highlight=False, soft_wrap=True)
    where = f"{workers} processes" if how.pool is None else how.pool
    console.print(f"{len(jobs)} runs on {where}, into {runs}", highlight=False, soft_wrap=True)
    with LiveProgress(console, len(jobs)) as watch:
        try:
            outcomes = execute(jobs, runs, workers, how.watching(watch), board=how.board, pool=how.pool)
        except KeyboardInterrupt as stop:
            print(STOPPED.format(runs), file=sys.stderr)
            raise typer.Exit(130) from stop
    from afec.report.study_tables import print_tables

    runs_done = [(outcome.job.config, outcome.directory) for outcome in outcomes]
    print_tables(console, runs_done)
    if picture:
        _draw(console, picture, runs_done)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print(f"\n{outcome.job} failed:\n{outcome.error}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(outcomes)} runs failed; their directories have the tracebacks", file=sys.stderr)
        raise typer.Exit(1)
    return runs_done


def check_writable(option: str, given: Path, folder: Path) -> None:
    """Before hours of work, in one line."""
    if why := why_unwritable(folder):
        raise SpecError(f"{option} {given} cannot be written to ({why}); give a directory that you may write to")


def _check_picture(picture: Path, jobs: Sequence[Job]) -> None:
    """Before hours of work, not after them."""
    from afec.cli.reports import PICTURES
    from afec.report.rows import Row

    if picture.suffix not in PICTURES:
        raise SpecError(f"--picture {picture}: expected a file name that ends in {', '.join(PICTURES)}")
    if len({job.config.benchmark for job in jobs}) > 1:
        raise SpecError("--picture draws one benchmark; give one, or leave --picture out")
    if len({Row(job.config).problem for job in jobs}) > 1:
        raise SpecError(
            "--picture draws runs of the same tasks and net, and --set gives several; leave it out, and draw each with "
            "`afec report --where … -o FILE`"
        )


def _draw(console: Console, picture: Path, runs: Sequence[tuple[RunConfig, RunDirectory]]) -> None:
    from afec.report.rows import readable
    from afec.report.study_figure import draw_study

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the table has named the damaged ones
        drawn = [(config, run) for config, run in readable(runs) if run.done and config.method != "scratch"]
        try:
            if drawn:
                draw_study(picture, drawn)
            message = f"picture: {picture}" if drawn else "no picture: no method's run is finished and whole"
        except (FileError, ValueError) as error:  # no weights, or too little to draw
            message = f"no picture: {error}"
    console.print(message, highlight=False, soft_wrap=True)


def console_here() -> Console:
    """Where no terminal says how wide it is, lines must not be cut."""
    return Console() if sys.stdout.isatty() else Console(width=160)
