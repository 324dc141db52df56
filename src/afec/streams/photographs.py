"""Large images as tasks: inputs are the numbers of images in a cache, and only the images of a batch are ever looked at.

`RandomResizedCrop` is a task's `augment`, `CentreCrop` its `prepare`. Both cut and scale with the same antialiased bilinear
filter, image by image on bytes: several times as fast as one affine grid over the batch in floats, and what torchvision does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from afec.data.cache import ImageCache
from afec.streams.classes import check_scenario, check_sizes, first_of_each
from afec.streams.images import Normalise
from afec.streams.task import Scenario, Split, Task

__all__ = ["CentreCrop", "Photographs", "RandomResizedCrop", "check_large", "order_of_seed", "stored_short"]

TRIES = 10
CHUNK = (
    64  # images through a net at once where nothing is learned: AlexNet's first maps of 224 pixels are a megabyte each
)


def stored_short(size: int) -> int:
    """The short side that images are kept at for crops of `size`: 256 for 224, as ImageNet's test images are scaled."""
    return round(size * 256 / 224)


def _scaled(image: Tensor, height: int, width: int) -> Tensor:
    """Bytes (height, width, 3) → (3, height, width) of another size."""
    planes = image.permute(2, 0, 1)[None]
    if (height, width) == tuple(image.shape[:2]):
        return planes[0]
    return F.interpolate(planes, (height, width), mode="bilinear", antialias=True)[0]


@dataclass(frozen=True)
class RandomResizedCrop:
    """Numbers of images → bytes (batch, 3, size, size): a random part of each, scaled to a square, and every second mirrored.

    The part has 8 to 100 % of the area and a ratio of 3:4 to 4:3, of ten draws the first that fits; else the largest in the
    middle that has such a ratio. Draws from torch's own generator: the caller seeds it.
    """

    images: ImageCache
    size: int
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, rows: Tensor) -> Tensor:
        """A batch of crops."""
        numbers = rows.cpu()
        boxes = self.boxes(self.images.heights[numbers], self.images.widths[numbers])
        mirrored = (torch.rand(len(numbers)) < 0.5).tolist()
        batch = torch.empty(len(numbers), self.size, self.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        for place, (number, box) in enumerate(zip(numbers.tolist(), boxes.tolist(), strict=True)):
            top, left, height, width = box
            part = self.images[number][top : top + height, left : left + width]
            crop = _scaled(part, self.size, self.size)
            batch[place] = crop.flip(2) if mirrored[place] else crop
        return batch.to(rows.device)

    def boxes(self, heights: Tensor, widths: Tensor) -> Tensor:
        """Top, left, height and width of a random part of each image."""
        count = len(heights)
        whole = (heights * widths).double()
        areas = whole * torch.empty(TRIES, count, dtype=torch.double).uniform_(*self.area)
        ratios = torch.empty(TRIES, count, dtype=torch.double).uniform_(*map(math.log, self.ratio)).exp()
        wide, high = (areas * ratios).sqrt().round().long(), (areas / ratios).sqrt().round().long()
        fits = (wide > 0) & (wide <= widths) & (high > 0) & (high <= heights)
        first = fits.int().argmax(0)
        every = torch.arange(count)
        high, wide, found = high[first, every], wide[first, every], fits.any(0)
        place = torch.rand(2, count, dtype=torch.double)
        top = (place[0] * (heights - high + 1)).long()
        left = (place[1] * (widths - wide + 1)).long()
        random = torch.stack((top, left, high, wide), 1)
        return torch.where(found[:, None], random, self._middle(heights, widths))

    def _middle(self, heights: Tensor, widths: Tensor) -> Tensor:
        """The largest part in the middle whose ratio is allowed."""
        high = torch.minimum(heights, (widths / self.ratio[0]).round().long())
        wide = torch.minimum(widths, (heights * self.ratio[1]).round().long())
        return torch.stack(((heights - high) // 2, (widths - wide) // 2, high, wide), 1)


@dataclass(frozen=True)
class CentreCrop:
    """What a net is given in a test, floats (batch, 3, size, size), of numbers of images, of crops or of images of any size.

    An image is scaled so that its short side has 256/224 of `size`, and the middle is cut out. Crops have that size already.
    """

    images: ImageCache
    size: int
    colours: Normalise

    def __call__(self, inputs: Tensor) -> Tensor:
        """The batch as a net takes it."""
        if inputs.dim() == 1 and inputs.dtype == torch.int64:
            return self.colours(self._cut([self.images[number] for number in inputs.tolist()]).to(inputs.device))
        if inputs.dim() != 4 or inputs.shape[1] != 3 or inputs.dtype != torch.uint8:
            raise TypeError(
                "expected numbers of images, int64 of shape (batch,), or images, uint8 of shape (batch, 3, height, width); "
                f"got {inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        if tuple(inputs.shape[2:]) != (self.size, self.size):
            inputs = self._cut(list(inputs.cpu().permute(0, 2, 3, 1))).to(inputs.device)
        return self.colours(inputs)

    def _cut(self, images: Sequence[Tensor]) -> Tensor:
        batch = torch.empty(len(images), self.size, self.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        for place, image in enumerate(images):
            height, width = image.shape[:2]
            part = stored_short(self.size) / min(height, width)
            scaled = _scaled(image, max(self.size, round(height * part)), max(self.size, round(width * part)))
            top, left = (round((side - self.size) / 2) for side in scaled.shape[1:])
            batch[place] = scaled[:, top : top + self.size, left : left + self.size]
        return batch


@dataclass(frozen=True)
class Photographs:
    """Makes tasks of images in a cache."""

    images: ImageCache
    labels: Tensor
    for_training: Tensor
    size: int
    colours: Normalise
    seed: int
    most: int | None
    """At most so many images of a task to train on; test images shrink in the same proportion."""
    names: tuple[str, ...] = ()
    """The names of the classes."""
    most_per_class: int | None = None
    """At most so many images of a class to train on; test images stay."""

    def __call__(self, name: str, classes: Sequence[int]) -> Task:
        """The task of these classes, which are numbered from 0 in the order given; no validation images."""
        numbers = torch.full((int(self.labels.max()) + 1,), -1)
        numbers[torch.tensor(classes)] = torch.arange(len(classes))
        mine = numbers[self.labels] >= 0
        learn, test = ((mine & part).nonzero().flatten() for part in (self.for_training, ~self.for_training))
        if self.most is not None and self.most < len(learn):
            part = self.most / len(learn)
            learn, test = (_some(rows, max(1, round(part * len(rows)))) for rows in (learn, test))
        if self.most_per_class is not None:
            learn = first_of_each(learn, self.labels[learn], self.most_per_class)
        # Not class by class: what is measured on batches in the order of the data is measured on mixed ones.
        learn = learn[torch.from_numpy(np.random.RandomState(self.seed).permutation(len(learn)))]
        return Task(
            name,
            Split(learn, numbers[self.labels[learn]]),
            None,
            Split(test, numbers[self.labels[test]]),
            outputs=len(classes),
            loss="cross_entropy",
            prepare=CentreCrop(self.images, self.size, self.colours),
            augment=RandomResizedCrop(self.images, self.size),
            chunk=CHUNK,
            class_names=tuple(self.names[k] for k in classes) if self.names else (),
            classes=tuple(classes),
        )


def _some(rows: Tensor, count: int) -> Tensor:
    """So many of the rows, evenly from the first to the last: of each class its part."""
    return rows[torch.arange(count) * len(rows) // count]


def order_of_seed(classes: int, seed: int) -> list[int]:
    """The seed gives each class its place, as the released code draws it."""
    places = np.arange(classes)
    np.random.RandomState(seed).shuffle(places)
    return [int(c) for c in np.argsort(places)]  # class c goes to place places[c]


def check_large(
    stream: str,
    tasks: int | None,
    classes: int,
    known: int,
    size: int,
    images: int | None,
    scenario: Scenario,
    sizes: Sequence[int] | None = None,
) -> list[int]:
    """The number of classes of each task; raises for options of a stream of large images that cannot be."""
    check_scenario(stream, scenario)
    if sizes is not None:
        counts = check_sizes(stream, sizes, known, scenario)
    elif not isinstance(classes, int) or not 2 <= classes <= known:
        raise ValueError(f"{stream} got classes={classes!r}; a task has from 2 to all {known} of the classes")
    elif known % classes:
        raise ValueError(
            f"{stream} got classes={classes}, which does not divide its {known} classes into tasks of one size; "
            f"these do: {', '.join(str(size) for size in range(2, known + 1) if known % size == 0)}"
        )
    else:
        counts = [classes] * (known // classes)
    most = len(counts)
    if tasks is not None and (not isinstance(tasks, int) or not 1 <= tasks <= most):
        raise ValueError(f"{stream} got tasks={tasks!r}; it has {most} tasks, so give a number from 1 to {most}")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{stream} got size={size!r}; give the pixels of one side that a net is given, such as 224")
    if images is not None and (not isinstance(images, int) or images < 1):
        raise ValueError(
            f"{stream} got images={images!r}; give how many images of a task to train on at most, from 1 on"
        )
    return counts[:tasks]
