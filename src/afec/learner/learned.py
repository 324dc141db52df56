"""What a learner tells: where it is, and what a task has taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from afec.learner.fit import Epoch
from afec.learner.stopwatch import Stopwatch

__all__ = ["Cost", "Learned", "Phase"]


@dataclass(frozen=True)
class Phase:
    """Where a learner is: shown as progress, written as an event."""

    task: int
    """Counted from 0."""
    name: str
    phase: str
    """`theta_e` (the expansion), `train`, `joint`, or `transfer`; `progress` and `compress` of that method."""
    epoch: Epoch


@dataclass(frozen=True)
class Learned:
    """What learning one task took."""

    name: str
    epochs: int
    """Of all trainings but the expansion."""
    best_epoch: int
    """Of the last training."""
    epochs_theta_e: int
    """Of the expansion: AFEC's additional compute. Zero where AFEC has an `expand=` of its own: nobody can count it."""
    samples: int
    """How many samples were learned from or measured on, in training, for θ_e and in Fisher and importance passes: the cost.
    (The `exact` Fisher takes a backward pass for each output; that is not in it.)"""
    seconds: dict[str, float]
    """Wall time of `train` (or `progress`, `compress`), `expand` (θ_e) and `fisher` (importance passes on entry and exit)."""
    cpu_seconds: dict[str, float]
    """The same phases in CPU time."""
    recalled: dict[str, dict[str, str]] = field(default_factory=dict)
    """The trainings, by phase, that a memo has spared: key, digest of the source, and who made it. They took no time here, and
    `epochs` and `samples` count them all the same."""


@dataclass
class Cost:
    """What the present task has taken so far; goes into a checkpoint."""

    epochs: Counter[str] = field(default_factory=Counter)
    """Of each phase that is over."""
    measured: int = 0
    """Samples that went through Fisher and importance passes."""
    recalled: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where the trainings are from that a memo has spared, by phase."""

    def state_dict(self, measuring: int) -> dict[str, Any]:
        """Plain data; `measuring` samples come from passes of the present block."""
        return {"epochs": dict(self.epochs), "measured": self.measured + measuring, "recalled": self.recalled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.epochs, self.measured = Counter(state["epochs"]), state["measured"]
        self.recalled = dict(state.get("recalled", {}))  # older checkpoints do not say

    def learned(self, name: str, best_epoch: int, size: int, watch: Stopwatch) -> Learned:
        """All of it, for a task of `size` samples."""
        total, theta_e = self.epochs.total(), self.epochs["theta_e"]
        samples = total * size + self.measured
        seconds, cpu = dict(watch.wall), dict(watch.cpu)
        return Learned(name, total - theta_e, best_epoch, theta_e, samples, seconds, cpu, self.recalled)
