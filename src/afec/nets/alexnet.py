"""AlexNet, for 224×224 images (CUB-200 and ImageNet-100 in the paper), with or without ImageNet's weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from afec.data.catalogue import ALEXNET, ALEXNET_CONV
from afec.data.root import DataError, data_root
from afec.data.weights import load_weights, sha256

__all__ = ["FILES", "AlexNet"]

FILES = (ALEXNET, ALEXNET_CONV)
"""What is looked for in the data directory: torchvision's file, and one of its convolutions alone."""
HEAD = ("classifier.6.weight", "classifier.6.bias")
ANOTHER = "give a weight file of AlexNet: `afec data get alexnet` fetches torchvision's"
SMALLEST = 63  # pixels: below, nothing is left to pool


class AlexNet(nn.Module):
    """Images (batch, 3, size, size) → features (batch, hidden); with the defaults 57.0 M weights, no head.

    Layers and parameter names are torchvision's (`features.0.weight` … `classifier.4.bias`), so its weight
    files load; what torchvision calls `classifier.6` is the head, which a task brings along.

    Args:
        hidden: the width of the two hidden layers.
        pool: the maps after the convolutions are pooled to pool × pixels; images of 224 pixels have 6 there, of 64 to 94 one.
        pretrained: `none`; `conv`, the five convolutions; or `all`, the hidden layers too, of ImageNet's weights.
        weights: their file; by default the first of `FILES` that the data directory has.
    """

    def __init__(
        self,
        hidden: int = 4096,
        pool: int = 6,
        pretrained: Literal["none", "conv", "all"] = "none",
        weights: str = "",
    ) -> None:
        super().__init__()
        if hidden < 1 or pool < 1:
            raise ValueError(f"alexnet needs hidden >= 1 and pool >= 1; got hidden={hidden}, pool={pool}")
        if pretrained not in ("none", "conv", "all"):
            raise ValueError(f"alexnet got pretrained={pretrained!r}; expected none, conv or all")
        if weights and pretrained == "none":
            raise ValueError(
                f"alexnet got weights={weights!r} and pretrained='none'; say which: pretrained='conv' or 'all'"
            )
        self.out_features = hidden
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * pool * pool, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.origin = "at random in all layers"
        """Where the initial weights are from, in words."""
        self._pretrained: tuple[Path, str] | None = None
        if pretrained != "none":
            self._pretrained = _file(weights).absolute(), pretrained
            self.origin = _take(self, *self._pretrained)

    def reset_parameters(self) -> None:
        """Begin anew: weights at random, and those of the file in their places where the net is pretrained."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.reset_parameters()
        if self._pretrained is not None and (found := _take(self, *self._pretrained)) != self.origin:
            raise DataError(
                f"{self._pretrained[0]} has changed since the net was made: initial weights were {self.origin}, and are now "
                f"{found}. Put the file back, or start the run anew"
            )

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        if images.dim() != 4 or images.shape[1] != 3 or min(images.shape[2:]) < SMALLEST:
            raise ValueError(
                f"alexnet takes images (batch, 3, height, width) from {SMALLEST} pixels on; got the shape {tuple(images.shape)}"
            )
        return cast(Tensor, self.classifier(self.avgpool(self.features(images)).flatten(1)))


def _file(given: str | os.PathLike[str]) -> Path:
    """The weight file: as given, here or in the data directory; else whichever of `FILES` is there."""
    if given:
        path = Path(given).expanduser()
        return path if path.is_file() else data_root() / path
    found = next((data_root() / name for name in FILES if (data_root() / name).is_file()), None)
    if found is None:
        raise DataError(
            f"AlexNet's ImageNet weights are not in the data directory {data_root()}: put {FILES[0]} there; `afec data get "
            "alexnet` downloads it. Or give a file: net.weights=PATH; --data or AFEC_DATA names another data directory"
        )
    return found


def _take(net: AlexNet, path: Path, which: str) -> str:
    """Put the weights of a file into the net; what came from where, in words."""
    given = load_weights(path)
    own = net.state_dict()
    wanted = {name for name in own if which == "all" or name.startswith("features.")}
    _check(path, given, own, wanted)
    with torch.no_grad():
        for name in wanted:
            own[name].copy_(given[name])
    taken, left = (
        ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in own if (name in wanted) is ours))
        for ours in (True, False)
    )
    rest = f"; at random: {left} and the heads" if left else "; at random: the heads"
    return f"from {path.name} (SHA-256 {sha256(path)[:8]}): {taken}{rest}"


def _check(path: Path, given: Mapping[str, Tensor], own: Mapping[str, Tensor], wanted: set[str]) -> None:
    if missing := sorted(wanted - given.keys()):
        whole = all(name.startswith("classifier.") for name in missing)
        remedy = f'it has the convolutions: use pretrained = "conv", or {ANOTHER}' if whole else ANOTHER
        raise DataError(f"{path} lacks {', '.join(missing)}; {remedy}")
    if extra := sorted(given.keys() - own.keys() - set(HEAD)):
        raise DataError(
            f"{path} has {', '.join(extra[:4])}, which AlexNet has not: it is the weight file of another net; {ANOTHER}"
        )
    for name in sorted(wanted):
        if given[name].shape != own[name].shape:
            hidden = name.startswith("classifier.")
            remedy = 'use pretrained = "conv" with another width or pool' if hidden else ANOTHER
            raise DataError(
                f"{path}: {name} has the shape {tuple(given[name].shape)}, and this net's is {tuple(own[name].shape)}; {remedy}"
            )
        if not given[name].is_floating_point() or not given[name].isfinite().all():
            raise DataError(f"{path}: {name} has values that are no finite numbers, so the file is damaged; {ANOTHER}")
