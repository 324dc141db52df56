"""Live tensors while something runs: what torch's allocator was asked for and has not got back yet."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler says when it starts and stops, otherwise

from torch.profiler import ProfilerActivity, profile

__all__ = ["Course", "peak_bytes", "watched"]


@dataclass
class Course:
    """How the bytes of live CPU tensors went, relative to the beginning, with marks that were set on the way."""

    times: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Name this moment."""
        self.marks[name] = time.time_ns()

    def at(self, mark: str) -> int:
        """The bytes at a mark."""
        place = bisect_right(self.times, self.marks[mark])
        return self.live[place - 1] if place else 0

    def peak(self, start: str | None = None, stop: str | None = None) -> int:
        """The largest number of bytes between two marks; without them from the beginning to the end."""
        first = 0 if start is None else bisect_right(self.times, self.marks[start])
        last = len(self.times) if stop is None else bisect_right(self.times, self.marks[stop])
        return max([0 if start is None else self.at(start), *self.live[first:last]])


def watched(run: Callable[[Course], object]) -> Course:
    """Run something that may set marks, and see how many bytes it had when."""
    course = Course()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run(course)
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    course.times = [event.start_ns() for event in events]
    course.live = list(accumulate(event.nbytes() for event in events))
    return course


def peak_bytes(run: Callable[[], object]) -> int:
    """By how many bytes the live CPU tensors grow at most while `run` runs."""
    return watched(lambda course: run()).peak()
