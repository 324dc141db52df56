"""Learning task after task: the training loop, and a learner for people without a loop of their own."""

from afec.learner.fit import Epoch, Fit, LossFn, NotFiniteError, OnEpoch
from afec.learner.learned import Learned, Phase
from afec.learner.learned import Learned as TaskRecord
from afec.learner.learner import Learner
from afec.learner.machine import Machine
from afec.learner.memo import Memo
from afec.learner.schedule import Plateau, Schedule
from afec.learner.stop import NEVER, Stop, StoppedError
from afec.learner.stopwatch import Stopwatch
from afec.learner.transfer import Transferred

__all__ = [
    "NEVER",
    "Epoch",
    "Fit",
    "Learned",
    "Learner",
    "LossFn",
    "Machine",
    "Memo",
    "NotFiniteError",
    "OnEpoch",
    "Phase",
    "Plateau",
    "Schedule",
    "Stop",
    "StoppedError",
    "Stopwatch",
    "TaskRecord",
    "Transferred",
]
