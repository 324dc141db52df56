"""Continual learning with active forgetting, for PyTorch."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afec.gaussian import Gaussian
    from afec.guard import GradientUsedTwiceError, Guard, GuardedTask, WeightMovedError
    from afec.learner import Learner, Machine, Schedule
    from afec.methods import (
        AFEC,
        AGSCL,
        DERPP,
        ER,
        EWC,
        LUCIR,
        MAS,
        RWALK,
        SI,
        Average,
        ICaRL,
        LwF,
        Merge,
        PODNet,
        Prior,
        ProgressCompress,
        Recycle,
    )
    from afec.strategy import Strategy

__all__ = [
    "AFEC",
    "AGSCL",
    "DERPP",
    "ER",
    "EWC",
    "LUCIR",
    "MAS",
    "RWALK",
    "SI",
    "Average",
    "Gaussian",
    "GradientUsedTwiceError",
    "Guard",
    "GuardedTask",
    "ICaRL",
    "Learner",
    "LwF",
    "Machine",
    "Merge",
    "PODNet",
    "Prior",
    "ProgressCompress",
    "Recycle",
    "Schedule",
    "Strategy",
    "WeightMovedError",
]


def __getattr__(name: str) -> Any:
    """A public name, from its room, or a room, when it is first asked for: `afec --help` needs no PyTorch."""
    if name in __all__:
        rooms = map(import_module, (f"afec.{room}" for room in ("gaussian", "guard", "strategy", "methods", "learner")))
        found = next(getattr(room, name) for room in rooms if hasattr(room, name))
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"afec.{name}") is not None:
        return import_module(f"afec.{name}")
    raise AttributeError(f"module 'afec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
