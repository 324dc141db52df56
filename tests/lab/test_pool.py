"""The engine needs a pool's small interface and nothing else: a pool of this process, in one short class, will do."""

from __future__ import annotations

from collections import deque

import pytest
from small_lab import quick_config

from afec.experiments import NEVER
from afec.lab import Job, Message, execute
from afec.lab.local_pool import LocalPool
from afec.lab.pool import Pool


class Here:
    """Runs everything at once and in this process; `dies` are pieces of work whose process dies."""

    def __init__(self, dies=()):
        self.messages, self.dies, self.started, self.stopped = deque(), set(dies), [], 0

    busy = property(lambda self: len(self.messages))
    free = 1

    class Channel:
        stop = NEVER

        def __init__(self, send):
            self.send = send

    def start(self, index, work):
        self.started.append(index)
        if index in self.dies:
            self.dies.remove(index)
            self.messages.append(Message("died", index, "its process was killed by SIGKILL"))
            return
        channel = self.Channel(lambda kind, content: self.messages.append(Message(kind, index, content)))
        self.messages.append(Message("result", index, work(channel)))

    def poll(self, timeout):
        while self.messages:
            yield self.messages.popleft()

    def stop(self):
        self.stopped += 1


def jobs():
    return [Job(quick_config(method, "tiny"), 0) for method in ("finetune", "ewc", "mas")]


def test_any_pool_will_do(tmp_path):
    pool: Pool = Here()
    outcomes = execute(jobs(), tmp_path, pool=pool)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert all(outcome.directory.done for outcome in outcomes)
    assert pool.stopped == 1


def test_work_whose_process_dies_fails_alone_and_goes_on_next_time(tmp_path):
    pool = Here(dies=[1])
    outcomes = execute(jobs(), tmp_path, pool=pool)
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert "killed by SIGKILL" in outcomes[1].error
    assert "goes on from its last checkpoint" in (outcomes[1].directory.path / "FAILED").read_text()
    assert all(outcome.error is None for outcome in execute(jobs(), tmp_path, pool=Here()))


def test_both_pools_come_to_the_same_bytes(tmp_path):
    execute(jobs(), tmp_path / "here", pool=Here())
    execute(jobs(), tmp_path / "local", pool=LocalPool(2))
    here = {f.relative_to(tmp_path / "here"): f.read_bytes() for f in (tmp_path / "here").rglob("scores.csv")}
    local = {f.relative_to(tmp_path / "local"): f.read_bytes() for f in (tmp_path / "local").rglob("scores.csv")}
    assert here == local
    assert len(here) == 3


def test_the_pool_is_stopped_when_the_engine_is_interrupted(tmp_path):
    class Interrupted(Here):
        def poll(self, timeout):
            raise KeyboardInterrupt

    pool = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        execute(jobs(), tmp_path, pool=pool)
    assert pool.stopped == 1
