"""Borrowing the user's module: θ_e is trained in place, and then everything is put back bit for bit.

A deep copy would be simpler and fails in practice: after Stable-Baselines3's `learn()`, with weight norm or spectral norm,
and wherever somebody's closure holds the module. So weights, buffers, gradients, modes and the state of the user's
optimisers are set aside, and come back in a `finally`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from afec.gaussian import grown

__all__ = ["borrowed", "load", "snapshot", "unwrapped_optimizer"]


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights and buffers by name, non-persistent buffers included."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in tensors}


@torch.no_grad()
def load(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write a `snapshot` into the model in place. Names that it lacks, and rows that grew since, keep their value."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in values:
            tensor.copy_(grown(name, values[name].to(tensor), tensor))


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside wrappers that keep it as `.optimizer` (Accelerate, Lightning, …)."""
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, Optimizer):
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer


@contextmanager
def borrowed(model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> Iterator[None]:
    """Set aside all that training in place would change; the block starts with no gradients and fresh optimiser states."""
    modules = [_ModuleState(module) for module in model.modules()]
    # An optimiser may hold weights beside the model's, a head that only the loss knows.
    family = {id(one): one for optimizer in optimizers for one in _family(optimizer)}.values()
    stepped = [p for one in family for group in one.param_groups for p in group["params"]]
    parameters = [_ParameterState(p) for p in {id(p): p for p in [*model.parameters(), *stepped]}.values()]
    states = [_OptimizerState(one) for one in family]
    try:
        yield
    finally:
        everything: list[_SetAside] = [*modules, *parameters, *states]
        for state in everything:
            state.put_back()


class _SetAside(Protocol):
    def put_back(self) -> None: ...


class _ModuleState:
    """Mode, buffers, tensor attributes and the parameters' places in one module, without its children."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.training = module, module.training
        self.parameters, self.buffers = dict(module._parameters), dict(module._buffers)
        self.values = [(buffer, buffer.detach().clone()) for buffer in self.buffers.values() if buffer is not None]
        # Old-style weight norm and policies of RL libraries keep computed tensors as plain attributes.
        self.attributes = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}

    def put_back(self) -> None:
        self.module.training = self.training
        self.module._parameters.clear()
        self.module._parameters.update(self.parameters)
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)
        vars(self.module).update(self.attributes)
        with torch.no_grad():
            for buffer, value in self.values:
                buffer.copy_(value)


class _ParameterState:
    """Value, gradient and `requires_grad` of one parameter; the gradient is taken away for the block."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter, self.grad, self.requires_grad = parameter, parameter.grad, parameter.requires_grad
        self.value = parameter.detach().clone()
        parameter.grad = None

    def put_back(self) -> None:
        self.parameter.requires_grad_(self.requires_grad)
        self.parameter.grad = self.grad
        with torch.no_grad():
            self.parameter.copy_(self.value)


class _OptimizerState:
    """State and settings of one optimiser; the block gets an empty state, as a new optimiser has."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.state, self.groups = optimizer, optimizer.state, list(optimizer.param_groups)
        self.settings = [{key: _copied(value) for key, value in group.items()} for group in self.groups]
        optimizer.state = defaultdict(dict)

    def put_back(self) -> None:
        self.optimizer.state = self.state
        self.optimizer.param_groups[:] = self.groups
        for group, settings in zip(self.groups, self.settings, strict=True):
            group.clear()
            group.update(settings)


def _family(optimizer: Optimizer) -> Iterator[Optimizer]:
    """An optimiser and those inside it, as attributes; a wrapper that only hands on has no state of its own."""
    if "state" in vars(optimizer):
        yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, Optimizer):
            yield from _family(value)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return list(value) if isinstance(value, list) else value
