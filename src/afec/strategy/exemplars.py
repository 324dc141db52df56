"""Exemplars: the few images of each old class that a replay strategy keeps, and how they are chosen.

Images are kept as the stream keeps them, CIFAR's as bytes, so 2,000 of them take 6 MB. Of photographs, which lie on
disk, the numbers are kept. There are either so many of each class,
or so many in all, divided among the classes so far: then each class gives some up whenever new ones come. They lie class by
class, the most telling ones first, so giving up is cutting off at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from afec.guard import State

__all__ = ["Choice", "Exemplars", "MemoryPolicy", "herding"]

Choice = Literal["herding", "random"]


def herding(features: Tensor, count: int) -> Tensor:
    """The rows of `count` samples whose mean is near that of all, the first ones by themselves too (Rebuffi et al. 2017).

    Features are brought to length 1. The k-th row is the one that brings the mean of the k rows nearest to the mean of all.
    """
    units = F.normalize(features.double(), dim=1)
    center, total = units.mean(0), torch.zeros_like(units[0])
    free, chosen = torch.ones(len(units), dtype=torch.bool, device=units.device), list[int]()
    for k in range(1, count + 1):
        away = (center - (total + units) / k).norm(dim=1).masked_fill(~free, torch.inf)
        chosen.append(int(away.argmin()))
        free[chosen[-1]] = False
        total = total + units[chosen[-1]]
    return torch.tensor(chosen, device=features.device)


@dataclass(frozen=True)
class MemoryPolicy:
    """How many exemplars there are: of each class, or in all."""

    per_class: int
    total: int | None = None
    choice: Choice = "herding"

    def quota(self, classes: int) -> int:
        """How many of each class where there are so many classes."""
        if self.total is None:
            return self.per_class
        if self.total < classes:
            raise ValueError(
                f"a memory of {self.total} exemplars in all cannot hold one of each of {classes} classes; give total={classes} "
                "or more, or per_class= in place of total="
            )
        return self.total // classes

    def __str__(self) -> str:
        return f"{self.per_class} a class" if self.total is None else f"{self.total} in all"


@dataclass(frozen=True)
class Exemplars:
    """Images of old classes with their targets among the net's outputs, class by class, the first chosen first."""

    inputs: Tensor | None = None
    targets: Tensor | None = None

    @property
    def size(self) -> int:
        """How many there are."""
        return 0 if self.inputs is None else len(self.inputs)

    def megabytes(self, sizes: Tensor | None = None) -> float:
        """What the images take, 10⁶ bytes each: those that are here, or those on disk whose numbers are here.

        Args:
            sizes: the bytes of each image on disk, `ImageCache.sizes`. Photographs stay there, and their numbers, eight bytes
                each, say nothing about what they take.
        """
        if self.inputs is None:
            return 0.0
        if not self.numbers_only:
            return self.inputs.numel() * self.inputs.element_size() / 1e6
        if sizes is None:
            raise ValueError(
                f"these {self.size} exemplars are numbers of images on disk; give the bytes of each image there: "
                "megabytes(task.prepare.images.sizes)"
            )
        return int(sizes[self.inputs.cpu()].sum()) / 1e6

    @property
    def numbers_only(self) -> bool:
        """Whether they are numbers of images on disk, as streams of photographs have them, and not images."""
        return self.inputs is not None and self.inputs.dim() == 1 and self.inputs.dtype == torch.int64

    def split(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a memory that is not empty."""
        assert self.inputs is not None, "asked from the second task on"
        assert self.targets is not None, "there are as many as inputs"
        return self.inputs, self.targets

    def with_data(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """These data and the exemplars behind them, as a training takes them."""
        if self.inputs is None or self.targets is None:
            return inputs, targets
        return torch.cat([inputs, self.inputs]), torch.cat([targets, self.targets])

    def joined(self, more: Exemplars) -> Exemplars:
        """These and then those of later classes."""
        (inputs, targets), (new_inputs, new_targets) = self.split(), more.split()
        return Exemplars(torch.cat([inputs, new_inputs]), torch.cat([targets, new_targets]))

    def rows_kept(self, count: int) -> Tensor:
        """The rows of the first `count` of each class."""
        _, targets = self.split()
        return torch.cat([(targets == one).nonzero().flatten()[:count] for one in sorted(set(targets.tolist()))])

    def at(self, rows: Tensor) -> Exemplars:
        """The exemplars of these rows."""
        inputs, targets = self.split()
        return Exemplars(inputs[rows], targets[rows])

    def state_dict(self) -> State:
        """Plain data, for checkpoints."""
        return {"inputs": self.inputs, "targets": self.targets}

    @classmethod
    def of(cls, state: State | None) -> Exemplars:
        """What `state_dict` gave; none where there is no state yet."""
        return cls() if not state else cls(state["inputs"], state["targets"])
