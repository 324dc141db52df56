"""The network for Omniglot: four convolutions and nothing else."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from afec.nets.images import check_images

__all__ = ["OmniglotNet"]


class OmniglotNet(nn.Module):
    """Images (batch, 1, 28, 28) → features (batch, 1024); 111,424 weights, no head.

    Four 3×3 convolutions of 64 channels without padding, each with ReLU, and 2×2 max-pooling after the second and the
    fourth; the last maps, 64 of 4×4, are flattened. No dropout, no batch-norm, no hidden layer; weights start as PyTorch
    starts them.
    """

    out_features: int = 1024

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, 3),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        check_images("OmniglotNet", images, 1, 28)
        return cast(Tensor, self.features(images).flatten(1))
