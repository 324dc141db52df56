"""Prior: every number worked by hand, every switch by its effect."""

from __future__ import annotations

import copy

import pytest
import torch
from one_weight import Line, half_square, state_of
from torch import nn

from afec import EWC, SI, Prior

X, Y = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)


def after_step(guard, start=2.0, lr=0.1, optimizer=torch.optim.SGD):
    """w after one step of ½·w² in the second task, where the first one has moved it from `start` to 1."""
    model = Line(start)
    with guard.learning(model, None, (X, Y), half_square):
        with torch.no_grad():
            model.w.fill_(1.0)
        guard.task.accept()
    stepper = optimizer(model.parameters(), lr)
    with guard.learning(model, stepper, (X, Y), half_square):
        half_square(model, (X, Y)).backward()
        stepper.step()
    return model.w.item()


def test_by_hand():
    """w = 1 has the slope 1: after the step 0.9; then 0.9 − 0.1·0.5·(0.9 − c), c = 0 or the initial 2."""
    assert after_step(Prior(0.5)) == pytest.approx(0.9 - 0.05 * 0.9, rel=1e-12)
    assert after_step(Prior(0.5, center="init")) == pytest.approx(0.9 - 0.05 * (0.9 - 2), rel=1e-12)


def test_coupled_by_hand():
    """The slope is 1 + 0.5·(1 − c), and the penalty ½·0.5·(1 − c)²."""
    assert after_step(Prior(0.5, decoupled=False)) == pytest.approx(1 - 0.1 * 1.5, rel=1e-12)
    assert after_step(Prior(0.5, center="init", decoupled=False)) == pytest.approx(1 - 0.1 * (1 - 0.5), rel=1e-12)
    guard = Prior(0.5, decoupled=False)
    model = Line(3.0)
    for penalty in (0.0, 0.25 * 9):
        with guard.learning(model, None, (X, Y), half_square) as task:
            assert float(task.penalty()) == pytest.approx(penalty, rel=1e-12)
            assert float(task.penalties()["prior"]) == pytest.approx(penalty, rel=1e-12)


def test_under_adam_only_the_decoupled_one_keeps_its_size():
    """A weight without a gradient of the task: coupled, Adam makes a step of lr of any strength."""

    def moved(strength, decoupled):
        model, zero = Line(1.0), torch.zeros_like(X)
        guard = Prior(strength, decoupled=decoupled)
        with guard.learning(model, None, (zero, Y), half_square):
            pass
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        with guard.learning(model, optimizer, (zero, Y), half_square):
            half_square(model, (zero, Y)).backward()
            optimizer.step()
        return 1 - model.w.item()

    assert moved(1e-5, decoupled=False) == pytest.approx(0.01, rel=0.01)
    assert moved(1e-5, decoupled=True) == pytest.approx(0.01 * 1e-5, rel=1e-6)


def test_the_first_task_is_plain_and_zero_is_off():
    model = Line(2.0)
    guard, optimizer = Prior(0.5), torch.optim.SGD(model.parameters(), 0.1)
    with guard.learning(model, optimizer, (X, Y), half_square) as task:
        assert task.idle
        half_square(model, (X, Y)).backward()
        optimizer.step()
    assert model.w.item() == pytest.approx(1.8, rel=1e-12)
    assert Prior(0.0).is_off
    assert after_step(Prior(0.0)) == 0.9


def train(digits, guard, optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = copy.deepcopy(digits.model)
    for x, y in digits.tasks:
        stepper = optimizer(model.parameters(), 1e-2)
        with guard.learning(model, stepper, (x, y), nn.CrossEntropyLoss()):
            for _ in range(5):
                stepper.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                stepper.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_every_switch_changes_what_real_digits_learn(digits):
    found = [
        train(digits, EWC(1.0) + guard)
        for guard in (Prior(0.0), Prior(1.0), Prior(1.0, center="init"), Prior(1.0, decoupled=False), Prior(3.0))
    ]
    assert torch.equal(found[0], train(digits, EWC(1.0)))
    for place, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:place])
    assert found[4].norm() < found[1].norm() < found[0].norm()


def test_the_path_of_si_has_the_whole_movement(digits):
    """δ of a step contains the prior's: the change that SI sees is the change of the weight."""
    model = Line(2.0)
    guard, optimizer = SI(1.0) + Prior(0.5), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        with guard.learning(model, optimizer, (X, Y), half_square):
            optimizer.zero_grad()
            start = model.w.item()
            half_square(model, (X, Y)).backward()
            optimizer.step()
            path = float(guard.task.task_states["si"]["path"]["w"])
    assert path == pytest.approx(-start * (model.w.item() - start), rel=1e-9)


def test_only_what_is_guarded_moves_and_no_weight_counts_as_moved():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    x, y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    guard = Prior(1.0, params=model[0])
    twin = copy.deepcopy(model)
    for task in range(2):
        for net in (model, twin):
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            steps = guard.learning(net, optimizer, (x, y), nn.CrossEntropyLoss()) if net is model else None
            if steps is None:
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                continue
            with steps:
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
        same = [torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True)]
        assert same == ([True] * 4 if task == 0 else [False, False, True, True])
        model.load_state_dict(twin.state_dict())
        for net in (model, twin):
            net.zero_grad()


def test_a_strength_that_overshoots_is_refused():
    with pytest.raises(ValueError, match=r"lr·strength = 0.1·20 = 2 throws"):
        after_step(Prior(20.0))
    with pytest.raises(ValueError, match=r"strength \(λ_p\) must be a finite number ≥ 0"):
        Prior(-1.0)


def test_the_initial_weights_are_kept():
    guard = Prior(0.5, center="init")
    after_step(guard, start=2.0)
    assert state_of(guard)["kept"]["w"].item() == 2.0
    guard = Prior(0.5)
    after_step(guard)
    assert state_of(guard) == {}
