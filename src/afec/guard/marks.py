"""One guarded weight: its part of the quadratic, its expected version, and the mark on a gradient that holds the pull."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from afec.fisher.shards import local
from afec.gaussian import Derived, Part, Quadratic, merged_parts
from afec.guard.checksum import checksum

__all__ = ["GuardedWeight", "WeightMovedError", "version_of"]


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to. Of a sharded one the part that is here tells: writes go there."""
    part: Tensor | None = getattr(tensor, "_local_tensor", None)
    return tensor._version if part is None else part._version


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
        "parts",
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
        self.parts: list[Part] | None = None  # what D and c are derived from, where they are not kept
        self.extra: Callable[[], Tensor] | None = None  # a pull that is no diagonal quadratic
        self.at: tuple[torch.dtype | None, torch.device | None] = (None, None)  # what these were converted for
        self.version = version_of(weight)
        self.sum = self.checksum()
        self.grad: weakref.ref[Tensor] | None = None  # the gradient that holds the pull: the mark
        self.grad_version = 0
        self.by: weakref.ref[Optimizer] | None = None  # the optimiser that has stepped from it

    # -- the quadratic --------------------------------------------------------------------------------------------

    def set(self, quadratic: Quadratic | Derived) -> None:
        """Take over this weight's part."""
        self.at = (None, None)
        if isinstance(quadratic, Derived):
            self.parts, self.curvature, self.slope = quadratic.parts.get(self.name), None, None
            self.center = None if self.parts is None else self.parts[0].mean
            return
        self.parts = None
        self.center = quadratic.center.get(self.name)
        self.curvature = quadratic.curvature.get(self.name)
        self.slope = quadratic.slope.get(self.name)

    def follow(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """θ*, D and c where the weight is now, in its type; of 16-bit weights in 32, because λF would overflow."""
        if self.derives():
            assert self.parts is not None
            return merged_parts(self.parts)[:3]
        weight = self.weight
        if weight.dtype is not self.at[0] or weight.device != self.at[1]:
            if (
                self.parts is not None
            ):  # at rest elsewhere, or the weight was moved: kept from now on, where the weight is
                (self.center, self.curvature, self.slope, _), self.parts = merged_parts(self.parts), None
            self.at = weight.dtype, weight.device
            dtype = self._dtype
            for part in ("center", "curvature", "slope"):
                value = getattr(self, part)
                setattr(self, part, None if value is None else value.to(weight.device, dtype))
        assert self.center is not None
        assert self.curvature is not None
        return self.center, self.curvature, self.slope

    def derives(self) -> bool:
        """Whether D and c are derived at every use, from Gaussians that are where the weight is, in its type."""
        if self.parts is None:
            return False
        weight, dtype = self.weight, self._dtype
        return all(
            part.mean.device == weight.device and part.precision.device == weight.device and part.mean.dtype is dtype
            for part in self.parts
        )

    @property
    def _dtype(self) -> torch.dtype:
        """What the pull is computed in."""
        dtype = self.weight.dtype
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    # -- the mark -------------------------------------------------------------------------------------------------

    def mark(self, grad: Tensor) -> None:
        """This gradient holds the pull now, and no optimiser has used it yet."""
        self.grad, self.grad_version, self.by = weakref.ref(grad), version_of(grad), None

    def holds_pull(self, grad: Tensor) -> bool:
        """Whether the pull is in this gradient already."""
        if self.grad is None or self.grad() is not grad:
            return False
        if version_of(grad) == self.grad_version:
            return True
        # Changed in place without a backward. One that was used is a new gradient, written by hand. Otherwise it was
        # clipped or unscaled, then the pull is still inside; or zeroed.
        return self.by is None and bool(local(grad).any())

    def used(self, optimizer: weakref.ref[Optimizer]) -> None:
        """An optimiser has stepped from the gradient (a fused one may have unscaled it in place)."""
        grad = self.grad() if self.grad is not None else None
        if grad is not None:
            self.by, self.grad_version = optimizer, version_of(grad)

    def refresh(self) -> None:
        """Bind the mark to the gradient's present version if it still holds the pull, after clipping say."""
        grad = self.weight.grad
        if grad is not None and self.holds_pull(grad):
            self.grad_version = version_of(grad)

    def accumulated(self) -> None:
        """A backward has just added to `.grad`: does it still hold the pull?"""
        grad = self.grad() if self.grad is not None else None
        # A used gradient that is accumulated onto starts anew, as loss + penalty would. Otherwise exactly one more
        # version of the same tensor is an accumulation; more means that it was zeroed in between. The parts of a sharded
        # model's gradients lie in one buffer and count their versions together: they do not tell.
        if (
            grad is not None
            and grad is self.weight.grad
            and self.by is None
            and (hasattr(grad, "to_local") or version_of(grad) == self.grad_version + 1)
        ):
            self.grad_version = version_of(grad)
        else:
            self.grad = None

    # -- the watch ------------------------------------------------------------------------------------------------

    def checksum(self) -> str:
        """Changes when the values do; a string, so that NaN equals itself."""
        return checksum(self.weight)

    def check_version(self) -> None:
        """Raise if the weight was written to since the last step that we saw."""
        if version_of(self.weight) != self.version:
            raise self.moved()

    def moved(self) -> WeightMovedError:
        """The error that names a weight which moved without the pull."""
        return WeightMovedError(
            f"guarded weight {self.name!r} was changed, but not inside an optimiser's step that the guard sees, so its "
            "pull was lost: this would be fine-tuning. Step with a torch.optim.Optimizer (or a subclass that calls "
            "super().__init__()). If the weight was changed on purpose (clipped, averaged), call task.accept() right "
            "after the change"
        )
