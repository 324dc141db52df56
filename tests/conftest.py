"""What every test has: one thread, a fixed seed (see test_seeds.py), and hypothesis without a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from afec.lab import engine
from afec.lab.workers import Said

torch.set_num_threads(1)
# Timings are noise on a shared machine, so no deadline; the same examples every time, so no flaky run.
settings.register_profile("afec", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("afec")


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

    class Here:
        """As `Workers`, without processes."""

        free = 1

        def __init__(self, count, gpus=()):
            self.said = []

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        @property
        def busy(self):
            return len(self.said)

        def start(self, place, work):
            speaker = SimpleNamespace(say=lambda what, content: self.said.append(Said(what, place, content)))
            self.said.append(Said("over", place, work(speaker)))

        def hear(self, timeout):
            said, self.said = self.said, []
            return said

    monkeypatch.setattr(engine, "Workers", Here)
