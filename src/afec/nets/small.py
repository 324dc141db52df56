"""Small nets for small images."""

from __future__ import annotations

from torch import Tensor, nn

from afec.nets.activation import Activation, activation_of

__all__ = ["DigitsBackbone"]


class DigitsBackbone(nn.Module):
    """Two 3×3 convolutions and one fully connected layer, for grey images of 8×8 pixels; 10,704 weights.

    The first convolution has stride 2, in place of a pooling layer: a step costs 0.6 times as much.

    Args:
        channels: of both convolutions.
        features: units of the hidden layer.
        activation: `relu`, or `gelu` or `leaky`, with which no unit dies.
    """

    def __init__(self, channels: int = 16, features: int = 32, activation: Activation = "relu") -> None:
        super().__init__()
        self.out_features = features
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, kernel_size=3, stride=2, padding=1),
            activation_of(activation),
            nn.Conv2d(channels, channels, kernel_size=3, padding=1),
            activation_of(activation),
            nn.Flatten(),
            nn.Linear(channels * 4 * 4, features),
            activation_of(activation),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features of shape (batch, features) of images of shape (batch, 1, 8, 8)."""
        features: Tensor = self.layers(x)
        return features

    def maps(self, x: Tensor) -> list[Tensor]:
        """The maps of the two convolutions."""
        first = self.layers[:2](x)
        return [first, self.layers[2:4](first)]

    def after_maps(self, last: Tensor) -> Tensor:
        """The features of the second convolution's maps."""
        features: Tensor = self.layers[4:](last)
        return features
