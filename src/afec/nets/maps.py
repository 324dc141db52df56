"""Backbones whose feature maps can be seen: what a strategy compares them by."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["HasMaps"]


@runtime_checkable
class HasMaps(Protocol):
    """A backbone in two parts: `forward(x)` is `after_maps(maps(x)[-1])`."""

    def maps(self, x: Tensor) -> list[Tensor]:
        """The feature maps of the inputs, (batch, channels, height, width) each, from the first to the last."""
        ...

    def after_maps(self, last: Tensor) -> Tensor:
        """The features of the last map."""
        ...
