"""Figures of games, from the evaluations on the way: learning curves, and the paper's normalised accumulated reward."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from afec.experiments.games import CURVE
from afec.lab.plain import plain_text
from afec.metrics import accumulated_reward, maximum_of_each
from afec.report.chart import Figure, Lines, Trace
from afec.report.reading import Reading
from afec.report.rows import Row
from afec.report.statistics import mean_and_std

__all__ = [
    "accumulated_figure",
    "evaluations_of",
    "finetune_maxima",
    "has_evaluations",
    "learning_figure",
    "maxima_while_new",
]

NONE = "no finished run here was evaluated on the way (training.evaluations)"
NO_FINETUNE = (
    "it is normalised by the maximum of each game under fine-tuning, and no finished run of `finetune` is here"
)
NOT_POSITIVE = "fine-tuning's maximum of a game is 0 or below, and returns cannot be normalised by that"
LEARNING = (
    "The return of each game at every evaluation, from the beginning of the first game to the end of the last; a game is drawn "
    "from when it is first learned. Mean over the seeds, with one standard deviation."
)
ACCUMULATED = (
    "Normalised accumulated reward (the paper's measure): the return of every game seen so far, divided by its maximum under "
    "fine-tuning (mean over the seeds), added up. Mean over the seeds, with one standard deviation."
)
Floats = NDArray[np.float64]


def evaluations_of(reading: Reading) -> Floats | None:
    """Evaluations in rows, games in columns, NaN for games not seen yet; None where the run has none, or no whole ones."""
    found = _points(reading)
    if not found:
        return None
    places = {place: at for at, place in enumerate(dict.fromkeys((game, update) for game, update, _, _ in found))}
    array = np.full((len(places), max(evaluated for _, _, evaluated, _ in found)), np.nan)
    for game, update, evaluated, value in found:
        array[places[game, update], evaluated - 1] = value
    return array


def maxima_while_new(reading: Reading) -> Floats | None:
    """The highest evaluation of each game while it was the one that was learned: the paper's "maximum reward" of a new task."""
    own: dict[int, list[float]] = {}
    for game, _, evaluated, value in _points(reading) or []:
        if game == evaluated:
            own.setdefault(game, []).append(value)
    if not own or sorted(own) != list(range(1, len(own) + 1)):
        return None
    return maximum_of_each(np.array([[max(own[game]) for game in sorted(own)]]))


def _points(reading: Reading) -> list[tuple[int, int, int, float]] | None:
    """The game that was learned, after how many updates, the game that was evaluated, and its return."""
    file = reading.run.path / CURVE
    if not file.exists():
        return None
    try:
        found = [
            (int(row["game"]), int(row["update"]), int(row["evaluated"]), float(row["return"]))
            for row in csv.DictReader(plain_text(file).splitlines())
        ]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return None
    fits = all(game >= 1 and evaluated >= 1 and math.isfinite(value) for game, _, evaluated, value in found)
    return found if fits else None


def finetune_maxima(rows: Sequence[Row]) -> Floats | None:
    """The maximum of each game under fine-tuning, the mean over its seeds: what returns are normalised by."""
    free = [every for _, row, every in _known(rows) if row.config.method == "finetune" and not row.config.variant]
    return np.mean([maximum_of_each(one) for one in free[0]], axis=0) if free else None


def has_evaluations(rows: Sequence[Row]) -> bool:
    """Whether any run of these rows was evaluated on the way."""
    return any((one.run.path / CURVE).exists() for row in rows for one in row.every_reading)


def _known(rows: Sequence[Row]) -> list[tuple[int, Row, list[Floats]]]:
    """The place of a row among all, the row, and its seeds' evaluations, where all seeds have the same ones."""
    found = []
    for place, row in enumerate(rows):
        every = [one for one in map(evaluations_of, row.every_reading) if one is not None]
        if every and len({one.shape for one in every}) == 1 and row.config.method != "scratch":
            found.append((place, row, every))
    return found


def _trace(place: int, row: Row, curves: Sequence[Floats]) -> Trace:
    pairs = [mean_and_std([float(curve[at]) for curve in curves]) for at in range(len(curves[0]))]
    known = [(at + 1.0, *pair) for at, pair in enumerate(pairs) if math.isfinite(pair[0])]
    x, y, spread = zip(*known, strict=True) if known else ((), (), ())
    return Trace(row.label, place, x, y, spread, len(curves), dashed=row.config.reference)


def _legend(known: Sequence[tuple[int, Row, list[Floats]]]) -> tuple[tuple[str, int, bool], ...]:
    return tuple((row.label, place, row.config.reference) for place, row, _ in known)


def learning_figure(rows: Sequence[Row]) -> Figure:
    """A chart for each game: its return at every evaluation."""
    title, known = "Learning curves of the games", _known(rows)
    if not known:
        return Figure("learning", title, "", missing=NONE)
    names = known[0][1].every_reading[0].names
    charts = []
    for game, name in enumerate(names):
        traces = [_trace(place, row, [one[:, game] for one in every]) for place, row, every in known]
        charts.append(Lines(name, "evaluation", "return", tuple(traces)))
    return Figure("learning", title, LEARNING, tuple(charts), legend=_legend(known))


def accumulated_figure(rows: Sequence[Row]) -> Figure:
    """The normalised accumulated reward at every evaluation."""
    title, known = "Normalised accumulated reward", _known(rows)
    maxima = finetune_maxima(rows)
    if maxima is None:
        return Figure("accumulated", title, "", missing=NO_FINETUNE if known else NONE)
    if not (maxima > 0).all():
        return Figure("accumulated", title, "", missing=NOT_POSITIVE)
    alike = [(place, row, every) for place, row, every in known if every[0].shape[1] == len(maxima)]
    traces = [_trace(place, row, [accumulated_reward(one, maxima) for one in every]) for place, row, every in alike]
    chart = Lines(title, "evaluation", "accumulated reward", tuple(traces))
    return Figure("accumulated", title, ACCUMULATED, (chart,), legend=_legend(alike))
