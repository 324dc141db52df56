"""`digits-regression`: real images, two or more contradictory tasks, no download.

The paper's CIFAR-10 regression (Sec. 4.1) on scikit-learn's 1,797 handwritten digits of 8×8 pixels. Ten
positions lie evenly on the unit circle; a task puts each class at one of them and asks for the point (cos, sin)
of the image's class. All tasks share the images and differ only in the arrangement, so what helps one task
misleads the next.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from afec.randomness import seed_from
from afec.streams.task import Split, Stream, Task

__all__ = ["POSITIONS", "arrangement", "circle", "digits_regression", "nearest_position"]

POSITIONS = 10


def circle(positions: Tensor) -> Tensor:
    """The points (cos, sin) of positions k at the angles 2πk/10."""
    angle = positions * (2 * math.pi / POSITIONS)
    return torch.stack((angle.cos(), angle.sin()), dim=1).float()


def nearest_position(points: Tensor) -> Tensor:
    """The position nearest in angle to each point; how far out the point lies does not matter."""
    angle = torch.atan2(points[:, 1], points[:, 0])
    return (angle * (POSITIONS / (2 * math.pi))).round().long() % POSITIONS


def arrangement(seed: int, task: int) -> Tensor:
    """The position of each class in task number `task`: the first keeps the digits in order, others shuffle."""
    if task == 0:
        return torch.arange(POSITIONS)
    generator = torch.Generator().manual_seed(seed_from("digits-regression", "arrangement", seed, task))
    return torch.randperm(POSITIONS, generator=generator)


def _class_at(points: Tensor, class_of_position: Tensor) -> Tensor:
    return class_of_position[nearest_position(points)]


def _split_indices(total: int, seed: int, train: int, validation: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffled indices of the three splits.

    The test images are the same for every seed: strengths tuned under one seed were then never near the images
    that another seed is tested on. What is left is divided anew for each seed.
    """
    everything = torch.Generator().manual_seed(seed_from("digits-regression", "test"))
    order = torch.randperm(total, generator=everything)
    rest, test = order[: train + validation], order[train + validation :]
    shuffle = torch.Generator().manual_seed(seed_from("digits-regression", "split", seed))
    rest = rest[torch.randperm(len(rest), generator=shuffle)]
    return rest[:train], rest[train:], test


def digits_regression(seed: int, tasks: int = 2, train: int = 700, validation: int = 300) -> Stream:
    """The stream of `tasks` arrangements, a pure function of its arguments.

    Args:
        seed: divides the images into training and validation and shuffles the arrangements.
        tasks: how many arrangements to learn one after the other.
        train: how many images to train on.
        validation: how many images to tune on. All the others, at least one, are for the test.
    """
    # Floats, not the uint8 of larger sets: it is half a megabyte in all, and no step pays for a conversion.
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    digits = torch.from_numpy(data.target).long()
    if tasks < 1 or train < 1 or validation < 1 or train + validation >= len(images):
        raise ValueError(
            f"digits_regression got tasks={tasks}, train={train}, validation={validation}; each must be at "
            f"least 1, and train + validation below {len(images)}, the number of images"
        )
    indices = _split_indices(len(images), seed, train, validation)

    def one_task(number: int) -> Task:
        positions = arrangement(seed, number)
        targets = circle(positions)[digits]
        learn, tune, test = (Split(images[i], targets[i]) for i in indices)
        decode = partial(_class_at, class_of_position=positions.argsort())
        return Task(f"arrangement {number + 1}", learn, tune, test, outputs=2, loss="mse", decode=decode)

    return Stream("digits-regression", tuple(one_task(number) for number in range(tasks)), scenario="task")
