"""Batch-norm whose running statistics are shared by all tasks, or each task's own.

Running statistics are buffers and no guarded weights: no method pulls them. `shared` is PyTorch's batch-norm, with one set that
every task moves on. `per-task` keeps a set for each task, which only that task moves and which is used when that task is
evaluated; the affine weights stay shared, and guarded.

Both differ from PyTorch's in one thing. Where a channel has a single value in a training batch (one sample, and a map of one
pixel), there is no variance to divide by, and PyTorch raises; here the running statistics serve for that batch, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher.rules import RULES

__all__ = ["BatchNormKind", "SharedBatchNorm2d", "TaskBatchNorm2d", "TaskStatistics", "new_batch_norm", "task_norms"]

BatchNormKind = Literal["shared", "per-task"]


def _lone(x: Tensor) -> bool:
    """Whether each channel has one value only."""
    return x.numel() == x.shape[1]


class SharedBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d`; a training batch of one value per channel is normalised by the running statistics."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalised by the batch in training mode, by the running statistics in evaluation."""
        if self.training and _lone(input):
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


class TaskStatistics(nn.Module):
    """Running mean and variance of one task: fresh, 0 and 1."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.ones(channels, device=device, dtype=dtype))


class TaskBatchNorm2d(nn.Module):
    """`nn.BatchNorm2d` with one weight and bias, and a set of running statistics per task.

    Of the tasks one is selected, at first task 0: its statistics are moved in training and used in evaluation. `MultiHead`
    adds a set with every head, and selects the set of the task that it is called for.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.selected = 0
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.tasks = nn.ModuleList([TaskStatistics(channels)])

    @property
    def running_mean(self) -> Tensor:
        """The running statistic of the selected task."""
        return self._statistics.running_mean

    @property
    def running_var(self) -> Tensor:
        """The running statistic of the selected task."""
        return self._statistics.running_var

    @property
    def _statistics(self) -> TaskStatistics:
        return cast(TaskStatistics, self.tasks[self.selected])

    def reset_parameters(self) -> None:
        """Everything as at the start, the statistics of all tasks included."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        for statistics in cast(Iterator[TaskStatistics], self.tasks):
            statistics.running_mean.zero_()
            statistics.running_var.fill_(1.0)

    def make_tasks(self, count: int) -> None:
        """Have the statistics of at least `count` tasks; new ones are fresh, where the weights are and in their precision."""
        while len(self.tasks) < count:
            self.tasks.append(TaskStatistics(self.channels, self.weight.device, self.weight.dtype))

    def select(self, task: int) -> None:
        """Use the statistics of task number `task`, until another one is selected."""
        if not 0 <= task < len(self.tasks):
            raise IndexError(
                f"task must be 0 to {len(self.tasks) - 1}: this batch-norm has the statistics of {len(self.tasks)} tasks; "
                f"got {task}. make_tasks({task + 1}) adds fresh ones"
            )
        self.selected = task

    def forward(self, x: Tensor) -> Tensor:
        """Normalised by the batch in training mode, by the selected task's running statistics in evaluation."""
        mean, variance, of_batch = self.running_mean, self.running_var, self.training and not _lone(x)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, of_batch, self.momentum, self.eps)

    def extra_repr(self) -> str:
        """Say in `repr` what it was made with."""
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}"


# In evaluation they are batch-norm with fixed statistics, so the same rule reads their squares.
RULES[SharedBatchNorm2d] = RULES[TaskBatchNorm2d] = RULES[nn.BatchNorm2d]


def new_batch_norm(channels: int, kind: BatchNormKind) -> nn.Module:
    """A batch-norm of this kind."""
    if kind not in ("shared", "per-task"):
        raise ValueError(f"batch_norm must be 'shared' or 'per-task'; got {kind!r}")
    return SharedBatchNorm2d(channels) if kind == "shared" else TaskBatchNorm2d(channels)


def task_norms(model: nn.Module) -> Iterator[tuple[str, TaskBatchNorm2d]]:
    """Every layer of a model that has statistics per task, with its name."""
    for name, module in model.named_modules():
        if isinstance(module, TaskBatchNorm2d):
            yield name, module
