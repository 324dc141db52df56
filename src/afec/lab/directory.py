"""The run directory, `runs/<benchmark>/<method>/<hash>/seed<k>/`: the truth about a run, and all that readers read.

config.toml                   what was run
env.json                      where: versions, commit, processor, host
scores.csv                    after,task,name,validation,test,size, and answers in the scenario `class`; after=0: at the start
events.jsonl                  one line a step (an epoch) and one a task: rates, losses, samples, seconds; notes about faults
checkpoint.safetensors        replaced as a whole; gone when the run is done
checkpoint-before.safetensors the one before it, in case the last is damaged
lock, lock-holder             held by the process that runs it; its name
FAILED                        the traceback, where it failed
DONE                          written last: seconds and memory

What else is there belongs to the experiment: it wrote it when it finished, for predictions and pictures.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afec.experiments import NEVER, Score, Stop
from afec.lab.config import RunConfig
from afec.lab.environment import environment
from afec.lab.lock import locked
from afec.lab.plain import MOST_TEXT, plain_text
from afec.metrics import aac, average_incremental_accuracy
from afec.naming import unknown
from afec.whole_files import FileError, write_text

__all__ = ["RunDirectory", "RunError", "find_runs"]

TUNING = "tuning"
"""Where trials are, under the root of the runs."""
MOST_CONFIG, MOST_TRACEBACK, MOST_EVENTS = 2**20, 2**20, 4 * MOST_TEXT
SCORES = "scores.csv"
COLUMNS = ("after", "task", "name", "validation", "test", "size", "answers")
COUNTS = ("task", "epochs", "epochs_theta_e", "samples")
"""What the event of a task counts."""


class RunError(RuntimeError):
    """A run directory that cannot be read."""


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk."""

    path: Path

    @classmethod
    def of(cls, root: Path, config: RunConfig, seed: int) -> RunDirectory:
        """Where the run of this configuration and seed lives."""
        return cls(root / config.benchmark / config.folder / config.hash / f"seed{seed}")

    @property
    def seed(self) -> int:
        """The seed of the run."""
        number = self.path.name.removeprefix("seed")
        if not number.isdecimal():
            raise RunError(f"{self.path} is no run directory: expected a name like seed0")
        return int(number)

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "DONE").exists()

    @property
    def failure(self) -> str | None:
        """The traceback of a run that failed."""
        file = self.path / "FAILED"
        if not os.path.lexists(file):
            return None
        try:
            return plain_text(file, MOST_TRACEBACK, errors="replace")
        except OSError as error:
            return str(error)

    @property
    def checkpoint(self) -> Path:
        """The file of the checkpoint."""
        return self.path / "checkpoint.safetensors"

    @property
    def checkpoints(self) -> tuple[Path, Path]:
        """The last checkpoint, and the one before it."""
        return self.checkpoint, self.path / "checkpoint-before.safetensors"

    @property
    def config(self) -> RunConfig:
        """The configuration of the run, read from `config.toml`."""
        file = self.path / "config.toml"
        try:
            return RunConfig.from_toml(plain_text(file, MOST_CONFIG))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RunError(f"{file} cannot be read ({error}); move the directory away and run again") from error

    def locked(
        self, on_wait: Callable[[str], None] | None = None, *, stop: Stop = NEVER, patient: bool = True
    ) -> AbstractContextManager[None]:
        """One process at a time runs a run; see `lock.locked`."""
        return locked(self.path, on_wait, stop=stop, patient=patient)

    # -- writing --------------------------------------------------------------------------------------------------

    def begin(self, config: RunConfig) -> dict[str, Any]:
        """Write the configuration and the environment, which is returned; an earlier failure is forgotten."""
        write_text(self.path / "config.toml", config.to_toml())
        here = environment()
        write_text(self.path / "env.json", json.dumps(here, indent=2) + "\n")
        (self.path / "FAILED").unlink(missing_ok=True)
        return here

    def write_scores(self, scores: Sequence[Score]) -> None:
        """Write `scores.csv`, whole or not at all."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        shown = len(COLUMNS) if any(s.answers for s in scores) else len(COLUMNS) - 1
        writer.writerow(COLUMNS[:shown])
        for s in scores:
            answers = " ".join(map(str, s.answers))
            writer.writerow([s.after, s.task, s.name, _shown(s.validation), _shown(s.test), s.size, answers][:shown])
        write_text(self.path / SCORES, text.getvalue())

    def append_events(self, events: Sequence[dict[str, Any]]) -> None:
        """Some more lines; a line that a crash has cut is skipped by readers."""
        path = self.path / "events.jsonl"
        text = "".join(json.dumps(event) + "\n" for event in events).encode()
        with path.open("ab+") as file:  # every write goes to the end
            if file.tell():
                file.seek(-1, os.SEEK_END)
                text = text if file.read(1) == b"\n" else b"\n" + text
            file.write(text)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the last checkpoint; the one before it stays, in case the new one is damaged later."""
        from afec.files import save_tree

        self.keep_checkpoint_before()
        save_tree(self.checkpoint, state)

    def keep_checkpoint_before(self) -> None:
        """The last checkpoint is about to be replaced: it is the one before it from now on, too."""
        last, before = self.checkpoints
        if last.exists():
            other = before.with_suffix(".link")
            other.unlink(missing_ok=True)
            try:
                os.link(last, other)
            except (OSError, AttributeError):  # a file system, or a system, without such links
                shutil.copyfile(last, other)
            other.replace(before)  # at every moment there is a whole one

    def load_checkpoint(
        self, use: Callable[[dict[str, Any]], None] | None = None
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """The last whole checkpoint, and what was wrong with a later one, which it takes the place of.

        `use` takes it over; what it raises is wrong with the checkpoint.
        """
        from afec.files import load_tree

        faults: list[str] = []
        for file in self.checkpoints:
            if file.exists():
                try:
                    found = load_tree(file)
                    if use:
                        use(found)
                except FileError as error:
                    faults.append(str(error))
                    continue
                except Exception as error:  # a whole file, but of something else
                    faults.append(f"{file}: it is no checkpoint of this run ({error!r})")
                    continue
                if file != self.checkpoint:  # or the next one would push the only whole one out
                    file.replace(self.checkpoint)
                return found, faults
        return None, faults

    def finish(self, cost: dict[str, Any]) -> None:
        """Mark the run as done, with what it cost."""
        write_text(self.path / "DONE", json.dumps(cost) + "\n")
        self.tidy()

    def tidy(self) -> None:
        """Remove what a finished run needs no more; it may have been killed before it could."""
        for pattern in ("checkpoint*", ".*.tmp", "FAILED"):  # also what a killed process was about to write
            for file in self.path.rglob(pattern):
                file.unlink(missing_ok=True)

    # -- reading --------------------------------------------------------------------------------------------------

    def scores(self) -> list[Score]:
        """The scores of `scores.csv`."""
        file = self.path / SCORES
        try:
            text = plain_text(file)
            if not text.endswith("\n"):
                raise ValueError("its last line is cut")
            lines = list(csv.DictReader(text.splitlines()))
            return [
                Score(
                    int(r["after"]), int(r["task"]), r["name"], float(r["validation"] or "nan"), float(r["test"]),
                    int(r["size"]), tuple(map(int, (r.get("answers") or "").split())),
                )
                for r in lines
            ]  # fmt: skip
        except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
            raise RunError(f"{file} cannot be read ({error!r}); move the directory away and run again") from error

    def matrix(self, split: str = "test") -> NDArray[np.float64]:
        """A[i, j]: score of task j+1 after i tasks (row 0: before the first); NaN where it was not measured."""
        return self.matrix_of(self.scores(), split)

    def average(self, split: str = "test") -> float:
        """What runs are ranked by: the average over the tasks, or over all classes so far and all phases."""
        rows = self.scores()
        matrix = self.matrix_of(rows, split)
        if self.config.pooled:
            return average_incremental_accuracy(
                matrix, [size for _, size in sorted({r.task: r.size for r in rows}.items())]
            )
        return aac(matrix, limits=self.config.score_kind.limits)

    def matrix_of(self, rows: Sequence[Score], split: str = "test") -> NDArray[np.float64]:
        """The same of scores that were read already."""
        if split not in ("test", "validation"):
            raise ValueError(unknown("split", split, ["test", "validation"]))
        tasks = min(max((row.task for row in rows), default=0), len(rows))  # a damaged number must not fill the memory
        matrix = np.full((tasks + 1, tasks), np.nan)
        last = np.nan
        whole = all(0 <= row.after <= tasks and 1 <= row.task <= tasks for row in rows)
        for row in rows if whole else ():
            matrix[row.after, row.task - 1] = getattr(row, split)
            last = row.test if row.after == row.task == tasks else last
        if not tasks or not whole or (self.done and np.isnan(last)):  # every method measures this one last
            raise RunError(f"{self.path / SCORES} is not whole; move the directory away and run again")
        return matrix

    def events(self, *, progress: bool = True) -> Iterator[dict[str, Any]]:
        """events.jsonl, without lines that are not whole; or without those of single steps, which are most of it."""
        file = self.path / "events.jsonl"
        if not os.path.lexists(file):
            return
        try:
            text = plain_text(file, MOST_EVENTS, errors="replace")
        except OSError as error:
            raise RunError(f"{file} cannot be read ({error}); move the directory away and run again") from error
        for line in text.splitlines():
            if not progress and line.startswith('{"event": "progress"'):
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event

    def tasks(self) -> list[dict[str, Any]]:
        """What each task took; of a task that was written twice around a crash, the last."""
        return self.tasks_of(self.events(progress=False))

    def tasks_of(self, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same of events that were read already."""
        last = {}
        for event in events:
            if event.get("event") == "task":
                if any(type(event.get(key)) is not int for key in COUNTS):
                    raise RunError(
                        f"{self.path / 'events.jsonl'} has a task without whole numbers for {', '.join(COUNTS)}"
                    )
                last[event["task"]] = event
        return [last[number] for number in sorted(last)]

    @property
    def epochs(self) -> int:
        """All passes over training data, those for θ_e included."""
        return sum(task["epochs"] + task["epochs_theta_e"] for task in self.tasks())

    @property
    def samples(self) -> int:
        """How many training samples went forward and backward: the cost."""
        return sum(task["samples"] for task in self.tasks())


def _shown(score: float) -> str:
    return "" if np.isnan(score) else f"{score:.6f}"


def find_runs(root: Path) -> list[RunDirectory]:
    """All run directories under `root`, sorted, without the trials of a tuning: their seeds and strengths are not reported."""
    files = sorted(root.rglob("config.toml"))
    return [RunDirectory(file.parent) for file in files if file.relative_to(root).parts[0] != TUNING]
