"""What the tests of the lab share."""

from __future__ import annotations

import multiprocessing

import pytest

from afec.experiments import Score
from afec.files import write_text
from afec.lab import RunDirectory, engine, local_pool


@pytest.fixture
def quickly(monkeypatch):
    """Workers are forked from a process that has imported everything: they start in milliseconds, and nothing else changes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["afec.lab.engine", "sklearn.datasets", "torch._dynamo"])
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

        monkeypatch.setattr(engine, "run", run)
        return ran

    return install
