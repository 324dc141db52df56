"""The tables of games, a column each: scores at the end, the maximum while a game was new, forgetting, and forward transfer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from afec.experiments import RETURN
from afec.metrics import accumulated_reward, forgetting_of_each, new_task_accuracy
from afec.report.cells import best_place, paper_cell, score_cell
from afec.report.comparison import without_afec
from afec.report.paper import published_increase, published_scratch
from afec.report.reading import Reading
from afec.report.returns import evaluations_of, finetune_maxima, maxima_while_new
from afec.report.rows import Row
from afec.report.table import Cell, Column, Table

__all__ = ["game_tables"]

ACCUMULATED = (
    "accumulated: the paper's normalised accumulated reward at the last evaluation, each game's return divided by its maximum "
    "under fine-tuning, added up"
)
RELATIVE = (
    "by finetune: the maximum while a game was new, divided by fine-tuning's (mean over the seeds), the mean over the games; "
    "of `scratch` it is what the paper calls the normalised reward of a random initialisation"
)
INCREASE = (
    "increase %: how much higher the maximum of a new game is than without AFEC at the same strength and seed, the mean over "
    "the games after the first, which AFEC does not touch"
)
ATARI = "The paper's numbers are of five million steps a game; it does not say whether its mean counts the first game."


def game_tables(rows: Sequence[Row], where: str) -> list[Table]:
    """None where scores are no returns, or where there is one game only: the table of results says all then."""
    names = next((one.names for row in rows for one in row.every_reading), ())
    if rows[0].kind is not RETURN or len(names) < 2:
        return []
    return [
        one for one in (_scores(rows, names, where), _maxima(rows, names, where), *_changes(rows, names, where)) if one
    ]


def _scores(rows: Sequence[Row], names: Sequence[str], where: str) -> Table:
    """What each game is worth after the last one was learned."""
    ends = [[_final(one) for one in row.every_reading] for row in rows]
    columns = [
        _column(rows, Column(name), [[end[j] for end in every] for every in ends]) for j, name in enumerate(names)
    ]
    maxima = finetune_maxima(rows)
    if maxima is not None and (maxima > 0).all():
        found = [_accumulated(row, maxima) for row in rows]
        columns.append(_column(rows, Column("accumulated", ACCUMULATED), found))
    return _table("game-scores", f"{where}: return of each game after the last one was learned", rows, columns)


def _maxima(rows: Sequence[Row], names: Sequence[str], where: str) -> Table | None:
    """The highest evaluation of each game while it was the new one, and what AFEC adds to it."""
    every = {id(row): {one.run.seed: maxima_while_new(one) for one in row.every_reading} for row in rows}
    known = [row for row in rows if all(one is not None and len(one) == len(names) for one in every[id(row)].values())]
    if not known:
        return None
    found = {id(row): {seed: np.asarray(one) for seed, one in every[id(row)].items()} for row in known}
    columns = [
        _column(known, Column(name), [[float(one[j]) for one in found[id(row)].values()] for row in known])
        for j, name in enumerate(names)
    ]
    base = next((row for row in known if row.config.label == "finetune"), None)
    if base is not None and (centre := np.mean(list(found[id(base)].values()), axis=0)).min() > 0:
        values = [[float((one / centre).mean()) for one in found[id(row)].values()] for row in known]
        columns.append((Column("by finetune", RELATIVE), [score_cell(one, RETURN) for one in values]))
        papers = [published_scratch(row.config) for row in known]
        columns += [(Column("by finetune, paper"), [paper_cell(one) for one in papers])] if any(papers) else []
    gains = [_increase(row, known, found) for row in known]
    papers = [published_increase(row.config) for row in known]
    if any(gains):
        columns.append((Column("increase %", INCREASE), [score_cell(one, RETURN) for one in gains]))
    if any(papers):
        columns.append((Column("increase %, paper"), [paper_cell(one) for one in papers]))
    title = f"{where}: maximum return of each game while it was the new one, of the evaluations on the way"
    return _table("game-maxima", title, known, columns, ATARI if any(papers) else "")


def _changes(rows: Sequence[Row], names: Sequence[str], where: str) -> list[Table]:
    """How far each old game is below its best score, and how far each new one is from the game learned alone."""
    learners = [row for row in rows if row.config.method != "scratch"]
    if not learners:
        return []
    every = [[forgetting_of_each(one.scores(), limits=RETURN.limits) for one in row.every_reading] for row in learners]
    lost = [
        _column(learners, Column(name), [[float(found[j]) for found in one] for one in every], lower=True)
        for j, name in enumerate(names[:-1])
    ]
    title = "forgetting, how far the return of each game is below its best after any game; lower is better"
    found = [_table("game-forgetting", f"{where}: {title}", learners, lost)]
    alone = {row.name: _alone(row, rows) for row in learners}
    if any(alone.values()):
        gained = [
            _column(
                learners,
                Column(names[j]),
                [[float(_new(one)[j] - scratch[j]) for one, scratch in alone[row.name]] for row in learners],
            )
            for j in range(1, len(names))
        ]
        title = "forward transfer, the return of each game just after it was learned, less that of `scratch` of the same seed"
        found.append(_table("game-transfer", f"{where}: {title}", learners, gained))
    return found


def _table(
    key: str, title: str, rows: Sequence[Row], columns: Sequence[tuple[Column, list[Cell]]], caption: str = ""
) -> Table:
    labels = Column("method", kind="label"), [Cell(row.label) for row in rows]
    whole = [labels, *columns]
    return Table(
        key, title, tuple(column for column, _ in whole), tuple(zip(*(c for _, c in whole), strict=True)), caption
    )


def _column(
    rows: Sequence[Row], column: Column, values: Sequence[list[float]], *, lower: bool = False
) -> tuple[Column, list[Cell]]:
    best = best_place(rows, values, lower=lower)
    return column, [score_cell(found, RETURN, best=place == best) for place, found in enumerate(values)]


def _final(one: Reading) -> Sequence[float]:
    """After the last game; of `scratch`, which knows one game at a time, each after its own."""
    scores = one.scores()
    return _new(one) if one.config and one.config.method == "scratch" else list(map(float, scores[-1]))


def _new(one: Reading) -> list[float]:
    return list(map(float, new_task_accuracy(one.scores(), limits=RETURN.limits)))


def _accumulated(row: Row, maxima: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    """Seed by seed; empty for `scratch`, whose agents are one for each game, and where evaluations are missing."""
    every = [evaluations_of(one) for one in row.every_reading]
    if row.config.method == "scratch" or any(one is None or one.shape[1:] != maxima.shape for one in every):
        return []
    return [float(accumulated_reward(one, maxima)[-1]) for one in every if one is not None]


def _increase(
    row: Row, rows: Sequence[Row], found: dict[int, dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]]
) -> list[float]:
    """Per cent, seed by seed, against the same row without AFEC; unknown where a maximum of that is 0 or below."""
    base, own = without_afec(row.config.method), {k: v for k, v in row.config.settings.items() if k != "afec"}
    same = [one for one in rows if (one.config.method, one.config.settings) == (base, own)]
    without = next((one for one in same if one.config.training == row.config.training), None) if base else None
    if without is None:
        return []
    pairs = [(ours, found[id(without)].get(seed)) for seed, ours in sorted(found[id(row)].items())]
    known = [(ours[1:], theirs[1:]) for ours, theirs in pairs if theirs is not None]
    if any((theirs <= 0).any() for _, theirs in known):
        return [math.nan]
    return [float(100 * (ours / theirs - 1).mean()) for ours, theirs in known]


def _alone(row: Row, rows: Sequence[Row]) -> list[tuple[Reading, list[float]]]:
    """The runs of a row, each with what `scratch` of its seed and training reached; a named variant may take the plain one."""
    references = [one for one in rows if one.config.method == "scratch"]
    same = [one for one in references if one.config.training == row.config.training]
    for scratch in same or (references if row.config.variant else []):
        seeds = sorted(row.readings.keys() & scratch.readings.keys())
        return [(row.readings[seed], _new(scratch.readings[seed])) for seed in seeds]
    return []
