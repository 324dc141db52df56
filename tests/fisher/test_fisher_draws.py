"""The draws of `sample`: their mean, their seed, and that nothing but the seed decides about them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, choose_kind, estimate

DOUBLE = torch.float64


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_sample_has_exact_as_its_mean(likelihood: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    x, y = torch.randn(5, 2, dtype=DOUBLE), torch.zeros(5, dtype=torch.long)
    problem = Problem(model, loss, predict, likelihood)
    weights = dict(model.named_parameters())
    exact = estimate(problem, weights, [(x, y)], kind="exact").mean()
    draws = 3000  # of each sample, as so many copies of it
    copies = estimate(problem, weights, [(x.repeat(draws, 1), y.repeat(draws))], kind="sample", chunk=512).mean()
    for name, expected in exact.items():
        # The square of a draw's gradient spreads by less than twice its mean or so: 5 standard errors.
        error = (copies[name] - expected).abs().max() / expected.max()
        assert error < 5 * 2 / math.sqrt(draws), name


def test_sample_is_of_the_mean_over_positions() -> None:
    """Labels of positions are independent given the input, so their Fishers add: E(1/T Σ_t g_t)² = 1/T² Σ_t E g_t²."""
    torch.manual_seed(0)
    model = nn.Conv1d(2, 3, 1).double()  # logits of 3 classes at each of 4 positions
    x = torch.randn(1, 2, 4, dtype=DOUBLE)
    position = nn.Linear(2, 3).double()
    position.weight.data, position.bias.data = model.weight.data[:, :, 0], model.bias.data
    at_each = x[0].T
    exact = estimate(
        Problem(position, loss, predict, "categorical"),
        dict(position.named_parameters()),
        [(at_each, torch.zeros(4, dtype=torch.long))],
        kind="exact",
    )
    problem = Problem(model, loss, predict, "categorical")
    batch = (x.repeat(3000, 1, 1), torch.zeros(3000, 4, dtype=torch.long))
    sampled = estimate(problem, dict(model.named_parameters()), [batch], kind="sample", chunk=512).mean()
    expected = exact.squares["weight"] / 4**2
    assert ((sampled["weight"][:, :, 0] - expected).abs().max() / expected.max()) < 0.15
    assert choose_kind(problem, batch) == "sample"


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical"])
@pytest.mark.parametrize("body", ["fast", "func", "loop"])
def test_the_result_does_not_depend_on_chunks_batches_or_routes(kind: str, body: str, assert_close) -> None:
    torch.manual_seed(0)
    layer = {"fast": nn.Linear(3, 3), "func": nn.Bilinear(3, 3, 3), "loop": nn.LSTM(3, 3)}[body]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer, nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            if body == "loop":
                return self.head(self.layer(x[None])[0][0])
            return self.head(torch.tanh(self.layer(x, x) if body == "func" else self.layer(x)))

    model = Net().double()
    x, y = torch.randn(13, 3, dtype=DOUBLE), torch.randint(0, 4, (13,))
    weights = dict(model.named_parameters())
    problem = Problem(model, loss, predict, "categorical")
    first = estimate(problem, weights, [(x, y)], kind=kind, chunk=1)
    assert {first.routes[name] for name in weights if "layer" in name} == {body}
    for chunk, size in ((4, 13), (16, 13), (3, 5), (2, 1)):
        again = estimate(problem, weights, list(zip(x.split(size), y.split(size), strict=True)), kind=kind, chunk=chunk)
        assert_close(again.mean(), first.mean(), 1e-12)

    def split(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [(batch[0][i : i + 1], batch[1][i : i + 1]) for i in range(len(batch[0]))]

    alone = estimate(Problem(model, loss, predict, "categorical", split), weights, [(x, y)], kind=kind)
    assert set(alone.routes.values()) == {"loop"}
    assert alone.count == first.count == 13
    assert_close(alone.mean(), first.mean(), 1e-12)


def test_sample_is_seeded() -> None:
    model = nn.Linear(3, 4)
    problem, weights = Problem(model, loss, predict, "categorical"), dict(model.named_parameters())
    batches = [(torch.randn(6, 3), torch.zeros(6, dtype=torch.long))]
    first, again, other = (
        estimate(problem, weights, batches, kind="sample", seed=seed).squares["weight"] for seed in (1, 1, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
