"""The four kinds, on numbers worked out by hand and against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import KINDS, Problem, choose_kind, estimate
from afec.fisher.objectives import categorical_factor

DOUBLE = torch.float64


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


class Logistic(nn.Module):
    """Two classes with logits (0, w·x + b)."""

    def __init__(self, weight: list[float], bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(len(weight), 1)
        self.linear.weight.data = torch.tensor([weight])
        self.linear.bias.data = torch.tensor([bias])
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


def squared_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return 0.5 * (model(batch[0]) - batch[1]).square().sum(1).mean()


# One input, w = 1, b = 0, x = (0.5, −2, 1), y = (1, 1, 0).
# Then z = x, p = σ(x), ∂ℓ/∂w = (p − y) x and ∂ℓ/∂b = p − y.
X, Y = [0.5, -2.0, 1.0], [1, 1, 0]
P = [sigmoid(x) for x in X]


def one_weight() -> tuple[Problem, dict[str, nn.Parameter], list[tuple[Tensor, Tensor]]]:
    model = Logistic([1.0], 0.0)
    x, y = torch.tensor(X, dtype=DOUBLE)[:, None], torch.tensor(Y)
    return (
        Problem(model, loss, predict, "categorical"),
        dict(model.named_parameters()),
        [(x[:2], y[:2]), (x[2:], y[2:])],
    )


def test_empirical_by_hand() -> None:
    problem, weights, batches = one_weight()
    result = estimate(problem, weights, batches, kind="empirical").mean()
    expected = sum(((p - y) * x) ** 2 for p, x, y in zip(P, X, Y, strict=True)) / 3
    assert result["linear.weight"].item() == pytest.approx(expected, rel=1e-12)
    assert result["linear.bias"].item() == pytest.approx(sum((p - y) ** 2 for p, y in zip(P, Y, strict=True)) / 3)


def test_exact_by_hand() -> None:
    problem, weights, batches = one_weight()
    result = estimate(problem, weights, batches, kind="exact").mean()
    # Σ_c p_c (∂ log p_c)² = p(1 − p)² x² + (1 − p) p² x² = p(1 − p) x²
    expected = sum(p * (1 - p) * x * x for p, x in zip(P, X, strict=True)) / 3
    assert result["linear.weight"].item() == pytest.approx(expected, rel=1e-12)
    assert result["linear.bias"].item() == pytest.approx(sum(p * (1 - p) for p in P) / 3, rel=1e-12)


def test_sample_by_hand() -> None:
    """With one sample there are two possible values; each must come as often as its label is drawn."""
    model = Logistic([1.0], 0.0)
    problem = Problem(model, loss, predict, "categorical")
    batch = [(torch.tensor([[-1.0]], dtype=DOUBLE), torch.tensor([0]))]
    p = sigmoid(-1.0)
    drawn_one = 0
    for seed in range(400):
        value = estimate(problem, {"w": model.linear.weight}, batch, kind="sample", seed=seed).mean()["w"].item()
        assert value == pytest.approx((1 - p) ** 2, rel=1e-9) or value == pytest.approx(p**2, rel=1e-9)
        drawn_one += value == pytest.approx((1 - p) ** 2, rel=1e-9)
    assert abs(drawn_one - 400 * p) < 4 * math.sqrt(400 * p * (1 - p))


def test_batched_by_hand() -> None:
    """A first batch of two and a last of one, both with the weight of a batch of B = 2: F = (2/3) Σ g²."""
    problem, weights, batches = one_weight()
    g = [(p - y) * x for p, x, y in zip(P, X, Y, strict=True)]
    squares = ((g[0] + g[1]) / 2) ** 2 + g[2] ** 2
    result = estimate(problem, weights, batches, kind="batched", batch_size=2)
    assert result.count == 1.5
    assert result.mean()["linear.weight"].item() == pytest.approx(squares * 2 / 3, rel=1e-12)
    assert set(result.routes.values()) == {"batch"}
    plain = estimate(problem, weights, batches, kind="batched", batch_size=None)
    assert plain.count == 2
    assert plain.mean()["linear.weight"].item() == pytest.approx(squares / 2, rel=1e-12)


def test_batched_is_the_released_code() -> None:
    """N = 2250 in batches of 20: 113 of them, and (20/N) Σ_b g_b²."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, y = torch.randn(2250, 3), torch.randint(0, 2, (2250,))
    batches = list(zip(x.split(20), y.split(20), strict=True))
    result = estimate(Problem(model, loss), dict(model.named_parameters()), batches, kind="batched")
    total = torch.zeros_like(model.weight)
    for batch in batches:
        total += torch.autograd.grad(loss(model, batch), model.weight)[0] ** 2
    assert len(batches) == 113
    torch.testing.assert_close(result.mean()["weight"], total * 20 / 2250)


def test_batched_with_one_sample_is_empirical(assert_close) -> None:
    problem, weights, batches = one_weight()
    singles = [(x[i : i + 1], y[i : i + 1]) for x, y in batches for i in range(len(x))]
    batched = estimate(problem, weights, singles, kind="batched", batch_size=1)
    assert_close(batched.mean(), estimate(problem, weights, batches, kind="empirical").mean())


def test_exact_is_the_hessian_of_logistic_regression() -> None:
    """Logits are linear in the weights, so Fisher = Gauss–Newton = Hessian."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x, y = torch.randn(9, 3, dtype=DOUBLE), torch.randint(0, 4, (9,))

    def risk(weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight, model.bias), y)

    hessian = torch.autograd.functional.hessian(risk, model.weight.detach()).reshape(12, 12)
    problem = Problem(model, loss, predict, "categorical")
    result = estimate(problem, {"weight": model.weight}, [(x, y)], kind="exact").mean()["weight"]
    torch.testing.assert_close(result.flatten(), hessian.diagonal(), rtol=1e-9, atol=0)


def test_exact_is_the_hessian_of_linear_regression() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(9, 3, dtype=DOUBLE), torch.randn(9, 2, dtype=DOUBLE)
    hessian = torch.autograd.functional.hessian(
        lambda weight: 0.5 * (F.linear(x, weight, model.bias) - y).square().sum(1).mean(), model.weight.detach()
    ).reshape(6, 6)
    problem = Problem(model, squared_error, predict, "gaussian")
    result = estimate(problem, {"weight": model.weight}, [(x, y)], kind="exact").mean()["weight"]
    torch.testing.assert_close(result.flatten(), hessian.diagonal(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
def test_categorical_factor(scale: float) -> None:
    """SᵀS = diag(p) − ppᵀ, also where the softmax is all but certain or underflows."""
    torch.manual_seed(0)
    logits = scale * torch.randn(20, 6, dtype=DOUBLE)
    p, factor = logits.softmax(1), categorical_factor(logits)
    assert factor.shape == (20, 5, 6)
    expected = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    torch.testing.assert_close(factor.transpose(1, 2) @ factor, expected, rtol=1e-9, atol=1e-15)


def test_masked_logits_are_fine() -> None:
    """Forbidden actions have logits of −∞ and no part in the Fisher."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x, y = torch.randn(6, 3, dtype=DOUBLE), torch.zeros(6, dtype=torch.long)
    allowed = torch.tensor([True, True, False, True])
    for kind in KINDS:

        def masked(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return model(batch[0]).masked_fill(~allowed, -torch.inf)

        problem = Problem(
            model,
            lambda m, b: F.cross_entropy(masked(m, b), b[1]),
            masked,
            "categorical",
        )
        result = estimate(problem, dict(model.named_parameters()), [(x, y)], kind=kind)
        assert result.squares["weight"][2].count_nonzero() == 0
        assert (result.squares["weight"][allowed] > 0).all()


@pytest.mark.parametrize(
    ("outputs", "likelihood", "kind"),
    [
        (10, "categorical", "exact"),
        (11, "categorical", "sample"),
        (10, "gaussian", "exact"),
        (11, "gaussian", "sample"),
    ],
)
def test_choose_kind(outputs: int, likelihood: str, kind: str) -> None:
    model = nn.Linear(3, outputs)
    batch = (torch.randn(32, 3), torch.zeros(32, dtype=torch.long))
    assert choose_kind(Problem(model, loss, predict, likelihood), batch) == kind
    assert choose_kind(Problem(model, loss, predict, None), batch) == "empirical"
    assert choose_kind(Problem(model, loss, None, likelihood), batch) == "empirical"


def test_choose_kind_counts_every_gaussian_output() -> None:
    model = nn.Conv1d(2, 3, 1)
    problem = Problem(model, squared_error, predict, "gaussian")
    assert choose_kind(problem, (torch.randn(7, 2, 3),)) == "exact"
    assert choose_kind(problem, (torch.randn(7, 2, 4),)) == "sample"
    flat = Problem(model, squared_error, lambda m, b: m(b[0]).sum((1, 2)), "gaussian")
    assert choose_kind(flat, (torch.randn(7, 2, 40),)) == "exact"
