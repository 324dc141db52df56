"""Continual learning with active forgetting, for PyTorch."""

from afec.gaussian import Gaussian
from afec.guard import GradientUsedTwiceError, Guard, GuardedTask, WeightMovedError
from afec.methods import AFEC, EWC

__all__ = ["AFEC", "EWC", "Gaussian", "GradientUsedTwiceError", "Guard", "GuardedTask", "WeightMovedError"]
