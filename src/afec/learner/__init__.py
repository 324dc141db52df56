"""Learning task after task: the training loop, and a learner for people without a loop of their own."""

from afec.learner.fit import NEVER, Epoch, Fit, LossFn, NotFiniteError, OnEpoch, Stop, StoppedError
from afec.learner.learner import Learner, Score
from afec.learner.linear_probe import LinearProbe
from afec.learner.machine import Machine
from afec.learner.memo import Memo, training_source
from afec.learner.records import PHASES, Progress, Stopwatch, TaskRecord
from afec.learner.units import UnitCount, count_units
from afec.strategy import Plateau, Schedule

__all__ = [
    "NEVER",
    "PHASES",
    "Epoch",
    "Fit",
    "Learner",
    "LinearProbe",
    "LossFn",
    "Machine",
    "Memo",
    "NotFiniteError",
    "OnEpoch",
    "Plateau",
    "Progress",
    "Schedule",
    "Score",
    "Stop",
    "StoppedError",
    "Stopwatch",
    "TaskRecord",
    "UnitCount",
    "count_units",
    "training_source",
]
