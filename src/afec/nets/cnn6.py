"""The CIFAR network of the paper: six convolutions and one hidden layer."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

__all__ = ["CNN6"]


def _stage(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
    ]


class CNN6(nn.Module):
    """Images (batch, 3, 32, 32) → features (batch, 256); 811,552 weights, no head.

    Three stages of two 3×3 convolutions (32, 64 and 128 channels), each with max-pooling and dropout after it,
    then one hidden layer. Dropout is element-wise, there is no batch-norm, and weights start as PyTorch starts
    them.
    """

    out_features: int = 256

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stage(3, 32), *_stage(32, 64), *_stage(64, 128))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(128 * 4 * 4, self.out_features), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        return cast(Tensor, self.hidden(self.features(images)))
