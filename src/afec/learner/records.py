"""What a learner tells: where it is, on a terminal too, and what a task has taken."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from afec.learner.fit import Epoch, OnEpoch
from afec.learner.units import UnitCount
from afec.progress import progress_bar

__all__ = ["PHASES", "Cost", "Progress", "Stopwatch", "TaskRecord", "telling"]

PHASES = {"theta_e": "expansion", "reference": "reference", "train": "learning", "transfer": "linear probe"}
"""How phases are called on a terminal; others, those of a strategy, by their own names."""


@dataclass(frozen=True)
class Progress:
    """Where a learner is: shown as progress, written as an event."""

    task: int
    """The number of the task; the first is 0."""
    name: str
    phase: str
    """`theta_e` (the expansion), `reference` (the new task alone, of a strength of `auto`), `train`,
    `transfer` (a linear probe), or the name of a strategy's training."""
    epoch: Epoch
    strengths: dict[str, float] = field(default_factory=dict)
    """The strengths in this epoch that a method finds by itself (`strength="auto"`), by its name."""


@dataclass(frozen=True)
class TaskRecord:
    """What learning one task took."""

    name: str
    epochs: int
    """The epochs of all trainings but the expansion."""
    best_epoch: int
    """The epoch of the last training whose weights stayed."""
    epochs_theta_e: int
    """Of the expansion, AFEC's additional compute, or of the reference of a strength of `auto`. Zero where AFEC has
    an `expand=` of its own: nobody can count it."""
    samples: int
    """How many samples were learned from or measured on, in training, for θ_e and in Fisher and importance passes: the cost.
    (The `exact` Fisher takes a backward pass for each output; that is not in it.)"""
    seconds: dict[str, float]
    """Wall time of `train` (or `progress`, `compress`), `expand` (θ_e), `reference` and `fisher` (importance passes on
    entry and exit)."""
    cpu_seconds: dict[str, float]
    """The same phases in CPU time."""
    recalled: dict[str, dict[str, str]] = field(default_factory=dict)
    """The trainings, by phase, that a memo has spared: key, digest of the source, and who made it. They took no time here, and
    `epochs` and `samples` count them all the same."""
    units: list[UnitCount] = field(default_factory=list)
    """Dead and saturated units of each hidden layer at the end of the training, before the method looks at the weights: where a
    learner counts them, and the layers of the net form a chain. This pass is not in `samples`."""
    no_units: str = ""
    """Why units were not counted, where they should have been."""
    kept_mb: float = 0.0
    """What the examples that the method keeps for later tasks take, 10⁶ bytes each."""


@dataclass
class Cost:
    """What the present task has taken so far; goes into a checkpoint."""

    epochs: Counter[str] = field(default_factory=Counter)
    """The epochs of each phase that is over."""
    samples: int = 0
    """How many samples the phases that are over, and Fisher and importance passes, have taken."""
    recalled: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where the trainings are from that a memo has spared, by phase."""

    def add(self, phase: str, epochs: int, size: int) -> None:
        """A phase is over, which took so many epochs over `size` samples."""
        self.epochs[phase] += epochs
        self.samples += epochs * size

    def state_dict(self, measuring: int) -> dict[str, Any]:
        """Plain data; `measuring` samples come from passes of the present block."""
        return {"epochs": dict(self.epochs), "samples": self.samples + measuring, "recalled": self.recalled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict()` was taken."""
        self.epochs, self.samples = Counter(state["epochs"]), state["samples"]
        self.recalled = dict(state["recalled"])


class Stopwatch:
    """Wall and CPU seconds, phase by phase; what an inner phase takes is not counted for the outer one."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = (0.0, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block belongs to this phase, but for the phases inside it."""
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = time.perf_counter(), time.process_time()
        if self._running:
            self.wall[self._running[-1]] += now[0] - self._since[0]
            self.cpu[self._running[-1]] += now[1] - self._since[1]
        self._since = now


@contextmanager
def telling(
    bar: bool | None,
    on_progress: Callable[[Progress], None] | None,
    number: int,
    name: str,
    phase: str,
    strengths: Callable[[], dict[str, list[float]]] = dict,
) -> Iterator[OnEpoch]:
    """What to call after each epoch of a training. How many there will be is not known: the plateau decides."""
    with progress_bar(f"{PHASES.get(phase, phase)}, task {number + 1} ({name})", wanted=bar) as show:

        def on_epoch(epoch: Epoch) -> None:
            show(f"epoch {epoch.number}, lr {epoch.lr:.1e}, validation loss {epoch.loss:.4g}")
            if on_progress:
                present = {term: path[-1] for term, path in strengths().items()}
                on_progress(Progress(number, name, phase, epoch, present))

        yield on_epoch
