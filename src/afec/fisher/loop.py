"""Route three, and the definition that the others are held against: one backward pass per sample."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from afec.fisher.batches import Samples
from afec.fisher.objectives import Objective
from afec.fisher.problem import Power

__all__ = ["accumulate", "add_squares"]


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
