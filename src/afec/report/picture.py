"""The picture of a study, from run directories: circles for a regression, curves over the tasks otherwise."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from afec.experiments.supervised import LEARNER, build
from afec.files import FileError
from afec.lab import RunConfig, RunDirectory
from afec.lab.plain import check_plain
from afec.learner import Learner, Machine
from afec.methods.expression import make_method
from afec.nets import Readout
from afec.report.circle import Panel, draw_circles
from afec.report.drawn import draw_figure
from afec.report.figures import accuracy, new_tasks
from afec.report.reading import Runs
from afec.report.table import Line, lines, one_problem, readable
from afec.streams import Stream, Task
from afec.streams.regression import Arrangement

__all__ = ["circles", "draw_curves", "draw_study", "heading", "load_learner"]


def draw_study(path: Path, runs: Runs) -> None:
    """Draw what there is to see of these finished runs."""
    runs = [(config, run) for config, run in readable(runs) if run.done and config.method != "scratch"]
    if not runs:
        raise ValueError("there is no finished run to draw")
    one_problem(runs)
    if runs[0][0].stream["name"] in ("digits-regression", "cifar10-regression"):
        seed = min(run.seed for _, run in runs)
        draw_predictions(path, [(config, run) for config, run in runs if run.seed == seed])
    else:
        draw_curves(path, runs)


def draw_predictions(path: Path, runs: Runs) -> None:
    """The circles of one seed: the methods side by side, one row for each task."""
    seed = runs[0][1].seed
    stream, net = build(runs[0][0], seed)
    names, panels = [task.name for task in stream.tasks], [circles(net, stream, config, run) for config, run in runs]
    title = (
        f"{runs[0][0].benchmark}: where each method puts the images after learning {len(names)} arrangements\n"
        f"(test images of one seed, {seed}; the colour is the true class, a ring its place; the table has the means over seeds)"
    )
    rows = [(name, [panel[number] for panel in panels]) for number, name in enumerate(names)]
    draw_circles(path, rows, [line.label for line in lines(runs)], title)


def circles(net: Readout, stream: Stream, config: RunConfig, run: RunDirectory) -> list[Panel]:
    """The circle of each task, by the weights of one run; `net` and `stream` are those of its problem and seed."""
    learner = load_learner(net, config, run)
    return [_panel(learner, task) for task in stream.tasks]


def load_learner(net: Readout, config: RunConfig, run: RunDirectory) -> Learner:
    """A finished run as a learner that predicts, in the net of its problem; wherever it was run, it is drawn here."""
    machine = Machine(channels_last=bool(config.training.get("channels_last")))
    method = None if config.reference else make_method(config.method, config.settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said when it was run
        learner = Learner(net, method, machine=machine, progress=False)
    file = run.path / LEARNER
    if os.path.lexists(file):
        try:
            check_plain(file)
        except OSError as error:
            raise FileError(str(error)) from error
    return learner.load(file)


def _panel(learner: Learner, task: Task) -> Panel:
    outputs = learner.outputs(task.test.inputs, task)
    assert isinstance(task.decode, Arrangement), "a regression on the circle"
    angles = task.decode.directions(outputs)
    points = torch.stack((angles.cos(), angles.sin()), dim=1) if task.decode.output == "angle" else outputs
    return Panel(
        points=points.numpy(),
        classes=task.labels(task.test).numpy(),
        targets=task.decode.points.numpy(),
        accuracy=task.accuracy(outputs, task.test),
    )


def draw_curves(path: Path, runs: Runs) -> None:
    """Averaged accuracy over the tasks so far, and the accuracy of each new task, with bands of one standard deviation."""
    rows = lines(runs)
    curves = [make(rows) for make in (accuracy, new_tasks)]
    both = replace(curves[0], charts=(*curves[0].charts, *curves[1].charts))
    draw_figure(path, both, heading(rows))


def heading(rows: Sequence[Line]) -> str:
    """What stands over a figure that is a file of its own."""
    config = rows[0].config
    seeds = sorted({len(row.metrics) for row in rows if row.metrics})
    return f"{config.benchmark}, {config.net['name']}, scale {config.scale}, {'/'.join(map(str, seeds))} seeds (± std)"
