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
from afec.fisher.products import Factors, Part, Rows, Vectors, add_convolution, add_parts

__all__ = ["RULES", "Rule", "rule_of"]

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

    part: Callable[[Any, str, Tensor, Tensor], Part] | None = None
    """`part(module, key, inputs, grad)`: what one call adds to the gradients of a weight that others share; None: not known."""


def _linear_part(module: nn.Module, key: str, inputs: Tensor, grad: Tensor) -> Part:
    grad = grad.reshape(len(grad), -1, grad.shape[-1])
    if key == "bias":
        return Vectors(grad.sum(1))
    return Factors(grad, inputs.reshape(len(inputs), -1, inputs.shape[-1]))


def _transposed_part(module: nn.Module, key: str, inputs: Tensor, grad: Tensor) -> Part:
    part = _linear_part(module, key, inputs, grad)
    return Factors(part.right, part.left) if isinstance(part, Factors) else part


def _table_part(module: nn.Embedding, key: str, inputs: Tensor, grad: Tensor) -> Part:
    sample = torch.arange(len(inputs), device=inputs.device).repeat_interleave(inputs[0].numel())
    rows, values = inputs.flatten(), grad.reshape(-1, module.embedding_dim)
    if module.padding_idx is not None:
        used = rows != module.padding_idx
        sample, rows, values = sample[used], rows[used], values[used]
    return Rows(sample, rows, values)


def _by_parts(part: Callable[[Any, str, Tensor, Tensor], Part]) -> Callable[..., None]:
    """The rule that squares what one call adds."""

    def add(module: nn.Module, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
        for grad in grads:
            for key, sums in into.items():
                add_parts([part(module, key, inputs, grad)], sums, power)

    return add


def _add_linear(module: nn.Linear, inputs: Tensor, grads: list[Tensor], into: Into, power: Power) -> None:
    if inputs.dim() > 2:
        _by_parts(_linear_part)(module, inputs, grads, into, power)
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


def _layer_norm_part(module: nn.LayerNorm, key: str, inputs: Tensor, grad: Tensor) -> Part:
    kept = len(module.normalized_shape)
    local = grad * F.layer_norm(inputs, module.normalized_shape, eps=module.eps) if key == "weight" else grad
    return Vectors(_over_positions(local, kept))


def _rms_norm_part(module: Any, key: str, inputs: Tensor, grad: Tensor) -> Part:
    """x / √(mean(x²) + ε), by whichever name a library has for ε."""
    kept = module.weight.dim()
    eps = next(
        (float(e) for name in ("eps", "variance_epsilon") if (e := getattr(module, name, None)) is not None), None
    )
    return Vectors(_over_positions(grad * F.rms_norm(inputs, inputs.shape[-kept:], eps=eps), kept))


def _over_positions(local: Tensor, kept: int) -> Tensor:
    """The sum over all positions of a sample; the last `kept` dimensions are the weight's own."""
    positions = tuple(range(1, local.dim() - kept))
    return local.sum(positions) if positions else local


def _raised(gradient: Tensor, power: Power) -> Tensor:
    return gradient.square() if power == 2 else gradient.abs()


def _has_fixed_statistics(module: nn.BatchNorm1d, inputs: Tensor) -> bool:
    return not module.training and module.running_mean is not None


_BATCH_NORM = Rule(_has_fixed_statistics, _add_batch_norm)
_RMS_NORM = Rule(lambda module, inputs: inputs.dim() > module.weight.dim(), _by_parts(_rms_norm_part), _rms_norm_part)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(lambda module, inputs: inputs.dim() >= 2, _add_linear, _linear_part),
    nn.Conv1d: Rule(lambda module, inputs: inputs.dim() == 3, add_convolution),
    nn.Conv2d: Rule(lambda module, inputs: inputs.dim() == 4, add_convolution),
    nn.Conv3d: Rule(lambda module, inputs: inputs.dim() == 5, add_convolution),
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.GroupNorm: Rule(lambda module, inputs: True, _add_group_norm),
    nn.LayerNorm: Rule(
        lambda module, inputs: inputs.dim() > len(module.normalized_shape),
        _by_parts(_layer_norm_part),
        _layer_norm_part,
    ),
    nn.RMSNorm: _RMS_NORM,
    nn.Embedding: Rule(lambda module, inputs: not module.scale_grad_by_freq, _by_parts(_table_part), _table_part),
}
"""By exact type: a subclass may do anything in its forward."""

_TRANSPOSED = Rule(lambda module, inputs: inputs.dim() >= 2, _by_parts(_transposed_part), _transposed_part)


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a layer, if there is one; known by their names are two layers of Hugging Face's, which is not imported here.

    Their `Conv1D` is a linear layer with its weight transposed, and every family of models has an RMS norm of its own.
    """
    found = RULES.get(type(module))
    if found is not None or not type(module).__module__.startswith("transformers."):
        return found
    own = [key for key, _ in module.named_parameters()]
    if type(module).__name__ == "Conv1D":
        return _TRANSPOSED
    return _RMS_NORM if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")) and own == ["weight"] else None
