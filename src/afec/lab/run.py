"""One run: an experiment from its first task to its last, into its directory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from afec.experiments import NEVER, Context, OnProgress, Progress, Score, Stop
from afec.lab.agreed_stop import AgreedStop, Latch
from afec.lab.config import RunConfig
from afec.lab.directory import RunDirectory
from afec.lab.process_memory import peak_memory_mb, reset_peak_memory

__all__ = ["HERE", "Place", "run"]

CHECKPOINT_SECONDS = 30.0
BETWEEN = 20  # times as long as writing a checkpoint took, at least: AlexNet's has gigabytes


@dataclass(frozen=True)
class Place:
    """Where a run is run; it has no influence on any number, but for rounding on another device."""

    device: str | None = None
    """If not where the configuration says."""
    data: Path | None = None
    """The data directory; by default the one of this machine."""


HERE = Place()
"""Where the configuration says, with the data of this machine."""


def run(
    config: RunConfig,
    seed: int,
    root: Path,
    on_progress: OnProgress | None = None,
    *,
    on_wait: Callable[[str], None] | None = None,
    on_saved: Callable[[RunDirectory], None] | None = None,
    stop: Stop = NEVER,
    patient: bool = True,
    place: Place = HERE,
) -> RunDirectory:
    """Run to the end, from the last checkpoint where there is one; a finished run is not run again.

    Args:
        config: what to run.
        seed: its seed.
        root: where the run directories are.
        on_progress: called after every step.
        on_wait: told again and again who holds the run, while another process does.
        on_saved: called when there is more in the directory.
        stop: when it is asked, the run writes a checkpoint and raises `StoppedError`.
        patient: whether to wait where another process holds the run; else `BusyError` is raised.
        place: device and data directory.
    """
    directory = RunDirectory.of(root, config, seed)
    from afec.data.root import data_root_is

    if directory.done:
        directory.tidy()
        return directory
    with directory.locked(on_wait, stop=stop, patient=patient):
        if not directory.done:  # another process may have done it meanwhile
            commit = directory.begin(config)["commit"]
            with data_root_is(place.data):
                _Run(config, seed, directory, on_progress, on_saved, stop, place, commit).to_end()
    return directory


class _Run:
    """A run in progress."""

    def __init__(
        self,
        config: RunConfig,
        seed: int,
        directory: RunDirectory,
        on_progress: OnProgress | None,
        on_saved: Callable[[RunDirectory], None] | None,
        stop: Stop,
        place: Place,
        commit: str,
    ) -> None:
        from afec.parallel import group_here

        self.directory, self.on_progress, self.on_saved, self.stop = directory, on_progress, on_saved, stop
        self.scores: list[Score] = []
        self.tasks_done = 0
        self.spent = {"wall_seconds": 0.0, "cpu_seconds": 0.0, "peak_memory_mb": 0.0}  # in earlier processes
        self.start, self.cpu, self.saved = time.monotonic(), time.process_time(), time.monotonic()
        reset_peak_memory()
        self.save_seconds = 0.0
        self.events: list[dict[str, Any]] = []
        benchmark = directory.path.parents[2]
        made_by = {"commit": commit, "run": directory.path.relative_to(benchmark).as_posix()}
        if (group := group_here()) is None:
            context = Context(seed, place.device, benchmark / "shared", made_by, stop)
        else:  # all processes learn; this one measures and writes
            self.stop = latch = Latch(stop)
            context = Context(seed, place.device, stop=AgreedStop(group, latch))
            group.agreed((config, seed, place))
        self.experiment = config.build(context)
        known = self._take_up()
        if group is not None:
            group.agreed((self.tasks_done, self.experiment.state_dict() if known else None))
            self._note(f"from here on in {group.size} processes, each with its share of every batch")
        if not known and self.experiment.origin:
            self.directory.append_events([{"event": "origin", "text": self.experiment.origin}])
        usual = config.training.get("device")
        if place.device not in (None, usual):
            self._note(f"from here on on {place.device}, not on {usual}")

    def to_end(self) -> None:
        """Learn and measure all tasks that are left."""
        if not self.scores:
            self._measure(0)
        for number in range(self.tasks_done, len(self.experiment.tasks)):
            record = self.experiment.learn(number, self._on_progress)
            self.tasks_done = number + 1
            wall, cpu = time.perf_counter(), time.process_time()
            self._measure(number + 1)
            event = {"event": "task", "task": number + 1, **asdict(record)}
            event["seconds"] = {**record.seconds, "evaluate": time.perf_counter() - wall}
            event["cpu_seconds"] = {**record.cpu_seconds, "evaluate": time.process_time() - cpu}
            self.events.append(event)
            self._save()
        self.experiment.finish(self.directory.path, self._on_progress)
        self._tell()
        self.directory.finish(self._cost())

    def _measure(self, after: int) -> None:
        self.scores += self.experiment.measure(after)
        self.directory.write_scores(self.scores)

    def _on_progress(self, progress: Progress) -> None:
        """After every step: the event, and from time to time, or because a stop was asked for, a checkpoint."""
        self.events.append(
            {
                "event": "progress",
                "unit": progress.unit,
                "task": progress.task + 1,
                "phase": progress.phase,
                "number": progress.step,
                **progress.values,
            }
        )
        if self.on_progress:
            self.on_progress(progress)
        long_ago = time.monotonic() - self.saved > max(CHECKPOINT_SECONDS, BETWEEN * self.save_seconds)
        if long_ago or self.stop.asked:
            self._save()

    def _tell(self) -> None:
        self.directory.append_events(self.events)
        self.events = []

    def _save(self) -> None:
        start = time.monotonic()
        self._tell()
        state = {
            "experiment": self.experiment.state_dict(),
            "scores": [list(asdict(score).values()) for score in self.scores],
            "tasks_done": self.tasks_done,
            "cost": self._cost(),
        }
        self.directory.save_checkpoint(state)
        self.saved = time.monotonic()
        self.save_seconds = self.saved - start
        if self.on_saved:
            self.on_saved(self.directory)

    def _take_up(self) -> bool:
        """Go on from the last whole checkpoint and return whether there is one; a damaged one is said so."""
        state, faults = self.directory.load_checkpoint(self._restore)
        how = "started anew" if state is None else "went on from the checkpoint before it"
        for fault in faults:
            self._note(f"{how}: {fault}")
            warnings.warn(f"{self.directory.path}: {how}: {fault}", RuntimeWarning, stacklevel=2)
        return state is not None

    def _restore(self, state: dict[str, Any]) -> None:
        scores, done = [Score(*score) for score in state["scores"]], state["tasks_done"]
        spent = {key: float(state["cost"][key]) for key in self.spent}
        if type(done) is not int or not 0 <= done <= len(self.experiment.tasks):
            raise ValueError(f"{done!r} of {len(self.experiment.tasks)} tasks are done")
        self.experiment.load_state_dict(state["experiment"])
        self.scores, self.tasks_done, self.spent = scores, done, spent

    def _note(self, text: str) -> None:
        self.directory.append_events([{"event": "note", "text": text}])

    def _cost(self) -> dict[str, float]:
        """Of this process and of those before it."""
        return {
            "wall_seconds": round(self.spent["wall_seconds"] + time.monotonic() - self.start, 3),
            "cpu_seconds": round(self.spent["cpu_seconds"] + time.process_time() - self.cpu, 3),
            "peak_memory_mb": round(max(self.spent["peak_memory_mb"], peak_memory_mb()), 1),
        }
