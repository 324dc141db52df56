"""Absolute gradients instead of squared ones (MAS), by every route."""

from __future__ import annotations

import pytest
import torch
from fisher_cases import CASES, K, N, dirty_statistics, loss, predict, route_of

from afec.fisher import Problem, estimate


def absolute_by_hand(net, batches):
    """Σ_b |∂ loss(b)|."""
    net.eval()
    weights = dict(net.named_parameters())
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for batch in batches:
        grads = torch.autograd.grad(loss(net, batch), list(weights.values()), allow_unused=True)
        for name, grad in zip(weights, grads, strict=True):
            total[name] += 0 if grad is None else grad.to_dense().abs() if grad.is_sparse else grad.abs()
    return total


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_every_route_takes_absolute_values(name, assert_close):
    case = CASES[name]
    net = dirty_statistics(case.net())
    x, y = case.inputs(), torch.arange(N) % K
    if name == "batchnorm2d-no-statistics":
        pytest.skip("samples that mix have no losses of their own: see test_fisher_errors")
    weights = dict(net.named_parameters())
    result = estimate(Problem(net, loss), weights, [(x[:3], y[:3]), (x[3:], y[3:])], kind="empirical", chunk=2, power=1)
    by_hand = absolute_by_hand(net, [(x[i : i + 1], y[i : i + 1]) for i in range(N)])
    assert result.count == N
    assert_close(result.squares, by_hand)
    assert result.routes == {weight: route_of(weight, case.slow) for weight in weights}


def test_batches(assert_close):
    net = CASES["conv2d-stride-padding"].net()
    x, y = CASES["conv2d-stride-padding"].inputs(), torch.arange(N) % K
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    found = estimate(Problem(net, loss), dict(net.named_parameters()), batches, kind="batched", batch_size=1, power=1)
    assert found.count == N
    assert_close(found.squares, absolute_by_hand(net, batches))


@pytest.mark.parametrize(("kind", "power"), [("exact", 1), ("sample", 1), ("empirical", 3), ("batched", 0)])
def test_what_has_no_meaning_raises(kind, power):
    net = CASES["conv2d-stride-padding"].net()
    problem = Problem(net, loss, predict, "categorical")
    with pytest.raises(ValueError, match=f"power must be 2.*Got power={power} with kind='{kind}'"):
        estimate(problem, dict(net.named_parameters()), [], kind=kind, power=power)
