"""Squares of one layer's weights, from what went into it and the gradients of what came out.

A rule need not know where the output goes: it is held against one backward pass per sample before it is used
(see `plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher.problem import Power
from afec.fisher.products import add_convolution, add_sequence, raised_

__all__ = ["RULES", "Rule"]

Into = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """How to read one type of layer."""

    applies: Callable[[Any, Tensor], bool]
    """`applies(module, inputs)`: can this call be read? `inputs` is known to have the batch in front."""

    add: Callable[[Any, Tensor, list[Tensor], Into, Power], None]
    """`add(module, inputs, grads, into, power)`: add Σ_b Σ_j |gradient of sample b|^power to into["weight"], into["bias"].

    `grads` has, for each objective j, the gradient at the output; `into` has only what is asked for.
    """


def _add_linear(module: nn.Linear, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
    if inputs.dim() > 2:
        if "bias" in into:
            for grad in grads:
                into["bias"].add_(raised_(grad.flatten(1, -2).sum(1), power).sum(0))
        if "weight" in into:
            add_sequence(inputs, grads, into["weight"], power)
        return
    # One position per sample: the gradient is an outer product, and its square the product of the squares.
    squares = _raised(grads[0], power)
    for grad in grads[1:]:
        squares.addcmul_(grad, grad if power == 2 else grad.sign())
    if "bias" in into:
        into["bias"].add_(squares.sum(0))
    if "weight" in into:
        into["weight"].addmm_(squares.T, _raised(inputs, power))


def _add_affine(normal: Tensor, grads: list[Tensor], positions: range, into: Into, power: Power) -> None:
    """Add the squares of `normal * weight + bias`, shared by all `positions` (dimensions) of a sample."""
    for grad in grads:
        for key, local in (("weight", grad * normal), ("bias", grad)):
            if key in into:
                into[key].add_(_raised(local.sum(tuple(positions)) if positions else local, power).sum(0))


def _add_batch_norm(module: nn.BatchNorm1d, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
    assert module.running_mean is not None, "the rule applies to fixed statistics"
    assert module.running_var is not None, "the rule applies to fixed statistics"
    mean, variance = module.running_mean.to(inputs.dtype), module.running_var.to(inputs.dtype)
    _add_affine(F.batch_norm(inputs, mean, variance, eps=module.eps), grads, range(2, inputs.dim()), into, power)


def _add_group_norm(module: nn.GroupNorm, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
    normal = F.group_norm(inputs, module.num_groups, eps=module.eps)
    _add_affine(normal, grads, range(2, inputs.dim()), into, power)


def _add_layer_norm(module: nn.LayerNorm, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
    normal = F.layer_norm(inputs, module.normalized_shape, eps=module.eps)
    _add_affine(normal, grads, range(1, inputs.dim() - len(module.normalized_shape)), into, power)


def _add_embedding(module: nn.Embedding, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
    # A row's gradient in a sample sums over the places where the sample names it: one sum per (sample, row).
    sample = torch.arange(len(inputs), device=inputs.device).repeat_interleave(inputs[0].numel())
    pairs, place = torch.unique(sample * module.num_embeddings + inputs.flatten(), return_inverse=True)
    rows = pairs % module.num_embeddings
    used = slice(None) if module.padding_idx is None else rows != module.padding_idx
    for grad in grads:
        sums = grad.new_zeros(len(pairs), module.embedding_dim)
        sums.index_add_(0, place, grad.reshape(-1, module.embedding_dim))
        into["weight"].index_add_(0, rows[used], raised_(sums[used], power))


def _raised(gradient: Tensor, power: Power) -> Tensor:
    return gradient.square() if power == 2 else gradient.abs()


def _has_fixed_statistics(module: nn.BatchNorm1d, inputs: Tensor) -> bool:
    return not module.training and module.running_mean is not None


_BATCH_NORM = Rule(_has_fixed_statistics, _add_batch_norm)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(lambda module, inputs: inputs.dim() >= 2, _add_linear),
    nn.Conv1d: Rule(lambda module, inputs: inputs.dim() == 3, add_convolution),
    nn.Conv2d: Rule(lambda module, inputs: inputs.dim() == 4, add_convolution),
    nn.Conv3d: Rule(lambda module, inputs: inputs.dim() == 5, add_convolution),
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.GroupNorm: Rule(lambda module, inputs: True, _add_group_norm),
    nn.LayerNorm: Rule(lambda module, inputs: inputs.dim() > len(module.normalized_shape), _add_layer_norm),
    nn.Embedding: Rule(lambda module, inputs: not module.scale_grad_by_freq, _add_embedding),
}
"""By exact type: a subclass may do anything in its forward."""
