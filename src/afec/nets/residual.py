"""ResNet-32 and ResNet-18 as class-incremental learning has them: features without a last ReLU, and feature maps to compare.

Two families, by `kind`. `rebuffi` (PODNet's) has no ReLU behind the addition of a block, takes every second pixel and pads
channels with zeros where a map gets smaller, and begins with blocks that add nothing. `lucir` (LUCIR's) is the usual one, with
1×1 convolutions there, and a ReLU behind every block but the last. Initial weights are Kaiming's (`fan_out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from afec.naming import unknown
from afec.nets.images import check_images, check_options
from afec.nets.norm import SharedBatchNorm2d

__all__ = ["ResNet18", "ResNet32", "ResidualKind"]

ResidualKind = Literal["rebuffi", "lucir"]


class _Padded(nn.Module):
    """Every second pixel, and channels of zeros behind those that there are."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))

    def extra_repr(self) -> str:
        return f"more={self.more}"


class _Block(nn.Module):
    """Two 3×3 convolutions with batch-norm around which the input is added, and then a ReLU or none."""

    def __init__(
        self, before: int, channels: int, stride: int, kind: ResidualKind, *, padded: bool, relu: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = SharedBatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = SharedBatchNorm2d(channels)
        self.relu = relu
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            convolution = nn.Conv2d(before, channels, 1, stride=stride, bias=False)
            fresh = nn.Sequential(convolution, SharedBatchNorm2d(channels))
            self.shortcut = _Padded(channels - before) if padded else fresh
        self.zero = kind == "rebuffi"

    def forward(self, x: Tensor) -> Tensor:
        change = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        found = change + self.shortcut(x)
        return F.relu(found) if self.relu else cast(Tensor, found)

    def extra_repr(self) -> str:
        return f"relu={self.relu}"


class _Residual(nn.Module):
    """A stem, stages of blocks, and the average over the last map."""

    def __init__(
        self,
        kind: ResidualKind,
        channels: int,
        size: int,
        stem: nn.Module,
        first: int,
        stages: Sequence[Sequence[_Block]],
    ) -> None:
        super().__init__()
        self.kind, self.channels, self.size, self.stem = kind, channels, size, stem
        self.norm = SharedBatchNorm2d(first)
        self.stages = nn.ModuleList(nn.Sequential(*blocks) for blocks in stages)
        self.out_features = stages[-1][-1].conv2.out_channels
        self.pool: nn.Module = nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, _Block) and module.zero:
                nn.init.zeros_(module.bn2.weight)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The map behind each stage."""
        check_images(type(self).__name__, x, self.channels, self.size)
        found, last = [], self.pool(F.relu(self.norm(self.stem(x))))
        for stage in self.stages:
            last = stage(last)
            found.append(last)
        return found

    def after_maps(self, last: Tensor) -> Tensor:
        """The average over the pixels of the last map."""
        return last.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """The features of a batch of images."""
        return self.after_maps(self.maps(x)[-1])


class ResNet32(_Residual):
    """Images (batch, 3, 32, 32) → features (batch, 64), with batch-norm and without a last ReLU.

    `rebuffi` has four feature maps, behind five, five, four and one block; `lucir` three, behind five blocks each.

    Args:
        kind: `rebuffi` or `lucir`, see `afec.nets.residual`.
        channels: of the images.
        size: height and width of the images.
        width: channels of the first stage; the others have twice and four times as many.
        stem_stride: of the first convolution. At 2 all maps have half the height and width: a quarter of the work.
    """

    def __init__(
        self,
        kind: ResidualKind = "rebuffi",
        channels: int = 3,
        size: int = 32,
        width: int = 16,
        stem_stride: int = 1,
    ) -> None:
        _check("resnet32", kind)
        if stem_stride not in (1, 2):
            raise ValueError(
                f"resnet32 got stem_stride={stem_stride!r}; it is 1, or 2 for maps of half the height and width"
            )
        check_options("resnet32", 4 * stem_stride, channels=channels, size=size, width=width)
        counts, before, blocks = (5, 5, 5), width, list[_Block]()
        for stage, count in enumerate(counts):
            for place in range(count):
                stride = 2 if stage > 0 and place == 0 else 1
                last = stage == len(counts) - 1 and place == count - 1
                relu = kind == "lucir" and not last
                blocks.append(_Block(before, width << stage, stride, kind, padded=kind == "rebuffi", relu=relu))
                before = width << stage
        cuts = (5, 10, 14, 15) if kind == "rebuffi" else (5, 10, 15)
        stages = [blocks[start:end] for start, end in zip((0, *cuts), cuts, strict=False)]
        super().__init__(kind, channels, size, _stem(channels, width, 3, stem_stride), width, stages)


class ResNet18(_Residual):
    """Images (batch, 3, 224, 224) → features (batch, 512), with batch-norm, four feature maps and no last ReLU.

    The stem of `lucir` is the usual 7×7 convolution of stride 2, that of `rebuffi` a 3×3 convolution of stride 1; both are
    followed by a 3×3 pooling of stride 2. `rebuffi` has no ReLU behind the last block of a stage.

    Args:
        kind: `rebuffi` or `lucir`, see `afec.nets.residual`.
        channels: of the images.
        size: height and width of the images.
        width: channels of the first stage; the others have 2, 4 and 8 times as many.
    """

    def __init__(self, kind: ResidualKind = "rebuffi", channels: int = 3, size: int = 224, width: int = 64) -> None:
        _check("resnet18", kind)
        check_options("resnet18", 16, channels=channels, size=size, width=width)
        stages, before = list[list[_Block]](), width
        for stage in range(4):
            new, stride = width << stage, 2 if stage else 1
            ends = kind == "lucir" and stage < 3
            first = _Block(before, new, stride, kind, padded=False, relu=True)
            stages.append([first, _Block(new, new, 1, kind, padded=False, relu=ends)])
            before = new
        kernel, step = (7, 2) if kind == "lucir" else (3, 1)
        super().__init__(kind, channels, size, _stem(channels, width, kernel, step), width, stages)
        self.pool = nn.MaxPool2d(3, 2, 1)


def _stem(before: int, channels: int, kernel: int, stride: int = 1) -> nn.Module:
    """The first convolution."""
    return nn.Conv2d(before, channels, kernel, stride=stride, padding=kernel // 2, bias=False)


def _check(net: str, kind: str) -> None:
    if kind not in get_args(ResidualKind):
        raise ValueError(f"{net}: {unknown('kind', str(kind), get_args(ResidualKind))}")
