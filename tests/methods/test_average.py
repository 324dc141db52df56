"""Average: the equation by hand, every switch by its effect, and a save in the middle of a task."""

from __future__ import annotations

import copy

import pytest
import torch
from one_weight import Line, point, steps
from torch import nn

from afec import EWC, Average, Recycle

LR = 0.5
PATH = [2.0, 1.0, 0.5]
"""w after each step of ½·w² from 4 at a learning rate of ½."""


def learned(guard, count=3):
    model = Line(4.0)
    optimizer = torch.optim.SGD(model.parameters(), LR)
    with guard.learning(model, optimizer, point(0.0), nn.MSELoss()):
        steps(model, optimizer, point(0.0), count)
    return model.w.item()


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (1.0, (2 + 1 + 0.5) / 3),  # the plain mean
        (0.9, (2 + 1 + 0.5) / 3),  # 1 − 1/3 is still the smaller one
        (0.5, 0.5 * (2 + 1) / 2 + 0.5 * 0.5),  # from the second step on it is d
        (0.25, 0.25 * (0.25 * 2 + 0.75 * 1) + 0.75 * 0.5),
        (0.0, 0.5),  # off: the last weights
    ],
)
def test_by_hand(decay, expected):
    assert learned(Average(decay)) == pytest.approx(expected, rel=1e-12)


def test_one_step_is_itself_and_without_a_step_nothing_moves():
    assert learned(Average(0.9), 1) == PATH[0]
    assert learned(Average(0.9), 0) == 4.0


def test_old_tasks_are_held_around_the_average():
    guard = EWC(1.0, fisher="empirical") + Average(1.0)
    now = learned(guard)
    states = guard.state_dict()["states"]
    assert states["ewc"]["mean"]["w"].item() == now == pytest.approx(3.5 / 3, rel=1e-12)
    assert states["ewc"]["precision"]["w"].item() == pytest.approx((2 * now) ** 2, rel=1e-12)  # (∂w²/∂w)² there
    assert states["average"] == {}


def test_off_is_plain_and_on_changes_what_real_digits_learn(digits):
    plain = digits.run(EWC(10.0))
    assert Average(0.0).is_off
    assert torch.equal(digits.run(EWC(10.0) + Average(0.0)), plain)
    found = [plain, *(digits.run(EWC(10.0) + Average(decay)) for decay in (0.5, 0.99))]
    for place, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:place])


def test_the_best_weights_have_their_own_average():
    model, guard = Line(4.0), Average(1.0)
    optimizer = torch.optim.SGD(model.parameters(), LR)
    with guard.learning(model, optimizer, point(0.0), nn.MSELoss()) as task:
        steps(model, optimizer, point(0.0), 2)
        task.bookmark()
        best = copy.deepcopy(model.state_dict())
        steps(model, optimizer, point(0.0), 3)
        model.load_state_dict(best)
        task.return_to_bookmark()
    assert model.w.item() == pytest.approx((2 + 1) / 2, rel=1e-12)


def test_resumed_in_the_middle_of_a_task_it_ends_as_uninterrupted():
    whole = learned(Average(0.5), 4)
    first, guard = Line(4.0), Average(0.5)
    optimizer = torch.optim.SGD(first.parameters(), LR)
    guard.begin(first, optimizer, point(0.0), nn.MSELoss())
    steps(first, optimizer, point(0.0), 2)
    saved, weights = copy.deepcopy(guard.state_dict()), copy.deepcopy(first.state_dict())
    guard.task.abort()
    second, fresh = Line(0.0), Average(0.5)
    second.load_state_dict(weights)
    fresh.load_state_dict(saved)
    optimizer = torch.optim.SGD(second.parameters(), LR)
    with fresh.learning(second, optimizer, point(0.0), nn.MSELoss()):
        steps(second, optimizer, point(0.0), 2)
    assert second.w.item() == whole


def test_running_statistics_are_averaged_and_counters_are_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    x, y = torch.randn(16, 2), torch.arange(16) % 2
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
    with Average(1.0).learning(model, optimizer, (x, y), nn.CrossEntropyLoss()):
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            seen.append(copy.deepcopy(model.state_dict()))
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value == 3
        else:
            torch.testing.assert_close(value, sum(one[name] for one in seen) / 3)


def test_only_params_are_averaged_where_they_are_given():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    twin, x, y = copy.deepcopy(model), torch.randn(16, 2), torch.arange(16) % 2

    def train(net):
        optimizer = torch.optim.SGD(net.parameters(), 0.5)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    with Average(1.0, params=model[0]).learning(model, None, (x, y), nn.CrossEntropyLoss()):
        train(model)
    train(twin)
    same = [torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True)]
    assert same == [False, False, True, True]


def test_in_16_bits_small_shares_are_not_rounded_away():
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    x, y = torch.ones(1, 1, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with Average(0.999).learning(model, optimizer, (x, y), nn.MSELoss()) as task:
        for number in range(400):
            if number == 200:
                model.load_state_dict({"weight": torch.full((1, 1), 1.0625, dtype=torch.bfloat16)})
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        found = task.task_states["average"]["average"]["weight"]
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(1.03125, rel=1e-4)  # the mean of both halves
    assert model.weight.dtype == torch.bfloat16


def test_recycle_looks_at_the_average():
    """It comes before Recycle in any sum, whichever way it is written."""
    assert [term.name for term in (Recycle() + Average(0.5) + EWC(1.0)).terms] == ["ewc", "average", "recycle"]


@pytest.mark.parametrize("decay", [-0.1, 1.5, float("nan"), "half", True])
def test_a_decay_is_a_number_between_0_and_1(decay):
    with pytest.raises(ValueError, match=r"Average: decay \(d\) must be in \[0, 1\]; got"):
        Average(decay)
