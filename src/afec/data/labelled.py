"""Image files with their classes, before any of them is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

__all__ = ["LabelledFiles"]


@dataclass(frozen=True, repr=False)
class LabelledFiles:
    """The images of each class together; no image is opened yet."""

    base: Path
    """What the files are below of."""
    files: tuple[Path, ...]
    labels: Tensor
    """int64: the place of the class among `names`."""
    for_training: Tensor
    """Whether each sample is one to train on (bool)."""
    names: tuple[str, ...]

    def __repr__(self) -> str:
        counts = f"{len(self.names)} classes, {len(self.files)} images, {int(self.for_training.sum())} to train"
        return f"{type(self).__name__}({counts})"
