"""What a run is: supervised learning over a stream, its bounds and references, and experiments of your own."""

from typing import TYPE_CHECKING, Any

from afec.experiments.base import (
    ACCURACY,
    RETURN,
    SCORE_KINDS,
    SECTIONS,
    Context,
    Experiment,
    OnProgress,
    Progress,
    Score,
    ScoreKind,
    Section,
    Setup,
)
from afec.experiments.registry import EXPERIMENTS, experiment_for, find_experiment
from afec.source import training_source
from afec.stopping import NEVER, Stop, StoppedError

if TYPE_CHECKING:
    from afec.learner import TaskRecord

__all__ = [
    "ACCURACY",
    "EXPERIMENTS",
    "NEVER",
    "RETURN",
    "SCORE_KINDS",
    "SECTIONS",
    "Context",
    "Experiment",
    "OnProgress",
    "Progress",
    "Score",
    "ScoreKind",
    "Section",
    "Setup",
    "Stop",
    "StoppedError",
    "TaskRecord",
    "experiment_for",
    "find_experiment",
    "training_source",
]


def __getattr__(name: str) -> Any:
    """What a task took, from the learner when it is asked for: who only drives experiments needs no PyTorch."""
    if name == "TaskRecord":
        from afec.learner import TaskRecord

        return TaskRecord
    raise AttributeError(f"module 'afec.experiments' has no attribute {name!r}")
