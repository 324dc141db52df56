"""MAS: every number worked by hand, every switch by its effect."""

from __future__ import annotations

import copy

import pytest
import torch
from one_weight import Line, half_square, state_of
from torch import nn

from afec import AFEC, EWC, MAS

X = torch.tensor([[1.0], [-2.0], [3.0]], dtype=torch.float64)
Y = torch.zeros(3, 1, dtype=torch.float64)


def omega(start=0.5, x=X, tasks=1, **options):
    """Ω of f(x) = w·x at w = start; nothing is trained."""
    model, guard = Line(start), MAS(1.0, **options)
    for _ in range(tasks):
        with guard.learning(model, None, (x, torch.zeros_like(x)), half_square):
            pass
    return state_of(guard)["precision"]["w"].item()


def test_by_hand():
    """‖w·x‖² has the slope 2·w·x², so Ω = 2·½·(1 + 4 + 9)/3; ‖w·x‖ has |x|, so (1 + 2 + 3)/3 = 2."""
    assert omega() == pytest.approx(14 / 3, rel=1e-12)
    assert omega(start=-0.5) == pytest.approx(14 / 3, rel=1e-12)  # an absolute value
    assert omega(norm="l2") == pytest.approx(2.0, rel=1e-12)


def test_over_the_tasks_it_is_a_sum_or_a_mean():
    assert omega(tasks=3) == pytest.approx(14, rel=1e-12)
    assert omega(tasks=3, merge="mean") == pytest.approx(14 / 3, rel=1e-12)


class Signed(nn.Module):
    """f(x) = |1 + w·x| in effect: the slope of ‖f‖ has the sign of x, so that samples cancel in a batch."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.1], dtype=torch.float64))

    def forward(self, x):
        return 1 + self.w * x


@pytest.mark.parametrize(("batch", "expected"), [(1, (1 + 2 + 3) / 3), (2, (1 + 3) / 3), (3, 2 / 3), (20, 2 / 3)])
def test_batches_cancel_before_the_absolute_value(batch, expected):
    """Slopes 1, −2, 3: alone 6/3; in batches of two |1 − 2| + |3| = 4; the smaller last batch is not blown up."""
    guard = MAS(1.0, norm="l2", batch=batch)
    with guard.learning(Signed(), None, (X, Y), half_square):
        pass
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(expected, rel=1e-12)


def test_the_penalty_has_the_half():
    model = Line(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = MAS(3.0)
    with guard.learning(model, optimizer, (X, Y), half_square):
        pass
    with guard.learning(model, optimizer, (X, Y), half_square) as task:
        with torch.no_grad():
            model.w += 0.2
        task.accept()
        assert task.penalty().item() == pytest.approx(3.0 / 2 * 14 / 3 * 0.04, rel=1e-9)
        optimizer.zero_grad()
        half_square(model, (X, Y)).backward()
        own = model.w.grad.item()
        optimizer.step()
        assert model.w.item() == pytest.approx(0.7 - 0.1 * (own + 3.0 * 14 / 3 * 0.2), rel=1e-9)


@pytest.mark.parametrize("norm", ["squared", "l2"])
@pytest.mark.parametrize("batch", [1, 20])
def test_against_autograd_on_digits(digits, norm, batch):
    model, (x, y) = copy.deepcopy(digits.model), digits.tasks[0]
    x, y = x[:50], y[:50]  # batches of 20, 20 and 10
    guard = MAS(1.0, norm=norm, batch=batch)
    with guard.learning(model, None, (x, y), nn.CrossEntropyLoss()):
        pass
    model.eval()
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for rows in torch.arange(50).split(batch):
        norms = model(x[rows]).norm(dim=1) ** (2 if norm == "squared" else 1)
        for total, grad in zip(
            expected, torch.autograd.grad(norms.sum(), list(model.parameters())), strict=True
        ):  # fmt: skip
            total += grad.abs() / 50
    for (name, _), total in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(state_of(guard)["precision"][name], total, rtol=1e-4, atol=1e-6)


def test_official_is_the_sum_of_its_switches_and_dropout_is_on(digits):
    spelled = {"norm": "l2", "batch": 20, "dropout": True, "merge": "sum"}
    assert torch.equal(digits.run(MAS(1.0, preset="official")), digits.run(MAS(1.0, **spelled)))
    assert torch.equal(digits.run(MAS(1.0)), digits.run(MAS(1.0, preset="paper")))
    off = MAS(1.0, preset="official", dropout=False)
    assert not torch.equal(digits.run(MAS(1.0, preset="official")), digits.run(off))


@pytest.mark.parametrize(
    "other",
    [
        {"norm": "l2"},
        {"batch": 20},
        {"batch": 20, "dropout": True},
        pytest.param({"dropout": True}, marks=pytest.mark.slow),  # batches of one
        {"merge": "mean"},
        {"strength": 3.0},
    ],
    ids=str,
)
def test_every_option_changes_the_result_on_digits(digits, other):
    digits.check_option(MAS, {"strength": 1.0}, other, epochs=1)  # `merge` shows in the third task


def test_labels_play_no_part(digits):
    model, (x, y) = digits.model, digits.tasks[0]
    found = []
    for labels in (y, y.flip(0)):
        guard = MAS(1.0)
        with guard.learning(copy.deepcopy(model), None, (x, labels), nn.CrossEntropyLoss()):
            pass
        found.append(state_of(guard)["precision"]["0.weight"])
    assert torch.equal(*found)


def test_zero_is_off_and_sums_work(digits):
    assert torch.equal(digits.run(MAS(0.0)), digits.run(EWC(0.0)))
    guard = MAS(1.0) + AFEC(1.0, epochs=1)
    assert guard.method == "mas+afec"
    assert not torch.equal(digits.run(guard), digits.run(MAS(1.0)))


def test_it_takes_the_output_from_predict():
    """Batches that are dictionaries need it, and say so."""
    model = Line(0.5)
    batches = [{"x": X, "y": Y}]

    def loss(model, batch):
        return half_square(model, (batch["x"], batch["y"]))

    guard = MAS(1.0)
    with guard.learning(model, None, batches, loss, predict=lambda model, batch: model(batch["x"])):
        pass
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(14 / 3, rel=1e-12)
    with (
        pytest.raises(TypeError, match="Give predict=lambda model, batch"),
        MAS(1.0).learning(model, None, batches, loss),
    ):
        pass
    with (
        pytest.raises(TypeError, match="must return a tensor. Got tuple: give predict="),
        MAS(1.0).learning(model, None, batches, loss, predict=lambda model, batch: (model(batch["x"]),)),
    ):
        pass


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"norm": "l1"}, "MAS: norm must be one of 'squared', 'l2'; got 'l1'"),
        ({"merge": "max"}, "MAS: merge must be one of 'sum', 'mean'; got 'max'"),
        ({"batch": 0}, "MAS: batch must be an integer ≥ 1"),
        ({"strength": -1.0}, r"MAS: strength \(λ\)"),
    ],
)
def test_errors(option, message):
    with pytest.raises(ValueError, match=message):
        MAS(**{"strength": 1.0, **option})
