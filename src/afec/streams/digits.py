"""scikit-learn's 1,797 handwritten digits of 8×8 pixels, as two streams: real images, no download.

`digits` divides the ten classes among the tasks.

`digits-regression` is the paper's CIFAR-10 regression (Sec. 4.1) on these images.

In both, the test images are the same for every seed: strengths tuned under one seed were then never near the images that
another seed is tested on. What is left is divided anew for each seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from afec.randomness import seed_from
from afec.streams.classes import blocks, check_scenario, check_sizes, ordered
from afec.streams.regression import regression
from afec.streams.task import Scenario, Split, Stream, Task

__all__ = ["CLASSES", "digits", "digits_regression"]

CLASSES = 10


def _load() -> tuple[Tensor, Tensor]:
    """All images, from 0 to 1, and their classes."""
    # Floats, not the uint8 of larger sets: it is half a megabyte in all, and no step pays for a conversion.
    from sklearn.datasets import load_digits  # a second to import: not before it is needed

    data = load_digits()
    return torch.from_numpy(data.images).float().unsqueeze(1) / 16, torch.from_numpy(data.target).long()


def _shuffled(values: Tensor, *keys: object) -> Tensor:
    generator = torch.Generator().manual_seed(seed_from(*keys))
    return values[torch.randperm(len(values), generator=generator)]


def digits(
    seed: int,
    tasks: int = 5,
    validation: float = 0.1,
    test: float = 0.3,
    sizes: Sequence[int] | None = None,
    scenario: Scenario = "task",
    class_order: str = "seed",
) -> Stream:
    """The ten classes, shuffled and divided among the tasks; a pure function of its arguments.

    Inside a task the classes are numbered from 0. Each class is divided into the three splits by itself, so every split has
    images of every class of its task.

    Args:
        seed: shuffles the classes, and divides what is not for the test into training and validation.
        tasks: how many tasks, with equally many classes each: 1, 2 or 5. Beside `sizes`: how many of those, from the first on.
        validation: the part of each class to tune on.
        test: the part of each class to test on. All the others are to train on.
        sizes: how many classes each task has, e.g. `[2, 3, 5]`. Classes may be left over.
        scenario: `task`, or `class`: the task is not known when predicting.
        class_order: `seed`, `sorted`, `lucir-1993`, or the path of a list (`afec.streams.classes`).
    """
    check_scenario("digits", scenario)
    counts = _class_counts(tasks, sizes, scenario)
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise ValueError(
            f"digits got validation={validation}, test={test}; they are parts of each class, so each must be above 0, and "
            "their sum below 1, so that something is left to train on"
        )
    images, labels = _load()
    parts = [_divided((labels == c).nonzero().flatten(), c, seed, validation, test) for c in range(CLASSES)]

    def by_seed() -> list[int]:
        return [int(number) for number in _shuffled(torch.arange(CLASSES), "digits", "classes", seed)]

    def one_task(classes: list[int]) -> Task:
        numbers = torch.full((CLASSES,), -1)
        numbers[classes] = torch.arange(len(classes))
        train, validate, tests = (torch.cat([parts[c][k] for c in classes]) for k in range(3))
        # The test in the order of the data: its rows are mixed there already.
        rows = (
            _shuffled(train, "digits", "train", seed),
            _shuffled(validate, "digits", "validation", seed),
            tests.sort().values,
        )
        learn, tune, exam = (Split(images[i], numbers[labels[i]]) for i in rows)
        name = "digits " + " ".join(map(str, classes))
        return Task(name, learn, tune, exam, outputs=len(classes), loss="cross_entropy", classes=tuple(classes))

    order = ordered("digits", class_order, list(map(str, range(CLASSES))), by_seed)
    return Stream("digits", tuple(one_task(classes) for classes in blocks(order, counts)), scenario)


def _class_counts(tasks: int, sizes: Sequence[int] | None, scenario: Scenario) -> list[int]:
    if sizes is None:
        if not isinstance(tasks, int) or tasks not in (1, 2, 5):
            raise ValueError(
                f"digits got tasks={tasks!r}; {CLASSES} classes make 1, 2 or 5 tasks of equal size with at least two classes "
                "each. For others give sizes=, e.g. sizes=[2, 3, 5]"
            )
        return [CLASSES // tasks] * tasks
    counts = check_sizes("digits", sizes, CLASSES, scenario)
    if tasks == 5:  # the default: nobody may have asked for it
        return counts
    if not isinstance(tasks, int) or not 1 <= tasks <= len(counts):
        raise ValueError(
            f"digits got tasks={tasks!r} and {len(counts)} sizes, {counts}; give a number from 1 to {len(counts)}, or leave "
            "tasks= out for all of them"
        )
    return counts[:tasks]


def _divided(rows: Tensor, label: int, seed: int, validation: float, test: float) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of one class for training, validation and test; at least one each."""
    tests, tunes = (max(1, round(part * len(rows))) for part in (test, validation))
    if tests + tunes >= len(rows):
        raise ValueError(
            f"digits got validation={validation}, test={test}, which leaves none of the {len(rows)} images of class {label} to "
            "train on; lower one of them"
        )
    order = _shuffled(rows, "digits", "test", label)
    rest = _shuffled(order[tests:], "digits", "split", seed, label)
    return rest[tunes:], rest[:tunes], order[:tests]


def _split_indices(total: int, seed: int, train: int, validation: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffled indices of the three splits."""
    everything = torch.Generator().manual_seed(seed_from("digits-regression", "test"))
    order = torch.randperm(total, generator=everything)
    rest, test = order[: train + validation], order[train + validation :]
    shuffle = torch.Generator().manual_seed(seed_from("digits-regression", "split", seed))
    rest = rest[torch.randperm(len(rest), generator=shuffle)]
    return rest[:train], rest[train:], test


def digits_regression(
    seed: int,
    setting: str = "two-task",
    train: int = 700,
    validation: int = 300,
    tasks: int = 0,
    output: str = "vector",
    loss: str = "mse",
) -> Stream:
    """Contradictory arrangements of the digits on a circle, a pure function of its arguments.

    Args:
        seed: divides the images into training and validation and shuffles the arrangements.
        setting: `two-task`, `ten-task` or `transfer`.
        train: how many images to train on.
        validation: how many images to tune on. All the others, at least one, are for the test.
        tasks: how many arrangements to learn one after the other; 0: as the setting says.
        output: `vector`, the point (cos, sin), or `angle`.
        loss: `mse` or `cosine`.
    """
    images, labels = _load()
    if train < 1 or validation < 1 or train + validation >= len(images):
        raise ValueError(
            f"digits_regression got train={train}, validation={validation}; each must be at "
            f"least 1, and train + validation below {len(images)}, the number of images"
        )
    learn, tune, test = (Split(images[i], labels[i]) for i in _split_indices(len(images), seed, train, validation))
    return regression(
        "digits-regression", seed, (learn, tune, test), setting=setting, tasks=tasks, output=output, loss=loss
    )
