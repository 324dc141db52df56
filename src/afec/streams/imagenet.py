"""`imagenet100`: 100 classes of ImageNet as ten tasks of ten (paper, Sec. 4.2), or any folder that lies like ImageNet.

Which 100 classes the paper has is not recorded. `choose` says which of a folder: `all` of them; `lucir`, the draw of the work
that the paper cites (NumPy's generator with the seed 1993, 100 of the sorted names); `first`, the first 100 by name; or the
path of a text file, a class a line. The class order `sorted` is by name, or as listed; LUCIR's is `lucir-1993`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from afec.data.cache import open_images
from afec.data.image_folder import class_names, open_image_folder, place_of, read_class_list
from afec.data.root import DataError, data_root
from afec.streams.classes import blocks, ordered
from afec.streams.images import Normalise
from afec.streams.photographs import Photographs, check_large, order_of_seed, stored_short
from afec.streams.task import Scenario, Stream

__all__ = ["imagenet100"]

COLOURS = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CHOICES = ("all", "lucir", "first")


def imagenet100(
    seed: int,
    tasks: int | None = None,
    classes: int = 10,
    folder: str = "imagenet100",
    choose: str = "all",
    size: int = 224,
    images: int | None = None,
    scenario: Scenario = "task",
    class_order: str = "seed",
    sizes: Sequence[int] | None = None,
    images_per_class: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
) -> Stream:
    """The classes of a folder like ImageNet's, ten per task; a pure function of the files and of its arguments.

    Args:
        seed: which classes are together, their numbers, and the order of the tasks, in the class order `seed`.
        tasks: how many tasks, from the first on; all where it is not said.
        classes: how many classes a task has; a divisor of the number of classes.
        folder: with `train/<class>/` and `val/<class>/` in it; a relative one is looked for here, then in the data directory.
        choose: which classes: `all`, `lucir`, `first`, or the path of a list, a class a line.
        size: what a net is given, in pixels.
        images: at most so many images of each task to train on; test images shrink in the same proportion.
        scenario: `task`, or `class`: the task is not known when predicting.
        class_order: `seed`, `sorted`, `lucir-1993`, or the path of a list (`afec.streams.classes`).
        sizes: how many classes each task has, instead of `classes`, e.g. `[50, 10, 10, 10, 10, 10]`. Classes may be left over.
        images_per_class: at most so many images of each class to train on; those for the test stay.
        root: where the data are; see `afec.data.data_root`.
    """
    path = place_of(folder, root)
    if not path.is_dir():
        raise DataError(
            f"there is no folder {path}. Put 100 classes of ImageNet there, {path.name}/train/<class>/<image> and "
            f"{path.name}/val/<class>/<image>, or name another folder: stream.folder=PATH; "
            "--data or AFEC_DATA names another data directory"
        )
    names = _chosen(choose, class_names(path), path, root)
    counts = check_large("imagenet100", tasks, classes, len(names), size, images, scenario, sizes)
    order = ordered("imagenet100", class_order, names, lambda: order_of_seed(len(names), seed), root)
    data = open_image_folder(path, sorted(names))  # the cache is the same for every order
    labels = torch.tensor([names.index(name) for name in data.names])[data.labels]
    key = hashlib.blake2b("\n".join([str(path.absolute()), *sorted(names)]).encode(), digest_size=4).hexdigest()
    pixels = open_images(f"{path.name}-{key}", data.files, data.base, stored_short(size), root)
    make = Photographs(pixels, labels, data.for_training, size, COLOURS, seed, images, tuple(names), images_per_class)
    found = [make(f"things {number}", block) for number, block in enumerate(blocks(order, counts), start=1)]
    return Stream("imagenet100", tuple(found), scenario)


def _chosen(choose: str, known: list[str], path: Path, root: str | os.PathLike[str] | None) -> list[str]:
    """The names of the classes, in the order as given."""
    if choose == "all":
        return known
    if choose in CHOICES:
        if len(known) < 100:
            raise DataError(
                f"{path} has {len(known)} classes, and choose={choose!r} takes 100 of them; use choose='all'"
            )
        return (
            known[:100]
            if choose == "first"
            else [str(n) for n in np.random.RandomState(1993).choice(known, 100, False)]
        )
    file = Path(choose).expanduser()
    file = file if file.is_file() else data_root(root) / file
    if not file.is_file():
        raise ValueError(
            f"imagenet100 got choose={choose!r}; expected {', '.join(CHOICES)}, or the path of a list of classes"
        )
    return read_class_list(file, known, path)
