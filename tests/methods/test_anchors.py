"""EWC around each task's own end: one stored quadratic pulls as the sum of the tasks' own ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import afec


def learned(anchors, decay, tasks=3):
    """Three tasks with weights moved by hand; the guard, and each task's θ* and F."""
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2), []
    guard = afec.EWC(2.0, anchors=anchors, decay=decay, fisher="empirical")
    for number in range(tasks):
        generator = torch.Generator().manual_seed(number)
        data = torch.randn(8, 3, generator=generator), torch.randint(0, 2, (8,), generator=generator)
        alone = afec.EWC(1.0, fisher="empirical")
        with guard.learning(model, None, data, nn.CrossEntropyLoss()):
            with torch.no_grad():
                for weight in model.parameters():
                    weight += torch.randn(weight.shape, generator=generator)
            guard.task.accept()
        with alone.learning(model, None, data, nn.CrossEntropyLoss()):
            pass
        seen.append(alone.state_dict()["states"]["ewc"])
    return model, guard, seen


@pytest.mark.parametrize("decay", ["mean", 1.0, 0.5])
def test_each_task_pulls_to_its_own_end(decay):
    _, guard, seen = learned("each", decay)
    state = guard.state_dict()["states"]["ewc"]
    counts = {"mean": [1 / 3] * 3, 1.0: [1.0] * 3, 0.5: [0.25, 0.5, 1.0]}[decay]
    for name in ("weight", "bias"):
        at = torch.randn(state["mean"][name].shape, generator=torch.Generator().manual_seed(9))
        by_hand = sum(
            c * one["precision"][name] * (at - one["mean"][name]) for c, one in zip(counts, seen, strict=True)
        )
        torch.testing.assert_close(state["precision"][name] * (at - state["mean"][name]), by_hand)


def test_the_default_is_around_the_latest_weights_and_another_result():
    model, latest, _ = learned("latest", 1.0)
    _, each, _ = learned("each", 1.0)
    states = [guard.state_dict()["states"]["ewc"] for guard in (latest, each)]
    torch.testing.assert_close(states[0]["mean"]["weight"], model.weight.detach())
    assert torch.equal(states[0]["precision"]["weight"], states[1]["precision"]["weight"])
    assert not torch.allclose(states[0]["mean"]["weight"], states[1]["mean"]["weight"])


def test_a_weight_that_mattered_to_no_task_stays_at_the_latest():
    model = nn.Linear(2, 2)
    data = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 1, 0, 1])  # the second input is never there
    guard = afec.EWC(1.0, anchors="each", decay=1.0, fisher="empirical")
    for _ in range(2):
        with guard.learning(model, None, data, nn.CrossEntropyLoss()):
            with torch.no_grad():
                model.weight += 1.0
            guard.task.accept()
    mean = guard.state_dict()["states"]["ewc"]["mean"]["weight"]
    assert torch.equal(mean[:, 1], model.weight[:, 1].detach())
    assert not torch.equal(mean[:, 0], model.weight[:, 0].detach())
