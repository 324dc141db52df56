"""The figure of a study as a file, from run directories: circles for a regression, curves over the tasks otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from afec.experiments.supervised import build
from afec.report.circles import draw_circles, panels_of
from afec.report.figures import average_curves, new_tasks
from afec.report.plot import draw_figure
from afec.report.reading import Runs
from afec.report.rows import Row, one_problem, readable, rows_of

__all__ = ["draw_curves", "draw_study", "heading"]


def draw_study(path: Path, runs: Runs) -> None:
    """Draw what there is to see of these finished runs."""
    runs = [(config, run) for config, run in readable(runs) if run.done and config.method != "scratch"]
    if not runs:
        raise ValueError("there is no finished run to draw")
    one_problem(runs)
    if runs[0][0].stream.get("name") in ("digits-regression", "cifar10-regression"):
        seed = min(run.seed for _, run in runs)
        draw_predictions(path, [(config, run) for config, run in runs if run.seed == seed])
    else:
        draw_curves(path, runs)


def draw_predictions(path: Path, runs: Runs) -> None:
    """The circles of one seed: the methods side by side, one row for each task."""
    seed = runs[0][1].seed
    stream, net = build(runs[0][0], seed)
    names, panels = [task.name for task in stream.tasks], [panels_of(net, stream, config, run) for config, run in runs]
    title = (
        f"{runs[0][0].benchmark}: where each method puts the images after learning {len(names)} arrangements\n"
        f"(test images of one seed, {seed}; the colour is the true class, a ring its place; the table has the means over seeds)"
    )
    rows = [(name, [panel[number] for panel in panels]) for number, name in enumerate(names)]
    draw_circles(path, rows, [row.label for row in rows_of(runs)], title)


def draw_curves(path: Path, runs: Runs) -> None:
    """The average over the tasks so far, and each new task, with bands of one standard deviation."""
    rows = rows_of(runs)
    curves = [make(rows) for make in (average_curves, new_tasks)]
    both = replace(curves[0], charts=(*curves[0].charts, *curves[1].charts))
    draw_figure(path, both, heading(rows))


def heading(rows: Sequence[Row]) -> str:
    """What stands over a figure that is a file of its own."""
    config = rows[0].config
    seeds = sorted({len(row.metrics) for row in rows if row.metrics})
    names = (
        config.benchmark,
        config.net.get("name"),
        f"scale {config.scale}",
        f"{'/'.join(map(str, seeds))} seeds (± std)",
    )
    return ", ".join(str(name) for name in names if name)
