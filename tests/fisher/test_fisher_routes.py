"""Every layer type, by whichever route, gives what one backward pass per sample gives; and the route is known."""

from __future__ import annotations

import pytest
import torch
from fisher_cases import CASES, K, N, dirty_statistics, loss, predict, route_of, surprises
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kind", ["empirical", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_equals_one_sample_at_a_time(name: str, kind: str, by_hand, assert_close) -> None:
    case = CASES[name]
    net = dirty_statistics(case.net())
    x, y = case.inputs(), torch.arange(N) % K
    if name == "batchnorm2d-no-statistics" and kind == "empirical":
        pytest.skip("samples that mix have no losses of their own: see test_fisher_errors")
    problem = Problem(net, loss, predict, "categorical")
    result = estimate(problem, dict(net.named_parameters()), [(x[:3], y[:3]), (x[3:], y[3:])], kind=kind, chunk=2)

    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    scalars = surprises if kind == "exact" else lambda model, batch: [loss(model, batch)]
    assert result.count == N
    assert_close(result.mean(), by_hand(net, singles, scalars))
    assert result.routes == {weight: route_of(weight, case.slow) for weight, _ in net.named_parameters()}


@pytest.mark.parametrize("name", ["conv2d-stride-padding", "conv2d-groups", "conv2d-1x1", "batchnorm2d"])
@pytest.mark.parametrize("kind", ["empirical", "exact"])
def test_channels_last(name: str, kind: str, by_hand, assert_close) -> None:
    net = CASES[name].net().to(memory_format=torch.channels_last)
    x, y = CASES[name].inputs().contiguous(memory_format=torch.channels_last), torch.arange(N) % K
    problem = Problem(net, loss, predict, "categorical")
    result = estimate(problem, dict(net.named_parameters()), [(x, y)], kind=kind)
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    scalars = surprises if kind == "exact" else lambda model, batch: [loss(model, batch)]
    assert_close(result.mean(), by_hand(net, singles, scalars))
    assert set(result.routes.values()) == {"fast"}


@pytest.mark.parametrize("name", ["conv2d-stride-padding", "linear-sequence", "transformer", "lstm", "embedding"])
def test_float32(name: str, by_hand, assert_close) -> None:
    """Rounding must not send a weight to a slower route. (vmap follows an LSTM of float32, not of float64.)"""
    case = CASES[name]
    net = case.net().float()
    x, y = case.inputs(), torch.arange(N) % K
    x = x if case.tokens else x.float()
    result = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [loss(model, batch)]), 1e-5)
    if name != "lstm":
        assert result.routes == {weight: route_of(weight, case.slow) for weight, _ in net.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype: torch.dtype, by_hand, assert_close) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, K)).to(dtype)
    x, y = torch.randn(N, 4, dtype=dtype), torch.arange(N) % K
    result = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    assert {square.dtype for square in result.squares.values()} == {torch.float32}
    assert set(result.routes.values()) == {"fast"}
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    # A half rounds a gradient by its epsilon, and the square by twice that.
    tolerance = 8 * torch.finfo(dtype).eps
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [loss(model, batch)]), tolerance)


def test_a_penalty_in_the_loss_counts(by_hand, assert_close) -> None:
    """The layer is called once, and the loss reads its weight once more."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, K)).double()
    x, y = torch.randn(N, 4, dtype=torch.float64), torch.arange(N) % K

    def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss(model, batch) + 0.5 * net[0].weight.square().sum()

    result = estimate(Problem(net, decayed), dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [decayed(model, batch)]))
    assert result.routes == {"0.weight": "func", "0.bias": "fast", "2.weight": "fast", "2.bias": "fast"}


def test_closures_over_the_model_see_swapped_weights(by_hand, assert_close) -> None:
    net = CASES["bare-parameter"].net()
    x, y = CASES["bare-parameter"].inputs(), torch.arange(N) % K
    closed = Problem(net, lambda _, batch: F.cross_entropy(net(batch[0]), batch[1]))
    result = estimate(closed, dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [loss(model, batch)]))
    assert result.routes["body.scale"] == "func"
