"""What a run is: supervised learning over a stream, its bounds and references, and experiments of your own."""

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
from afec.learner import NEVER, Stop, StoppedError, TaskRecord, training_source

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
