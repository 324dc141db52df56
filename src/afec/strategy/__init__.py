"""What a strategy is: a method that has trainings of its own, in our learner."""

from afec.strategy.base import Plain, ScenarioWarning, Strategy, as_strategy
from afec.strategy.context import AfterHook, LearningContext, TaskContext, TaskLoss, Training
from afec.strategy.exemplars import Exemplars, MemoryPolicy, herding
from afec.strategy.schedule import Plateau, Schedule, Select

__all__ = [
    "AfterHook",
    "Exemplars",
    "LearningContext",
    "MemoryPolicy",
    "Plain",
    "Plateau",
    "ScenarioWarning",
    "Schedule",
    "Select",
    "Strategy",
    "TaskContext",
    "TaskLoss",
    "Training",
    "as_strategy",
    "herding",
]
