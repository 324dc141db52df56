"""`cifar10-regression`: the paper's regression tasks (Sec. 4.1) on the real CIFAR-10 images."""

from __future__ import annotations

import torch

from afec.data import load_cifar10
from afec.naming import unknown
from afec.randomness import seed_from
from afec.streams.cifar import CIFAR10_COLOURS
from afec.streams.images import CropFlip
from afec.streams.regression import regression
from afec.streams.task import Split, Stream

__all__ = ["cifar10_regression"]

AUGMENTATIONS = {"none": None, "crop-flip": CropFlip(padding=4)}


def cifar10_regression(
    seed: int,
    setting: str = "two-task",
    train: int = 45_000,
    validation: int = 5_000,
    test: int = 10_000,
    augment: str = "none",
    tasks: int = 0,
    output: str = "vector",
    loss: str = "mse",
) -> Stream:
    """Contradictory arrangements of the ten classes of CIFAR-10 on a circle; a pure function of its arguments and the files.

    Args:
        seed: divides the 50,000 training images into training and validation and shuffles the arrangements.
        setting: `two-task`, `ten-task` or `transfer`.
        train: how many of the training images to train on.
        validation: how many of the others to tune on.
        test: how many of the 10,000 test images to test on, the first ones of the official file.
        augment: `none`, or `crop-flip`: a random crop after padding by 4 pixels, and a mirror image every second time.
        tasks: how many arrangements to learn one after the other; 0: as the setting says.
        output: `vector`, the point (cos, sin), or `angle`.
        loss: `mse` or `cosine`.
    """
    if augment not in AUGMENTATIONS:
        raise ValueError(unknown("augmentation", augment, AUGMENTATIONS))
    cifar = load_cifar10()
    known, tests = len(cifar.train_images), len(cifar.test_images)
    if train < 1 or validation < 1 or train + validation > known or not 1 <= test <= tests:
        raise ValueError(
            f"cifar10_regression got train={train}, validation={validation}, test={test}; each must be at least 1, with at "
            f"most {known} images in the first two and {tests} in the last"
        )
    generator = torch.Generator().manual_seed(seed_from("cifar10-regression", "split", seed))
    order = torch.randperm(known, generator=generator)[: train + validation]
    learn, tune = (Split(cifar.train_images[rows], cifar.train_labels[rows]) for rows in (order[:train], order[train:]))
    exam = Split(
        cifar.test_images[:test].clone(), cifar.test_labels[:test].clone()
    )  # or all 30 MB would stay in memory
    return regression(
        "cifar10-regression", seed, (learn, tune, exam), setting=setting, tasks=tasks, output=output, loss=loss,
        prepare=CIFAR10_COLOURS, augment=AUGMENTATIONS[augment],
    )  # fmt: skip
