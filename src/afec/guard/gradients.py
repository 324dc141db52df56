"""Adding the pull to gradients: .grad += D·(θ−θ*) + c, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from afec.fisher.shards import local
from afec.gaussian import merged_parts, widened
from afec.guard.marks import GuardedWeight

__all__ = ["GradientUsedTwiceError", "add_pull", "is_skipped", "scale_of"]


TOGETHER = 2**20
"""Numbers in one fused operation: what D and c are derived into is gone before the next ones are."""


class GradientUsedTwiceError(RuntimeError):
    """One weight was stepped twice from the same gradient."""


def add_pull(
    entries: Iterable[GuardedWeight], scale: Tensor | None, by: Optimizer | None = None
) -> list[tuple[GuardedWeight, Tensor]]:
    """.grad += D·(θ−θ*) + c, for all weights in one fused operation each. This runs in every step: it is lean.

    Returns what it was added to.
    """
    added: list[tuple[GuardedWeight, Tensor]] = []
    fused = _Fused()
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
        own, its_grad = (weight.data, grad) if not hasattr(weight, "to_local") else (local(weight), local(grad))
        if scale is None and grad.dtype is entry.center.dtype and entry.derives():
            for piece in _derived(entry, own, its_grad):
                fused.take(*piece)
            continue
        center, curvature, slope = entry.follow()
        if scale is not None or grad.dtype is not center.dtype:
            _add_one(own, its_grad, center, curvature, slope, scale)
            continue
        fused.take(own, its_grad, center, curvature, slope)
    fused.run()
    for entry, grad in added:
        entry.mark(grad)
    return added


class _Fused:
    """Weights whose pull is added by one operation for all of them."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._clear()

    def _clear(self) -> None:
        self.weights: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.centers: list[Tensor] = []
        self.curvatures: list[Tensor] = []
        self.sloped: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self.derived = 0  # numbers that were derived for this operation, and are gone after it

    def take(
        self,
        weight: Tensor,
        grad: Tensor,
        center: Tensor,
        curvature: Tensor,
        slope: Tensor | None,
        factor: float = 1.0,
        derived: int = 0,
    ) -> None:
        """One more; what was taken before is run first where it cannot go together with this one."""
        if self.grads and (factor != self.factor or self.derived + derived > TOGETHER):
            self.run()
        self.factor, self.derived = factor, self.derived + derived
        self.weights.append(weight)
        self.grads.append(grad)
        self.centers.append(center)
        self.curvatures.append(curvature)
        if slope is not None:
            self.sloped.append(grad)
            self.slopes.append(slope)

    @torch.no_grad()
    def run(self) -> None:
        """.grad += factor·D·(θ−θ*) + c, for all that was taken."""
        if self.grads:
            away = torch._foreach_sub(self.weights, self.centers)
            torch._foreach_addcmul_(self.grads, self.curvatures, away, value=self.factor)
            if self.slopes:
                torch._foreach_add_(self.sloped, self.slopes)
            self._clear()


def _derived(
    entry: GuardedWeight, weight: Tensor, grad: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, float, int]]:
    """What is added to one gradient, derived now, and of a large weight some rows at a time.

    Of a single Gaussian nothing has to be derived: λ is a factor of the operation, and rounds as λF would.
    """
    assert entry.parts is not None, "entry.derives()"
    rows = len(weight) if weight.dim() else 1
    step = max(1, rows * TOGETHER // max(1, weight.numel()))
    for start in range(0, rows, step):
        some: slice | None = slice(start, start + step) if step < rows else None
        parts = entry.parts if some is None else [part.rows(some) for part in entry.parts]
        here, its_grad = (weight, grad) if some is None else (weight[some], grad[some])
        if len(parts) == 1:
            own = parts[0]
            yield here, its_grad, own.mean, widened(own.precision), None, own.weight, here.numel()
        else:
            center, curvature, slope, _ = merged_parts(parts)
            yield here, its_grad, center, curvature, slope, 1.0, here.numel()


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
