"""`folder:PATH`: your own images as a stream, one folder a task (`afec.data.folder` says how they lie).

Where a task has `train` and `test`, these are kept, and validation images are taken from `train` by the seed. Where it has
not, each class is divided: the test images are the same for every seed, so that strengths tuned under one seed were never near
the images that another is tested on; what is left is divided by the seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from afec.data.folder import FolderTask, find_tasks, read_images
from afec.data.root import DataError, data_root
from afec.naming import unknown
from afec.randomness import seed_from
from afec.streams.classes import check_scenario, ordered
from afec.streams.images import CropFlip, Normalise
from afec.streams.task import Scenario, Split, Stream, Task

__all__ = ["PREFIX", "folder"]

PREFIX = "folder:"


def folder(
    path: str,
    seed: int,
    size: int | None = None,
    mode: Literal["grey", "rgb"] | None = None,
    validation: float = 0.1,
    test: float = 0.2,
    class_order: str = "sorted",
    bad: Literal["error", "skip"] = "error",
    augment: bool = False,
    tasks: int | None = None,
    scenario: Scenario = "task",
) -> Stream:
    """The images under `path`; a pure function of the files and of the arguments.

    Args:
        path: the folder; a relative one is looked for here, then in the data directory.
        seed: which images are for validation, and the order of the tasks where it is asked for.
        size: all images become size × size pixels; needed where they are of several sizes.
        mode: `grey` or `rgb`; needed where some are grey and some in colour.
        validation: the part of each class to tune on, at least one image.
        test: the part of each class to test on, at least one, where the folder does not say.
        class_order: of the tasks, whose classes stay together: `sorted` (by name), `seed`, `lucir-1993`, or the path of a
            list of tasks.
        bad: images that cannot be read are an error, or are left out with a warning that counts them.
        augment: random crops and mirror images in training.
        tasks: how many of the tasks, from the first of the order on.
        scenario: `task`, or `class`: the task is not known when predicting.
    """
    _check(size, mode, validation, test, bad)
    check_scenario("folder", scenario)
    found = find_tasks(_place(path))

    def by_seed() -> list[int]:
        generator = torch.Generator().manual_seed(seed_from("folder", "order", seed))
        return [int(k) for k in torch.randperm(len(found), generator=generator)]

    order = ordered("folder", class_order, [task.name for task in found], by_seed)
    firsts = list(accumulate([0, *(len(task.classes) for task in found)]))
    if tasks is not None and not 1 <= tasks <= len(found):
        raise ValueError(f"folder got tasks={tasks}; {path} has {len(found)} of them")
    if scenario == "class":
        _check_classes([found[k] for k in order[:tasks]])
    made = [_Maker(found[k], firsts[k], seed, size, mode, validation, test, bad, augment).task() for k in order[:tasks]]
    shapes = {tuple(task.train.inputs.shape[1:]) for task in made}
    if len(shapes) > 1:
        raise DataError(
            f"the tasks of {path} have images of different shapes, {' and '.join(map(str, sorted(shapes)))} (channels, height, "
            "width), and one net takes one: give size = … and mode = …"
        )
    return Stream(f"{PREFIX}{path}", tuple(made), scenario)


def _check_classes(tasks: Sequence[FolderTask]) -> None:
    """Raise for a class in two tasks, where one classifier tells all of them apart."""
    known: dict[str, str] = {}
    for task in tasks:
        for name in task.classes:
            if name in known:
                raise DataError(
                    f"the class {name} is in the tasks {known[name]} and {task.name}, and in the scenario 'class' each "
                    "class comes once: put its images into one of them, or rename one if they are different things, or set "
                    "stream.scenario=task"
                )
            known[name] = task.name


def _place(path: str) -> Path:
    given = Path(path).expanduser()
    places = list(dict.fromkeys(place.absolute() for place in (given, data_root() / given)))  # one, of an absolute path
    for place in places:
        if place.is_dir():
            return place
    raise DataError(
        f"there is no folder {path}; tried: {', '.join(map(str, places))}. Give one with a folder for each task, or the data "
        "directory with --data"
    )


class _Maker:
    """Makes the task of one folder."""

    def __init__(
        self, source: FolderTask, first: int, seed: int, size: int | None, mode: str | None, validation: float, test: float,
        bad: str, augment: bool,
    ) -> None:  # fmt: skip
        self.source, self.first, self.seed, self.size, self.mode = source, first, seed, size, mode
        self.validation, self.test, self.bad, self.augment = validation, test, bad, augment

    def task(self) -> Task:
        """The task that is made of this folder."""
        if self.source.passed_over:
            warnings.warn(
                f"passed over {self.source.passed_over} files of the task {self.source.name} that are no images by their names",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        learn = self._read(self.source.train)
        parts: list[list[Tensor]] = [[], [], []]  # rows of each class for training, validation and test
        for number, name in enumerate(self.source.classes):
            rows = (learn.targets == number).nonzero().flatten()
            held_out = rows[:0]
            if self.source.test is None:
                rows, held_out = self._divided(rows, self.test, name, "test", name)
            rows, tune = self._divided(rows, self.validation, name, "validation", self.seed, name)
            for part, these in zip(parts, (rows, tune, held_out), strict=True):
                part.append(these)
        train, validation, test = (torch.cat(part) for part in parts)
        exam = (
            Split(learn.inputs[test], learn.targets[test]) if self.source.test is None else self._read(self.source.test)
        )
        channels = learn.inputs.shape[1]
        return Task(
            self.source.name,
            Split(learn.inputs[train], learn.targets[train]),
            Split(learn.inputs[validation], learn.targets[validation]),
            exam,
            outputs=len(self.source.classes),
            loss="cross_entropy",
            prepare=Normalise((0.5,) * channels, (0.5,) * channels),
            augment=CropFlip() if self.augment else None,
            class_names=self.source.classes,
            classes=tuple(range(self.first, self.first + len(self.source.classes))),
        )

    def _read(self, files: Mapping[str, Sequence[Path]]) -> Split:
        every = [file for name in self.source.classes for file in files[name]]
        labels = [number for number, name in enumerate(self.source.classes) for _ in files[name]]
        images = read_images(every, self.mode, self.size)
        if images.bad:
            count = f"{len(images.bad)} of {len(every)} images of the task {self.source.name}"
            shown = "\n".join(f"  {line}" for line in images.bad[:5])
            if self.bad == "error":
                raise DataError(f'{count} cannot be read:\n{shown}\nMend or remove them, or set bad = "skip"')
            warnings.warn(f"left out {count}, which cannot be read:\n{shown}", RuntimeWarning, stacklevel=2)
        kept = torch.tensor([label for label, good in zip(labels, images.good, strict=True) if good])
        for number, name in enumerate(self.source.classes):
            if number not in kept:
                raise DataError(f"none of the images of the class {name} of the task {self.source.name} can be read")
        return Split(images.pixels, kept)

    def _divided(self, rows: Tensor, part: float, name: str, *keys: object) -> tuple[Tensor, Tensor]:
        """What is left of the rows, and the part that is taken: at least one image each."""
        taken = max(1, round(part * len(rows)))
        if taken >= len(rows):
            raise DataError(
                f"the class {name} of the task {self.source.name} has {len(rows)} images left, too few to take {taken} of them "
                f"for the {keys[0]}; add images, or lower {keys[0]} = {part}"
            )
        generator = torch.Generator().manual_seed(seed_from("folder", self.source.name, *keys))
        order = rows[torch.randperm(len(rows), generator=generator)]
        return order[taken:], order[:taken].sort().values


def _check(size: int | None, mode: str | None, validation: float, test: float, bad: str) -> None:
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"folder got size={size!r}; give the pixels of one side, such as 32")
    for name, part in (("validation", validation), ("test", test)):
        if not 0 < part < 1:
            raise ValueError(f"folder got {name}={part}; it is a part of each class, above 0 and below 1")
    for name, given, valid in (
        ("mode", mode, ("grey", "rgb")),
        ("bad", bad, ("error", "skip")),
    ):
        if given is not None and given not in valid:
            raise ValueError(f"folder got {name}={given!r}: {unknown(name, str(given), valid)}")
