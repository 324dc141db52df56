"""What the demo prints and writes: progress, table, CSV, picture."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from afec.demo.rows import Result, Row, Setting
from afec.report import Panel, draw_circles, mean_and_std, paired
from afec.streams import digits_regression
from afec.streams.digits import arrangement, circle

__all__ = ["Watch", "comparison_table", "comparisons", "draw", "write_csv"]

COLUMNS = ("seed", "row", "strength", "forgetting", "old", "new", "average", "validation_old", "validation_new",
           "epochs_first", "epochs_theta_e", "epochs_second")  # fmt: skip


class Watch(AbstractContextManager["Watch"]):
    """Live progress: a bar on a terminal, a line per finished row elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done, self.start = console, total, 0, time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows, {task.fields[epochs]:,} epochs,"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.line = self.bar.add_task("learning", total=total, epochs=0)

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def on_result(self, result: Result) -> None:
        """One more row is done."""
        self.done += 1
        self.bar.advance(self.line)
        if not self.console.is_terminal:
            took = time.monotonic() - self.start
            row = Row(result.row, result.strength, result.forgetting)
            print(
                f"[{took:4.0f} s] {self.done:3}/{self.total}  seed {result.seed}, {row}: {result.epochs} epochs",
                flush=True,
            )

    def on_tick(self, epochs: int) -> None:
        """The epochs of all workers so far."""
        self.bar.update(self.line, epochs=epochs)


def comparison_table(results: Sequence[Result]) -> Table:
    """Test accuracy in per cent, mean ± standard deviation over the seeds, and what each row cost."""
    seeds = len({result.seed for result in results})
    table = Table(title=f"digits-regression: test accuracy in %, mean ± std of {seeds} seeds")
    for name in ("method", "old task", "new task", "average", "epochs", "of these θ_e", "compute"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    groups = _by_row(results)
    unit = fmean(result.epochs for result in next(iter(groups.values())))  # the first row: fine-tuning
    for group in groups.values():
        epochs = fmean(result.epochs for result in group)
        theta_e = fmean(result.epochs_theta_e for result in group)
        table.add_row(
            str(Row(group[0].row, group[0].strength, group[0].forgetting)),
            *(_percent([getattr(result, what) for result in group]) for what in ("old", "new", "average")),
            f"{epochs:.0f}",
            f"{theta_e:.0f}" if theta_e else "–",
            f"{epochs / unit:.2f} ×",
        )
    return table


def comparisons(results: Sequence[Result], ours: str = "ewc+afec") -> list[str]:
    """The differences of the average accuracy between `ours` and every guarded row, seed by seed, in words."""
    groups = _by_row(results)
    return [
        _in_words(ours, name, [r.average for r in groups[ours]], [r.average for r in group])
        for name, group in groups.items()
        if name not in (ours, "finetune") and ours in groups
    ]


def _in_words(ours: str, name: str, mine: Sequence[float], theirs: Sequence[float]) -> str:
    difference = paired(mine, theirs)
    mean, error, half = (100 * x for x in (difference.mean, difference.error, difference.half_width))
    text = f"{ours} minus {name}: {mean:+.1f} points, {difference.won} of {difference.pairs} seeds won"
    if difference.pairs == 1:
        return text + "; one seed says nothing about chance"
    verdict = "zero is outside" if difference.distinguishable else "not distinguishable from zero"
    return f"{text}; standard error {error:.1f}, 95 % interval {mean - half:+.1f} to {mean + half:+.1f}: {verdict}"


def write_csv(path: Path, results: Iterable[Result]) -> None:
    """One line per row and seed; a file half-written never stays under the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_cell(getattr(result, column)) for column in COLUMNS] for result in results)
    partial.replace(path)


def draw(path: Path, results: Sequence[Result], setting: Setting) -> None:
    """The circles of one seed: the rows of the table side by side, the old task above the new one."""
    seed = results[0].seed
    stream = digits_regression(seed, train=setting.train, validation=setting.validation)
    lines = [
        (name, [_panel(result, seed, number, stream.tasks[number]) for result in results])
        for number, name in enumerate(("old task", "new task"))
    ]
    title = (
        "Where each method puts the digits after learning two arrangements one after the other\n"
        f"(test images of one seed, {seed}; the colour is the true digit, a ring its place; the table has the means over seeds)"
    )
    draw_circles(path, lines, [result.row for result in results], title)


def _panel(result: Result, seed: int, number: int, task: Any) -> Panel:
    return Panel(
        points=result.points[number],
        classes=task.classes(task.test).numpy(),
        targets=circle(arrangement(seed, number)).numpy(),
        accuracy=(result.old, result.new)[number],
    )


def _by_row(results: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.row, []).append(result)
    return groups


def _percent(values: Sequence[float]) -> str:
    mean, std = mean_and_std(values)
    return f"{100 * mean:.1f} ± {100 * std:.1f}" if len(values) > 1 else f"{100 * mean:.1f}"


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
