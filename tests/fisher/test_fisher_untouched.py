"""A pass changes nothing but what it returns: not in any kind, not in any route, not when it fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import KINDS, Problem, choose_kind, estimate

K = 3


class Net(nn.Module):
    """All that a careless pass would change: statistics, dropout, buffers, frozen parts, one sub-mode apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.mix = nn.Bilinear(4, 4, 4)  # no rule: goes by torch.func
        self.head = nn.Linear(4, K)
        self.register_buffer("written", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("absent", None)
        self.calls_to_fail = -1
        self.writes = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls_to_fail -= 1
        if self.calls_to_fail == 0:
            raise RuntimeError("boom")
        with torch.no_grad():
            if self.writes:  # which vmap refuses
                self.written += 1
            self.replaced = self.replaced + x.detach().mean()
        h = self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return self.head(torch.tanh(self.mix(h, h)))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


def snapshot(model: nn.Module) -> dict[str, Any]:
    hooks = [
        len(getattr(module, kind))
        for module in model.modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    ]
    return {
        "weights": [(id(p), p.detach().clone(), p._version, p.requires_grad) for p in model.parameters()],
        "grads": [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        "buffers": [(name, id(buffer), buffer.clone()) for name, buffer in model.named_buffers()],
        "modes": [module.training for module in model.modules()],
        "hooks": hooks,
        "children": [name for name, _ in model.named_modules()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),
        "random": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    model.train()
    model.norm.eval()  # a user's own choice
    model.mix.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.conv.register_forward_hook(lambda module, args, output: None)
    return model


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(10, 2, 5, 5, generator=generator)
    return [(x[:6], torch.arange(6) % K), (x[6:], torch.arange(4) % K)]


def run(model: Net, kind: str, data: Any = None, **options: Any) -> Any:
    problem = Problem(model, loss, predict, "categorical")
    return estimate(problem, dict(model.named_parameters()), data or batches(), kind=kind, chunk=4, **options)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes(kind: str, writes: bool, net: Net) -> None:
    net.writes = writes
    before = snapshot(net)
    result = run(net, kind)
    assert same(snapshot(net), before)
    if kind != "batched":
        assert set(result.routes.values()) == {"fast", "loop" if writes else "func"}
    assert all(not square.requires_grad and square.grad_fn is None for square in result.squares.values())


def test_nothing_changes_in_train_mode(net: Net) -> None:
    """Batch statistics are updated and dropout draws; both are put back."""
    net.writes = True
    before = snapshot(net)
    first = run(net, "batched", train=True)
    assert same(snapshot(net), before)
    evaluated = run(net, "batched")
    assert not torch.equal(first.squares["conv.weight"], evaluated.squares["conv.weight"]), "dropout was on"
    assert torch.equal(first.squares["conv.weight"], run(net, "batched", train=True).squares["conv.weight"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails_at", [1, 3, 20, 30])
def test_nothing_changes_when_the_model_fails(kind: str, fails_at: int, net: Net) -> None:
    data = batches() * 20
    net.writes = True
    before = snapshot(net)
    net.calls_to_fail = fails_at
    with pytest.raises(RuntimeError, match="boom"):
        run(net, kind, data)
    assert same(snapshot(net), before)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_when_the_data_fail(kind: str, net: Net) -> None:
    def broken() -> Any:
        yield batches()[0]
        random.random(), np.random.rand(), torch.rand(1)
        raise OSError("disk gone")

    before = snapshot(net)
    with pytest.raises(OSError, match="disk gone"):
        run(net, kind, broken())
    assert same(snapshot(net), before)


def test_choosing_a_kind_changes_nothing(net: Net) -> None:
    before = snapshot(net)
    assert choose_kind(Problem(net, loss, predict, "categorical"), batches()[0]) == "exact"
    assert same(snapshot(net), before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_switched_on(kind: str, context: Callable[[], Any], net: Net) -> None:
    expected, data = run(net, kind), batches()
    with context():
        result = run(net, kind, data)
        assert not torch.is_grad_enabled()
    for name, square in expected.squares.items():
        assert torch.equal(square, result.squares[name])
    assert expected.squares["conv.weight"].max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_eval_mode_does_not_draw(kind: str, net: Net) -> None:
    """Dropout is off and statistics are fixed, so only the draws of `sample` depend on the seed."""
    first, other = run(net, kind, seed=1), run(net, kind, seed=2)
    assert torch.equal(first.squares["head.weight"], other.squares["head.weight"]) == (kind != "sample")


def test_a_graph_of_the_users_stays_usable(net: Net) -> None:
    """A buffer that was not changed is not written either, so a graph that saved it can still go backward."""
    value = loss(net, batches()[0])
    run(net, "empirical")
    value.backward()


def test_an_lstm_still_learns_after_torch_func_was_tried() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 2, batch_first=True)
    x = torch.randn(4, 5, 3)
    problem = Problem(model, lambda m, b: m(b)[0].square().mean((1, 2)).mean())
    before = model(x)[0]
    estimate(problem, dict(model.named_parameters()), [x], kind="empirical")
    assert torch.equal(model(x)[0], before)
    model(x)[0].sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not torch.equal(model(x)[0], before), "the module reads its own parameters"
