"""The engine needs a pool's small interface and nothing else: a pool of this process, in one short class, will do."""

from __future__ import annotations

import pytest

from afec.lab import Job, execute
from afec.lab.local_pool import LocalPool
from afec.lab.pool import Pool
from pool_here import PoolHere
from small_lab import quick_config


def jobs():
    return [Job(quick_config(method, "tiny"), 0) for method in ("finetune", "ewc", "mas")]


def test_any_pool_will_do(tmp_path):
    pool: Pool = PoolHere()
    outcomes = execute(jobs(), tmp_path, pool=pool)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert all(outcome.directory.done for outcome in outcomes)
    assert pool.stopped == 1


def test_work_whose_process_dies_fails_alone_and_goes_on_next_time(tmp_path):
    pool = PoolHere(dies=[1])
    outcomes = execute(jobs(), tmp_path, pool=pool)
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert "killed by SIGKILL" in outcomes[1].error
    assert "goes on from its last checkpoint" in (outcomes[1].directory.path / "FAILED").read_text()
    assert all(outcome.error is None for outcome in execute(jobs(), tmp_path, pool=PoolHere()))


@pytest.mark.slow
def test_both_pools_come_to_the_same_bytes(quickly, tmp_path):
    execute(jobs(), tmp_path / "here", pool=PoolHere())
    execute(jobs(), tmp_path / "local", pool=LocalPool(2))
    here = {f.relative_to(tmp_path / "here"): f.read_bytes() for f in (tmp_path / "here").rglob("scores.csv")}
    local = {f.relative_to(tmp_path / "local"): f.read_bytes() for f in (tmp_path / "local").rglob("scores.csv")}
    assert here == local
    assert len(here) == 3


def test_the_pool_is_stopped_when_the_engine_is_interrupted(tmp_path):
    class Interrupted(PoolHere):
        def poll(self, timeout):
            raise KeyboardInterrupt

    pool = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        execute(jobs(), tmp_path, pool=pool)
    assert pool.stopped == 1
