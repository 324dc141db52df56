"""LeNet: two convolutions and two hidden layers (the small net of the paper's regression tasks)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from afec.nets.images import check_images, check_options

__all__ = ["LeNet"]

UNPADDED = 16
"""The smallest image that two 5×5 convolutions without padding, each with a 2×2 pooling after it, leave a pixel of."""


class LeNet(nn.Module):
    """Images (batch, 3, 32, 32) → features (batch, 84); 61,156 weights, no head.

    Two 5×5 convolutions (6 and 16 channels) with ReLU and 2×2 max-pooling, then hidden layers of 120 and 84 units with ReLU.
    Weights start as PyTorch starts them.

    Args:
        channels: of the images.
        size: height and width of the images, at least 4. Below 16 pixels the convolutions are padded by 2, so that they keep
            the size of the image: 8×8 digits become 16 maps of 2×2 (20,536 weights with one channel).
        width: channels of the first convolution; the other layers scale with it.
    """

    def __init__(self, channels: int = 3, size: int = 32, width: int = 6) -> None:
        super().__init__()
        check_options("lenet", 4, channels=channels, size=size, width=width)
        self.channels, self.size = channels, size
        padding = 0 if size >= UNPADDED else 2
        maps, hidden, self.out_features = width * 8 // 3, width * 20, width * 14
        for _ in range(2):
            size = (size - 4 + 2 * padding) // 2
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, maps, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Sequential(
            nn.Flatten(),
            nn.Linear(maps * size * size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.out_features),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        check_images("LeNet", images, self.channels, self.size)
        return cast(Tensor, self.hidden(self.features(images)))
