"""The `reversed` kind: by hand, against autograd, on every route, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import afec
from afec.fisher import Problem, estimate

DOUBLE = torch.float64


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


class Two(nn.Module):
    """Two classes with logits (0, w·x)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        z = self.weight * x
        return torch.cat([torch.zeros_like(z), z], 1)


def test_by_hand() -> None:
    # With −z: p(1|x) = σ(−w·x), ∂ℓ/∂w = −(σ(−w·x) − y)·x. For w = 1, x = (0.5, −2), y = (1, 0):
    expected = (((1 / (1 + math.exp(0.5)) - 1) * 0.5) ** 2 + ((1 / (1 + math.exp(-2.0)) - 0) * 2.0) ** 2) / 2
    model = Two(1.0)
    batch = (torch.tensor([[0.5], [-2.0]], dtype=DOUBLE), torch.tensor([1, 0]))
    problem = Problem(model, loss, predict, "categorical")
    found = estimate(problem, dict(model.named_parameters()), [batch], kind="reversed").mean()
    assert found["weight"].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("body", "route"),
    [
        (lambda: nn.Linear(4, 6), "fast"),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 6, 4), nn.Flatten()), "fast"),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.GRU(4, 6, batch_first=True)), "loop"),
        (lambda: nn.Sequential(nn.Bilinear(4, 4, 6)), "func"),
    ],
)
def test_every_route_equals_autograd_on_the_negated_logits(body: Callable[[], nn.Module], route: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body[0](x, x) if route == "func" else self.body(x)
            h = h[0][:, -1] if isinstance(h, tuple) else h
            return self.head(torch.tanh(h))

    torch.manual_seed(0)
    model = Net().double()
    x, y = torch.randn(7, 4, dtype=DOUBLE), torch.arange(7) % 3
    weights = dict(model.named_parameters())
    problem = Problem(model, loss, predict, "categorical")
    result = estimate(problem, weights, [(x[:4], y[:4]), (x[4:], y[4:])], kind="reversed", chunk=2)
    assert route in result.routes.values()
    expected = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for one, label in zip(x, y, strict=True):
        value = F.cross_entropy(-model(one[None]), label[None])
        for name, grad in zip(weights, torch.autograd.grad(value, list(weights.values())), strict=True):
            expected[name] += grad**2 / 7
    for name, fisher in result.mean().items():
        torch.testing.assert_close(fisher, expected[name])
    assert not model._forward_hooks


def test_a_sample_that_is_fitted_well_counts_most() -> None:
    batches = [(torch.tensor([[1.0]], dtype=DOUBLE), torch.tensor([1]))]
    found = {}
    for kind in ("empirical", "reversed"):
        for weight in (0.0, 8.0):
            problem = Problem(Two(weight), loss, predict, "categorical")
            weights = dict(problem.model.named_parameters())
            found[kind, weight] = estimate(problem, weights, batches, kind=kind).mean()["weight"].item()
    assert found["empirical", 8.0] < 1e-6 < found["empirical", 0.0] == pytest.approx(0.25)
    assert found["reversed", 8.0] > 0.99 > found["reversed", 0.0] == pytest.approx(0.25)


def test_regressions_and_outputs_that_are_no_logits_are_refused() -> None:
    model, batch = nn.Linear(2, 2), (torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 2)
    weights = dict(model.named_parameters())
    for likelihood in ("gaussian", None):
        with pytest.raises(ValueError, match="'reversed' Fisher negates logits.*Got likelihood"):
            estimate(Problem(model, loss, predict, likelihood), weights, [batch], kind="reversed")

    def shifted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]) + 1

    with pytest.raises(ValueError, match="does not negate what predict= gives"):
        estimate(Problem(model, loss, shifted, "categorical"), weights, [batch], kind="reversed")

    def behind(model: nn.Linear, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(F.linear(batch[0], model.weight, model.bias), batch[1])

    with pytest.raises(ValueError, match=r"the loss does not call it as model\(…\)"):
        estimate(Problem(model, behind, None, "categorical"), weights, [batch], kind="reversed")


def test_in_a_guard_it_is_refused_on_entry_for_a_regression() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = afec.EWC(1.0, fisher="reversed")
    data = torch.randn(8, 3), torch.randn(8, 1)
    with (
        pytest.raises(ValueError, match="'reversed' Fisher negates logits"),
        guard.learning(model, optimizer, data, nn.MSELoss()),
    ):
        raise AssertionError
    with guard.learning(model := nn.Linear(3, 2), None, (data[0], torch.arange(8) % 2), nn.CrossEntropyLoss()):
        pass
    assert all(float(f.sum()) > 0 for f in guard.state_dict()["states"]["ewc"]["precision"].values())
