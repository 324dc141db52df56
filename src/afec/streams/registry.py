"""The streams that have a name, for configs and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from afec.naming import check_section, fault
from afec.streams.cifar import cifar10_100, cifar100, cifar100_sc
from afec.streams.cifar10_regression import cifar10_regression
from afec.streams.digits import digits, digits_regression
from afec.streams.omniglot import omniglot
from afec.streams.task import Scenario, Stream

__all__ = ["STREAMS", "StreamRecord", "check_stream", "make_stream"]


@dataclass(frozen=True)
class StreamRecord:
    """One stream that can be named."""

    name: str
    function: Callable[..., Stream]
    """Takes the seed and the options."""
    description: str
    scenario: Scenario

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options: the arguments of `function` without the seed, and without where the data are."""
        return tuple(name for name in inspect.signature(self.function).parameters if name not in ("seed", "root"))


STREAMS: dict[str, StreamRecord] = {
    record.name: record
    for record in (
        StreamRecord("digits", digits, "scikit-learn's handwritten digits, a few classes per task; built in", "task"),
        StreamRecord(
            "digits-regression",
            digits_regression,
            "contradictory arrangements of the same handwritten digits on a circle; built in",
            "task",
        ),
        StreamRecord(
            "cifar10-regression",
            cifar10_regression,
            "contradictory arrangements of CIFAR-10's classes on a circle (paper, Sec. 4.1)",
            "task",
        ),
        StreamRecord("cifar100-sc", cifar100_sc, "the 20 superclasses of CIFAR-100, five classes each", "task"),
        StreamRecord("cifar100", cifar100, "the 100 classes of CIFAR-100, five per task", "task"),
        StreamRecord("cifar10-100", cifar10_100, "CIFAR-10 as two tasks, then CIFAR-100 as 20", "task"),
        StreamRecord("omniglot", omniglot, "the 50 alphabets of Omniglot, a character a class", "task"),
    )
}


def make_stream(name: str, seed: int, **options: Any) -> Stream:
    """The stream called `name`, with its options; what there is, `STREAMS` lists."""
    if found := fault("stream", STREAMS, name, options):
        raise ValueError(found[1])
    return STREAMS[name].function(seed, **options)


def check_stream(section: Mapping[str, Any]) -> None:
    """Raise for a [stream] section (`name` and options) whose name or options do not exist. Makes no stream."""
    check_section("stream", STREAMS, section)
