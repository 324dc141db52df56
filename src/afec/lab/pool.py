"""Where runs are executed: the interface that the engine needs. `LocalPool` is processes of this machine.

A pool is given work, a function that can be pickled, and calls it somewhere with a `Channel`. What the work sends, its result
and its death come back as messages. `stop` asks all work to end at its next clean point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from afec.experiments import Stop

__all__ = ["Channel", "Message", "Pool", "Work"]


@dataclass(frozen=True)
class Message:
    """What came of a piece of work."""

    kind: Literal["progress", "waiting", "result", "died"]
    index: int
    """Of the work that it is about, as `start` was given it."""
    content: Any
    """A `Progress`; whom it waits for; what the work has returned; why its process died."""


class Channel(Protocol):
    """What a piece of work talks through, where it runs."""

    @property
    def stop(self) -> Stop:
        """Whether the pool wants it to end."""
        ...

    def send(self, kind: Literal["progress", "waiting"], content: Any) -> None:
        """Tell the pool; some messages may be left out, so that not more than a few are sent in a second."""
        ...


Work = Callable[[Channel], Any]
"""It is pickled on its way."""


class Pool(Protocol):
    """Where jobs run: it starts them, is polled for what they say, and stops them."""

    @property
    def busy(self) -> int:
        """How many pieces of work are under way."""
        ...

    @property
    def free(self) -> int:
        """How many more can be started now."""
        ...

    def start(self, index: int, work: Work) -> None:
        """Begin a piece of work; there is a free place."""
        ...

    def poll(self, timeout: float) -> Iterable[Message]:
        """The messages since the last call; waits for the first one, but no longer than `timeout` seconds."""
        ...

    def stop(self) -> None:
        """Ask all work to end, and return when it has ended; asked a second time, or interrupted, end it at once."""
        ...
