"""What decides about a route: data that branch, gradients that vanish, weights that are frozen or idle."""

from __future__ import annotations

import pytest
import torch
from fisher_cases import CASES, K, N, loss, predict
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate


def test_a_weight_first_used_later(by_hand, assert_close) -> None:
    """On the first samples one head is idle; later its weights are read behind its back, which only the loop can serve."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, K), nn.Linear(4, K)

        def forward(self, x: Tensor, task: int) -> Tensor:
            if task == 0:
                return self.first(x)
            return self.second(x.sin()) + F.linear(x, self.second.weight, self.second.bias)

    torch.manual_seed(0)
    net = Heads().double()
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.arange(4) % K

    def task_loss(model: nn.Module, batch: tuple[Tensor, Tensor, int]) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[2]), batch[1])

    batches = [(x[:2], y[:2], 0), (x[2:], y[2:], 1)]
    result = estimate(Problem(net, task_loss), dict(net.named_parameters()), batches, kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1], i // 2) for i in range(4)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [task_loss(model, batch)]))
    routes = {"first.weight": "fast", "first.bias": "fast", "second.weight": "loop", "second.bias": "loop"}
    assert result.routes == routes


@pytest.mark.parametrize("name", ["attention", "reused-weight", "called-twice", "called-for-nothing", "tied-modules"])
def test_zero_gradients_prove_nothing(name: str, by_hand, assert_close) -> None:
    """A hinge is flat on the first samples: zero equals zero there, and a lying route must still be found out."""
    net, x = CASES[name].net(), CASES[name].inputs()
    y = torch.full((N,), 1e3, dtype=torch.float64)
    y[:2] = -1e3

    def hinge(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] + batch[1]).clamp_min(0).mean()

    batches = [(x[:2], y[:2]), (x[2:], y[2:])]
    result = estimate(Problem(net, hinge), dict(net.named_parameters()), batches, kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    expected = by_hand(net, singles, lambda model, batch: [hinge(model, batch)])
    assert all(
        square.max() > 0
        for weight, square in expected.items()
        if weight.startswith("body") and "in_proj_bias" not in weight
    )
    assert_close(result.mean(), expected)


@pytest.mark.parametrize("kind", ["exact", "sample"])
def test_a_saturated_net_stays_on_the_fast_route(kind: str) -> None:
    """Its likelihood's gradients are zero or rounding noise, which must not decide about routes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, K))
    with torch.no_grad():
        net[2].weight.mul_(60)
    x = torch.randn(32, 4)
    p = net(x).softmax(1).max(1).values.detach()
    x = x[p.argsort(descending=True)]
    assert p.topk(2).values.min() > 1 - 1e-6, "the first two samples are meant to be saturated"
    problem = Problem(net, loss, predict, "categorical")
    result = estimate(problem, dict(net.named_parameters()), [(x, torch.zeros(32).long())], kind=kind)
    assert set(result.routes.values()) == {"fast"}


def test_the_worst_fitted_samples_are_tried(by_hand, assert_close) -> None:
    """The first two samples of the batch have no gradient, and only the numbers can tell that a route is wrong."""
    net, x = CASES["gradient-hook"].net(), CASES["gradient-hook"].inputs()
    y = torch.tensor([-1e3, -1e3, 1e3, 1e3, 1e3], dtype=torch.float64)

    def hinge(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] + batch[1]).clamp_min(0).mean()

    result = estimate(Problem(net, hinge), dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [hinge(model, batch)]))
    assert result.routes["body.weight"] == "loop"


@pytest.mark.parametrize("kind", ["exact", "sample"])
def test_certain_samples_prove_nothing_either(kind: str, assert_close) -> None:
    """Where the model is certain its own labels have no gradient: a random projection of the output has one."""
    net, x = CASES["gradient-hook"].net(), CASES["gradient-hook"].inputs()
    certainty = torch.tensor([1e5, 1e5, 0, 0, 0], dtype=torch.float64)

    def shifted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]) + batch[1][:, None] * torch.tensor([1.0, 0, 0], dtype=torch.float64)

    def split(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(batch[0].split(1), batch[1].split(1), strict=True))

    weights, data = dict(net.named_parameters()), [(x, certainty)]
    result = estimate(Problem(net, loss, shifted, "categorical"), weights, data, kind=kind)
    alone = estimate(Problem(net, loss, shifted, "categorical", split), weights, data, kind=kind)
    assert_close(result.mean(), alone.mean())
    assert result.routes["body.weight"] == "loop"


@pytest.mark.parametrize("kind", ["empirical", "batched"])
def test_small_gradients_of_halves_do_not_underflow(kind: str) -> None:
    """10⁻⁴ is a float16, its square is not."""
    net = nn.Bilinear(1, 1, 1, bias=False).half()  # no rule: goes sample by sample, or by torch.func
    x = torch.ones(2, 1, dtype=torch.float16)
    result = estimate(
        Problem(net, lambda m, b: (1e-4 * m(b, b)).mean()), {"w": net.weight}, [x], kind=kind, batch_size=2
    )
    assert result.mean()["w"].item() == pytest.approx(1e-8, rel=1e-2)
    alone = Problem(net, lambda m, b: (1e-4 * m(b, b)).mean(), split=lambda b: b.split(1))
    assert estimate(alone, {"w": net.weight}, [x], kind="empirical").mean()["w"].item() == pytest.approx(1e-8, rel=1e-2)


def test_unused_and_partial_weights() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"used": nn.Linear(4, K), "idle": nn.Linear(4, K)})
    x, y = torch.randn(N, 4), torch.arange(N) % K
    problem = Problem(net, lambda model, batch: F.cross_entropy(model["used"](batch[0]), batch[1]))
    everything = estimate(problem, dict(net.named_parameters()), [(x, y)], kind="empirical")
    assert everything.squares["idle.weight"].count_nonzero() == 0
    assert set(everything.routes.values()) == {"fast"}
    part = estimate(problem, {"mine": net["used"].weight}, [(x, y)], kind="empirical")
    assert list(part.squares) == ["mine"]
    assert torch.equal(part.squares["mine"], everything.squares["used.weight"])


def test_frozen_weights_are_computed_and_stay_frozen() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, K)
    x, y = torch.randn(N, 4), torch.arange(N) % K
    free = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    net.requires_grad_(False)
    frozen = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    assert torch.equal(frozen.squares["weight"], free.squares["weight"])
    assert not net.weight.requires_grad
