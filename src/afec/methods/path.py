"""What the methods of the path share, SI and RWALK: how a step is read and what of it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from afec.guard import State, Step, Term, at_bookmark, checked_flag, one_of, with_bookmark
from afec.methods.presets import settings

__all__ = ["PathOptions", "PathTerm", "path_options", "wide_zeros"]


@dataclass(frozen=True)
class PathOptions:
    """The options that SI and RWALK share; see there."""

    damping: float
    clamp: bool
    half: bool
    gradient: Literal["task", "total"]
    rewind: bool

    @property
    def observes(self) -> frozenset[str]:
        """Which gradient of a step the guard has to watch."""
        return frozenset({"gradient" if self.gradient == "task" else "total"})

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """Without the clamp a precision may be negative."""
        return {} if self.clamp else {"nonnegative": "the released code does not clamp the importance of a weight at 0"}

    @property
    def scale(self) -> float:
        """A Gaussian's penalty has the ½, so without it λ counts twice."""
        return 1.0 if self.half else 2.0

    def seen(self, step: Step) -> tuple[list[str], list[Tensor], list[Tensor]]:
        """The names of the weights that took part in a step, their g and their δ."""
        gradient = step.gradient if self.gradient == "task" else step.total
        return list(gradient), list(gradient.values()), [step.change[name] for name in gradient]

    @staticmethod
    def of(sums: Mapping[str, Tensor], names: list[str], gradients: list[Tensor]) -> list[Tensor]:
        """The sums so far of these weights, where and as wide as their gradients are now."""
        return [sums[name].to(gradient) for name, gradient in zip(names, gradients, strict=True)]

    def __str__(self) -> str:
        return f"damping={self.damping:g}, clamp={self.clamp}, half={self.half}, gradient={self.gradient!r}"


class PathTerm(Term):
    """What SI and RWALK do alike: they watch every step, and a bookmark cuts their path."""

    strength: float
    path: PathOptions

    @property
    def is_off(self) -> bool:
        """λ = 0."""
        return self.strength == 0

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why."""
        return self.path.exempt_contracts

    @property
    def observes(self) -> frozenset[str]:
        """The gradient of every step."""
        return self.path.observes

    def bookmark(self, task_state: State) -> State:
        """The path up to here is the one that counts, if the learner returns."""
        return with_bookmark(task_state) if self.path.rewind else task_state

    def return_to_bookmark(self, task_state: State) -> State:
        """Only the path up to the bookmark has led to these weights."""
        return at_bookmark(task_state) if self.path.rewind else task_state


def path_options(method: str, preset: str, given: Mapping[str, Any]) -> PathOptions:
    """The preset's options of a method with those that were given instead, checked."""
    chosen = settings(method.lower(), preset, **given)
    one_of(f"{method}: gradient", chosen["gradient"], ("task", "total"))
    damping = chosen["damping"]
    if isinstance(damping, bool) or not isinstance(damping, int | float) or not 0 < damping < math.inf:
        raise ValueError(f"{method}: damping must be a finite number > 0, because it is divided by; got {damping!r}")
    clamp, half, rewind = (checked_flag(f"{method}: {key}", chosen[key]) for key in ("clamp", "half", "rewind"))
    return PathOptions(float(damping), clamp, half, chosen["gradient"], rewind)


def wide_zeros(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros in the shapes of weights, float32 at least: many small steps are added up in them."""
    return {
        name: torch.zeros(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        for name, weight in weights.items()
    }
