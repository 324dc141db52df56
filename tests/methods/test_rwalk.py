"""RWALK: every number worked by hand, every switch by its effect."""

from __future__ import annotations

import copy

import pytest
import torch
from one_weight import Line, half_square, point, state_of, steps, with_penalty
from torch import nn

from afec import AFEC, EWC, RWALK


def test_two_steps_of_sgd_by_hand():
    """w: 0 → 0.5 → 0.75; g = −1, −½; δ = ½, ¼. F: 0.9, then 0.9·¼ + 0.09. s: ½/(½·0.9·¼ + ε) + ⅛/(½·F·1/16 + ε)."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = RWALK(strength=0.1)
    with guard.learning(model, optimizer, point(1.0), half_square):
        steps(model, optimizer, point(1.0), 1)
        task_state = guard.state_dict()["task_states"]["rwalk"]
        assert task_state["fisher"]["w"].item() == pytest.approx(0.9, rel=1e-12)
        assert task_state["score"]["w"].item() == pytest.approx(0.5 / (0.5 * 0.9 * 0.25 + 0.01), rel=1e-12)
        steps(model, optimizer, point(1.0), 1)
    fisher = 0.9 * 0.25 + 0.1 * 0.9
    run = 0.5 / (0.5 * 0.9 * 0.25 + 0.01) + 0.125 / (0.5 * fisher * 0.0625 + 0.01)
    state = state_of(guard)
    assert state["fisher"]["w"].item() == pytest.approx(fisher, rel=1e-12)
    assert state["score"]["w"].item() == pytest.approx(run / 2, rel=1e-12)
    assert state["precision"]["w"].item() == pytest.approx(fisher + run / 2, rel=1e-12)
    assert state["mean"]["w"].item() == 0.75

    # The second task: F_run goes on, s_run goes on from the halved s, the pull has no ½ left.
    with guard.learning(model, optimizer, point(-1.0), half_square) as task:
        steps(model, optimizer, point(-1.0), 1)  # g = 1.75, δ = −0.875, no pull yet
        assert task.penalty().item() == pytest.approx(0.1 / 2 * (fisher + run / 2) * 0.875**2, rel=1e-12)
        second = 0.9 * 1.75**2 + 0.1 * fisher
        score = run / 2 + 1.75 * 0.875 / (0.5 * second * 0.875**2 + 0.01)
        steps(model, optimizer, point(-1.0), 1)
        g, pull = 0.875, 0.1 * (fisher + run / 2) * -0.875
        change = -0.5 * (g + pull)
        third = 0.9 * g**2 + 0.1 * second
        score += max(-g * change, 0) / (0.5 * third * change**2 + 0.01)
    assert state_of(guard)["fisher"]["w"].item() == pytest.approx(third, rel=1e-12)
    assert state_of(guard)["score"]["w"].item() == pytest.approx(score / 2, rel=1e-12)


def test_the_new_score_is_the_mean_of_old_and_new():
    """s = ½·(s_old + s_new), where s_new is what the task alone would have summed."""
    found = {}
    for start in ("alone", "after"):
        model, guard = Line(0.0), RWALK(strength=1e-30, alpha=1.0)  # no memory in F, all but no pull
        if start == "after":
            with guard.learning(model, torch.optim.SGD(model.parameters(), 0.5), point(1.0), half_square) as task:
                steps(model, torch.optim.SGD(model.parameters(), 0.5), point(1.0), 2)
            old = state_of(guard)["score"]["w"].item()
        with torch.no_grad():
            model.w.fill_(0.75)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        with guard.learning(model, optimizer, point(-1.0), half_square) as task:
            steps(model, optimizer, point(-1.0), 2)
        assert task.steps == 2
        found[start] = state_of(guard)["score"]["w"].item()
    assert found["after"] == pytest.approx(0.5 * (old + 2 * found["alone"]), rel=1e-9)


def test_official_by_hand():
    """No clamp, no ½, the total gradient in F and in s."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = RWALK(strength=0.02, preset="official")
    with guard.learning(model, optimizer, point(1.0), half_square):
        steps(model, optimizer, point(1.0), 2)
    old = {key: value["w"].item() for key, value in state_of(guard).items()}
    with guard.learning(model, optimizer, point(-1.0), half_square) as task:
        steps(model, optimizer, point(-1.0), 1)
        assert task.penalty().item() == pytest.approx(0.02 * old["precision"] * 0.875**2, rel=1e-12)
        fisher = 0.9 * 1.75**2 + 0.1 * old["fisher"]
        score = old["score"] + 1.75 * 0.875 / (0.5 * fisher * 0.875**2 + 0.01)
        steps(model, optimizer, point(-1.0), 1)
        total = 0.875 - 2 * 0.02 * old["precision"] * 0.875
        fisher = 0.9 * total**2 + 0.1 * fisher
        score += 0.5 * total**2 / (0.5 * fisher * 0.25 * total**2 + 0.01)
    assert state_of(guard)["fisher"]["w"].item() == pytest.approx(fisher, rel=1e-12)
    assert state_of(guard)["score"]["w"].item() == pytest.approx(score / 2, rel=1e-12)


def test_the_clamp_is_at_each_step():
    """A step uphill and one downhill: clamped, only the second counts."""
    found = []
    for clamp in (True, False):
        model = Line(0.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.5)
        guard = RWALK(strength=1.0, clamp=clamp)
        with guard.learning(model, optimizer, point(1.0), half_square):
            optimizer.state[model.w]["momentum_buffer"] = torch.tensor([4.0], dtype=torch.float64)
            steps(model, optimizer, point(1.0), 2)  # buffers 1 and ½ − 1.5 = −1: w = −½, 0
        first, second = -0.5 / (0.5 * 0.9 * 0.25 + 0.01), 0.75 / (0.5 * (0.9 * 2.25 + 0.09) * 0.25 + 0.01)
        expected = second if clamp else first + second
        assert model.w.item() == 0
        assert state_of(guard)["score"]["w"].item() == pytest.approx(expected / 2, rel=1e-12)
        found.append(expected)
    assert found[0] > found[1]


@pytest.mark.parametrize("gradient", ["task", "total"])
def test_adam_against_autograd(gradient):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 2
    guard, loss = RWALK(strength=0.5, gradient=gradient, alpha=0.7, damping=0.02), nn.CrossEntropyLoss()
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    score = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for number in range(3):
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        targets = y if number == 0 else 1 - y
        old = copy.deepcopy(guard.state_dict()["states"].get("rwalk"))
        with guard.learning(model, optimizer, (x, targets), loss):
            for _ in range(4):
                before = {name: p.detach().clone() for name, p in model.named_parameters()}
                value = loss(model(x), targets)
                if gradient == "total" and old is not None:
                    value = with_penalty(value, model, old, 0.5)
                grads = torch.autograd.grad(value, list(model.parameters()))
                optimizer.zero_grad()
                loss(model(x), targets).backward()
                optimizer.step()
                for (name, p), g in zip(model.named_parameters(), grads, strict=True):
                    d = p.detach() - before[name]
                    fisher[name] = 0.7 * g**2 + 0.3 * fisher[name]
                    score[name] += (-g * d).clamp(min=0) / (0.5 * fisher[name] * d**2 + 0.02)
        score = {name: s / 2 for name, s in score.items()}
        for name in fisher:
            torch.testing.assert_close(state_of(guard)["fisher"][name], fisher[name], rtol=1e-8, atol=1e-14)
            expected = fisher[name] + score[name]
            torch.testing.assert_close(state_of(guard)["precision"][name], expected, rtol=1e-8, atol=1e-12)


OPTIONS = [
    {"alpha": 0.1},
    {"damping": 1e-4},
    {"clamp": False},
    {"half": False},
    {"gradient": "total"},
    {"strength": 3.0},
    {"preset": "official"},
]


@pytest.mark.parametrize("other", OPTIONS, ids=str)
def test_every_option_changes_the_result_on_digits(digits, other):
    digits.check_option(RWALK, {"strength": 1.0}, other)


def test_paper_is_the_default_and_zero_is_off(digits):
    assert torch.equal(digits.run(RWALK(1.0)), digits.run(RWALK(1.0, preset="paper")))
    assert torch.equal(digits.run(RWALK(0.0)), digits.run(EWC(0.0)))
    assert not torch.equal(digits.run(RWALK(1.0) + AFEC(1.0, epochs=1)), digits.run(RWALK(1.0)))


@pytest.mark.parametrize("rewind", [True, False])
def test_the_path_ends_at_the_weights_that_stay(rewind):
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = RWALK(strength=1.0, rewind=rewind)
    with guard.learning(model, optimizer, point(1.0), half_square) as task:
        steps(model, optimizer, point(1.0), 1)
        task.bookmark()
        best, at_best = copy.deepcopy(model.state_dict()), guard.state_dict()["task_states"]["rwalk"]
        steps(model, optimizer, point(1.0), 2)
        at_end = guard.state_dict()["task_states"]["rwalk"]
        model.load_state_dict(best)
        task.return_to_bookmark()
    expected = at_best if rewind else at_end
    assert torch.equal(state_of(guard)["fisher"]["w"], expected["fisher"]["w"])
    assert torch.equal(state_of(guard)["score"]["w"], expected["score"]["w"] / 2)
    assert not torch.equal(at_best["score"]["w"], at_end["score"]["w"])


def test_the_jump_back_to_the_best_weights_is_no_step():
    """In the released code the first δ of a task contains it; here a path is made of steps."""
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = RWALK(strength=1e-30, preset="official")
    with guard.learning(model, optimizer, point(1.0), half_square):
        best = copy.deepcopy(model.state_dict())
        steps(model, optimizer, point(1.0), 2)
        model.load_state_dict(best)
    old = {key: value["w"].item() for key, value in state_of(guard).items()}
    with guard.learning(model, optimizer, point(1.0), half_square):
        steps(model, optimizer, point(1.0), 1)  # from 0: g = −1, δ = ½, and not ½ − 0.75
        fisher = 0.9 + 0.1 * old["fisher"]
        score = old["score"] + 0.5 / (0.5 * fisher * 0.25 + 0.01)
        assert guard.state_dict()["task_states"]["rwalk"]["score"]["w"].item() == pytest.approx(score, rel=1e-12)


@pytest.mark.parametrize(("option", "message"), [
    ({"alpha": 0.0}, r"RWALK: alpha \(α\) must be in \(0, 1\]; got 0"),
    ({"alpha": 1.5}, r"RWALK: alpha \(α\) must be in \(0, 1\]; got 1.5"),
    ({"damping": -1}, "RWALK: damping must be a finite number > 0"),
    ({"gradient": "both"}, "RWALK: gradient must be one of"),
    ({"strength": float("nan")}, r"RWALK: strength \(λ\)"),
])  # fmt: skip
def test_errors(option, message):
    with pytest.raises(ValueError, match=message):
        RWALK(**{"strength": 1.0, **option})
