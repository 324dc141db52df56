"""Merge: the mode by hand, mode-IMM over three tasks, every switch by its effect, and a save in the middle of a task."""

from __future__ import annotations

import copy

import pytest
import torch
from one_weight import Line, half_square, point, state_of
from torch import nn

from afec import EWC, Average, Learner, Merge, Schedule
from afec.nets import MultiHead, make_backbone
from afec.streams import make_stream


def data(x, y):
    return torch.full((1, 1), x, dtype=torch.float64), torch.full((1, 1), y, dtype=torch.float64)


def tasks(guard, *given):
    """w after tasks of one sample (x, y), each of which ends its free training at `end`."""
    model, found = Line(0.0), []
    for x, y, end in given:
        with guard.learning(model, None, data(x, y), half_square) as task:
            with torch.no_grad():
                model.w.fill_(end)
            task.accept()
        found.append(model.w.item())
    return found


def fisher(x, y, end):
    """The empirical one of ½·(w·x − y)²: the square of (w·x − y)·x."""
    return ((end * x - y) * x) ** 2


@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_by_hand(strength):
    """F = ((1·1 − 0)·1)² = 1 around 1; F_e = ((3·1 − 1)·1)² = 4 around 3."""
    guard = Merge(strength, fisher="empirical")
    first, second = tasks(guard, (1.0, 0.0, 1.0), (1.0, 1.0, 3.0))
    assert first == 1.0
    assert second == pytest.approx((strength * 1 * 1 + 4 * 3) / (strength * 1 + 4), rel=1e-12)
    state = state_of(guard)
    assert state["mean"]["w"].item() == second
    assert state["precision"]["w"].item() == pytest.approx(1 + 4, rel=1e-12)


def test_three_tasks_are_mode_imm():
    """With λ = 1: Σ F_k·θ_k / Σ F_k, with each task's own Fisher at its own weights."""
    given = [(1.0, 0.0, 1.0), (1.0, 1.0, 3.0), (2.0, 1.0, -1.0)]
    weights = [fisher(*one) for one in given]
    expected = sum(f * end for f, (_, _, end) in zip(weights, given, strict=True)) / sum(weights)
    assert tasks(Merge(fisher="empirical"), *given)[-1] == pytest.approx(expected, rel=1e-12)


def test_what_one_of_the_two_does_not_know():
    """Fisher 0 of the new task: the old weight; of the old one: the new weight; of both: the new one as well."""
    known, unknown = (1.0, 0.0, 1.0), (0.0, 0.0, 3.0)
    assert tasks(Merge(fisher="empirical"), known, unknown)[-1] == pytest.approx(1.0, rel=1e-12)
    assert tasks(Merge(fisher="empirical"), unknown, known)[-1] == 1.0
    assert tasks(Merge(fisher="empirical"), unknown, (0.0, 0.0, 5.0))[-1] == 5.0


def test_off_is_fine_tuning_and_on_changes_what_real_digits_learn(digits):
    plain = digits.run(EWC(0.0))
    assert Merge(0.0).is_off
    assert torch.equal(digits.run(Merge(0.0)), plain)
    found = [plain, *(digits.run(Merge(strength)) for strength in (1.0, 100.0)), digits.run(Merge() + Average(0.9))]
    for place, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:place])


def test_the_task_itself_is_learned_freely(digits):
    def path(guard):
        seen = []
        digits.run(guard, hook=lambda task, model, epoch: seen.append(copy.deepcopy(model.state_dict())))
        return seen

    free, merged = path(EWC(0.0)), path(Merge(100.0))
    for epoch in range(3):  # two epochs of the first task; the second starts from the same weights
        if epoch < 2:
            assert all(torch.equal(value, merged[epoch][name]) for name, value in free[epoch].items())
    assert all(torch.equal(value, merged[2][name]) for name, value in free[2].items())


def test_a_stronger_old_side_stays_nearer_to_the_old_weights(digits):
    starts = []
    digits.run(
        Merge(1.0), hook=lambda task, model, epoch: starts.append(nn.utils.parameters_to_vector(model.parameters()))
    )
    old = starts[1].detach()
    apart = [(digits.run(Merge(strength)) - old).norm().item() for strength in (0.1, 1.0, 10.0, 1000.0)]
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < apart[0] / 2


def test_in_the_learner_old_tasks_are_kept_better_than_by_fine_tuning():
    def accuracy(guard):
        stream = make_stream("digits", seed=0)
        torch.manual_seed(0)
        learner = Learner(MultiHead(make_backbone("digits"), zero=True), guard, schedule=Schedule(max_epochs=5), seed=0)
        for task in stream.tasks[:2]:
            learner.learn(task)
        return learner.net.state_dict()

    one, other = accuracy(Merge(10.0)), accuracy(Merge(0.0))
    assert any(not torch.equal(value, other[name]) for name, value in one.items() if name.startswith("backbone"))


def test_resumed_in_the_middle_of_a_task_it_ends_as_uninterrupted(digits):
    (x1, y1), (x2, y2) = digits.tasks
    loss = nn.CrossEntropyLoss()

    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            loss(model(x2), y2).backward()
            optimizer.step()

    def start():
        model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        return model, torch.optim.SGD(model.parameters(), 0.1)

    torch.manual_seed(0)
    model, optimizer = start()
    guard = Merge(2.0)
    with guard.learning(model, optimizer, (x1, y1), loss):
        pass
    guard.begin(model, optimizer, (x2, y2), loss)
    steps(model, optimizer, 2)
    saved, weights = copy.deepcopy(guard.state_dict()), copy.deepcopy(model.state_dict())
    steps(model, optimizer, 2)
    guard.task.end()

    other, optimizer = start()
    other.load_state_dict(weights)
    fresh = Merge(2.0)
    fresh.load_state_dict(saved)
    with fresh.learning(other, optimizer, (x2, y2), loss):
        steps(other, optimizer, 2)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    for key in ("mean", "precision"):
        assert all(torch.equal(value, state_of(fresh)[key][name]) for name, value in state_of(guard)[key].items())


@pytest.mark.parametrize("store", ["cpu", "bfloat16"])
def test_what_rests_elsewhere_gives_the_same(digits, store):
    exact, rested = digits.run(Merge(10.0)), digits.run(Merge(10.0, store=store))
    torch.testing.assert_close(rested, exact, rtol=0.0, atol=0.0 if store == "cpu" else 1e-2)


def test_a_head_that_grows_is_merged_in_its_old_rows_only():
    model = nn.Linear(2, 2)
    x, guard = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), Merge(1e6)
    with guard.learning(model, None, (x, torch.arange(8) % 2), nn.CrossEntropyLoss()):
        pass
    wider = nn.Linear(2, 3)
    with torch.no_grad():
        wider.weight[:2], wider.bias[:2] = model.weight, model.bias
    with guard.learning(wider, None, (x, torch.arange(8) % 3), nn.CrossEntropyLoss()) as task:
        with torch.no_grad():
            wider.weight += 1.0
        learned = wider.weight.detach().clone()
        task.accept()
    torch.testing.assert_close(wider.weight[:2], model.weight, rtol=0.0, atol=1e-3)
    assert torch.equal(wider.weight[2], learned[2])


@pytest.mark.parametrize("strength", [-1.0, float("inf"), float("nan"), "auto", True])
def test_a_strength_is_a_finite_number(strength):
    with pytest.raises(ValueError, match=r"Merge: strength \(λ\) must be a finite number ≥ 0; got"):
        Merge(strength)


def test_a_fisher_that_cannot_be_measured_is_refused_before_anything_is_learned():
    guard = Merge(fisher="exact")
    with pytest.raises(ValueError, match="likelihood"):
        guard.begin(Line(1.0), None, point(0.0), half_square)
    assert guard.task is None
