"""The paper's regression tasks (Sec. 4.1), for any images of ten classes.

Ten positions lie evenly on the unit circle. A task puts each class at one of them and asks for the direction of the image's
class. All tasks share the images and differ only in the arrangement, so what helps one task misleads the next.

What the paper leaves open is an option here, with the reading that fits its figures as the default: the output is a point
(cos, sin) with the mean square as its loss, each task has a head of its own, and the answer is the position nearest in angle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from afec.naming import unknown
from afec.randomness import seed_from
from afec.streams.task import LossKind, Split, Stream, Task

__all__ = ["POSITIONS", "ROTATIONS", "SETTINGS", "Arrangement", "Output", "regression"]

POSITIONS = 10
ROTATIONS = (60, 120, 180, 240, 300)
"""Of the transfer tasks, in degrees. Most are no multiples of 36: answers are read against the rotated positions."""
SETTINGS = {"two-task": 2, "ten-task": 10, "transfer": 2}
"""The settings of the paper's Table 1, and how many tasks are learned one after the other."""

Output = Literal["vector", "angle"]
Loss = Literal["mse", "cosine"]
KIND: dict[tuple[str, str], LossKind] = {
    ("vector", "mse"): "mse",
    ("vector", "cosine"): "cosine",
    ("angle", "mse"): "mse",
    ("angle", "cosine"): "angular",
}


@dataclass(frozen=True)
class Arrangement:
    """Where each class lies on the circle, and how a net's outputs are read. Called with outputs, it gives classes."""

    positions: tuple[int, ...]
    """The position of each class; position k is at the angle 2πk/10."""
    rotation: float = 0.0
    """All positions are turned by this, in degrees."""
    output: Output = "vector"

    @classmethod
    def of(cls, name: str, seed: int, task: int, output: Output = "vector") -> Arrangement:
        """The arrangement of task number `task` of a stream: the first keeps the classes in order, others shuffle."""
        if task == 0:
            return cls(tuple(range(POSITIONS)), output=output)
        generator = torch.Generator().manual_seed(seed_from(name, "arrangement", seed, task))
        return cls(tuple(torch.randperm(POSITIONS, generator=generator).tolist()), output=output)

    @property
    def angles(self) -> Tensor:
        """The angle of each class, in radians."""
        return torch.tensor(self.positions) * (2 * math.pi / POSITIONS) + math.radians(self.rotation)

    @property
    def points(self) -> Tensor:
        """(cos, sin) of each class."""
        return torch.stack((self.angles.cos(), self.angles.sin()), dim=1)

    def targets(self, classes: Tensor) -> Tensor:
        """What a net is to answer: points, or angles from −π to π."""
        if self.output == "vector":
            return self.points[classes]
        return torch.atan2(self.points[:, 1], self.points[:, 0])[classes].unsqueeze(1)

    def directions(self, outputs: Tensor) -> Tensor:
        """The angle of each output; how far out a point lies does not matter."""
        return outputs[:, 0] if self.output == "angle" else torch.atan2(outputs[:, 1], outputs[:, 0])

    def __call__(self, outputs: Tensor) -> Tensor:
        """The class whose position is nearest in angle to each output."""
        turned = self.directions(outputs) - math.radians(self.rotation)
        position = (turned * (POSITIONS / (2 * math.pi))).round().long() % POSITIONS
        return torch.tensor(self.positions).argsort()[position]


def regression(
    name: str,
    seed: int,
    splits: tuple[Split, Split, Split],
    *,
    setting: str = "two-task",
    tasks: int = 0,
    output: str = "vector",
    loss: str = "mse",
    prepare: Callable[[Tensor], Tensor] | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> Stream:
    """The stream of contradictory arrangements over the images of `splits`.

    Args:
        name: of the stream; arrangements are drawn from it and the seed.
        seed: shuffles the arrangements.
        splits: images and their classes, for training, validation and test.
        setting: `two-task`, `ten-task`, or `transfer`: two tasks, and then heads alone, on features that no longer move, for
            the first arrangement turned by 60, 120, 180, 240 and 300 degrees.
        tasks: how many arrangements to learn; 0: as the setting says.
        output: `vector`, the point (cos, sin), or `angle`.
        loss: `mse`, or `cosine`: 1 − cos of the angle between answer and target.
        prepare: from images as they are kept to what a net is given.
        augment: changes images at random in training.
    """
    if setting not in SETTINGS:
        raise ValueError(unknown("setting", setting, SETTINGS))
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 0:
        raise ValueError(
            f"{name} got tasks={tasks!r}; it takes a number of arrangements, or 0 for as many as the setting has"
        )
    for what, given, kinds in (("output", output, get_args(Output)), ("loss", loss, get_args(Loss))):
        if given not in kinds:
            raise ValueError(unknown(what, given, kinds))
    if (highest := max(int(split.targets.max()) for split in splits)) >= POSITIONS:
        raise ValueError(
            f"{name} puts at most {POSITIONS} classes, 0 to {POSITIONS - 1}, on the circle; got class {highest}"
        )
    kind: Output = "angle" if output == "angle" else "vector"

    def one_task(called: str, arrangement: Arrangement) -> Task:
        learn, tune, test = (Split(split.inputs, arrangement.targets(split.targets)) for split in splits)
        size = 1 if output == "angle" else 2
        return Task(called, learn, tune, test, size, KIND[output, loss], arrangement, prepare, augment)

    arrangements = [Arrangement.of(name, seed, task, kind) for task in range(tasks or SETTINGS[setting])]
    learned = tuple(one_task(f"arrangement {number}", found) for number, found in enumerate(arrangements, start=1))
    first = arrangements[0].positions
    turned = tuple(
        one_task(f"arrangement 1 turned by {degrees}°", Arrangement(first, degrees, kind))
        for degrees in (ROTATIONS if setting == "transfer" else ())
    )
    return Stream(name, learned, scenario="task", transfer=turned)
