"""`guard.learning(…)` without `with` never trains silently without the pull."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from afec import AFEC, EWC


@pytest.fixture(autouse=True)
def _no_hook_survives():
    yield
    assert not _global_optimizer_pre_hooks


def block(guard, setting, number=0):
    return guard.learning(setting.model, setting.optimizer, setting.tasks[number], setting.loss)


def test_a_block_that_is_dropped_warns_at_once_and_the_next_step_raises(setting):
    guard, before = EWC(1.0), [p.detach().clone() for p in setting.model.parameters()]
    with pytest.warns(RuntimeWarning, match="called without `with`, so nothing is guarded"):
        block(guard, setting)
    with pytest.raises(RuntimeError, match=r"fine-tuning. Write `with guard.learning\(…\):` around the loop"):
        setting.train(setting.tasks[0], 1)
    assert all(map(torch.equal, before, setting.model.parameters()))  # it raised before the weights moved


def test_a_block_that_is_kept_or_not_yet_collected_raises_at_the_step(setting):
    kept = block(EWC(1.0), setting)  # the guard itself lives in the block only
    with pytest.raises(RuntimeError, match="called without `with`"):
        setting.train(setting.tasks[0], 1)
    cycle = [kept]
    cycle.append(cycle)
    del kept, cycle
    with pytest.warns(RuntimeWarning, match="called without `with`"):
        gc.collect()
    setting.train(setting.tasks[0], 1)  # it was said; training without a guard is the user's right


def test_an_optimizer_of_another_model_may_step(setting):
    waiting = block(EWC(1.0), setting)
    other = nn.Linear(2, 1)
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), 0.1).step()
    with waiting:
        setting.train(setting.tasks[0], 1)


def test_a_model_that_is_gone_takes_the_hook_with_it(setting):
    def drop():
        model = nn.Linear(2, 1)
        EWC(1.0).learning(model, None, setting.tasks[0], setting.loss)

    with pytest.warns(RuntimeWarning, match="called without `with`"):
        drop()
    gc.collect()
    setting.train(setting.tasks[0], 1)
    assert not _global_optimizer_pre_hooks


def test_the_call_that_is_put_right_is_not_held_against_the_user(setting):
    guard = EWC(1.0)
    kept = block(guard, setting)  # a notebook keeps what a cell returned
    with block(guard, setting):
        setting.train(setting.tasks[0], 1)
    setting.train(setting.tasks[0], 1)
    task = guard.begin(setting.model, setting.optimizer, setting.tasks[0], setting.loss)
    task.end()
    assert guard.tasks_done == 2
    with pytest.warns(RuntimeWarning):
        del kept


def test_blocks_made_in_advance_are_entered_one_by_one(setting):
    guard = EWC(1.0) + AFEC(1.0, epochs=2)
    blocks = [block(guard, setting, number) for number in range(3)]
    for number, one in enumerate(blocks):
        with one:
            setting.train(setting.tasks[number], 1)
    assert guard.tasks_done == 3


def test_two_guards_made_in_advance_on_two_parts(setting):
    """The expansion of the first one steps the whole model while the second block still waits."""
    body = EWC(1.0, params=setting.model[0]) + AFEC(1.0, epochs=2, params=setting.model[0])
    head = EWC(1.0, params=setting.model[2])
    for number in range(2):
        one, other = block(body, setting, number), block(head, setting, number)
        with one, other:
            setting.train(setting.tasks[number], 1)
    assert body.tasks_done == head.tasks_done == 2


def test_a_block_is_no_loop_and_no_task(setting):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error says it; no second complaint follows
        with pytest.raises(TypeError, match=r"no loop but a block: write `with guard.learning\(…\):`"):
            for _ in block(EWC(1.0), setting):
                pass
        for name in ("step", "pull", "end"):
            with pytest.raises(
                AttributeError, match=rf"has no '{name}': write `with guard.learning\(…\) as task:`.*guard.begin"
            ):
                getattr(block(EWC(1.0), setting), name)
    waiting = block(EWC(1.0), setting)
    assert not hasattr(waiting, "_repr_html_")  # a notebook's question changes nothing
    with waiting as task:
        assert task.is_open


def test_a_block_is_entered_once(setting):
    one = block(EWC(1.0), setting)
    with one:
        pass
    with pytest.raises(RuntimeError, match="entered before; call guard.learning"), one:
        pass
