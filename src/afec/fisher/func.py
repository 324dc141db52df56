"""Route two: `torch.func`, one gradient per sample by vmap. Any module goes that vmap can follow."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from afec.fisher.batches import Samples
from afec.fisher.objectives import Objective

__all__ = ["squares"]

BLOCK = 2**24
"""Numbers in one set of per-sample gradients (64 MB); a few such sets are alive at a time."""


class _Bound(nn.Module):
    """The objective as a module around the model, so that `functional_call` swaps weights inside the model
    itself.

    Then a loss function that closes over the model sees the swapped weights too.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.model = objective.problem.model
        self.objective = objective

    def forward(self, batch: Any, noise: Tensor | None) -> Tensor:
        return self.objective.of(batch, 1, noise)


def squares(
    objective: Objective, weights: Mapping[str, nn.Parameter], samples: Samples
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum over samples of the squared gradients, and the objectives' sum; raises whatever vmap raises."""
    bound = _Bound(objective)
    own_names = {id(parameter): name for name, parameter in bound.named_parameters()}
    aliases = {name: own_names[id(weight)] for name, weight in weights.items()}
    parameters = {aliases[name]: weight.detach() for name, weight in weights.items()}

    def of_one(rows: tuple[Tensor, ...], noise: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        batch = samples.rebuilt(tuple(row.unsqueeze(0) for row in rows)) one_noise = None if noise is None
        else noise.unsqueeze(0) values, pullback, *_ = vjp(lambda swapped: functional_call(bound, swapped,
        (batch, one_noise)), parameters) basis = torch.eye(len(values), dtype=values.dtype,
        device=values.device) # One objective after the other: J sets of per-sample gradients at once would
        be too many. total = {name: _widened(grad).square() for name, grad in pullback(basis[0])[0].items()}
        for direction in basis[1:]: total = {name: total[name] + _widened(grad).square() for name, grad in
        pullback(direction)[0].items()} return total, values.sum()

    step = max(1, BLOCK // max(1, sum(weight.numel() for weight in weights.values())))
    result: dict[str, Tensor] = {}
    value = torch.zeros(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an operation without a batching rule is slow
        for block in samples.chunks(step):
            per_sample, values = vmap(of_one)(block.rows, block.noise)
            value = value.to(values.device) + values.sum()
            for name, alias in aliases.items():
                summed = per_sample[alias].detach().sum(0)
                result[name] = summed if name not in result else result[name].add_(summed)
    return result, value.detach()


def _widened(grad: Tensor) -> Tensor:
    return grad.to(torch.promote_types(grad.dtype, torch.float32))
