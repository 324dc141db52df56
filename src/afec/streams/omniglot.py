"""Omniglot: 50 tasks, one alphabet each; the characters are the classes (14 to 55 of them), with 20 drawings of each.

`copies` is the recipe's augmentation: each drawing comes so many times, itself and turned and shifted copies of it. The recipe
says 20 and gives no ranges; here a copy is turned by up to 15° and shifted by up to 2 of 28 pixels in each direction.

`split` says what is divided. `drawings`, the default: of each character two drawings are for the test, the same for every
seed, and two for validation, by the seed; copies are made afterwards, and of training drawings only. `official`, the released
code: all copies of an alphabet are shuffled by the seed; 8·⌊n/10⌋ are to train on, ⌊n/10⌋ for validation, the rest for the
test. With copies, this tests on copies of drawings that were trained on, and accuracies are higher for it.

Images are bytes of 28×28 pixels with bright ink; `Task.prepare` only divides by 255.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from afec.data.omniglot import Alphabet, Omniglot, open_omniglot
from afec.naming import unknown
from afec.randomness import seed_from
from afec.streams.classes import check_scenario, ordered
from afec.streams.images import Normalise
from afec.streams.task import Scenario, Split, Stream, Task

__all__ = ["SHIFT", "TURN", "omniglot", "turned"]

TURN = 15.0  # degrees
SHIFT = 2.0  # pixels
HELD_OUT = 2
"""Drawings of each character for validation, and as many for the test."""


def omniglot(
    seed: int,
    tasks: int = 50,
    split: Literal["drawings", "official"] = "drawings",
    copies: int = 1,
    class_order: str = "sorted",
    characters: int | None = None,
    scenario: Scenario = "task",
    *,
    root: str | os.PathLike[str] | None = None,
) -> Stream:
    """The 50 alphabets; a pure function of the files and of its arguments.

    Args:
        seed: which drawings are for validation, the copies, and the order of the tasks where it is asked for.
        tasks: how many alphabets, from the first of the order on.
        split: `drawings`, or `official` (see the top of the file).
        copies: how often each drawing comes, turned and shifted; 20 in the recipe.
        class_order: of the alphabets, whose characters stay together: `sorted` (as in the files, which is what the released
            code takes for every seed), `seed`, `lucir-1993`, or the path of a list of alphabets.
        characters: at most so many of each alphabet, from the first on.
        scenario: `task`, or `class`: the task is not known when predicting.
        root: where the data are; see `afec.data.data_root`.
    """
    _check(tasks, split, copies, characters, scenario)
    data = open_omniglot(root)
    names, divide = list(data.alphabets), _by_drawings if split == "drawings" else _by_copies
    firsts = dict(zip(names, accumulate([0, *(data.count(name)[0] for name in names)]), strict=False))

    def by_seed() -> list[int]:
        return [int(k) for k in torch.randperm(len(names), generator=_generator("order", seed))]

    order = ordered("omniglot", class_order, names, by_seed, root)[:tasks]
    found = [_task(data, names[k], firsts[names[k]], seed, copies, characters, divide) for k in order]
    return Stream("omniglot", tuple(found), scenario)


def _task(
    data: Omniglot,
    name: str,
    first: int,
    seed: int,
    copies: int,
    characters: int | None,
    divide: Callable[[Alphabet, int, int], tuple[Split, Split, Split]],
) -> Task:
    alphabet = data.read(name)
    if characters is not None:
        kept = alphabet.labels < characters
        alphabet = Alphabet(name, alphabet.images[kept], alphabet.labels[kept])
    size, parts = alphabet.characters, divide(alphabet, seed, copies)
    classes = tuple(range(first, first + size))  # in the order of the files, whatever the order of the alphabets
    return Task(name, *parts, size, "cross_entropy", prepare=Normalise((0.0,), (1.0,)), classes=classes)


def _by_drawings(alphabet: Alphabet, seed: int, copies: int) -> tuple[Split, Split, Split]:
    """Every split has drawings of every character; only the training ones are copied."""
    test, rest = _held_out(alphabet.labels, torch.arange(len(alphabet.labels)), _generator("test", alphabet.name))
    validation, train = _held_out(alphabet.labels, rest, _generator("validation", seed, alphabet.name))
    train = train[torch.randperm(len(train), generator=_generator("train", seed, alphabet.name))]
    whole = Split(alphabet.images[train], alphabet.labels[train])
    parts = [Split(alphabet.images[rows], alphabet.labels[rows]) for rows in (validation, test)]
    return _copied(whole, copies, _generator("copies", seed, alphabet.name)), parts[0], parts[1]


def _by_copies(alphabet: Alphabet, seed: int, copies: int) -> tuple[Split, Split, Split]:
    """All copies in one pot, as the released code has them."""
    pot = _copied(Split(alphabet.images, alphabet.labels), copies, _generator("copies", seed, alphabet.name))
    order = torch.randperm(pot.size, generator=_generator("shuffle", seed, alphabet.name))
    tenth = pot.size // 10
    if tenth == 0:
        raise ValueError(f"{alphabet.name} has {pot.size} images, and the split 'official' needs ten of them at least")
    first, second, third = (
        Split(pot.inputs[rows], pot.targets[rows])
        for rows in (order[: 8 * tenth], order[8 * tenth : 9 * tenth], order[9 * tenth :])
    )
    return first, second, third


def _held_out(labels: Tensor, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two of the rows of each character, and the others; both in the order of the data."""
    chosen = []
    for label in range(int(labels.max()) + 1):
        mine = rows[labels[rows] == label]
        if len(mine) <= HELD_OUT:
            raise ValueError(f"a character has {len(mine)} drawings left, too few to hold out {HELD_OUT} of them")
        chosen.append(mine[torch.randperm(len(mine), generator=generator)[:HELD_OUT]])
    out = torch.cat(chosen).sort().values
    return out, rows[~torch.isin(rows, out)]


def _copied(split: Split, copies: int, generator: torch.Generator) -> Split:
    """The split itself, then its turned and shifted copies."""
    images = [split.inputs]
    for _ in range(copies - 1):
        draws = 2 * torch.rand(3, split.size, generator=generator) - 1
        images.append(turned(split.inputs, TURN * draws[0], SHIFT * draws[1:].T))
    return Split(torch.cat(images), split.targets.repeat(copies))


def turned(images: Tensor, degrees: Tensor, shift: Tensor) -> Tensor:
    """Each image turned about its centre, counter-clockwise, then moved by `shift` (to the right, down) in pixels.

    Bytes in, bytes out; what comes in from outside is 0.
    """
    angle = degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    size = images.shape[-1]
    back = -2 * shift / size  # for each pixel of the result: where it comes from, with the image from −1 to 1
    sideways = cos * back[:, 0] - sin * back[:, 1]
    upright = sin * back[:, 0] + cos * back[:, 1]
    theta = torch.stack((torch.stack((cos, -sin, sideways), 1), torch.stack((sin, cos, upright), 1)), 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)


def _generator(*keys: object) -> torch.Generator:
    return torch.Generator().manual_seed(seed_from("omniglot", *keys))


def _check(tasks: int, split: str, copies: int, characters: int | None, scenario: str) -> None:
    check_scenario("omniglot", scenario)
    if not isinstance(tasks, int) or not 1 <= tasks <= 50:
        raise ValueError(f"omniglot got tasks={tasks!r}; it has 50 alphabets, so give a number from 1 to 50")
    if split not in ("drawings", "official"):
        raise ValueError(f"omniglot got split={split!r}: {unknown('split', str(split), ['drawings', 'official'])}")
    if not isinstance(copies, int) or copies < 1:
        raise ValueError(f"omniglot got copies={copies!r}; give 1 for none, or 20 as in the recipe")
    if characters is not None and (not isinstance(characters, int) or characters < 2):
        raise ValueError(f"omniglot got characters={characters!r}; a task needs at least 2 of them")
