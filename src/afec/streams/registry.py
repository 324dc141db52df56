"""The streams that have a name, for configs and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from afec.naming import Record, Registry, check_section, fault
from afec.streams.cifar import cifar10_100, cifar100, cifar100_sc
from afec.streams.cifar10_regression import cifar10_regression
from afec.streams.cub import cub200
from afec.streams.digits import digits, digits_regression
from afec.streams.folder import PREFIX, folder
from afec.streams.imagenet import imagenet100
from afec.streams.omniglot import omniglot
from afec.streams.task import Stream

__all__ = ["STREAMS", "check_stream", "make_stream"]


class _Streams(Registry):
    """Streams by name; `folder:PATH` is one for every PATH."""

    def __missing__(self, name: str) -> Record:
        if not isinstance(name, str):
            raise KeyError(name)
        if name == PREFIX:
            raise KeyError(name)
        if name.startswith(PREFIX):
            return Record(name, partial(folder, name.removeprefix(PREFIX)), self[FOLDER].description)
        return super().__missing__(name)


FOLDER = f"{PREFIX}PATH"


def _no_path(seed: int) -> Stream:
    raise ValueError(f"stream {FOLDER}: write your own folder for PATH, such as {PREFIX}my/images")


STREAMS = _Streams(
    "stream",
    (
        Record("digits", digits, "scikit-learn's handwritten digits, a few classes per task; built in"),
        Record(
            "digits-regression",
            digits_regression,
            "contradictory arrangements of the same handwritten digits on a circle; built in",
        ),
        Record(
            "cifar10-regression",
            cifar10_regression,
            "contradictory arrangements of CIFAR-10's classes on a circle (paper, Sec. 4.1)",
        ),
        Record("cifar100-sc", cifar100_sc, "the 20 superclasses of CIFAR-100, five classes each"),
        Record("cifar100", cifar100, "the 100 classes of CIFAR-100, five per task"),
        Record("cifar10-100", cifar10_100, "CIFAR-10 as two tasks, then CIFAR-100 as 20"),
        Record("omniglot", omniglot, "the 50 alphabets of Omniglot, a character a class"),
        Record("cub200", cub200, "the 200 birds of CUB-200-2011, 20 per task"),
        Record("imagenet100", imagenet100, "100 classes of ImageNet, ten per task; or any such folder"),
        Record(FOLDER, _no_path, "your own images: PATH/<task>/<class>/<image>, see docs/data.md"),
    ),
)
"""The streams; each takes the seed and its options."""


def make_stream(name: str, seed: int, **options: Any) -> Stream:
    """The stream called `name`, with its options; `STREAMS` lists them."""
    if found := fault("stream", STREAMS, name, options):
        raise ValueError(found[1])
    stream: Stream = STREAMS[name].make(seed, **options)
    return stream


def check_stream(section: Mapping[str, Any]) -> None:
    """Raise for a [stream] section (`name` and options) whose name or options do not exist. Makes no stream."""
    check_section("stream", STREAMS, section)
