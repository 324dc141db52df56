"""What a run directory says, read once: every table and figure of a report starts from these."""

from __future__ import annotations

import csv
import json
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afec.experiments import Score
from afec.experiments.supervised import LEARNER
from afec.lab import RunConfig, RunDirectory, RunError
from afec.lab.directory import SCORES
from afec.lab.plain import check_plain, plain_text
from afec.learner import Learner, LinearProbe, Machine
from afec.methods.expression import make_method
from afec.nets import Readout
from afec.whole_files import FileError

__all__ = ["Reading", "Runs", "damaged", "load_learner", "mean", "read", "whole"]

Runs = Sequence[tuple[RunConfig, RunDirectory]]
STATES = ("finished", "unfinished", "failed", "damaged")
SIGNS = ("config.toml", "events.jsonl", "checkpoint.safetensors")
_SMALL = 2**20


@dataclass(frozen=True, eq=False)
class Reading:
    """One run, as far as it can be read."""

    run: RunDirectory
    state: str
    """One of `STATES`."""
    config: RunConfig | None = None
    fault: str = ""
    """The traceback of a failed run, or what is wrong with a damaged one."""
    matrix: NDArray[np.float64] | None = None
    """The test scores: row i is after i tasks, column j is task j + 1."""
    validation: NDArray[np.float64] | None = None
    names: tuple[str, ...] = ()
    """The names of the tasks."""
    sizes: tuple[int, ...] = ()
    """How many test samples each task has."""
    answers: tuple[NDArray[np.float64], ...] = ()
    """In the scenario `class`, after 1, 2, … tasks: row j of a matrix has how many test samples of task j + 1 were given a
    class of each task."""
    transfers: tuple[LinearProbe, ...] = ()
    tasks: tuple[dict[str, Any], ...] = ()
    """What each task took."""
    notes: tuple[str, ...] = ()
    """What happened on the way: a damaged checkpoint, another device."""
    origin: str = ""
    """Where the initial weights are from: which layers of a net are pretrained, and by which file."""
    cost: dict[str, float] = field(default_factory=dict)
    """Seconds and memory."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """All passes over training data, those for θ_e included."""
        return sum(task["epochs"] + task["epochs_theta_e"] for task in self.tasks)

    @property
    def samples(self) -> int:
        """How many training samples went forward and backward: the cost."""
        return sum(task["samples"] for task in self.tasks)

    @property
    def kept_mb(self) -> float:
        """What the examples of old tasks take that are kept after the last one, in MB; NaN where none are, or nobody says."""
        found: Any = self.tasks[-1].get("kept_mb") if self.tasks else None
        return float(found) if _finite(found) and found > 0 else math.nan

    @property
    def learned(self) -> int:
        """How many tasks are behind it."""
        if self.matrix is None:
            return 0
        return int((~np.isnan(self.matrix[1:]).all(axis=1)).sum())

    @property
    def last_sign(self) -> str:
        """When the run last wrote something, in words."""
        times = []
        for name in SIGNS:
            with suppress(OSError):
                times.append((self.run.path / name).lstat().st_mtime)
        if not times:
            return "no sign of life"
        return f"last sign of life {datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC"

    def scores(self, split: str = "test") -> NDArray[np.float64]:
        """The matrix of one split of a run that is finished and whole."""
        found = self.matrix if split == "test" else self.validation
        assert found is not None, "asked of whole readings only"
        return found

    def mean_transfer(self, split: str) -> float:
        """The mean accuracy of the linear probes on the final features; NaN where there is none."""
        return mean(getattr(found, split) for found in self.transfers)

    @property
    def recalled(self) -> tuple[str, ...]:
        """The trainings that were not done here but taken from an earlier run, as `task 1: train`."""
        every = [(task["task"], task.get("recalled")) for task in self.tasks]
        return tuple(f"task {number}: {name}" for number, names in every if isinstance(names, dict) for name in names)


def read(config: RunConfig, run: RunDirectory) -> Reading:
    """Everything that tables and figures need; what is damaged is named in the reading, and nothing raises."""
    if not all(isinstance(section.get("name", ""), str) for section in (config.stream, config.net)):
        return damaged(run, f"{run.path / 'config.toml'}: the name of its stream or its net is no text")
    state = "finished" if run.done else "failed" if (failure := run.failure) is not None else "unfinished"
    try:
        _ = run.seed
        rows = run.scores() if state == "finished" or (run.path / SCORES).exists() else []
        reading = Reading(
            run,
            state,
            config,
            failure or "" if state == "failed" else "",
            matrix=run.matrix_of(rows) if rows or state == "finished" else None,
            validation=run.matrix_of(rows, "validation") if rows else None,
            names=tuple({row.task: row.name for row in rows}.values()),
            sizes=tuple(size for _, size in sorted({row.task: row.size for row in rows}.items())),
            answers=_answers(rows),
            transfers=tuple(_transfers(run)),
            cost=_numbers(run.path / "DONE") if state == "finished" else {},
            environment=_environment(run.path / "env.json"),
            **_events(run),
        )
        _check(reading, config)
    except RunError as error:
        return damaged(run, str(error), config)
    except (ValueError, KeyError, TypeError, OSError, OverflowError, csv.Error) as error:
        return damaged(run, f"{run.path} is damaged ({error!r})", config)
    return reading


def damaged(run: RunDirectory, fault: str, config: RunConfig | None = None) -> Reading:
    """A run that cannot be read."""
    return Reading(run, "damaged", config, fault)


def whole(runs: Runs) -> list[Reading]:
    """The readings of these runs, without the finished ones whose numbers are damaged: those are named in a warning."""
    found = []
    for reading in (read(config, run) for config, run in runs):
        if reading.state == "damaged" and reading.run.done:
            warnings.warn(f"skipped: {reading.fault}", RuntimeWarning, stacklevel=3)
        else:
            found.append(reading)
    return found


def load_learner(net: Readout, config: RunConfig, run: RunDirectory) -> Learner:
    """A finished run as a learner that predicts, in the net of its problem; wherever it was run, it is loaded here."""
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


def _events(run: RunDirectory) -> dict[str, Any]:
    notes, origin = [], ""
    events = list(run.events(progress=False))
    for event in events:
        if event.get("event") == "origin":
            origin = str(event.get("text", ""))
        elif event.get("event") == "note":
            notes.append(str(event.get("text", "")))
    return {"tasks": tuple(run.tasks_of(events)), "notes": tuple(notes), "origin": origin}


def _answers(rows: Sequence[Score]) -> tuple[NDArray[np.float64], ...]:
    """The answers after each task; empty where there are none, as in runs of other versions."""
    found: dict[int, dict[int, Score]] = {}
    for row in rows:
        if row.answers:
            found.setdefault(row.after, {})[row.task] = row
    for after, (place, scores) in enumerate(sorted(found.items()), start=1):
        square = sorted(scores) == list(range(1, place + 1)) and all(len(s.answers) == place for s in scores.values())
        whole = all(min(s.answers) >= 0 and sum(s.answers) == s.size < 2**53 for s in scores.values())
        if after != place or not square or not whole:
            raise ValueError("the answers are not those to all test samples of all tasks so far")
    return tuple(
        np.array([scores[task].answers for task in sorted(scores)], float) for _, scores in sorted(found.items())
    )


def _transfers(run: RunDirectory) -> list[LinearProbe]:
    """transfer.csv; empty where the stream asks for none."""
    file = run.path / "transfer.csv"
    if not os.path.lexists(file):
        return []
    try:
        text = plain_text(file)
        if not text.endswith("\n"):
            raise ValueError("its last line is cut")
        found = [
            LinearProbe(r["name"], float(r["validation"] or "nan"), float(r["test"]), int(r["epochs"]))
            for r in csv.DictReader(text.splitlines())
        ]
        if not all(0 <= one.test <= 1 for one in found):
            raise ValueError("an accuracy is no fraction from 0 to 1")
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise RunError(f"{file} cannot be read ({error!r}); move the directory away and run again") from error
    return found


def _check(reading: Reading, config: RunConfig) -> None:
    """Numbers that are no scores, or no costs, are found here and not in the middle of a table."""
    kind = config.score_kind
    for matrix in (reading.matrix, reading.validation):
        fits = matrix is None or np.isnan(matrix) | (np.isfinite(matrix) & (matrix >= kind.low) & (matrix <= kind.high))
        if not np.all(fits):
            raise ValueError(f"a score is no {kind.name} from {kind.low:g} to {kind.high:g}")
    tasks = 0 if reading.matrix is None else reading.matrix.shape[1]
    sized = len(reading.sizes) == tasks and all(1 <= size < 2**53 for size in reading.sizes)
    if config.stream.get("scenario") == "class" and not sized:
        raise ValueError("a task has no test samples, and accuracies over all classes count each task by them")
    if reading.epochs < 0 or reading.samples < 0:
        raise ValueError("a negative number of epochs or samples")


def _numbers(file: Path) -> dict[str, float]:
    """The cost of a finished run; what is no number is left out, as in runs of other versions."""
    return {key: float(value) for key, value in _json(file).items() if _finite(value)}


def _environment(file: Path) -> dict[str, str]:
    return {str(key): str(value) for key, value in _json(file).items() if isinstance(value, str | int | float)}


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(plain_text(file, _SMALL, errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def mean(values: Iterable[float]) -> float:
    """The mean of the values; NaN where there are none."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan
