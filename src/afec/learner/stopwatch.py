"""Wall and CPU seconds, phase by phase; what an inner phase takes is not counted for the outer one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up what each phase takes."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = (0.0, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block belongs to this phase, but for the phases inside it."""
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = time.perf_counter(), time.process_time()
        if self._running:
            self.wall[self._running[-1]] += now[0] - self._since[0]
            self.cpu[self._running[-1]] += now[1] - self._since[1]
        self._since = now
