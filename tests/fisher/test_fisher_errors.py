"""Every refusal says what was given, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate

N, K = 6, 3


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, K)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 4, generator=generator), torch.arange(N) % K


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


def refused(error: type[Exception], *parts: str) -> object:
    """The message has all `parts`, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, parts)))


def test_unknown_kind(model: nn.Linear) -> None:
    with refused(ValueError, "'diagonal'", "'exact', 'sample', 'empirical', 'batched'"):
        estimate(Problem(model, loss), {"w": model.weight}, [batch()], kind="diagonal")


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical", "batched"])
def test_no_batch(kind: str, model: nn.Linear) -> None:
    problem = Problem(model, loss, predict, "categorical")
    with refused(ValueError, "no batch"):
        estimate(problem, {"w": model.weight}, [], kind=kind)
    if kind != "batched":
        with refused(ValueError, "no batch holds a sample"):
            estimate(problem, {"w": model.weight}, [(torch.zeros(0, 4), torch.zeros(0).long())], kind=kind)


@pytest.mark.parametrize("kind", ["exact", "sample"])
def test_no_likelihood(kind: str, model: nn.Linear) -> None:
    weights = {"w": model.weight}
    with refused(ValueError, kind, "needs", "predict and likelihood", 'likelihood="categorical"', '"gaussian"'):
        estimate(Problem(model, loss), weights, [batch()], kind=kind)
    with refused(ValueError, "needs the problem's likelihood."):
        estimate(Problem(model, loss, predict), weights, [batch()], kind=kind)
    with refused(ValueError, "needs the problem's predict."):
        estimate(Problem(model, loss, None, "gaussian"), weights, [batch()], kind=kind)
    with refused(ValueError, '"categorical" or "gaussian"', "'poisson'"):
        estimate(Problem(model, loss, predict, "poisson"), weights, [batch()], kind=kind)


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical"])
def test_per_sample_kinds_have_no_train_mode(kind: str, model: nn.Linear) -> None:
    with refused(ValueError, "train=True", '"batched"', kind):
        estimate(Problem(model, loss, predict, "categorical"), {}, [batch()], kind=kind, train=True)


@pytest.mark.parametrize("kind", ["empirical", "batched"])
def test_loss_is_no_scalar_tensor(kind: str, model: nn.Linear) -> None:
    weights = {"w": model.weight}

    def unreduced(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with refused(ValueError, "scalar tensor", f"({N},)", 'reduction="mean"'):
        estimate(Problem(model, unreduced), weights, [batch()], kind=kind)
    with refused(TypeError, "scalar tensor", "float"):
        estimate(Problem(model, lambda m, b: loss(m, b).item()), weights, [batch()], kind=kind)


def test_a_weight_of_another_model(model: nn.Linear) -> None:
    other = nn.Linear(4, K)
    with refused(ValueError, "not in the model", "'theirs'", "unwrapped"):
        estimate(Problem(model, loss), {"ours": model.weight, "theirs": other.weight}, [batch()], kind="empirical")


def test_one_weight_under_two_names(model: nn.Linear) -> None:
    with refused(ValueError, "two names"):
        estimate(Problem(model, loss), {"a": model.weight, "b": model.weight}, [batch()], kind="empirical")


@pytest.mark.parametrize("option", ["chunk", "batch_size"])
def test_sizes(option: str, model: nn.Linear) -> None:
    with refused(ValueError, option, "at least 1", "0"):
        estimate(Problem(model, loss), {"w": model.weight}, [batch()], kind="batched", **{option: 0})


def weighted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0, 1.0]))


def summed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def normalised_advantages(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """PPO's habit; one sample alone has advantage zero."""
    advantage = batch[0][:, 0] - batch[0][:, 0].mean()
    log_p = model(batch[0]).log_softmax(1).gather(1, batch[1][:, None])[:, 0]
    return -(log_p * advantage).mean()


def token_mean(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A mean over all entries that are not masked, of which samples have different numbers."""
    mask = batch[0] > 0
    return (model.weight[0] * batch[0])[mask].sum() / mask.sum().clamp_min(1)


@pytest.mark.parametrize("wrong", [weighted, summed, normalised_advantages, token_mean])
def test_a_loss_that_is_no_mean(wrong: Callable[..., Tensor], model: nn.Linear) -> None:
    x, y = batch()
    together = wrong(model, (x, y)).item()
    alone = sum(wrong(model, (x[i : i + 1], y[i : i + 1])).item() for i in range(N)) / N
    numbers = (f"{together:.4g}"[:5], f"{alone:.4g}"[:5])
    with refused(ValueError, "not the mean", *numbers, 'fisher="batched"', "split=", 'reduction="mean"'):
        estimate(Problem(model, wrong), {"w": model.weight}, [(x, y)], kind="empirical")
    estimate(Problem(model, wrong), {"w": model.weight}, [(x, y)], kind="batched")


def test_layers_that_mix_samples(model: nn.Linear) -> None:
    net = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, K))
    signal = (torch.randn(N, 4, 5), torch.arange(N) % K)

    def pooled(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model[1](model[0](batch[0]).square().mean(2)), batch[1])

    with refused(ValueError, "not the mean", "mix samples"):
        estimate(Problem(net, pooled), dict(net.named_parameters()), [signal], kind="empirical")


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e6])
def test_a_mean_passes_at_any_scale(scale: float, model: nn.Linear) -> None:
    scaled = Problem(model, lambda m, b: scale * loss(m, b))
    estimate(scaled, {"w": model.weight}, [batch()], kind="empirical")


def test_outputs_without_a_likelihood(model: nn.Linear) -> None:
    weights = {"w": model.weight}

    def run(predict: Callable[..., object], likelihood: str, kind: str) -> None:
        estimate(Problem(model, loss, predict, likelihood), weights, [batch()], kind=kind)

    with refused(ValueError, "(batch, classes, ...)", "(1,)", '"gaussian"'):
        run(lambda m, b: m(b[0])[:, 0], "categorical", "sample")
    with refused(ValueError, "one output per sample", "()"):
        run(lambda m, b: m(b[0]).sum(), "gaussian", "exact")
    with refused(TypeError, "must return a tensor", "tuple"):
        run(lambda m, b: (m(b[0]),), "categorical", "exact")


def test_batches_without_a_size(model: nn.Linear) -> None:
    problem = Problem(model, lambda m, b: m.weight.square().sum())
    with refused(ValueError, "how many samples", "str", "split=", "batch_size=None"):
        estimate(problem, {"w": model.weight}, ["text"], kind="empirical")
    with refused(ValueError, "how many samples"):
        estimate(problem, {"w": model.weight}, ["text"], kind="batched")
    assert estimate(problem, {"w": model.weight}, ["text"], kind="batched", batch_size=None).count == 1


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical", "batched"])
def test_a_weight_that_is_not_finite(kind: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, K))
    with torch.no_grad():
        net[0].weight[0, 0] = torch.nan
    problem = Problem(net, loss, predict, "categorical")
    with refused(FloatingPointError, "'1.weight'", "weights '0.weight'", "diverged"):
        estimate(problem, dict(net.named_parameters()), [batch()], kind=kind)


@pytest.mark.parametrize("where", [0, N - 1])
@pytest.mark.parametrize("kind", ["exact", "sample", "empirical", "batched"])
def test_a_loss_that_is_not_finite(kind: str, where: int, model: nn.Linear) -> None:
    x, y = batch()
    x[where] = torch.inf
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    with refused(FloatingPointError, "'w'", "weights are finite", "loss is NaN or infinite"):
        estimate(Problem(model, loss, predict, "categorical"), {"w": model.weight}, batches, kind=kind)


def test_a_gradient_that_overflows(model: nn.Linear) -> None:
    problem = Problem(model, lambda m, b: (0 * m(b[0])).abs().sqrt().mean((0, 1)))
    with refused(FloatingPointError, "'w'", "loss are finite", "root"):
        estimate(problem, {"w": model.weight}, [batch()], kind="empirical")
