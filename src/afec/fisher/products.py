"""Squares where a sample has many positions: convolutions, and linear layers on sequences.

A sample's gradient is then a matrix product over its positions, Σ_l g_l ⊗ a_l, which must be there before it can
be squared. For a convolution `a` holds the windows that the kernel sees: a strided view of the padded input,
copied once, in whichever order memory already has them. (`torch.nn.functional.unfold` knows one order only and
takes 4 to 6 times as long.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher.problem import Power

__all__ = [
    "Convolution",
    "Factors",
    "Part",
    "Rows",
    "Vectors",
    "add_convolution",
    "add_parts",
    "add_sequence",
    "raised_",
]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

BLOCK = 2**22
"""Numbers in one temporary, windows or products: few enough to stay in cache from one operation to the next."""

PRODUCT = 2**18
"""Numbers in one product of a sequence: with the sums that its squares are added to it stays in a core's own cache."""


@dataclass(frozen=True)
class Factors:
    """One call's part in a matrix's gradient of each sample b: Σ_l left[b, l] ⊗ right[b, l]."""

    left: Tensor
    """(batch, positions, rows of the matrix)"""

    right: Tensor
    """(batch, positions, columns of the matrix)"""


@dataclass(frozen=True)
class Rows:
    """One call's part in a table's gradient: `values[k]` belongs to row `row[k]` in the gradient of sample `sample[k]`."""

    sample: Tensor
    row: Tensor
    values: Tensor

    def summed(self, rows: int) -> Rows:
        """With one entry for each sample and row, as a table of so many rows has them."""
        pairs, place = torch.unique(self.sample * rows + self.row, return_inverse=True)
        sums = self.values.new_zeros(len(pairs), self.values.shape[1]).index_add_(0, place, self.values)
        return Rows(pairs // rows, pairs % rows, sums)


@dataclass(frozen=True)
class Vectors:
    """One call's part in a gradient that is small enough to be there whole: (batch, shape of the weight)."""

    gradient: Tensor


Part = Factors | Rows | Vectors
"""What one call of a layer adds to the gradients of one weight, before anything is squared."""


def raised_(gradient: Tensor, power: Power) -> Tensor:
    """|gradient|^power, in place."""
    return gradient.square_() if power == 2 else gradient.abs_()


def add_sequence(left: Tensor, right: Tensor, into: Tensor, power: Power, also: Rows | None = None) -> None:
    """Add Σ_b |Σ_l left[b, l] ⊗ right[b, l]|^power, the squares of a linear layer's weight over the positions l.

    `also` is another part of the same gradients, in some of their rows: of an embedding that is the output layer, too.
    """
    (batch, _, rows), columns = left.shape, right.shape[2]
    height = max(1, min(rows, PRODUCT // columns))
    step = max(1, PRODUCT // (height * columns))
    for top in range(0, rows, height):
        sums = into[top : top + height]
        for start in range(0, batch, step):
            few = slice(start, start + step)
            product = left[few, :, top : top + height].transpose(1, 2) @ right[few]
            if also is not None:
                _add_rows(also, start, top, product)
            if len(product) > 1:
                sums += raised_(product, power).sum(0)
            else:
                sums.addcmul_(product[0], product[0] if power == 2 else product[0].sign())


def _add_rows(also: Rows, start: int, top: int, product: Tensor) -> None:
    """Add what belongs to the samples from `start` on and the rows from `top` on to their gradients."""
    samples, height, columns = product.shape
    sample, row = also.sample - start, also.row - top
    inside = (sample >= 0) & (sample < samples) & (row >= 0) & (row < height)
    place = (sample * height + row)[inside]
    product.view(-1, columns).index_add_(0, place, also.values[inside])


def add_parts(parts: Sequence[Part], into: Tensor, power: Power) -> None:
    """Add the squares of one weight that several calls share: their parts are added up sample by sample, then squared."""
    tables = [part for part in parts if isinstance(part, Rows)]
    rows = None
    if tables:
        fields = [torch.cat([getattr(part, field) for part in tables]) for field in ("sample", "row", "values")]
        rows = Rows(*fields).summed(len(into))
    factors = [part for part in parts if isinstance(part, Factors)]
    if factors:
        left, right = (
            torch.cat(sides, 1) if len(sides) > 1 else sides[0]
            for sides in ([part.left for part in factors], [part.right for part in factors])
        )
        add_sequence(left, right, into, power, rows)
    elif rows is not None:
        into.index_add_(0, rows.row, raised_(rows.values, power))
    vectors = [part.gradient for part in parts if isinstance(part, Vectors)]
    if vectors:
        assert len(vectors) == len(parts), "a weight is a vector or a matrix in all its calls"
        into += raised_(torch.stack(vectors).sum(0), power).sum(0)


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
