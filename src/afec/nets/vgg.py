"""VGG11 without hidden layers, with and without batch-norm."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from afec.nets.images import check_images, check_options
from afec.nets.norm import BatchNormKind, TaskBatchNorm2d, new_batch_norm

__all__ = ["VGG", "vgg11", "vgg11bn"]

VGG11 = ((1,), (2,), (4, 4), (8, 8), (8, 8))
"""Channels of the convolutions in units of the first one's, with a pooling after each group."""


class VGG(nn.Module):
    """Images (batch, channels, size, size) → features (batch, out_features), no head.

    3×3 convolutions with padding 1 and ReLU, 2×2 max-pooling after each group while the image is larger than one pixel, and
    the last maps flattened. Names are torchvision's (`features.0.weight` …): a pooling that a small image does not need is
    replaced by nothing, in its place. Weights start as torchvision starts them, from Kaiming's normal distribution
    (`fan_out`) with biases at zero. PyTorch's own initial weights are smaller by a factor of about √6 in each of the eight
    layers: the features of two images then differ by hundredths, and without batch-norm they are learned slowly, or not.
    """

    def __init__(self, channels: int, size: int, width: int, batch_norm: BatchNormKind | None) -> None:
        super().__init__()
        check_options("vgg11", 1, channels=channels, size=size, width=width)
        self.channels, self.size = channels, size
        layers: list[nn.Module] = []
        for group in VGG11:
            for multiple in group:
                layers.append(nn.Conv2d(channels, multiple * width, 3, padding=1))
                channels = multiple * width
                if batch_norm is not None:
                    layers.append(new_batch_norm(channels, batch_norm))
                layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(2) if size > 1 else nn.Identity())
            size = max(1, size // 2)
        self.features = nn.Sequential(*layers)
        self.out_features = channels * size * size
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initial weights, drawn anew."""
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(cast(Tensor, layer.bias))
            elif isinstance(layer, nn.BatchNorm2d | TaskBatchNorm2d):
                layer.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        check_images("VGG11", images, self.channels, self.size)
        return cast(Tensor, self.features(images).flatten(1))


def vgg11(channels: int = 3, size: int = 32, width: int = 64) -> VGG:
    """VGG11: images (batch, 3, 32, 32) → features (batch, 512); 9,220,480 weights.

    Args:
        channels: of the images.
        size: height and width of the images.
        width: channels of the first convolution; the others have 2, 4, 4, 8, 8, 8 and 8 times as many.
    """
    return VGG(channels, size, width, None)


def vgg11bn(channels: int = 3, size: int = 32, width: int = 64, batch_norm: BatchNormKind = "shared") -> VGG:
    """VGG11 with batch-norm after each convolution; 9,225,984 weights.

    Args:
        channels: of the images.
        size: height and width of the images.
        width: channels of the first convolution; the others have 2, 4, 4, 8, 8, 8 and 8 times as many.
        batch_norm: one set of running statistics for all tasks (`shared`), or one for each (`per-task`): see `nets.norm`.
    """
    return VGG(channels, size, width, batch_norm)
