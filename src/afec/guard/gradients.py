"""Adding the pull to gradients: .grad += D·(θ−θ*) + c, once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from afec.guard.marks import GuardedWeight

__all__ = ["GradientUsedTwiceError", "add_pull", "is_skipped", "scale_of"]


class GradientUsedTwiceError(RuntimeError):
    """One weight was stepped twice from the same gradient."""


def add_pull(
    entries: Iterable[GuardedWeight], scale: Tensor | None, by: Optimizer | None = None
) -> list[tuple[GuardedWeight, Tensor]]:
    """.grad += D·(θ−θ*) + c, for all weights in one fused operation each. This runs in every step: it is lean.

    Returns what it was added to.
    """
    added: list[tuple[GuardedWeight, Tensor]] = []
    weights, grads, centers, curvatures = [], [], [], []
    sloped, slopes = [], []
    for entry in entries:
        weight = entry.weight
        grad = weight.grad
        if grad is None or not weight.requires_grad:  # frozen meanwhile
            continue
        if entry.center is None and entry.extra is None:
            continue
        if entry.grad is not None and entry.holds_pull(grad):
            if by is not None:
                _refuse_second(entry, by)
            continue
        if grad.layout is not torch.strided:
            raise TypeError(
                f"weight {entry.name!r} has a sparse gradient, which cannot hold the pull. "
                "Use sparse=False, or leave the weight out with params="
            )
        added.append((entry, grad))
        if entry.extra is not None:
            _add_extra(grad, entry.extra(), scale)
        if entry.center is None:
            continue
        center, curvature, slope = entry.follow()
        if scale is not None or grad.dtype is not center.dtype:
            _add_one(weight, grad, center, curvature, slope, scale)
            continue
        weights.append(weight.data)
        grads.append(grad)
        centers.append(center)
        curvatures.append(curvature)
        if slope is not None:
            sloped.append(grad)
            slopes.append(slope)
    if grads:
        with torch.no_grad():
            away = torch._foreach_sub(weights, centers)
            torch._foreach_addcmul_(grads, curvatures, away)
            if slopes:
                torch._foreach_add_(sloped, slopes)
    for entry, grad in added:
        entry.mark(grad)
    return added


def scale_of(optimizer: Optimizer) -> Tensor | None:
    """The factor on gradients that a fused optimiser takes off inside its step; GradScaler sets it."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None


def is_skipped(optimizer: Optimizer) -> bool:
    """Whether GradScaler has told a fused optimiser to skip its step."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found)


def _refuse_second(entry: GuardedWeight, optimizer: Optimizer) -> None:
    """A second step from one gradient would count its pull twice, or, if `.grad` was rewritten, not at all."""
    other = entry.by() if entry.by is not None else None
    if other is optimizer:
        raise GradientUsedTwiceError(
            f"weight {entry.name!r} is stepped twice by {type(optimizer).__name__} from the same gradient (or `.grad` was "
            "written through `.data`, which leaves no trace). Compute a new gradient before the second step"
        )
    if other is not None:
        raise GradientUsedTwiceError(
            f"weight {entry.name!r} is stepped by {type(other).__name__} and {type(optimizer).__name__} from the same "
            "gradient, so its pull would count twice. Give each weight to one optimiser, or compute a new gradient "
            "before the second step"
        )


@torch.no_grad()
def _add_extra(grad: Tensor, pull: Tensor, scale: Tensor | None) -> None:
    grad.add_(pull if scale is None else pull * scale.to(pull))


@torch.no_grad()
def _add_one(
    weight: Tensor, grad: Tensor, center: Tensor, curvature: Tensor, slope: Tensor | None, scale: Tensor | None
) -> None:
    """The slow way, for a gradient that is still scaled, or one of another type than the pull."""
    pull = curvature * (weight - center)
    if slope is not None:
        pull += slope
    if scale is not None:
        pull *= scale.to(pull)
    grad.add_(pull)
