"""SI: every number worked by hand, every switch by its effect."""

from __future__ import annotations

import copy

import pytest
import torch
from one_weight import Line, half_square, point, state_of, steps, with_penalty
from torch import nn

from afec import AFEC, EWC, SI


def one_task(guard, model, optimizer, target, count):
    with guard.learning(model, optimizer, point(target), half_square) as task:
        steps(model, optimizer, point(target), count)
    return task


def test_two_steps_of_sgd_by_hand():
    """w: 0 → 0.5 → 0.75 at lr ½ towards 1. W = 1·½ + ½·¼ = 0.625; Ω = 0.625/(0.75² + 0.1)."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = SI(strength=3.0)
    with guard.learning(model, optimizer, point(1.0), half_square):
        steps(model, optimizer, point(1.0), 2)
        assert guard.state_dict()["task_states"]["si"]["path"]["w"].item() == 0.625
    assert model.w.item() == 0.75
    omega = 0.625 / (0.75**2 + 0.1)
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(omega, rel=1e-12)
    assert state_of(guard)["mean"]["w"].item() == 0.75

    # The second task goes to −1: g = w + 1, and the pull is λ·Ω·(w − 0.75), so no ½ is left in it.
    with guard.learning(model, optimizer, point(-1.0), half_square) as task:
        steps(model, optimizer, point(-1.0), 1)  # no pull yet: 0.75 − ½·1.75
        assert model.w.item() == pytest.approx(-0.125, rel=1e-12)
        assert task.penalty().item() == pytest.approx(3.0 / 2 * omega * 0.875**2, rel=1e-12)
        steps(model, optimizer, point(-1.0), 1)
        g, pull = 0.875, 3.0 * omega * -0.875
        change = -0.5 * (g + pull)
        assert model.w.item() == pytest.approx(-0.125 + change, rel=1e-12)
        path = 1.75 * 0.875 - g * change  # the task's gradient, not the total one; δ is the whole change
        assert guard.state_dict()["task_states"]["si"]["path"]["w"].item() == pytest.approx(path, rel=1e-12)
    second = max(path, 0) / ((model.w.item() - 0.75) ** 2 + 0.1)
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(omega + second, rel=1e-12)


def test_official_by_hand():
    """ξ = 0.01, no clamp, no ½, the total gradient."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = SI(strength=0.25, preset="official")
    one_task(guard, model, optimizer, 1.0, 2)
    omega = 0.625 / (0.75**2 + 0.01)
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(omega, rel=1e-12)
    with guard.learning(model, optimizer, point(-1.0), half_square) as task:
        steps(model, optimizer, point(-1.0), 1)
        assert task.penalty().item() == pytest.approx(0.25 * omega * 0.875**2, rel=1e-12)
        steps(model, optimizer, point(-1.0), 1)
        total = 0.875 + 2 * 0.25 * omega * -0.875
        path = 1.75 * 0.875 + 0.5 * total**2
        assert guard.state_dict()["task_states"]["si"]["path"]["w"].item() == pytest.approx(path, rel=1e-12)


def test_a_path_that_raised_the_loss_is_clamped_or_not():
    """Momentum-free, but the step is taken uphill: a negative learning rate is not allowed, so the gradient is written."""
    for clamp, expected in ((True, 0.0), (False, -0.5 / (0.25 + 0.1))):
        model = Line(0.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.5)
        guard = SI(strength=1.0, clamp=clamp)
        with guard.learning(model, optimizer, point(1.0), half_square):
            optimizer.state[model.w]["momentum_buffer"] = torch.tensor([4.0], dtype=torch.float64)
            steps(model, optimizer, point(1.0), 1)  # buffer ½·4 − 1 = 1, so w −= ½, against g = −1
        assert model.w.item() == -0.5
        assert state_of(guard)["precision"]["w"].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gradient", ["task", "total"])
def test_adam_against_autograd(gradient):
    """Every step of a small net recomputed: g by autograd at the weights before it, δ as it came out."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 2
    guard = SI(strength=5.0, gradient=gradient)
    loss = nn.CrossEntropyLoss()
    names = [name for name, _ in model.named_parameters()]
    for number in range(2):
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        start = [p.detach().clone() for p in model.parameters()]
        path = [torch.zeros_like(p) for p in start]
        targets = y if number == 0 else 1 - y
        old = copy.deepcopy(guard.state_dict()["states"].get("si"))
        with guard.learning(model, optimizer, (x, targets), loss):
            for _ in range(4):
                before = [p.detach().clone() for p in model.parameters()]
                value = loss(model(x), targets)
                if gradient == "total" and old is not None:
                    value = with_penalty(value, model, old, 5.0)
                grads = torch.autograd.grad(value, list(model.parameters()))
                optimizer.zero_grad()
                loss(model(x), targets).backward()
                optimizer.step()
                for w, g, p, b in zip(path, grads, model.parameters(), before, strict=True):
                    w -= g * (p.detach() - b)
        for i, (name, p) in enumerate(model.named_parameters()):
            omega = path[i].clamp(min=0) / ((p.detach() - start[i]) ** 2 + 0.1)
            expected = omega + (old["precision"][name] if old is not None else 0)
            torch.testing.assert_close(state_of(guard)["precision"][name], expected, rtol=1e-9, atol=1e-12)
    assert set(state_of(guard)["mean"]) == set(names)


OPTIONS = [
    {"damping": 0.01},
    {"clamp": False},
    {"half": False},
    {"gradient": "total"},
    {"strength": 30.0},
    {"preset": "official"},
]


@pytest.mark.parametrize("other", OPTIONS, ids=str)
def test_every_option_changes_the_result_on_digits(digits, other):
    # Only the third visit can tell the gradients apart: in the first task there is no pull.
    digits.check_option(SI, {"strength": 10.0}, other)


def test_paper_is_the_default(digits):
    assert torch.equal(digits.run(SI(10.0)), digits.run(SI(10.0, preset="paper")))


def test_it_protects_the_old_task_on_digits(digits):
    """The pull lowers what the second task does to the first one's weights, more so the stronger it is."""
    first = copy.copy(digits)
    first.tasks = digits.tasks[:1]
    at = first.run(SI(1.0))
    moved = [(digits.run(SI(strength)) - at).norm().item() for strength in (0.0, 10.0, 1000.0)]
    assert moved[0] > moved[1] > moved[2]


def test_zero_is_fine_tuning_bit_for_bit(digits):
    assert torch.equal(digits.run(SI(0.0)), digits.run(EWC(0.0)))
    assert torch.equal(digits.run(SI(0.0) + EWC(3.0)), digits.run(EWC(3.0)))


def test_sums_with_others(digits):
    guard = SI(10.0) + AFEC(1.0, epochs=1) + EWC(10.0)
    assert guard.method == "ewc+si+afec"
    assert not torch.equal(digits.run(guard), digits.run(SI(10.0) + EWC(10.0)))


def test_the_expansion_is_not_part_of_the_path():
    """θ_e is trained in the borrowed module by the same optimiser class: its steps are not this path."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = SI(1.0) + AFEC(1.0, epochs=3, fisher="empirical")
    one_task(guard, model, optimizer, 1.0, 2)
    with guard.learning(model, optimizer, point(-1.0), half_square):
        assert guard.state_dict()["task_states"]["si"]["path"]["w"].item() == 0
        assert guard.state_dict()["task_states"]["si"]["start"]["w"].item() == 0.75


# -- the bookmark --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewind", [True, False])
def test_the_path_ends_at_the_weights_that_stay(rewind):
    """Two steps, bookmark at 0.75, a third step, and back: W = 0.625 without the third step, which adds ¼·⅛."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = SI(strength=1.0, rewind=rewind)
    with guard.learning(model, optimizer, point(1.0), half_square) as task:
        steps(model, optimizer, point(1.0), 1)
        task.bookmark()
        steps(model, optimizer, point(1.0), 1)
        task.bookmark()  # the latest one counts
        best = copy.deepcopy(model.state_dict())
        steps(model, optimizer, point(1.0), 1)
        model.load_state_dict(best)
        task.return_to_bookmark()
    path = 0.625 if rewind else 0.625 + 0.25 * 0.125
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(path / (0.75**2 + 0.1), rel=1e-12)


def test_one_can_return_twice_and_go_on():
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = SI(strength=1.0)
    with guard.learning(model, optimizer, point(1.0), half_square) as task:
        steps(model, optimizer, point(1.0), 1)
        task.bookmark()
        best = copy.deepcopy(model.state_dict())
        for _ in range(2):
            steps(model, optimizer, point(1.0), 1)
            model.load_state_dict(best)
            task.return_to_bookmark()
        assert guard.state_dict()["task_states"]["si"]["path"]["w"].item() == 0.5
        steps(model, optimizer, point(1.0), 1)  # δ of this step does not hold the jump back
        assert guard.state_dict()["task_states"]["si"]["path"]["w"].item() == 0.625


def test_returning_without_a_bookmark_says_what_to_do():
    model = Line(0.0)
    guard = SI(strength=1.0)
    task = guard.begin(model, None, point(1.0), half_square)
    with pytest.raises(RuntimeError, match=r"without a task.bookmark\(\).*whenever you copy the best weights"):
        task.return_to_bookmark()
    task.abort()


# -- growth, errors, the preflight ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "message"), [
    ({"damping": 0}, "SI: damping must be a finite number > 0.*got 0"),
    ({"gradient": "both"}, "SI: gradient must be one of 'task', 'total'; got 'both'"),
    ({"strength": -1.0}, r"SI: strength \(λ\) must be a finite number ≥ 0, or 'auto'; got -1"),
    ({"preset": "mine"}, "preset must be one of"),
])  # fmt: skip
def test_errors(option, message):
    with pytest.raises(ValueError, match=message):
        SI(**{"strength": 1.0, **option})


def test_the_name_says_what_it_is():
    expected = "SI(strength=2, damping=0.01, clamp=False, half=False, gradient='total', rewind=False)"
    assert repr(SI(2.0, preset="official")) == expected
