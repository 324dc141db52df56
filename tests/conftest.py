"""What every test has: one thread, a fixed seed (see test_seeds.py), and hypothesis without a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from afec.experiments import Score
from afec.lab import RunDirectory, engine, job, local_pool
from afec.whole_files import write_text
from pool_here import PoolHere
from small_processes import forkserver

torch.set_num_threads(1)
# Timings are noise on a shared machine, so no deadline; the same examples every time, so no flaky run.
settings.register_profile("afec", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("afec")


def pytest_collection_modifyitems(items) -> None:
    """Files with slow tests come first: no long one is left for the end, when the other processes have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def seed_all() -> None:
    """The generators that everybody shares, as they are at the beginning of each test."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_all()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef) -> None:
    """A fixture that several tests share is made before `_seeded`; it is the same whichever of them comes first."""
    if fixturedef.scope != "function":
        seed_all()


@pytest.fixture(autouse=True)
def _no_global_hook_survives() -> Iterator[None]:
    yield
    left = [*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values()]
    _global_optimizer_pre_hooks.clear()  # so that one leak is one failure
    _global_optimizer_post_hooks.clear()
    assert not left


@pytest.fixture
def in_process(monkeypatch):
    """The engine's workers are this process: its logic stays, the seconds for starting processes go."""
    monkeypatch.setattr(engine, "LocalPool", lambda count, gpus=(): PoolHere())


@pytest.fixture
def quickly(monkeypatch):
    """Workers are forked from a process that has imported everything: they start in milliseconds, and nothing else changes."""
    context = forkserver()
    monkeypatch.setattr(local_pool, "get_context", lambda kind: context)


@pytest.fixture
def fake(in_process, monkeypatch):
    """`fake(score)`: a run takes no time, and its scores are score(settings, seed) -> (validation, test).

    Everything around it (jobs, failures, directories) is real. Gives the list of what was run.
    """

    def install(score):
        ran = []

        def run(config, seed, root, on_progress=None, **options):
            ran.append((config, seed))
            validation, test = score(config.settings, seed)
            directory = RunDirectory.of(root, config, seed)
            write_text(directory.path / "config.toml", config.to_toml())
            directory.write_scores([Score(0, 1, "digits", 0.1, 0.1, 9), Score(1, 1, "digits", validation, test, 9)])
            directory.finish({"wall_seconds": 1.0})
            return directory

        monkeypatch.setattr(job, "run", run)
        return ran

    return install
