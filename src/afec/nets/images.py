"""The images that a backbone was made for."""

from __future__ import annotations

from torch import Tensor

__all__ = ["check_images", "check_options"]


def check_options(net: str, smallest: int, *, channels: int, size: int, width: int) -> None:
    """Raise for options of which no net can be made."""
    if channels < 1 or width < 1 or size < smallest:
        raise ValueError(
            f"{net} needs channels >= 1, size >= {smallest} and width >= 1; "
            f"got channels={channels}, size={size}, width={width}"
        )


def check_images(net: str, images: Tensor, channels: int, size: int) -> None:
    """Raise for images of another shape than the net was made for."""
    if images.dim() != 4 or tuple(images.shape[1:]) != (channels, size, size):
        raise ValueError(
            f"this {net} was made for images of the shape (batch, {channels}, {size}, {size}); got {tuple(images.shape)}. "
            "Make it for others with channels= and size="
        )
