"""Saving, loading and leaving early."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from afec import AFEC, EWC


def saved_and_loaded(state):
    """Through a file, as a checkpoint goes; nothing in it needs to be unpickled."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def make():
    return EWC(20.0) + AFEC(0.5, epochs=2)


def test_an_exception_leaves_the_guard_as_on_entry(setting):
    guard = make()
    with (
        pytest.raises(KeyboardInterrupt),
        guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss),
    ):
        raise KeyboardInterrupt
    assert guard.state_dict()["states"] == {}
    assert (guard.tasks_done, guard.in_task, guard.task) == (0, False, None)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    before = copy.deepcopy(guard.state_dict())
    with (
        pytest.raises(ZeroDivisionError),
        guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss),
    ):
        setting.train(setting.tasks[1], 1)
        1 / 0  # noqa: B018
    after = guard.state_dict()
    assert before.keys() == after.keys()
    for name in ("mean", "precision"):
        for key, value in before["states"]["ewc"][name].items():
            assert torch.equal(value, after["states"]["ewc"][name][key])
    assert after["task_states"] is None
    assert not _global_optimizer_pre_hooks


def test_begin_and_end_are_the_block(setting):
    own = copy.deepcopy(setting)
    own.optimizer = torch.optim.Adam(own.model.parameters(), 1e-2)
    block, hand = make(), make()
    for data in setting.tasks:
        with block.learning(setting.model, setting.optimizer, data, setting.loss):
            setting.train(data)
        task = hand.begin(own.model, own.optimizer, data, own.loss)
        assert hand.in_task
        own.train(data)
        task.end()
    assert block.tasks_done == hand.tasks_done == 3
    for one, other in zip(setting.model.parameters(), own.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_format_1_is_read_and_goes_on(setting):
    """It had another word for the task states."""
    guard = make()
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    task = guard.begin(setting.model, setting.optimizer, setting.tasks[1], setting.loss)
    state = guard.state_dict()
    old = {**state, "format": 1, "flights": state["task_states"]}
    del old["task_states"]
    task.abort()
    resumed = make()
    resumed.load_state_dict(saved_and_loaded(old))
    assert resumed.in_task
    again = resumed.state_dict()
    assert again["format"] == state["format"] == 2
    for key, value in state["task_states"]["afec"]["mean"].items():
        assert torch.equal(value, again["task_states"]["afec"]["mean"][key])


def test_abort_by_hand_inside_the_block(setting):
    guard = make()
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss) as task:
        task.abort()
    assert guard.tasks_done == 0


def test_a_state_between_tasks_goes_on_as_if_nothing_had_happened(setting):
    own, guard = copy.deepcopy(setting), make()
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    own.model.load_state_dict(setting.model.state_dict())
    own.optimizer = torch.optim.Adam(own.model.parameters(), 1e-2)
    own.optimizer.load_state_dict(copy.deepcopy(setting.optimizer.state_dict()))
    loaded = make()
    loaded.load_state_dict(saved_and_loaded(guard.state_dict()))
    assert loaded.tasks_done == 1
    torch.manual_seed(99)  # the guard's draws do not depend on it
    for running, each in ((guard, setting), (loaded, own)):
        with running.learning(each.model, each.optimizer, each.tasks[1], each.loss):
            each.train(each.tasks[1])
    for one, other in zip(setting.model.parameters(), own.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("schedule", ["sequential", "interleaved"])
def test_a_state_inside_a_task_continues_it_without_a_second_expansion(setting, schedule):
    def build():
        how = {"epochs": 2} if schedule == "sequential" else {"schedule": schedule}
        return EWC(20.0) + AFEC(0.5, **how)

    own, guard = copy.deepcopy(setting), build()
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    with guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss) as task:
        task.epoch()
        setting.train(setting.tasks[1], 1)
        checkpoint = saved_and_loaded(
            {
                "model": setting.model.state_dict(),
                "optimizer": setting.optimizer.state_dict(),
                "guard": guard.state_dict(),
            }
        )
        task.epoch()
        setting.train(setting.tasks[1], 1)
    resumed = build()
    resumed.load_state_dict(checkpoint["guard"])
    assert resumed.in_task
    assert resumed.tasks_done == 1
    own.model.load_state_dict(checkpoint["model"])
    own.optimizer = torch.optim.Adam(own.model.parameters(), 1e-2)
    own.optimizer.load_state_dict(checkpoint["optimizer"])
    with resumed.learning(own.model, own.optimizer, own.tasks[1], own.loss) as task:
        for name, value in checkpoint["guard"]["task_states"]["afec"]["mean"].items():
            assert torch.equal(task.task_states["afec"]["mean"][name], value)
        task.epoch()
        own.train(own.tasks[1], 1)
    assert not resumed.in_task
    assert resumed.tasks_done == 2
    for one, other in zip(setting.model.parameters(), own.model.parameters(), strict=True):
        assert torch.equal(one, other)
    final, expected = resumed.state_dict()["states"]["ewc"], guard.state_dict()["states"]["ewc"]
    for name, value in expected["precision"].items():
        assert torch.equal(final["precision"][name], value)


def test_a_state_taken_during_the_expansion_is_the_one_on_entry(setting):
    states = []

    def expand():
        states.append(guard.state_dict())
        setting.train(setting.tasks[1], 2)

    guard = EWC(20.0) + AFEC(0.5, expand=expand)
    for data in setting.tasks[:2]:
        with guard.learning(setting.model, setting.optimizer, data, setting.loss):
            setting.train(data, 1)
    assert states[0]["task_states"] is None
    assert states[0]["tasks_done"] == 1
