"""Route three, and the definition that the others are held against: one backward pass per sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from afec.fisher.batches import Samples
from afec.fisher.objectives import Objective
from afec.fisher.problem import Power
from afec.fisher.shards import local

__all__ = ["accumulate", "add_squares", "add_squares_of_shards"]


def add_squares(
    scalars: Tensor, weights: Mapping[str, nn.Parameter], into: Mapping[str, Tensor], power: Power = 2
) -> None:
    """Add the squared (or absolute) gradients of each of `scalars` to `into`; a weight without one adds nothing."""
    if not scalars.requires_grad or not weights:
        return
    last = len(scalars) - 1
    for j, scalar in enumerate(scalars):
        grads = torch.autograd.grad(scalar, list(weights.values()), retain_graph=j < last, allow_unused=True)
        for name, grad in zip(weights, grads, strict=True):
            if grad is not None:
                grad = grad.to_dense() if grad.is_sparse else grad
                grad = grad.to(into[name].dtype)  # before squaring: a half's square underflows
                into[name].addcmul_(grad, grad if power == 2 else grad.sign())


def add_squares_of_shards(
    loss: Tensor, weights: Mapping[str, nn.Parameter], into: Mapping[str, Tensor], power: Power = 2
) -> None:
    """The same for weights that are spread over processes (FSDP2), each of which has its own part of the batch.

    Their gradients, means over all processes, arrive in `.grad` and nowhere else, so they are taken from there; what was in
    it before is put back.
    """
    before = [(weight, weight.grad) for weight in weights.values()]
    try:
        for weight, _ in before:
            weight.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        for name, weight in weights.items():
            if weight.grad is not None:
                grad = local(weight.grad).to(into[name].dtype)
                into[name].addcmul_(grad, grad if power == 2 else grad.sign())
    finally:
        for weight, kept in before:
            weight.grad = kept


def accumulate(
    objective: Objective, weights: Mapping[str, nn.Parameter], samples: Samples, into: Mapping[str, Tensor]
) -> Tensor:
    """Add every sample's squared gradients to `into`; return the objectives' sum."""
    value = torch.zeros(())
    for sample in samples.chunks(1):
        scalars = objective(sample)
        value = value.to(scalars.device) + scalars.detach().sum()
        add_squares(scalars, weights, into, objective.power)
    return value
