"""What a strategy is: a method that has trainings of its own, in our learner."""

from afec.strategy.base import Plain, Strategy, as_strategy
from afec.strategy.work import TaskLoss, Training, Work

__all__ = ["Plain", "Strategy", "TaskLoss", "Training", "Work", "as_strategy"]
