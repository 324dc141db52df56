"""The picture of a tuning: validation accuracy of every trial, setting by setting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.table import Table

from afec.lab.choice import Trial
from afec.lab.tuning import Tuned
from afec.report.canvas import canvas, save
from afec.report.paired import mean_and_std

__all__ = ["draw_search", "trials_table"]

SYMBOLS = {"strength": "λ", "forgetting": "λ_e", "beta": "β"}


def trials_table(tuned: Tuned) -> Table:
    """Every trial with its validation accuracy and standard error in per cent; what is taken of each stage in bold."""
    table = Table(title=f"tuning of {tuned.method}: averaged validation accuracy in %, mean ± std over the seeds")
    for name in ("stage", "settings", "validation AAC", "standard error", ""):
        table.add_column(name, no_wrap=True)
    choices = tuned.choices
    for trial in tuned.trials:
        choice = choices[trial.stage]
        mean, std = mean_and_std(trial.scores) if trial.scores else (math.nan, math.nan)
        cell = f"{100 * mean:.1f} ± {100 * std:.1f}" if trial.scores else "failed"
        cell = f"{100 * mean:.1f}" if len(trial.scores) == 1 else cell
        error = f"{100 * trial.error:.1f}" if trial.scores else ""
        within = "within noise of the best" if trial in choice.alike else ""
        marks = [word for word, holds in (("best mean", trial is choice.best), (within, within)) if holds]
        if trial is choice.trial:
            cell, marks = f"[bold]{cell}[/bold]", ["taken", *marks]
        table.add_row(trial.stage, trial.label, cell, error, ", ".join(marks))
    return table


def draw_search(path: Path, tuned: Tuned, title: str) -> None:
    """One panel for each stage and setting: seeds as dots, the best mean of each value as a line, what is taken as a ring."""
    taken = {stage: choice.trial for stage, choice in tuned.choices.items()}
    stages = {stage: [trial for trial in tuned.trials if trial.stage == stage] for stage in taken}
    panels = [(stage, key, found) for stage, found in stages.items() for key in _searched(found)]
    figure = canvas(4.6 * len(panels), 4.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for (stage, key, found), ax in zip(panels, axes, strict=True):
        _draw(ax, key, found, taken[stage])
        term, _, setting = key.partition(".")
        ax.set(title=stage, xlabel=f"{SYMBOLS.get(setting, setting)} of {term}", ylabel="validation AAC, %")
    figure.suptitle(title, fontsize=11)
    save(figure, path, dpi=90)


def _searched(trials: list[Trial]) -> list[str]:
    """The settings that differ between the trials."""
    keys = list(trials[0].values)
    return [key for key in keys if len({trial.values[key] for trial in trials}) > 1] or keys[-1:]


def _draw(ax: Any, key: str, trials: list[Trial], taken: Trial) -> None:
    done = sorted((trial for trial in trials if trial.scores), key=lambda trial: trial.values[key])
    for trial in done:
        ax.scatter([trial.values[key]] * len(trial.scores), [100 * s for s in trial.scores], color="0.6", s=12)
    tops: dict[float, float] = {}
    for trial in done:  # several trials have one value where settings are searched together
        tops[trial.values[key]] = max(tops.get(trial.values[key], -math.inf), 100 * trial.score)
    ax.plot(list(tops), list(tops.values()), "o-", color="tab:blue", markersize=4, linewidth=1)
    ax.scatter(taken.values[key], 100 * taken.score, s=120, facecolors="none", edgecolors="tab:red", linewidths=2)
    if min(trial.values[key] for trial in done) > 0:
        ax.set_xscale("log")
    ax.grid(color="0.93")
