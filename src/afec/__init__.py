"""Continual learning with active forgetting, for PyTorch."""

from afec.gaussian import Gaussian
from afec.guard import GradientUsedTwiceError, Guard, GuardedTask, WeightMovedError
from afec.learner import Learner, Machine, Schedule
from afec.methods import AFEC, EWC, MAS, RWALK, SI

__all__ = [
    "AFEC",
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
    "Schedule",
    "WeightMovedError",
]
