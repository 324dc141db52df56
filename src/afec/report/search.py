"""The table and the figure of a tuning: the mean validation score of every trial, setting by setting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from afec.experiments import ScoreKind
from afec.lab.choice import Choice, Trial
from afec.lab.tuning import Tuned
from afec.report.plot import new_drawing, save_drawing
from afec.report.study_tables import score_cell
from afec.report.table import Cell, Column, Table

__all__ = ["draw_search", "trials_table"]

SYMBOLS = {"strength": "λ", "forgetting": "λ_e", "beta": "β"}


def trials_table(tuned: Tuned) -> Table:
    """Every trial with its validation score and standard error; what is taken of each stage in bold."""
    kind, choices = tuned.kind.score, tuned.choices
    title = f"tuning of {tuned.method}: validation {kind.title}, mean ± std over the seeds"
    words = [Column(name, kind="text") for name in ("stage", "settings", "")]
    columns = (*words[:2], Column(f"validation {kind.average}"), Column("standard error"), words[2])
    rows = tuple(_row(trial, choices[trial.stage], kind) for trial in tuned.trials)
    return Table(
        "trials", title, columns, rows, f"{kind.average}: the mean over all tasks after the last one. Bold: taken."
    )


def _row(trial: Trial, choice: Choice, kind: ScoreKind) -> tuple[Cell, ...]:
    taken = trial is choice.trial
    marks = {"taken": taken, "best mean": trial is choice.best, "within noise of the best": trial in choice.alike}
    return (
        Cell(trial.stage),
        Cell(trial.label),
        score_cell(trial.scores, kind, best=taken) if trial.scores else Cell("failed"),
        Cell(kind.shown(trial.error), sort=trial.error) if trial.scores else Cell(""),
        Cell(", ".join(word for word, holds in marks.items() if holds)),
    )


def draw_search(path: Path, tuned: Tuned, title: str) -> None:
    """One panel for each stage and setting: seeds as dots, the best mean of each value as a line, what is taken as a ring."""
    kind = tuned.kind.score
    taken = {stage: choice.trial for stage, choice in tuned.choices.items()}
    stages = {stage: [trial for trial in tuned.trials if trial.stage == stage] for stage in taken}
    panels = [(stage, key, found) for stage, found in stages.items() for key in _searched(found)]
    figure = new_drawing(4.6 * len(panels), 4.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    label = f"validation {kind.average}{', ' + kind.unit if kind.unit else ''}"
    for (stage, key, found), ax in zip(panels, axes, strict=True):
        _draw(ax, key, found, taken[stage], kind.factor)
        term, _, setting = key.partition(".")
        ax.set(title=stage, xlabel=f"{SYMBOLS.get(setting, setting)} of {term}", ylabel=label)
    figure.suptitle(title, fontsize=11)
    save_drawing(figure, path, dpi=90)


def _searched(trials: list[Trial]) -> list[str]:
    """The settings that differ between the trials."""
    keys = list(trials[0].values)
    return [key for key in keys if len({trial.values[key] for trial in trials}) > 1] or keys[-1:]


def _draw(ax: Any, key: str, trials: list[Trial], taken: Trial, factor: float) -> None:
    done = sorted((trial for trial in trials if trial.scores), key=lambda trial: trial.values[key])
    for trial in done:
        ax.scatter([trial.values[key]] * len(trial.scores), [factor * s for s in trial.scores], color="0.6", s=12)
    tops: dict[float, float] = {}
    for trial in done:  # several trials have one value where settings are searched together
        tops[trial.values[key]] = max(tops.get(trial.values[key], -math.inf), factor * trial.score)
    ax.plot(list(tops), list(tops.values()), "o-", color="tab:blue", markersize=4, linewidth=1)
    ax.scatter(taken.values[key], factor * taken.score, s=120, facecolors="none", edgecolors="tab:red", linewidths=2)
    if min(trial.values[key] for trial in done) > 0:
        ax.set_xscale("log")
    ax.grid(color="0.93")
