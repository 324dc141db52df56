"""ResNet10: a 3×3 stem and one basic block in each of four stages."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from afec.nets.images import check_images, check_options
from afec.nets.norm import BatchNormKind, new_batch_norm

__all__ = ["BasicBlock", "ResNet10"]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch-norm, around which the input is added, resized by a 1×1 convolution where need be."""

    def __init__(self, channels_in: int, channels: int, stride: int, batch_norm: BatchNormKind) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = new_batch_norm(channels, batch_norm)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = new_batch_norm(channels, batch_norm)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels_in != channels:
            shortcut = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, new_batch_norm(channels, batch_norm))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(x + f(x))."""
        change = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return cast(Tensor, self.relu(change + (x if self.downsample is None else self.downsample(x))))


class ResNet10(nn.Module):
    """Images (batch, 3, 32, 32) → features (batch, 512); 4,898,112 weights, no head.

    A 3×3 convolution of stride 1 without pooling, stages of one basic block each (64, 128, 256 and 512 channels; strides
    1, 2, 2 and 2), and the average over the image. Names are torchvision's (`conv1`, `bn1`, `layer1.0.conv1` …), and so are
    the initial weights: Kaiming's normal distribution (`fan_out`), batch-norm at 1 and 0.

    Args:
        channels: of the images.
        size: height and width of the images.
        width: channels of the first stage; the others have 2, 4 and 8 times as many.
        batch_norm: one set of running statistics for all tasks (`shared`), or one for each (`per-task`): see `nets.norm`.
    """

    def __init__(
        self, channels: int = 3, size: int = 32, width: int = 64, batch_norm: BatchNormKind = "shared"
    ) -> None:
        super().__init__()
        check_options("resnet10", 1, channels=channels, size=size, width=width)
        self.channels, self.size = channels, size
        self.out_features = 8 * width
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = new_batch_norm(width, batch_norm)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1, batch_norm))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2, batch_norm))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2, batch_norm))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2, batch_norm))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        check_images("ResNet10", images, self.channels, self.size)
        maps = self.relu(self.bn1(self.conv1(images)))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return cast(Tensor, self.avgpool(maps).flatten(1))
