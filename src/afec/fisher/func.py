"""Route two: `torch.func`, a gradient per sample by vmap. Any module goes that vmap can follow."""

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
    """The objective as a module around the model, so that `functional_call` swaps weights in the model itself.

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
    """The sum over samples of squared gradients, and the objectives' sum; raises whatever vmap raises."""
    bound = _Bound(objective)
    own_names = {id(parameter): name for name, parameter in bound.named_parameters()}
    aliases = {name: own_names[id(weight)] for name, weight in weights.items()}
    parameters = {aliases[name]: weight.detach() for name, weight in weights.items()}
    # Swapped too, for themselves: what a model assigns to a buffer in the meantime is gone with the transform.
    buffers = dict(bound.named_buffers())

    def of_one(rows: tuple[Tensor, ...], noise: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        batch = samples.rebuilt(tuple(row.unsqueeze(0) for row in rows))
        arguments = (batch, None if noise is None else noise.unsqueeze(0))
        values, pullback, *_ = vjp(lambda new: functional_call(bound, {**buffers, **new}, arguments), parameters)
        # One objective after the other: J sets of per-sample gradients at once would be too many.
        total: dict[str, Tensor] = {}
        for direction in torch.eye(len(values), dtype=values.dtype, device=values.device):
            for name, grad in pullback(direction)[0].items():
                square = grad.to(torch.promote_types(grad.dtype, torch.float32))
                square = square.square() if objective.power == 2 else square.abs()
                total[name] = total[name] + square if name in total else square
        return total, values.sum()

    result: dict[str, Tensor] = {}
    value = torch.zeros(())
    step = max(1, BLOCK // max(1, sum(weight.numel() for weight in weights.values())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an operation without a batching rule is slow
        for block in samples.chunks(step):
            in_dims = (0, None if block.noise is None else 0)
            per_sample, values = vmap(of_one, in_dims)(block.rows, block.noise)
            value = value.to(values.device) + values.detach().sum()
            for name, alias in aliases.items():
                summed = per_sample[alias].detach().sum(0)
                result[name] = result[name].add_(summed) if name in result else summed
    return result, value
