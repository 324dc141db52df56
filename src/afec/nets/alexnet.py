"""AlexNet, for 224×224 images (CUB-200 and ImageNet-100 in the paper)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

__all__ = ["AlexNet"]


class AlexNet(nn.Module):
    """Images (batch, 3, 224, 224) → features (batch, 4096); 57.0 M weights, no head.

    Layers and parameter names are torchvision's (`features.0.weight` … `classifier.4.bias`), so its weight
    files load; what torchvision calls `classifier.6` is the head, which a task brings along.
    """

    out_features: int = 4096

    def __init__(self) -> None:
        super().__init__()
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
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * 6 * 6, self.out_features),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(self.out_features, self.out_features),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        return cast(Tensor, self.classifier(self.avgpool(self.features(images)).flatten(1)))
