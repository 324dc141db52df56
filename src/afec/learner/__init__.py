"""Learning task after task: the training loop, and a learner for people without a loop of their own."""

from afec.learner.fit import Epoch, Fit, LossFn, NotFiniteError, OnEpoch
from afec.learner.learner import Learner, Score
from afec.learner.linear_probe import LinearProbe
from afec.learner.machine import Machine
from afec.learner.memo import Memo
from afec.learner.records import PHASES, Progress, Stopwatch, TaskRecord
from afec.learner.units import UnitCount, count_units
from afec.stopping import NEVER, Stop, StoppedError
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
]
