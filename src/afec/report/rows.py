"""The rows of a study, from run directories alone: each is one configuration over its seeds, with its metrics and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from afec.experiments import ScoreKind
from afec.lab import RunConfig, RunDirectory
from afec.lab.config import differing
from afec.metrics import aac_curve, class_summary, pooled_curve, summary
from afec.report.reading import Reading, Runs, whole

__all__ = ["Row", "one_problem", "ordered", "problems", "readable", "rows_of", "rows_of_readings"]


class Parts(NamedTuple):
    """The metric that rows are ranked by, and its two parts, by their names in `afec.metrics`."""

    average: str
    old: str
    new: str


NO_MEMORY = "none"
BOUNDS = ("all", NO_MEMORY)
"""What joint training and methods without a memory keep: beside these any memory may stand."""
CHOICE = "herding"
"""How exemplars are chosen where nothing is said."""
TASK = Parts("aac", "old_accuracy", "new_accuracy")
CLASS = Parts("average_incremental_accuracy", "old_class_accuracy", "new_class_accuracy")
SYMBOLS = {"prior": "λ_p"}
"""Methods whose strength is not called λ."""


@dataclass
class Row:
    """One row of a table: a configuration over its seeds."""

    config: RunConfig
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """By seed, then by the names in `afec.metrics`; `transfer` is the mean of the linear probes."""
    epochs: dict[int, int] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    """How many samples were learned from or measured on: the cost."""
    readings: dict[int, Reading] = field(default_factory=dict)
    mark: str = ""
    """What tells it from other rows of the same name, where there are any."""

    @property
    def problem(self) -> str:
        """What rows must share to be compared: tasks, scenario, net and the kind of score."""
        config = self.config
        return repr((config.benchmark, config.scale, config.score, _sorted(config.stream), _sorted(config.net)))

    @property
    def memory(self) -> str:
        """How many examples of old classes it keeps: `20 a class`, `2000 in all, random`, `all` or `none`."""
        if self.config.method == "joint":
            return "all"
        for settings in self.config.settings.values():
            choice = settings.get("choice", CHOICE)
            how = "" if choice == CHOICE else f", {choice}"
            if "total" in settings:
                return f"{settings['total']} in all{how}"
            if "per_class" in settings:
                return f"{settings['per_class']} a class{how}"
        return NO_MEMORY

    @property
    def prediction(self) -> str:
        """By which rule it predicts."""
        return self.chosen_rule or "classifier"

    @property
    def chosen_rule(self) -> str:
        """The prediction rule of a method that has a choice of them; empty for the others, which may stand beside any."""
        rules = [str(settings["prediction"]) for settings in self.config.settings.values() if "prediction" in settings]
        return rules[0] if rules else ""

    @property
    def class_order(self) -> str:
        """By which rule classes come, in the scenario `class`; elsewhere empty."""
        return str(self.config.stream.get("class_order", "seed")) if self.pooled else ""

    @property
    def protocol(self) -> tuple[str, str, str]:
        """What two rows must share for a difference between them: the problem, the memory and the prediction rule."""
        return self.problem, self.memory, self.prediction

    @property
    def kind(self) -> ScoreKind:
        """What its scores are, and how they are shown."""
        return self.config.score_kind

    @property
    def pooled(self) -> bool:
        """Whether the scenario is `class`: an accuracy is then over all classes so far."""
        return self.config.pooled

    @property
    def parts(self) -> Parts:
        """The average that its scenario is ranked by, with old and new apart."""
        return CLASS if self.pooled else TASK

    @property
    def label(self) -> str:
        """The method, its variant, its strengths, and what tells it from others."""
        return f"{self.name}, {self.mark}" if self.mark else self.name

    @property
    def name(self) -> str:
        """The method, its variant and its strengths."""
        weights = [
            f"{SYMBOLS.get(term, symbol)}={_number(self.config.settings[term][key])}"
            for term in self.config.settings
            for key, symbol in (("strength", "λ"), ("forgetting", "λ_e"), ("beta", "β"))
            if isinstance(self.config.settings[term].get(key), int | float | str)
        ]
        return f"{self.config.label} ({', '.join(weights)})" if weights else self.config.label

    @property
    def every_reading(self) -> list[Reading]:
        """Its finished runs in the order of their seeds."""
        return [one for _, one in sorted(self.readings.items())]

    @property
    def curves(self) -> list[NDArray[np.float64]]:
        """The average after each task, seed by seed: over the tasks so far, or over all classes so far."""
        every = [(one.scores(), one.sizes) for one in self.every_reading]
        if self.pooled:
            return [pooled_curve(matrix, sizes) for matrix, sizes in every]
        return [aac_curve(matrix, limits=self.kind.limits) for matrix, _ in every]

    def values(self, metric: str, seeds: Iterable[int] | None = None) -> list[float]:
        """One metric, seed by seed; NaN where it does not exist."""
        return [self.metrics[seed].get(metric, math.nan) for seed in (sorted(self.metrics) if seeds is None else seeds)]

    def spent(self, key: str) -> list[float]:
        """What its finished runs have cost: `cpu_seconds` or `peak_memory_mb`, of those that say it."""
        return [one.cost[key] for one in self.readings.values() if key in one.cost]


def _number(value: float | str) -> str:
    """A strength for people: 100, or `auto`."""
    if isinstance(value, str):
        return value
    try:
        return f"{value:g}"
    except OverflowError:  # TOML's integers have no end
        return "beyond all numbers"


def rows_of(runs: Runs, split: str = "test") -> list[Row]:
    """The rows of finished runs, in the order in which they first come; FWT against the scratch runs of the same seed."""
    return rows_of_readings(whole(runs), split)


def rows_of_readings(readings: Sequence[Reading], split: str = "test") -> list[Row]:
    """The same, of runs that were read already."""
    done = [(reading.config, reading) for reading in readings if reading.config and reading.state == "finished"]
    scratch = {
        (key, one.run.seed): np.diag(one.scores(split)[1:])
        for config, one in [*done, *_scratch_on_disk(done)]
        if config.method == "scratch"
        for key in (_training(config), Row(config).problem)
    }
    found: dict[tuple[str, str, str], Row] = {}
    for config, one in done:
        seed = one.run.seed
        row = found.setdefault((config.benchmark, config.label, config.hash), Row(config))
        # A named variant of the training keeps the plain reference, where it has none of its own; nothing else does.
        keys = [_training(config), *([row.problem] if config.variant else [])]
        alone = next((scratch[key, seed] for key in keys if (key, seed) in scratch), None)
        row.metrics[seed] = _metrics(row, one, split, alone) | {"transfer": one.mean_transfer(split)}
        row.epochs[seed], row.samples[seed] = one.epochs, one.samples
        row.readings[seed] = one
    _tell_apart(list(found.values()))
    return list(found.values())


def readable(runs: Runs) -> list[tuple[RunConfig, RunDirectory]]:
    """Without the finished ones whose numbers are damaged: they are named, and the others are shown."""
    return [(one.config, one.run) for one in whole(runs) if one.config]


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Fine-tuning first; each method, then at equal compute, then with AFEC; bounds and references last."""
    bases = list(dict.fromkeys(_base(row) for row in rows))

    def place(row: Row) -> tuple[object, ...]:
        weights = [s.get("strength", 0) for s in row.config.settings.values()]
        known = [float(w) for w in weights if isinstance(w, int | float)]
        afec = "afec" in row.config.method.split("+")
        finetune = row.config.method == "finetune"
        return (row.config.reference, not finetune, bases.index(_base(row)), afec, row.config.variant, known, row.label)

    return sorted(rows, key=place)


def _base(row: Row) -> str:
    return "+".join(term for term in row.config.method.split("+") if term != "afec")


def _training(config: RunConfig) -> str:
    """What a scratch run has in common with the runs that it is the reference of."""
    return Row(config).problem + repr(_sorted(config.training))


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


def _tell_apart(rows: Sequence[Row]) -> None:
    """Give rows of one name the keys that differ between them: the grid of a `--set`."""
    for name in {(row.config.benchmark, row.name) for row in rows}:
        alike = [row for row in rows if (row.config.benchmark, row.name) == name]
        for row, mark in zip(alike, differing([row.config for row in alike]), strict=True):
            row.mark = mark


def _metrics(row: Row, one: Reading, split: str, scratch: NDArray[np.float64] | None) -> dict[str, float]:
    matrix = one.scores(split)
    if row.config.method == "scratch":  # every task by itself: nothing is ever old
        alone = np.diag(matrix[1:])
        return {} if row.pooled else {"mean_new_task_accuracy": float(alone.mean()), "new_accuracy": float(alone[-1])}
    return class_summary(matrix, one.sizes) if row.pooled else summary(matrix, scratch, limits=row.kind.limits)


def problems(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows that can be compared, together, each group with the keys of stream and net that tell it from the others."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    groups: list[list[Row]] = []
    divided: list[str] = []  # what tells a group from others of its problem: memory and prediction rule
    for alike in by_problem.values():
        memories = _distinct(row.memory for row in alike if row.memory not in BOUNDS) or [NO_MEMORY]
        for memory in memories:
            same = [row for row in alike if row.memory in (memory, *BOUNDS)]
            rules = _distinct(row.chosen_rule for row in same if row.chosen_rule) or [""]
            for rule in rules:
                groups.append([row for row in same if row.chosen_rule in (rule, "")])
                mark = [f"memory {memory}"] * (len(memories) > 1) + [f"prediction {rule}"] * (len(rules) > 1)
                divided.append(", ".join(mark))
    for group in groups:  # what all rows of a group share need not stand in each
        _tell_apart(group)
    firsts = [group[0].config for group in groups]
    flat = [
        {"benchmark": c.benchmark, "scale": c.scale, "score": c.score}
        | {**c.stream, **{f"net {k}": v for k, v in c.net.items()}}
        for c in firsts
    ]
    every = dict.fromkeys(key for keys in flat for key in keys)
    differing = [key for key in every if any(keys.get(key) != flat[0].get(key) for keys in flat)]
    marks = [
        ", ".join(f"{key.removesuffix(' name')} {keys[key]}" for key in differing if key in keys and key != "name")
        for keys in flat
    ]
    if len(by_problem) == 1:  # a table by itself says it as well
        marks = [_own_mark(firsts[0])] * len(groups)
    else:  # the class order is said even where it is the same
        orders = [group[0].class_order if "class_order" not in differing else "" for group in groups]
        marks = [_joined(mark, f"class order {order}" * bool(order)) for mark, order in zip(marks, orders, strict=True)]
    marks = [_joined(mark, more) for mark, more in zip(marks, divided, strict=True)]
    return list(zip(marks, groups, strict=True))


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _own_mark(config: RunConfig) -> str:
    """What the title of a table says of its tasks and net even where nothing differs: results mean nothing without it."""
    net = config.net.get("name", "none")
    if config.stream.get("scenario") == "class":
        return f"scenario class, class order {config.stream.get('class_order', 'seed')}, net {net}"
    if "setting" in config.stream:
        return f"setting {config.stream['setting']}, net {net}"
    if "size" in config.stream and net == "alexnet":
        options = ", ".join(f"{key} {config.net[key]}" for key in ("hidden", "pool", "pretrained") if key in config.net)
        return f"{config.stream['size']} pixels, alexnet ({options})"
    return ""


def one_problem(runs: Runs) -> None:
    """Raise where the runs have different tasks, nets, memories or prediction rules: a figure shows what can be compared."""
    marks = [mark for mark, _ in problems([Row(config) for config, _ in runs])]
    if len(marks) > 1:
        raise ValueError(
            f"these runs have different tasks, nets, memories or prediction rules ({'; '.join(marks)}); choose one with --where"
        )
