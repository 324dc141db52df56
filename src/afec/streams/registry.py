"""The streams that have a name, for configs and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from afec.naming import check_section, fault
from afec.streams.cifar import cifar10_100, cifar100, cifar100_sc
from afec.streams.cifar10_regression import cifar10_regression
from afec.streams.cub import cub200
from afec.streams.digits import digits, digits_regression
from afec.streams.folder import PREFIX, folder
from afec.streams.imagenet import imagenet100
from afec.streams.omniglot import omniglot
from afec.streams.task import Stream

__all__ = ["STREAMS", "StreamRecord", "check_stream", "make_stream"]


@dataclass(frozen=True)
class StreamRecord:
    """One stream that can be named."""

    name: str
    function: Callable[..., Stream]
    """Takes the seed and the options."""
    description: str

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options: the arguments of `function` without the seed, and without where the data are."""
        return tuple(name for name in inspect.signature(self.function).parameters if name not in ("seed", "root"))


class _Streams(dict[str, StreamRecord]):
    """Streams by name; `folder:PATH` is one for every PATH."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or _path_of(name) is not None

    def __missing__(self, name: str) -> StreamRecord:
        path = _path_of(name)
        if path is None:
            raise KeyError(name)
        return StreamRecord(name, partial(folder, path), self[FOLDER].description)


FOLDER = f"{PREFIX}PATH"


def _path_of(name: object) -> str | None:
    """The path in `folder:PATH`, unless it is the very word PATH, which only stands for one."""
    if isinstance(name, str) and name.startswith(PREFIX) and name not in (PREFIX, FOLDER):
        return name.removeprefix(PREFIX)
    return None


def _no_path(seed: int) -> Stream:
    raise ValueError(f"stream {FOLDER}: write your own folder for PATH, such as {PREFIX}my/images")


STREAMS: dict[str, StreamRecord] = _Streams(
    (record.name, record)
    for record in (
        StreamRecord("digits", digits, "scikit-learn's handwritten digits, a few classes per task; built in"),
        StreamRecord(
            "digits-regression",
            digits_regression,
            "contradictory arrangements of the same handwritten digits on a circle; built in",
        ),
        StreamRecord(
            "cifar10-regression",
            cifar10_regression,
            "contradictory arrangements of CIFAR-10's classes on a circle (paper, Sec. 4.1)",
        ),
        StreamRecord("cifar100-sc", cifar100_sc, "the 20 superclasses of CIFAR-100, five classes each"),
        StreamRecord("cifar100", cifar100, "the 100 classes of CIFAR-100, five per task"),
        StreamRecord("cifar10-100", cifar10_100, "CIFAR-10 as two tasks, then CIFAR-100 as 20"),
        StreamRecord("omniglot", omniglot, "the 50 alphabets of Omniglot, a character a class"),
        StreamRecord("cub200", cub200, "the 200 birds of CUB-200-2011, 20 per task"),
        StreamRecord("imagenet100", imagenet100, "100 classes of ImageNet, ten per task; or any such folder"),
        StreamRecord(FOLDER, _no_path, "your own images: PATH/<task>/<class>/<image>, see docs/data.md"),
    )
)


def make_stream(name: str, seed: int, **options: Any) -> Stream:
    """The stream called `name`, with its options; what there is, `STREAMS` lists."""
    if found := fault("stream", STREAMS, name, options):
        raise ValueError(found[1])
    return STREAMS[name].function(seed, **options)


def check_stream(section: Mapping[str, Any]) -> None:
    """Raise for a [stream] section (`name` and options) whose name or options do not exist. Makes no stream."""
    check_section("stream", STREAMS, section)
