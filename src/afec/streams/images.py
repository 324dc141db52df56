"""What is done to images on their way into a net, on whole batches. Each is a value: equal settings, equal `repr`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["CropFlip", "Normalise"]


@dataclass(frozen=True)
class Normalise:
    """Bytes (batch, channels, height, width) → floats: from 0 … 255 to 0 … 1, less the mean, over the standard deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or any(not value > 0 for value in self.std):
            raise ValueError(
                f"Normalise needs one mean and one standard deviation above 0 for each channel; got {self.mean} and {self.std}"
            )

    @cached_property
    def _line(self) -> tuple[Tensor, Tensor]:
        """Slope and offset: one multiplication and one addition for each pixel."""
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return 1 / (255 * std), -mean / std

    def __call__(self, images: Tensor) -> Tensor:
        """The batch as a net takes it."""
        if images.dtype != torch.uint8:
            raise TypeError(f"Normalise takes images as bytes, torch.uint8 from 0 to 255; got {images.dtype}")
        slope, offset = (part.to(images.device) for part in self._line)
        return torch.addcmul(offset, images.float(), slope)


@dataclass(frozen=True)
class CropFlip:
    """The usual augmentation of small images: a random crop after zero-padding, and a mirror image every second time.

    Draws from torch's own generator: the caller seeds it.
    """

    padding: int = 4

    def __call__(self, images: Tensor) -> Tensor:
        """Each image of the batch, cropped and flipped by itself."""
        count, _, height, width = images.shape
        device, span = images.device, 2 * self.padding + 1
        padded = F.pad(images, (self.padding,) * 4)
        top, left = torch.randint(span, (2, count, 1), device=device)
        mirrored = torch.rand(count, 1, device=device) < 0.5
        rows = top + torch.arange(height, device=device)
        columns = torch.arange(width, device=device)
        columns = left + torch.where(mirrored, columns.flip(0), columns)
        every = torch.arange(count, device=device)[:, None, None]
        # Indexed dimensions come first: (count, height, width, channels), which is channels_last already.
        return padded[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
