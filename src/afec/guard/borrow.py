"""Borrowing the user's module: θ_e is trained in place, and then everything is put back bit for bit.

A deep copy would be simpler and fails in practice: after Stable-Baselines3's `learn()`, with weight norm or spectral norm,
and wherever somebody's closure holds the module. So weights, buffers, gradients, modes and the state of the user's
optimisers are set aside, and come back in a `finally`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from afec.fisher.shards import local
from afec.gaussian import grown
from afec.guard.checksum import checksum

__all__ = ["borrowed", "load", "snapshot", "trained", "unwrapped_optimizer"]


def trained(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All weights that require grad and all buffers by name, non-persistent buffers included."""
    yield from ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
    yield from model.named_buffers()


def snapshot(model: nn.Module, names: Container[str] | None = None, *, frozen: bool = False) -> dict[str, Tensor]:
    """Copies of what is `trained`: all of it, or what has one of these names; on demand of `frozen` weights, too."""
    tensors = [*model.named_parameters(), *model.named_buffers()] if frozen else trained(model)
    return {name: local(one).clone() for name, one in tensors if names is None or name in names}


@torch.no_grad()
def load(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write a `snapshot` into the model in place. Names that it lacks, and rows that grew since, keep their value."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in values:
            own = local(tensor)
            own.copy_(grown(name, values[name].to(own), own))


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside wrappers that keep it as `.optimizer` (Accelerate, Lightning, …)."""
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, Optimizer):
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer


@contextmanager
def borrowed(
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    known: Mapping[str, Sequence[Tensor]] | None = None,
    written: Container[str] = (),
) -> Iterator[None]:
    """Set aside all that training in place would change; the block starts with no gradients and fresh optimiser states.

    `known` are tensors that nobody writes to, by the names of the weights: one that equals its weight is as good as a copy. A
    frozen weight (the base model under LoRA) is copied if its name is in `written`, or when an optimiser steps it in the block.
    """
    modules = [_ModuleState(module) for module in model.modules()]
    # An optimiser may hold weights beside the model's, a head that only the loss knows.
    family = {id(one): one for optimizer in optimizers for one in _family(optimizer)}.values()
    stepped = [p for one in family for group in one.param_groups for p in group["params"]]
    copies = {id(weight): (known or {}).get(name, ()) for name, weight in model.named_parameters()}
    loaded = {id(weight) for name, weight in model.named_parameters() if name in written}
    every = {id(p): p for p in [*model.parameters(), *stepped]}
    parameters = {key: _ParameterState(p, copies.get(key, ()), key in loaded) for key, p in every.items()}
    states = [_OptimizerState(one) for one in family]

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if id(weight) in parameters and (weight.requires_grad or weight.grad is not None):
                    parameters[id(weight)].keep()

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield
    finally:
        handle.remove()
        everything: list[_SetAside] = [*modules, *parameters.values(), *states]
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

    def __init__(self, parameter: Tensor, known: Sequence[Tensor] = (), written: bool = False) -> None:
        self.parameter, self.grad, self.requires_grad = parameter, parameter.grad, parameter.requires_grad
        self.value: Tensor | None = None
        self.sum = ""
        if self.requires_grad or written:
            self.keep(known)
        else:
            self.sum = checksum(parameter)
        parameter.grad = None

    def keep(self, known: Sequence[Tensor] = ()) -> None:
        """Have a copy of the value from now on; one of `known` will do where it is equal."""
        if self.value is None:
            own = local(self.parameter)
            same = (one for one in known if _same_make(one, own) and torch.equal(one, own))
            self.value = next(same, None)
            if self.value is None:
                self.value = own.clone()

    def put_back(self) -> None:
        self.parameter.requires_grad_(self.requires_grad)
        self.parameter.grad = self.grad
        if self.value is not None:
            with torch.no_grad():
                local(self.parameter).copy_(self.value)
        elif self.sum != (now := checksum(self.parameter)):
            raise RuntimeError(
                f"a frozen weight of shape {tuple(self.parameter.shape)} was changed by the training on borrowed weights, "
                f"and not by an optimiser (its sum and its sum of squares were {self.sum} and are {now}): it was not copied "
                "and cannot be put back. Let it require grad before the block begins"
            )


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


def _same_make(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype is other.dtype and one.device == other.device


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
