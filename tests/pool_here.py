"""A pool in this process: the engine's logic stays, the seconds for starting processes go."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

from afec.experiments import NEVER
from afec.lab import Message


class PoolHere:
    """Runs everything as soon as it is started; `dies` are pieces of work whose process dies, once each."""

    free = 1

    def __init__(self, dies=()):
        self.messages, self.dies, self.started, self.stopped = deque(), set(dies), [], 0

    @property
    def busy(self):
        return len(self.messages)

    def start(self, index, work):
        self.started.append(index)
        if index in self.dies:
            self.dies.remove(index)
            self.messages.append(Message("died", index, "its process was killed by SIGKILL"))
            return
        send = lambda kind, content: self.messages.append(Message(kind, index, content))  # noqa: E731
        self.messages.append(Message("result", index, work(SimpleNamespace(stop=NEVER, send=send))))

    def poll(self, timeout):
        while self.messages:
            yield self.messages.popleft()

    def stop(self):
        self.stopped += 1
