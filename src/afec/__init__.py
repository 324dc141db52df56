"""Continual learning with active forgetting, for PyTorch."""

from afec.gaussian import Gaussian
from afec.guard import GradientUsedTwiceError, Guard, GuardedTask, WeightMovedError
from afec.learner import Learner, Machine, Schedule
from afec.methods import AFEC, AGSCL, EWC, MAS, RWALK, SI, ProgressCompress
from afec.strategy import Strategy

__all__ = [
    "AFEC",
    "AGSCL",
    "EWC",
    "MAS",
    "RWALK",
    "SI",
    "Gaussian",
    "GradientUsedTwiceError",
    "Guard",
    "GuardedTask",
    "Learner",
    "Machine",
    "ProgressCompress",
    "Schedule",
    "Strategy",
    "WeightMovedError",
]
