"""Logs for Weights & Biases, made of run directories and of nothing else: each finished run is one run of the project.

A run directory notes in `wandb.json` under which name it was logged, so that no run is logged twice, however often a study is
resumed. A run that is not finished is logged when it is. A log that cannot be written is said so, and stops no run.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

from afec.experiments import Progress
from afec.lab.directory import RunDirectory
from afec.lab.engine import Outcome, Watcher
from afec.lab.job import Job
from afec.lab.spec import SpecError
from afec.lab.tensorboard import scalars
from afec.whole_files import write_text

__all__ = ["WandbLog", "check_wandb", "log_run"]

NOTE = "wandb.json"


def check_wandb() -> None:
    """Raise where wandb is not installed."""
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise SpecError(
            f"logging for Weights & Biases needs its package ({error}): pip install 'afec[wandb]', or leave --wandb out"
        ) from error


def log_run(directory: RunDirectory, project: str) -> None:
    """Log a finished run, unless it was logged to this project before."""
    note = directory.path / NOTE
    known: dict[str, str] = json.loads(note.read_text()) if note.exists() else {}
    if project in known:
        return
    import wandb

    benchmark, method, hash_, seed = directory.path.parts[-4:]
    name = f"{benchmark}-{method}-{hash_}-{seed}"
    one = wandb.init(
        project=project,
        name=name,
        group=f"{benchmark}/{method}",
        config={"benchmark": benchmark, "method": method, "hash": hash_, "seed": seed} | directory.config.settings,
        reinit="finish_previous",
    )
    steps: dict[str, dict[int, dict[str, Any]]] = {}
    for (tag, step), value in scalars(directory).items():
        # Steps of different trainings are different axes: each is a metric of its own.
        axis = f"step/{tag.split('/', 1)[1]}" if tag.startswith(("loss/", "lr/")) else "tasks learned"
        steps.setdefault(axis, {}).setdefault(step, {})[tag] = value
    for axis, values in steps.items():
        one.define_metric(axis, hidden=True)
        for tag in {tag for at_step in values.values() for tag in at_step}:
            one.define_metric(tag, step_metric=axis)
        for step, at_step in sorted(values.items()):
            one.log({axis: step, **at_step})
    one.finish()
    write_text(note, json.dumps({**known, project: one.id}))


class WandbLog:
    """A watcher of a study that logs every run that ends well, and hands everything on."""

    def __init__(self, project: str, watcher: Watcher) -> None:
        self.project, self.watcher = project, watcher

    def on_progress(self, index: int, job: Job, progress: Progress) -> None:
        """Hand it on."""
        self.watcher.on_progress(index, job, progress)

    def on_wait(self, index: int, job: Job, holder: str) -> None:
        """Hand it on."""
        self.watcher.on_wait(index, job, holder)

    def on_outcome(self, outcome: Outcome) -> None:
        """Log the run."""
        self.watcher.on_outcome(outcome)
        if outcome.error is None and outcome.directory.done:
            try:
                log_run(outcome.directory, self.project)
            except Exception as error:
                path = outcome.directory.path
                warnings.warn(f"{path}: this run is not logged: {error!r}", RuntimeWarning, stacklevel=2)

    def on_tick(self) -> None:
        """Hand it on."""
        self.watcher.on_tick()

    def on_stop(self, running: int) -> None:
        """Hand it on."""
        self.watcher.on_stop(running)
