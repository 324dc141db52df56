"""The picture of a tuning: validation accuracy of every trial, setting by setting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.table import Table

from afec.lab.tuning import Trial, Tuned
from afec.report.canvas import canvas, save
from afec.report.paired import mean_and_std

__all__ = ["draw_search", "trials_table"]

SYMBOLS = {"strength": "λ", "forgetting": "λ_e", "beta": "β"}


def trials_table(tuned: Tuned) -> Table:
    """Every trial with its validation accuracy in per cent; the best of each stage in bold."""
    table = Table(title=f"tuning of {tuned.method}: averaged validation accuracy in %, mean ± std over the seeds")
    for name in ("stage", "settings", "validation AAC"):
        table.add_column(name, no_wrap=True)
    best = {t.stage: max((o for o in tuned.trials if o.stage == t.stage), key=lambda o: o.score) for t in tuned.trials}
    for trial in tuned.trials:
        settings = ", ".join(f"{key}={value:g}" for key, value in trial.values.items())
        mean, std = mean_and_std(trial.scores) if trial.scores else (math.nan, math.nan)
        cell = f"{100 * mean:.1f} ± {100 * std:.1f}" if trial.scores else "failed"
        cell = f"{100 * mean:.1f}" if len(trial.scores) == 1 else cell
        table.add_row(trial.stage, settings, f"[bold]{cell}[/bold]" if best[trial.stage] is trial else cell)
    return table


def draw_search(path: Path, tuned: Tuned, title: str) -> None:
    """One panel for each stage and setting: seeds as dots, the best mean of each value as a line, the best trial as a ring."""
    stages: dict[str, list[Trial]] = {}
    for trial in tuned.trials:
        stages.setdefault(trial.stage, []).append(trial)
    panels = [(stage, key, found) for stage, found in stages.items() for key in _searched(found)]
    figure = canvas(4.6 * len(panels), 4.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for (stage, key, found), ax in zip(panels, axes, strict=True):
        _draw(ax, key, found)
        term, _, setting = key.partition(".")
        ax.set(title=stage, xlabel=f"{SYMBOLS.get(setting, setting)} of {term}", ylabel="validation AAC, %")
    figure.suptitle(title, fontsize=11)
    save(figure, path, dpi=90)


def _searched(trials: list[Trial]) -> list[str]:
    """The settings that differ between the trials."""
    keys = list(trials[0].values)
    return [key for key in keys if len({trial.values[key] for trial in trials}) > 1] or keys[-1:]


def _draw(ax: Any, key: str, trials: list[Trial]) -> None:
    done = sorted((trial for trial in trials if trial.scores), key=lambda trial: trial.values[key])
    for trial in done:
        ax.scatter([trial.values[key]] * len(trial.scores), [100 * s for s in trial.scores], color="0.6", s=12)
    tops: dict[float, float] = {}
    for trial in done:  # several trials have one value where settings are searched together
        tops[trial.values[key]] = max(tops.get(trial.values[key], -math.inf), 100 * trial.score)
    ax.plot(list(tops), list(tops.values()), "o-", color="tab:blue", markersize=4, linewidth=1)
    if done:
        best = max(done, key=lambda trial: trial.score)
        ax.scatter(best.values[key], 100 * best.score, s=120, facecolors="none", edgecolors="tab:red", linewidths=2)
    if done and min(trial.values[key] for trial in done) > 0:
        ax.set_xscale("log")
    ax.grid(color="0.93")
