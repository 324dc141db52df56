"""What SI and RWALK share: they add up the path of each weight, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from afec.guard import State, Step, at_bookmark, option, with_bookmark
from afec.methods.regulariser import Regulariser

__all__ = ["PathRegulariser", "sums_like", "wide_zeros"]


class PathRegulariser(Regulariser):
    """A regulariser that watches every step; a bookmark cuts its path."""

    clamp: bool = option(
        default=True,
        official=False,
        doc="Whether what raised the loss counts as zero; else an importance may be negative, and pushes away from θ*.",
    )
    half: bool = option(
        default=True, official=False, doc="The ½ in the penalty; without it the pull is twice as strong."
    )
    gradient: Literal["task", "total"] = option(
        default="task",
        official="total",
        doc="`task`, the task's own gradient, or `total`, with the pull (the released code).",
    )
    rewind: bool = option(
        default=True,
        official=False,
        doc="Where the learner returns to its best weights, count the path up to them only (`task.bookmark()`); else all.",
    )

    @property
    def per_strength(self) -> float:
        """Twice as much without the ½."""
        return 1.0 if self.half else 2.0

    @property
    def observes(self) -> frozenset[str]:
        """The gradient of every step."""
        return frozenset({"gradient" if self.gradient == "task" else "total"})

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why: without the clamp an importance may be negative."""
        return {} if self.clamp else {"nonnegative": "the released code does not clamp the importance of a weight at 0"}

    def bookmark(self, task_state: State) -> State:
        """The path up to here is the one that counts, if the learner returns."""
        return with_bookmark(task_state) if self.rewind else task_state

    def return_to_bookmark(self, task_state: State) -> State:
        """Only the path up to the bookmark has led to these weights. A λ that is found by itself stays as it is."""
        found = {key: value for key, value in task_state.items() if key == "automatic"}
        return {**at_bookmark(task_state), **found} if self.rewind else task_state

    def seen(self, step: Step) -> tuple[list[str], list[Tensor], list[Tensor]]:
        """The names of the weights that took part in a step, their g and their δ."""
        gradient = step.gradient if self.gradient == "task" else step.total
        return list(gradient), list(gradient.values()), [step.change[name] for name in gradient]


def sums_like(gradients: list[Tensor], names: list[str], sums: Mapping[str, Tensor]) -> list[Tensor]:
    """The sums so far of these weights, where and as wide as their gradients are now."""
    return [sums[name].to(gradient) for name, gradient in zip(names, gradients, strict=True)]


def wide_zeros(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros in the shapes of weights, float32 at least: many small steps are added up in them."""
    return {
        name: torch.zeros(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        for name, weight in weights.items()
    }
