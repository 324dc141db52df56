"""The preflight: it finds what it is for, and changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import afec
from afec import AFEC, EWC


def everything(setting, guard):
    return copy.deepcopy(
        (setting.model.state_dict(), setting.optimizer.state_dict(), guard.state_dict())
    ), torch.get_rng_state()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("tasks_done", [0, 1])
def test_it_changes_nothing_and_reports_every_layer(setting, tasks_done, capsys):
    guard = EWC(100.0) + AFEC(1.0, epochs=50)
    setting.train(setting.tasks[0], 1)  # so that the optimiser has a state
    for _ in range(tasks_done):
        with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
            setting.train(setting.tasks[0])
    setting.model.eval()
    before = everything(setting, guard)
    report = guard.check(setting.model, setting.optimizer, setting.tasks[1], setting.loss, seconds=1)
    assert same(before, everything(setting, guard))
    assert not setting.model.training
    assert all(p.grad is not None for p in setting.model.parameters())  # the user's own, untouched
    assert [row.name for row in report.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(row.gradient > 0 and row.pulls["old"] > 0 and row.pulls["forgetting"] > 0 for row in report.layers)
    assert "the pull arrives at 4 of 4 guarded weights" in report.facts
    assert str(report) in capsys.readouterr().out


def test_inert_strengths_are_named(setting):
    report = (EWC(1e-9) + AFEC(1e-9, epochs=5)).check(
        setting.model, setting.optimizer, setting.tasks[0], setting.loss, seconds=1
    )
    assert [w for w in report.warnings if "this strength is inert: the old pull" in w]
    assert [w for w in report.warnings if "this strength is inert: the forgetting pull" in w]
    report = EWC(1e3).check(setting.model, setting.optimizer, setting.tasks[0], setting.loss, seconds=1)
    assert report.warnings == []


def test_a_strength_that_makes_sgd_diverge_is_named(setting):
    sgd = torch.optim.SGD(setting.model.parameters(), 0.1)
    report = EWC(1e4).check(setting.model, sgd, setting.tasks[0], setting.loss, seconds=1)
    assert any("> 2: plain SGD will diverge" in warning for warning in report.warnings)
    assert max(row.stiffness for row in report.layers) > 2
    assert not EWC(1.0).check(setting.model, sgd, setting.tasks[0], setting.loss, seconds=1).warnings


def test_the_stiffness_is_lr_times_the_largest_curvature(setting):
    guard = EWC(7.0)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    report = guard.check(setting.model, setting.optimizer, setting.tasks[1], setting.loss, seconds=1)
    precision = guard.state_dict()["states"]["ewc"]["precision"]
    for row in report.layers:
        assert row.stiffness == pytest.approx(1e-2 * 7.0 * float(precision[row.name].max()), rel=1e-5)


def test_a_loss_that_is_no_mean_is_named(setting):
    def total(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    report = EWC(1.0, fisher="batched").check(setting.model, setting.optimizer, setting.tasks[0], total, seconds=1)
    assert any("not the mean of its samples' losses" in w and 'fisher="batched"' in w for w in report.warnings)


def test_an_optimizer_that_the_guard_cannot_see_raises(setting):
    class Blind:
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters), "lr": 0.1}]
            self.state = {}

        def zero_grad(self):
            for p in self.param_groups[0]["params"]:
                p.grad = None

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p -= 0.1 * p.grad

    before = copy.deepcopy(setting.model.state_dict())
    with pytest.raises(afec.WeightMovedError, match="not inside an optimiser's step that the guard sees"):
        EWC(1.0).check(setting.model, Blind(setting.model.parameters()), setting.tasks[0], setting.loss)
    assert same(before, setting.model.state_dict())


def test_without_an_optimizer_and_with_an_own_expansion(setting):
    report = (EWC(1.0) + AFEC(1.0, expand=lambda: None)).check(setting.model, None, setting.tasks[0], setting.loss)
    assert any("no optimiser was given" in fact for fact in report.facts)
    assert any("not rehearsed" in fact for fact in report.facts)


def test_data_that_cannot_be_passed_over_again(setting):
    class Once:
        def __init__(self, batches):
            self.batches = iter(batches)

        def __iter__(self):
            yield from self.batches

    with pytest.raises(ValueError, match="the data are empty"):
        EWC(1.0).check(setting.model, setting.optimizer, Once([setting.tasks[0]]), setting.loss)
