"""The block around one task, in anybody's training loop."""

from afec.guard.base import Guard, Sum, Term
from afec.guard.borrow import load, snapshot, trained
from afec.guard.expansion import (
    NO_OPTIMIZER,
    OptimizerFactory,
    learns_something,
    optimizer_bytes,
    optimizers_for_theta_e,
    train_theta_e,
)
from afec.guard.gradients import GradientUsedTwiceError
from afec.guard.marks import WeightMovedError
from afec.guard.memory import State, TermBytes, bytes_of, precision_bytes
from afec.guard.options import FisherFields, FisherOptions, Option, OptionFields, Preset, checked_weight, option
from afec.guard.problem import HasGuardedParameters, Params
from afec.guard.pull import Mover
from afec.guard.steps import Step, at_bookmark, with_bookmark
from afec.guard.suggest import Suggestion, Trial
from afec.guard.task import Alone, GuardedTask
from afec.guard.trial import trial_steps

__all__ = [
    "NO_OPTIMIZER",
    "Alone",
    "FisherFields",
    "FisherOptions",
    "GradientUsedTwiceError",
    "Guard",
    "GuardedTask",
    "HasGuardedParameters",
    "Mover",
    "OptimizerFactory",
    "Option",
    "OptionFields",
    "Params",
    "Preset",
    "State",
    "Step",
    "Suggestion",
    "Sum",
    "Term",
    "TermBytes",
    "Trial",
    "WeightMovedError",
    "at_bookmark",
    "bytes_of",
    "checked_weight",
    "learns_something",
    "load",
    "optimizer_bytes",
    "optimizers_for_theta_e",
    "option",
    "precision_bytes",
    "snapshot",
    "train_theta_e",
    "trained",
    "trial_steps",
    "with_bookmark",
]
