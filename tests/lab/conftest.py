"""What the tests of the lab share."""

from __future__ import annotations

import multiprocessing

import pytest

from afec.files import write_text
from afec.lab import RunDirectory, engine, workers
from afec.lab.directory import Row


@pytest.fixture
def quickly(monkeypatch):
    """Workers are forked from a process that has imported everything: they start in milliseconds, and nothing else changes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["afec.lab.engine", "sklearn.datasets", "torch._dynamo"])
    monkeypatch.setattr(workers, "get_context", lambda kind: context)


@pytest.fixture
def fake(in_process, monkeypatch):
    """`fake(score)`: a run takes no time, and its accuracies are score(settings, seed) -> (validation, test).

    Everything around it (jobs, failures, directories) is real. Gives the list of what was run.
    """

    def install(score):
        ran = []

        def run(config, seed, root, on_phase=None, **options):
            ran.append((config, seed))
            validation, test = score(config.settings, seed)
            directory = RunDirectory.of(root, config, seed)
            write_text(directory.path / "config.toml", config.to_toml())
            directory.write_accuracy([Row(0, 1, "digits", 0.1, 0.1), Row(1, 1, "digits", validation, test)])
            directory.finish({"wall_seconds": 1.0})
            return directory

        monkeypatch.setattr(engine, "run", run)
        return ran

    return install
