"""One guarded weight: its part of the quadratic, its expected version, and the mark on a gradient that holds the pull."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from afec.gaussian import Quadratic

__all__ = ["GuardedWeight", "WeightMovedError"]


class WeightMovedError(RuntimeError):
    """A guarded weight changed without its pull."""


class GuardedWeight:
    """A weight that is watched, and pulled where the quadratic knows it."""

    __slots__ = (
        "at",
        "by",
        "center",
        "curvature",
        "extra",
        "grad",
        "grad_version",
        "name",
        "slope",
        "sum",
        "version",
        "weight",
    )

    def __init__(self, name: str, weight: nn.Parameter) -> None:
        self.name, self.weight = name, weight
        self.center: Tensor | None = None  # θ*
        self.curvature: Tensor | None = None  # D
        self.slope: Tensor | None = None  # c
        self.extra: Callable[[], Tensor] | None = None  # a pull that is no diagonal quadratic
        self.at: tuple[torch.dtype | None, torch.device | None] = (None, None)  # what these were converted for
        self.version = weight._version
        self.sum = self.checksum()
        self.grad: weakref.ref[Tensor] | None = None  # the gradient that holds the pull: the mark
        self.grad_version = 0
        self.by: weakref.ref[Optimizer] | None = None  # the optimiser that has stepped from it

    # -- the quadratic --------------------------------------------------------------------------------------------

    def set(self, quadratic: Quadratic) -> None:
        """Take over this weight's part."""
        self.at = (None, None)
        self.center = quadratic.center.get(self.name)
        self.curvature = quadratic.curvature.get(self.name)
        self.slope = quadratic.slope.get(self.name)

    def follow(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """θ*, D and c where the weight is now, in its type; of 16-bit weights in 32, because λF would overflow."""
        weight = self.weight
        if weight.dtype is not self.at[0] or weight.device != self.at[1]:
            self.at = weight.dtype, weight.device
            dtype = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
            for part in ("center", "curvature", "slope"):
                value = getattr(self, part)
                setattr(self, part, None if value is None else value.to(weight.device, dtype))
        assert self.center is not None
        assert self.curvature is not None
        return self.center, self.curvature, self.slope

    # -- the mark -------------------------------------------------------------------------------------------------

    def mark(self, grad: Tensor) -> None:
        """This gradient holds the pull now, and no optimiser has used it yet."""
        self.grad, self.grad_version, self.by = weakref.ref(grad), grad._version, None

    def holds_pull(self, grad: Tensor) -> bool:
        """Whether the pull is in this gradient already."""
        if self.grad is None or self.grad() is not grad:
            return False
        if grad._version == self.grad_version:
            return True
        # Changed in place without a backward. One that was used is a new gradient, written by hand. Otherwise it was
        # clipped or unscaled, then the pull is still inside; or zeroed.
        return self.by is None and bool(grad.any())

    def used(self, optimizer: weakref.ref[Optimizer]) -> None:
        """An optimiser has stepped from the gradient (a fused one may have unscaled it in place)."""
        grad = self.grad() if self.grad is not None else None
        if grad is not None:
            self.by, self.grad_version = optimizer, grad._version

    def refresh(self) -> None:
        """Bind the mark to the gradient's present version if it still holds the pull, after clipping say."""
        grad = self.weight.grad
        if grad is not None and self.holds_pull(grad):
            self.grad_version = grad._version

    def accumulated(self) -> None:
        """A backward has just added to `.grad`: does it still hold the pull?"""
        grad = self.grad() if self.grad is not None else None
        # A used gradient that is accumulated onto starts anew, as loss + penalty would. Otherwise exactly one more
        # version of the same tensor is an accumulation; more means that it was zeroed in between.
        kept = grad is not None and grad is self.weight.grad and grad._version == self.grad_version + 1
        if kept and self.by is None:
            self.grad_version += 1
        else:
            self.grad = None

    # -- the watch ------------------------------------------------------------------------------------------------

    def checksum(self) -> str:
        """Changes when the values do; a string, so that NaN equals itself."""
        return repr(float(self.weight.detach().double().sum()))

    def check_version(self) -> None:
        """Raise if the weight was written to since the last step that we saw."""
        if self.weight._version != self.version:
            raise self.moved()

    def moved(self) -> WeightMovedError:
        """The error that names a weight which moved without the pull."""
        return WeightMovedError(
            f"guarded weight {self.name!r} was changed, but not inside an optimiser's step that the guard sees, so its "
            "pull was lost: this would be fine-tuning. Step with a torch.optim.Optimizer (or a subclass that calls "
            "super().__init__()). If the weight was changed on purpose (clipped, averaged), call task.accept() right "
            "after the change"
        )
