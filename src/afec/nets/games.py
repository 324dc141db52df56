"""Backbones for agents: flat observations, MinAtar's small pictures, Atari's stacked frames."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

__all__ = ["MLP", "AtariNet", "MinAtarNet"]


class MLP(nn.Module):
    """Fully connected hidden layers of one width, for observations of any shape, which are flattened.

    Args:
        inputs: how many numbers an observation has; the experiment `games` fills it in.
        hidden: the width of each layer.
        layers: how many there are.
        activation: `relu`, or `tanh` as Stable-Baselines3 has it.
    """

    def __init__(
        self,
        inputs: int | None = None,
        hidden: int = 64,
        layers: int = 2,
        activation: Literal["relu", "tanh"] = "relu",
    ) -> None:
        super().__init__()
        if inputs is None:
            raise ValueError("the net 'mlp' needs inputs=, how many numbers an observation has")
        if layers < 1 or activation not in ("relu", "tanh"):
            raise ValueError(
                f"the net 'mlp' has at least 1 layer, of 'relu' or 'tanh'; got layers={layers}, activation={activation!r}"
            )
        self.out_features = hidden
        parts: list[nn.Module] = [nn.Flatten()]
        for place in range(layers):
            parts += [nn.Linear(hidden if place else inputs, hidden), nn.ReLU() if activation == "relu" else nn.Tanh()]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Features of shape (batch, hidden)."""
        features: Tensor = self.layers(x)
        return features


class MinAtarNet(nn.Module):
    """One 3×3 convolution and one hidden layer, the net of MinAtar's own agents, for pictures of 10×10 cells.

    Args:
        channels: of the pictures; 10 are enough for all five games.
        maps: what the convolution makes.
        hidden: the width of the hidden layer.
    """

    def __init__(self, channels: int = 10, maps: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.out_features = hidden
        self.layers = nn.Sequential(
            nn.Conv2d(channels, maps, kernel_size=3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(maps * 8 * 8, hidden),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features of shape (batch, hidden) of pictures of shape (batch, channels, 10, 10)."""
        features: Tensor = self.layers(x)
        return features


class AtariNet(nn.Module):
    """Three convolutions and a hidden layer for four stacked frames of 84×84 pixels.

    Args:
        width: 1 is the net of the paper's experiments (128, 256 and 128 maps), four times as wide as the one of the first
            Atari agents, which is 0.25 but for its last convolution (32, 64 and 32 maps here, 64 there).
        hidden: the width of the hidden layer.
    """

    def __init__(self, width: float = 1.0, hidden: int = 512) -> None:
        super().__init__()
        maps = [round(width * full) for full in (128, 256, 128)]
        if min(maps) < 1:
            raise ValueError(f"the net 'atari' needs a width that leaves at least one map; got width={width}")
        self.out_features = hidden
        self.layers = nn.Sequential(
            nn.Conv2d(4, maps[0], kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(maps[0], maps[1], kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(maps[1], maps[2], kernel_size=3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(maps[2] * 7 * 7, hidden),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features of shape (batch, hidden) of frames of shape (batch, 4, 84, 84)."""
        features: Tensor = self.layers(x)
        return features
