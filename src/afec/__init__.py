"""Continual learning with active forgetting, for PyTorch."""

from afec.gaussian import Gaussian
from afec.guard import Guard, GuardedTask, TwoOptimizersError, WeightMovedError
from afec.methods import AFEC, EWC

__all__ = ["AFEC", "EWC", "Gaussian", "Guard", "GuardedTask", "TwoOptimizersError", "WeightMovedError"]
