"""A state saved in the middle of a task goes on in a fresh process, bit for bit."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from resumable import METHODS, Job
from torch import nn

from two_tasks import data, learned_one_task, sgd


def assert_equal(one, other, where="state"):
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{where}[{number}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """What each uninterrupted run ends with, and what a fresh process ends with that took it up in the middle."""
    folder = tmp_path_factory.mktemp("resume")
    uninterrupted = {}
    for method in METHODS:
        job = Job(method)
        job.go_on(save=folder / f"{method}.pt")
        uninterrupted[method] = job.state()
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("resumable.py")), str(folder)]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})
    assert found.returncode == 0, found.stderr
    return uninterrupted, {method: torch.load(folder / f"{method}.end.pt", weights_only=True) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_resumed_in_a_fresh_process(method, ends):
    uninterrupted, resumed = ends
    assert uninterrupted[method]["guard"]["tasks_done"] == 3
    assert_equal(resumed[method], uninterrupted[method])


def test_the_methods_are_not_all_the_same(ends):
    finals = [ends[0][method]["model"]["0.weight"] for method in METHODS]
    assert len({tuple(final.flatten().tolist()) for final in finals}) == len(METHODS)


def test_a_saved_state_is_not_changed_by_going_on(kind):
    """Loading it twice, or saving late, must give the same thing."""
    model, guard = learned_one_task(kind)
    second, optimizer = data(2), sgd(model)
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()):
        saved = guard.state_dict()
        kept = copy.deepcopy(saved)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(second[0]), second[1]).backward()
            optimizer.step()
    with guard.learning(model, optimizer, data(3), nn.CrossEntropyLoss()):
        pass
    assert_equal(saved, kept)


def test_a_task_that_was_taken_up_and_aborted_can_be_taken_up_again(kind):
    model, guard = learned_one_task(kind)
    with guard.learning(model, sgd(model), data(2), nn.CrossEntropyLoss()):
        saved = copy.deepcopy(guard.state_dict())
    guard.load_state_dict(saved)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), guard.learning(model, sgd(model), data(2), nn.CrossEntropyLoss()):
            assert_equal(guard.state_dict(), saved)
            raise ZeroDivisionError
        assert guard.in_task
        assert_equal(guard.state_dict(), saved)
