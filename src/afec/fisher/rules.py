"""Squared per-sample gradients of one layer, from what went into it and the gradients of what came out.

A rule is held against one backward pass per sample before it is used (see `plan`), so it need not know where
a layer's output goes; it says with `applies` which calls it can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher.products import add_convolution, add_sequence

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """How to read one type of layer."""

    applies: Callable[[Any, Tensor], bool]
    """`applies(module, inputs)`: can this call be read? The first dimension of `inputs` is known to be the batch."""

    add: Callable[[Any, Tensor, list[Tensor], Mapping[str, Tensor]], None] """`add(module, inputs, grads,
    into)`: add Σ_b Σ_j (per-sample gradient)² to into["weight"] and into["bias"].

    `grads` holds the gradient of each objective j at the output; `into` only what is asked for.
    """


def _add_linear(module: nn.Linear, inputs: Tensor, grads: list[Tensor], into: Mapping[str, Tensor]) -> None:
    if inputs.dim() > 2:
        if "bias" in into:
            for grad in grads:
                into["bias"] += grad.flatten(1, -2).sum(1).square_().sum(0)
        if "weight" in into:
            add_sequence(inputs, grads, into["weight"])
        return
    # One position per sample: the gradient is an outer product, and its square the product of the squares.
    squares = torch.stack([grad.square() for grad in grads]).sum(0)
    if "bias" in into:
        into["bias"] += squares.sum(0)
    if "weight" in into:
        into["weight"].addmm_(squares.T, inputs.square())


def _add_affine(normal: Tensor, grads: list[Tensor], positions: tuple[int, ...], into: Mapping[str, Tensor])
-> None:
    """Squares of `normal * weight + bias`, both shared by all `positions` of a sample."""
    for grad in grads:
        if "weight" in into:
            product = grad * normal
            into["weight"] += (product.sum(positions) if positions else product).square_().sum(0)
        if "bias" in into:
            into["bias"] += (grad.sum(positions) if positions else grad).square().sum(0)


def _add_batch_norm(module: nn.BatchNorm1d, inputs: Tensor, grads: list[Tensor], into: Mapping[str, Tensor])
-> None: normal = F.batch_norm(inputs, module.running_mean, module.running_var, eps=module.eps)
_add_affine(normal, grads, tuple(range(2, inputs.dim())), into)


def _add_group_norm(module: nn.GroupNorm, inputs: Tensor, grads: list[Tensor], into: Mapping[str, Tensor]) ->
None: normal = F.group_norm(inputs, module.num_groups, eps=module.eps) _add_affine(normal, grads,
tuple(range(2, inputs.dim())), into)


def _add_layer_norm(module: nn.LayerNorm, inputs: Tensor, grads: list[Tensor], into: Mapping[str, Tensor]) ->
None: normal = F.layer_norm(inputs, module.normalized_shape, eps=module.eps) _add_affine(normal, grads,
tuple(range(1, inputs.dim() - len(module.normalized_shape))), into)


def _add_embedding(module: nn.Embedding, inputs: Tensor, grads: list[Tensor], into: Mapping[str, Tensor]) ->
None: # A row's gradient in a sample is a sum over the places where the sample names it: one sum per (sample,
row) pair. sample = torch.arange(len(inputs), device=inputs.device).repeat_interleave(inputs[0].numel())
pairs, place = torch.unique(sample * module.num_embeddings + inputs.flatten(), return_inverse=True) rows =
pairs % module.num_embeddings used = slice(None) if module.padding_idx is None else rows !=
module.padding_idx for grad in grads: sums = grad.new_zeros(len(pairs), module.embedding_dim)
sums.index_add_(0, place, grad.reshape(-1, module.embedding_dim)) into["weight"].index_add_(0, rows[used],
sums[used].square_())


def _has_fixed_statistics(module: nn.BatchNorm1d, inputs: Tensor) -> bool:
    return not module.training and module.running_mean is not None and inputs.dim() >= 2


_BATCH_NORM = Rule(_has_fixed_statistics, _add_batch_norm)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(lambda module, inputs: inputs.dim() >= 2, _add_linear),
    nn.Conv1d: Rule(lambda module, inputs: inputs.dim() == 3, add_convolution),
    nn.Conv2d: Rule(lambda module, inputs: inputs.dim() == 4, add_convolution),
    nn.Conv3d: Rule(lambda module, inputs: inputs.dim() == 5, add_convolution),
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.GroupNorm: Rule(lambda module, inputs: inputs.dim() >= 2, _add_group_norm),
    nn.LayerNorm: Rule(lambda module, inputs: inputs.dim() > len(module.normalized_shape), _add_layer_norm),
    nn.Embedding: Rule(lambda module, inputs: not module.scale_grad_by_freq, _add_embedding),
}
"""By exact type: a subclass may do anything in its forward."""
