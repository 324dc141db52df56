"""Squares where a sample has many positions: convolutions, and linear layers on sequences.

A sample's gradient is then a matrix product over its positions, Σ_l g_l ⊗ a_l, which must be there before it can
be squared. For a convolution `a` holds the windows that the kernel sees: a strided view of the padded input,
copied once, in whichever order memory already has them. (`torch.nn.functional.unfold` knows one order only and
takes 4 to 6 times as long.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher.problem import Power

__all__ = ["Convolution", "add_convolution", "add_sequence", "raised_"]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

BLOCK = 2**22
"""Numbers in one temporary, windows or products: few enough to stay in cache from one operation to the next."""


def raised_(gradient: Tensor, power: Power) -> Tensor:
    """|gradient|^power, in place."""
    return gradient.square_() if power == 2 else gradient.abs_()


def add_sequence(inputs: Tensor, grads: list[Tensor], into: Tensor, power: Power) -> None:
    """Add the squares of a linear layer's weight (out, in), for inputs of shape (batch, ..., in)."""
    left = _joined([grad.flatten(1, -2).transpose(1, 2) for grad in grads], 1).unsqueeze(1)
    right = inputs.flatten(1, -2).unsqueeze(1)
    for block in _blocks(len(inputs), left.shape[2] * right.shape[3]):
        into += _squares(left[block], right[block], len(grads), power).squeeze(0)


def add_convolution(
    module: Convolution, inputs: Tensor, grads: list[Tensor], into: Mapping[str, Tensor], power: Power
) -> None:
    """Add a convolution's squares: any stride, padding, padding mode, dilation and groups."""
    flat = [grad.flatten(2) for grad in grads]  # (batch, out, positions): a view in either memory format
    if "bias" in into:
        for grad in flat:
            into["bias"] += raised_(grad.sum(2), power).sum(0)
    if "weight" not in into:
        return
    batch, _, positions = flat[0].shape
    left = _joined([grad.view(batch, module.groups, -1, positions) for grad in flat], 2)
    padded = _padded(module, inputs)
    channels_last = padded.stride(1) == 1
    taps, channels = prod(module.kernel_size), module.in_channels // module.groups
    total = left.new_zeros(module.groups, module.out_channels // module.groups, taps * channels)
    for block in _blocks(batch, taps * module.in_channels * max(left.shape[2], positions)):
        windows = _windows(module, padded[block], grads[0].shape[2:], channels_last)
        total += _squares(left[block], windows, len(grads), power)
    if channels_last:
        total = total.view(*total.shape[:2], taps, channels).transpose(2, 3)
    into["weight"] += total.reshape(into["weight"].shape)


def _joined(grads: list[Tensor], dim: int) -> Tensor:
    """All objectives' gradients side by side along the outputs: one product then serves them all."""
    return grads[0] if len(grads) == 1 else torch.stack(grads, dim).flatten(dim, dim + 1)


def _blocks(size: int, numbers: int) -> Iterator[slice]:
    """Samples in blocks whose temporaries, of `numbers` per sample, stay within `BLOCK`."""
    step = max(1, BLOCK // numbers)
    return (slice(start, start + step) for start in range(0, size, step))


def _squares(left: Tensor, right: Tensor, objectives: int, power: Power) -> Tensor:
    """Σ_b Σ_j |left_bj @ right_b|^power, of shape (group, out, in).

    `left` is (batch, group, objectives · out, positions), `right` is (batch, group, positions, in).
    """
    product = left @ right
    batch, groups, rows, columns = product.shape
    return raised_(product.view(batch, groups, objectives, rows // objectives, columns), power).sum((0, 2))


def _padded(module: Convolution, inputs: Tensor) -> Tensor:
    """The input as the kernel sees it."""
    if module.padding == "same":
        reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in reach]
    else:
        sides = [(0, 0) if module.padding == "valid" else (int(p), int(p)) for p in module.padding]
    if not any(map(any, sides)):
        return inputs
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    # F.pad counts dimensions from the last one backwards.
    return F.pad(inputs, [amount for side in reversed(sides) for amount in side], mode=mode)


def _windows(module: Convolution, padded: Tensor, positions: torch.Size, channels_last: bool) -> Tensor:
    """What each output position sees: (batch, group, positions, in), `in` = channels · taps or taps · channels."""
    channels = module.in_channels // module.groups
    batch_stride, channel_stride, *space = padded.stride()
    moves = [stride * move for stride, move in zip(space, module.stride, strict=True)]
    taps = [stride * dilation for stride, dilation in zip(space, module.dilation, strict=True)]
    lead, lead_strides = (len(padded), module.groups), (batch_stride, channel_stride * channels)
    if channels_last:
        size = (*lead, *positions, *module.kernel_size, channels)
        strides = (*lead_strides, *moves, *taps, channel_stride)
        view = padded.as_strided(size, strides, padded.storage_offset())
        return view.reshape(*lead, positions.numel(), -1)
    size = (*lead, channels, *module.kernel_size, *positions)
    strides = (*lead_strides, channel_stride, *taps, *moves)
    view = padded.as_strided(size, strides, padded.storage_offset())
    return view.reshape(*lead, -1, positions.numel()).transpose(2, 3)
