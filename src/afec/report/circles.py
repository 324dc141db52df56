"""The figure of a regression on the circle: where each method puts the images of each class."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afec.experiments.supervised import LEARNER
from afec.lab import RunConfig, RunDirectory
from afec.learner import Learner
from afec.nets import Readout
from afec.report.plot import new_drawing, save_drawing
from afec.report.reading import load_learner
from afec.streams import Stream, Task
from afec.streams.regression import Arrangement
from afec.whole_files import FileError

__all__ = ["Panel", "draw_circles", "panels_of"]

REACH = 1.5  # predictions further out are drawn at this radius, at their own angle
EDGE = 1.55


@dataclass(frozen=True)
class Panel:
    """One circle: the predictions of one method for one task."""

    points: NDArray[np.float32]
    """(samples, 2)"""
    classes: NDArray[np.int64]
    """The true class of each sample."""
    targets: NDArray[np.float32]
    """(classes, 2): where each class belongs."""
    accuracy: float


def panels_of(net: Readout, stream: Stream, config: RunConfig, run: RunDirectory) -> list[Panel]:
    """The circle of each task, by the weights of one run; `net` and `stream` are those of its problem and seed."""
    learner = load_learner(net, config, run)
    if learner.tasks_learned != [task.name for task in stream.tasks]:
        raise FileError(f"{run.path / LEARNER}: it has learned {learner.tasks_learned}, not the tasks of its stream")
    return [_panel(learner, task) for task in stream.tasks]


def _panel(learner: Learner, task: Task) -> Panel:
    outputs = learner.outputs(task.test.inputs, task)
    assert isinstance(task.decode, Arrangement), "a regression on the circle"
    angles = task.decode.directions(outputs)
    points = torch.stack((angles.cos(), angles.sin()), dim=1) if task.decode.output == "angle" else outputs
    classes, targets = task.labels(task.test).numpy(), task.decode.points.numpy()
    return Panel(points.numpy(), classes, targets, task.accuracy(outputs, task.test))


def draw_circles(
    path: Path, rows: Sequence[tuple[str, Sequence[Panel]]], columns: Sequence[str], title: str, dpi: int = 85
) -> None:
    """Write the figure to `path`: one row of circles per task, one column per method."""
    for name, panels in rows:
        if len(panels) != len(columns):
            raise ValueError(f"row '{name}' has {len(panels)} panels for {len(columns)} columns; it needs one for each")
    figure = new_drawing(2.9 * len(columns), 3.15 * len(rows) + 0.7)
    wrapped = [textwrap.fill(line, 38 * len(columns)) for line in title.splitlines()]
    figure.suptitle("\n".join(wrapped), fontsize=12 if len(columns) > 2 else 9)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for (name, panels), line in zip(rows, axes, strict=True):
        for panel, column, ax in zip(panels, columns, line, strict=True):
            _draw(ax, panel)
            ax.set_title(f"{column}\n{name}: {panel.accuracy:.0%} right", fontsize=10)
    save_drawing(figure, path, dpi)


def _draw(ax: Any, panel: Panel) -> None:
    from matplotlib import colormaps  # half a second to import, and most commands draw nothing

    colours = [colormaps["tab10"](k) for k in range(len(panel.targets))]
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(angle), np.sin(angle), color="0.8", linewidth=1, zorder=0)
    radius = np.linalg.norm(panel.points, axis=1, keepdims=True)
    points = panel.points * np.minimum(1, REACH / np.maximum(radius, 1e-9))
    ax.scatter(*points.T, c=[colours[k] for k in panel.classes], s=7, alpha=0.55, linewidths=0)
    for k, (x, y) in enumerate(panel.targets):
        ax.scatter(x, y, s=190, color="white", edgecolors=[colours[k]], linewidths=2, zorder=3)
        ax.text(x, y, str(k), color=colours[k], ha="center", va="center_baseline", weight="bold", fontsize=10, zorder=4)
    ax.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
