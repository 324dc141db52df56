"""The reference that every loop here is held against: plain autograd on loss + penalty, written out.

`same_as_penalty(loop)` learns a first task under a guard, then runs `loop` three times on the second one, from the same
weights: under the guard with the plain loss; without a guard on loss + λ/2 ΣF(θ−θ*)² + λ_e/2 ΣF_e(θ−θ_e)²; and without
either, which must end somewhere else, or the comparison would show nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import afec

STRENGTH, FORGETTING = 30.0, 4.0
KINDS = ("ewc", "ewc+afec")


def net(dtype=torch.float64):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def data(seed, samples=24, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    y = (x @ torch.randn(4, 3, generator=generator, dtype=torch.float64)).argmax(1)
    return x.to(dtype), y


def loader(tensors, batch_size=8, **options):
    return DataLoader(TensorDataset(*tensors), batch_size, **options)


def outcome(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def micro_batches(model, optimizer, source, parts, pull=None, before_step=None, set_to_none=True):
    """One epoch, each batch in so many backwards; `pull` is called after each of them."""
    for x, y in source:
        optimizer.zero_grad(set_to_none=set_to_none)
        for part in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (plain_loss(model, part) / parts).backward()
            if pull:
                pull()
        if before_step:
            before_step()
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def build(kind, **afec_options):
    guard = afec.EWC(STRENGTH)
    if kind == "ewc":
        return guard
    options = {"epochs": 5, "optimizer": lambda params: torch.optim.SGD(params, 0.5), **afec_options}
    return guard + afec.AFEC(FORGETTING, **options)


class Penalty:
    """λ/2 ΣF(θ−θ*)² + λ_e/2 ΣF_e(θ−θ_e)², from what the guard saved; call inside the block."""

    def __init__(self, guard, strength=STRENGTH, forgetting=FORGETTING):
        saved = guard.state_dict()
        found = [(strength, saved["states"].get("ewc")), (forgetting, saved["task_states"].get("afec"))]
        self.terms = [
            (weight, clones(state["mean"]), clones(state["precision"]))
            for weight, state in found
            if state is not None and "mean" in state
        ]

    def __call__(self, model):
        weights = dict(model.named_parameters())
        total = 0.0
        for weight, mean, precision in self.terms:
            for name, f in precision.items():
                now = weights[name]
                total = total + weight / 2 * (f.to(now) * (now - mean[name].to(now)) ** 2).sum()
        return total

    def add_to_grads(self, model):
        """.grad += the penalty's gradient, wherever there is a .grad."""
        weights = [weight for weight in model.parameters() if weight.grad is not None]
        for weight, pull in zip(weights, torch.autograd.grad(self(model), weights, allow_unused=True), strict=True):
            if pull is not None:
                weight.grad += pull


@dataclass
class Run:
    """What a loop gets."""

    model: nn.Module
    optimizer: Any
    loss: Callable[[nn.Module, Any], torch.Tensor]
    task: Any = None
    batches: list = field(default_factory=list)

    def pull(self):
        if self.task is not None:
            self.task.pull()


def clones(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def values(model):
    return clones(dict(model.named_parameters()))


def apart(one, other):
    """The largest difference between the weights of two models."""
    one, other = dict(one.named_parameters()), dict(other.named_parameters())
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def equal(one, other):
    """Bit for bit, over weights and buffers."""
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def plain_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain_loop(run, epochs=3):
    for _ in range(epochs):
        for batch in run.batches:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            run.optimizer.step()


def exact_fisher(model, x):
    """Σ_c p(c|x)(∂ log p(c|x)/∂θ)², the mean over the samples, by plain autograd."""
    weights = dict(model.named_parameters())
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for sample in x:
        for log in model(sample[None]).log_softmax(1)[0]:
            grads = torch.autograd.grad(log, list(weights.values()), retain_graph=True)
            for name, grad in zip(weights, grads, strict=True):
                total[name] += log.exp().detach() * grad**2 / len(x)
    return total


def learned_one_task(kind, model=None, dtype=torch.float64, **afec_options):
    """A model and the guard that has seen it learn the first task."""
    guard = build(kind, **afec_options)
    if model is None and not afec_options:
        model, state = copy.deepcopy(_learned(kind, dtype))  # the same every time
        guard.load_state_dict(state)
        return model, guard
    return _learn(net(dtype) if model is None else model, guard, dtype), guard


@cache
def _learned(kind, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        guard = build(kind)
        return _learn(net(dtype), guard, dtype), guard.state_dict()


def _learn(model, guard, dtype):
    first, optimizer = data(1, dtype=dtype), torch.optim.SGD(model.parameters(), 0.5)
    with guard.learning(model, optimizer, first, nn.CrossEntropyLoss()):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(first))), epochs=8)
    model.zero_grad()  # a deep copy has no gradients either
    return model


def same_as_penalty(
    loop, make=sgd, kind="ewc+afec", *, model=None, dtype=torch.float64, loss=plain_loss, reference=None, tol=1e-9
):
    """Hold `loop` under the guard against `reference` (default: the same loop) on loss + penalty without it.

    `reference(run, penalty)` gets the plain loss. Returns the guarded model and the penalty.
    """
    model, guard = learned_one_task(kind, model, dtype)
    twin, free = copy.deepcopy(model), copy.deepcopy(model)
    second = data(2, dtype=dtype)
    batches = list(loader(second))
    optimizer = make(model)
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()) as task:
        penalty = Penalty(guard)
        torch.manual_seed(5)
        loop(Run(model, optimizer, loss, task, batches))
        with torch.no_grad():
            torch.testing.assert_close(task.penalty(), penalty(model), rtol=1e-6, atol=1e-8)
    torch.manual_seed(5)
    if reference is None:
        loop(Run(twin, make(twin), lambda model, batch: loss(model, batch) + penalty(model), None, batches))
    else:
        reference(Run(twin, make(twin), loss, None, batches), penalty)
    torch.manual_seed(5)
    loop(Run(free, make(free), loss, None, batches))
    assert len(penalty.terms) == (1 if kind == "ewc" else 2)
    assert apart(twin, free) > 1000 * tol, "the penalty changes nothing here: the test would show nothing"
    assert apart(model, twin) < tol
    return model, penalty
