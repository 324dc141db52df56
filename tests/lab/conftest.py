"""What the tests of the lab share."""

from __future__ import annotations

import multiprocessing

import pytest

from afec.lab import workers


@pytest.fixture
def quickly(monkeypatch):
    """Workers are forked from a process that has imported everything: they start in milliseconds, and nothing else changes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["afec.lab.engine", "sklearn.datasets", "torch._dynamo"])
    monkeypatch.setattr(workers, "get_context", lambda kind: context)
