"""The table of a study, and the differences within seeds, from run directories alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from afec.lab import RunConfig, RunDirectory
from afec.lab.config import differing
from afec.metrics import summary
from afec.report.compared import compare
from afec.report.paired import Paired, mean_and_std
from afec.report.reading import Reading, Runs, mean, whole

__all__ = [
    "COLUMNS",
    "Line",
    "cells",
    "comparisons",
    "lines",
    "lines_of",
    "one_problem",
    "problems",
    "readable",
    "show_tables",
    "study_table",
    "top",
]

COLUMNS = {
    "aac": "AAC",
    "old_accuracy": "old tasks",
    "new_accuracy": "new task",
    "mean_new_task_accuracy": "each new task",
    "bwt": "BWT",
    "fwt_vs_scratch": "FWT vs scratch",
    "transfer": "transfer",
}
"""The metrics of the table, by their names in `metrics.summary` and as `Line.metrics` has them; higher is better for each."""

LEGEND = (
    "AAC: mean accuracy of all tasks at the end; old tasks, new task: its two parts; each new task: just after learning it;\n"
    "BWT: what old tasks gained or lost since; transfer: other tasks, by heads alone on the final features;\n"
    "compute: samples learned from or measured on (θ_e, Fisher and importance included), relative to finetune"
)


@dataclass
class Line:
    """One row: a configuration over its seeds."""

    config: RunConfig
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """By seed."""
    epochs: dict[int, int] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    """How many samples were learned from or measured on: the cost."""
    readings: dict[int, Reading] = field(default_factory=dict)
    mark: str = ""
    """What tells it from other rows of the same name, where there are any."""

    @property
    def problem(self) -> str:
        """What rows must share to be compared: tasks and net."""
        return repr((self.config.benchmark, self.config.scale, _sorted(self.config.stream), _sorted(self.config.net)))

    @property
    def label(self) -> str:
        """The method, its variant, its strengths, and what tells it from others."""
        return f"{self.name}, {self.mark}" if self.mark else self.name

    @property
    def name(self) -> str:
        """The method, its variant and its strengths."""
        weights = [
            f"{symbol}={_number(self.config.settings[term][key])}"
            for term in self.config.settings
            for key, symbol in (("strength", "λ"), ("forgetting", "λ_e"), ("beta", "β"))
            if isinstance(self.config.settings[term].get(key), int | float)
        ]
        return f"{self.config.label} ({', '.join(weights)})" if weights else self.config.label

    def values(self, metric: str, seeds: Iterable[int] | None = None) -> list[float]:
        """One metric, seed by seed."""
        return [self.metrics[seed].get(metric, math.nan) for seed in (sorted(self.metrics) if seeds is None else seeds)]


def _number(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:  # TOML's integers have no end
        return "beyond all numbers"


def lines(runs: Runs, split: str = "test") -> list[Line]:
    """The rows of finished runs, in the order in which they first come; FWT against the scratch runs of the same seed."""
    return lines_of(whole(runs), split)


def lines_of(readings: Sequence[Reading], split: str = "test") -> list[Line]:
    """The same, of runs that were read already."""
    done = [(reading.config, reading) for reading in readings if reading.config and reading.state == "finished"]
    scratch = {
        (key, one.run.seed): np.diag(one.accuracy(split)[1:])
        for config, one in [*done, *_scratch_on_disk(done)]
        if config.method == "scratch"
        for key in (_training(config), Line(config).problem)
    }
    found: dict[tuple[str, str, str], Line] = {}
    for config, one in done:
        seed = one.run.seed
        line = found.setdefault((config.benchmark, config.label, config.hash), Line(config))
        # A named variant of the training keeps the plain reference, where it has none of its own; nothing else does.
        keys = [_training(config), *([Line(config).problem] if config.variant else [])]
        alone = next((scratch[key, seed] for key in keys if (key, seed) in scratch), None)
        line.metrics[seed] = _metrics(config, one.accuracy(split), alone) | {"transfer": one.mean_transfer(split)}
        line.epochs[seed], line.samples[seed] = one.epochs, one.samples
        line.readings[seed] = one
    _tell_apart(list(found.values()))
    return list(found.values())


def readable(runs: Runs) -> list[tuple[RunConfig, RunDirectory]]:
    """Without the finished ones whose numbers are damaged: they are named, and the others are shown."""
    return [(one.config, one.run) for one in whole(runs) if one.config]


def _training(config: RunConfig) -> str:
    """What a scratch run has in common with the runs that it is the reference of."""
    return Line(config).problem + repr(_sorted(config.training))


def _sorted(section: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(section.items())


def _scratch_on_disk(done: Sequence[tuple[RunConfig, Reading]]) -> list[tuple[RunConfig, Reading]]:
    """References that an earlier command has computed, beside these runs: they are shared by all methods."""
    known = {one.run.path.resolve() for _, one in done}
    found = {}
    for config, one in done:
        alone = replace(config, method="scratch", variant="", settings={})
        above = one.run.path.resolve().parents
        if len(above) < 4:
            continue
        run = RunDirectory.of(above[3], alone, one.run.seed)
        with suppress(OSError):  # a name that no file can have
            # A benchmark's name comes from a file: it must not lead out of the runs.
            if run.path not in known and run.path.parents[2].parent == above[3] and run.done:
                found[run.path] = (alone, run)
    return [(one.config, one) for one in whole(list(found.values())) if one.config]


def _tell_apart(rows: Sequence[Line]) -> None:
    """Give rows of one name the keys that differ between them: the grid of a `--set`."""
    for name in {(row.config.benchmark, row.name) for row in rows}:
        alike = [row for row in rows if (row.config.benchmark, row.name) == name]
        for row, mark in zip(alike, differing([row.config for row in alike]), strict=True):
            row.mark = mark


def _metrics(config: RunConfig, matrix: NDArray[np.float64], scratch: NDArray[np.float64] | None) -> dict[str, float]:
    if config.method != "scratch":
        return summary(matrix, scratch)
    alone = np.diag(matrix[1:])  # every task by itself: nothing is ever old
    unknown = dict.fromkeys(COLUMNS, math.nan)
    return {**unknown, "mean_new_task_accuracy": float(alone.mean()), "new_accuracy": float(alone[-1])}


def problems(rows: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    """The rows that can be compared, together, each group with the keys of stream and net that tell it from the others."""
    groups: dict[str, list[Line]] = {}
    for row in rows:
        groups.setdefault(row.problem, []).append(row)
    for group in groups.values():  # what all rows of a group share need not stand in each
        _tell_apart(group)
    firsts = [group[0].config for group in groups.values()]
    flat = [
        {"benchmark": c.benchmark, "scale": c.scale, **c.stream, **{f"net {k}": v for k, v in c.net.items()}}
        for c in firsts
    ]
    every = dict.fromkeys(key for keys in flat for key in keys)
    differing = [key for key in every if any(keys.get(key) != flat[0].get(key) for keys in flat)]
    marks = [
        ", ".join(f"{key.removesuffix(' name')} {keys[key]}" for key in differing if key in keys and key != "name")
        for keys in flat
    ]
    if len(groups) == 1:  # a table by itself says it as well
        marks = [_own_mark(firsts[0])]
    return list(zip(marks, groups.values(), strict=True))


def _own_mark(config: RunConfig) -> str:
    """What the title of a table says of its tasks and net even where nothing differs: results mean nothing without it."""
    if "setting" in config.stream:
        return f"setting {config.stream['setting']}, net {config.net['name']}"
    if "size" in config.stream and config.net["name"] == "alexnet":
        net = ", ".join(f"{key} {config.net[key]}" for key in ("hidden", "pool", "pretrained") if key in config.net)
        return f"{config.stream['size']} pixels, alexnet ({net})"
    return ""


def one_problem(runs: Runs) -> None:
    """Raise where the runs have different tasks or nets: a figure shows what can be compared."""
    marks = [mark for mark, _ in problems([Line(config) for config, _ in runs])]
    if len(marks) > 1:
        raise ValueError(f"these runs have different tasks or nets ({'; '.join(marks)}); choose one with --where")


def cells(rows: Sequence[Line], mark: str = "") -> tuple[str, list[str], list[list[str]]]:
    """Title, head and body of a table: test accuracy in per cent, mean ± standard deviation over the seeds, and the cost."""
    seeds = sorted({seed for row in rows for seed in row.metrics})
    names = sorted({f"{row.config.benchmark} at scale {row.config.scale}" for row in rows})
    title = f"{', '.join(names)}{', ' + mark if mark else ''}: test accuracy in %, mean ± std of {len(seeds)} seeds"
    shown = [metric for metric in COLUMNS if any(not math.isnan(v) for row in rows for v in row.values(metric))]
    best = {metric: _best(rows, metric) for metric in shown}
    unit = next((mean(row.samples.values()) for row in rows if row.config.label == "finetune"), math.nan)
    body = []
    for row in rows:
        values = [_cell(row.values(metric), bold=row is best[metric]) for metric in shown]
        cost = "–" if math.isnan(unit) else f"{mean(row.samples.values()) / unit:.2f} ×"
        fewer = "" if len(row.metrics) == len(seeds) else f", {len(row.metrics)} of {len(seeds)} seeds"
        body.append([row.label + fewer, *values, f"{mean(row.epochs.values()):.0f}", cost])
    return title, ["method", *(COLUMNS[metric] for metric in shown), "epochs", "compute"], body


def study_table(rows: Sequence[Line], mark: str = "") -> Table:
    """The table on a terminal, the best method's numbers in bold."""
    title, head, body = cells(rows, mark)
    table = Table(title=escape(title))
    for name in head:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for line in body:
        table.add_row(escape(line[0]), *line[1:])
    return table


def show_tables(console: Console, runs: Runs) -> None:
    """All tables of these runs, with the differences in words; other tasks or another net are another table."""
    rows = lines(runs)
    for mark, mine in problems(rows):
        console.print(study_table(mine, mark))
        for sentence in [*comparisons(mine), *comparisons(mine, "transfer")]:
            console.print(sentence, highlight=False, soft_wrap=True)
    if rows:
        console.print(LEGEND, style="dim", highlight=False, soft_wrap=True)


def comparisons(rows: Sequence[Line], metric: str = "aac") -> list[str]:
    """Each method with AFEC against the same one without, at its own and at equal compute, in words."""
    found = compare(rows, metric)
    return [_in_words(one.ours.label, one.theirs.label, one.difference, COLUMNS[metric]) for one in found]


def _in_words(ours: str, theirs: str, difference: Paired, metric: str) -> str:
    mean, error, half = (100 * x for x in (difference.mean, difference.error, difference.half_width))
    text = f"{ours} minus {theirs}: {metric} {mean:+.1f} points, {difference.won} of {difference.pairs} seeds won"
    if difference.pairs == 1:
        return text + "; one seed says nothing about chance"
    verdict = "zero is outside" if difference.distinguishable else "not distinguishable from zero"
    return f"{text}; standard error {error:.1f}, 95 % interval {mean - half:+.1f} to {mean + half:+.1f}: {verdict}"


def _best(rows: Sequence[Line], metric: str) -> Line | None:
    """The row with the highest mean; bounds and references do not compete."""
    place = top([math.nan if row.config.reference else mean(row.values(metric)) for row in rows])
    return None if place is None else rows[place]


def top(means: Sequence[float]) -> int | None:
    """Where the highest mean is; None where nothing competes, or several share it."""
    known = [(value, place) for place, value in enumerate(means) if not math.isnan(value)]
    highest = max(known, default=(math.nan, 0))
    alone = sum(value == highest[0] for value, _ in known) == 1
    return highest[1] if len(known) > 1 and alone else None


def _cell(values: Sequence[float], *, bold: bool) -> str:
    if any(map(math.isnan, values)):
        return "–"
    mean, std = mean_and_std(values)
    text = f"{100 * mean:.1f} ± {100 * std:.1f}" if len(values) > 1 else f"{100 * mean:.1f}"
    return f"[bold]{text}[/bold]" if bold else text
