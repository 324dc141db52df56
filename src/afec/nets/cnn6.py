"""The CIFAR network of the paper: six convolutions and one hidden layer."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from afec.nets.activation import Activation, activation_of

__all__ = ["CNN6"]


def _stage(channels_in: int, channels_out: int, activation: Activation) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        activation_of(activation),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        activation_of(activation),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
    ]


class CNN6(nn.Module):
    """Images (batch, 3, 32, 32) → features (batch, 256); 811,552 weights, no head.

    Three stages of two 3×3 convolutions (32, 64 and 128 channels), each with max-pooling and dropout after it,
    then one hidden layer. Dropout is element-wise, there is no batch-norm, and weights start as PyTorch starts
    them. `activation` is `relu`, as in the paper, or `gelu` or `leaky`, with which no unit dies.
    """

    out_features: int = 256

    def __init__(self, activation: Activation = "relu") -> None:
        super().__init__()
        stages = ((3, 32), (32, 64), (64, 128))
        self.features = nn.Sequential(*(layer for sizes in stages for layer in _stage(*sizes, activation)))
        self.hidden = nn.Sequential(
            nn.Flatten(), nn.Linear(128 * 4 * 4, self.out_features), activation_of(activation), nn.Dropout(0.5)
        )

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        return cast(Tensor, self.hidden(self.features(images)))
