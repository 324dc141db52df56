"""Where the classes of an output are, and which of its positions count.

An output may hold one answer per sample, (batch, classes), or one per position: a token of a sequence, a pixel of an
image. The loss of a sample is then the mean over its positions that count; padding does not.

The class axis is never guessed. It is given, or known from the loss, or told by the shape of the mask or of the targets.
Targets are believed only if the cross-entropy at them is the loss that was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from afec.fisher.batches import Samples, tensors
from afec.fisher.problem import Problem

__all__ = ["IGNORED", "alike", "counts", "laid_out", "output_of", "scalar_loss", "settled", "that_count"]

IGNORED = -100
"""The target that cross-entropy leaves out, unless told otherwise."""

VERIFIED = 4
"""Samples on which the targets must give the loss."""


def scalar_loss(problem: Problem, batch: Any) -> Tensor:
    """`problem.loss` on a batch, or an error where it is no scalar."""
    loss = problem.loss(problem.model, batch)
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss must be a scalar tensor. Got {type(loss).__name__}: return the tensor.")
    if loss.dim() != 0:
        raise ValueError(
            f"the loss must be a scalar tensor, the mean over the batch. Got shape {tuple(loss.shape)}: "
            f'use reduction="mean", or end the loss function with .mean().'
        )
    return loss


def output_of(problem: Problem, batch: Any, size: int) -> Tensor:
    """`problem.predict` on a batch of `size` samples, or an error where it cannot be what it should."""
    assert problem.predict is not None, "check_request() has seen to it"
    output = problem.predict(problem.model, batch)
    if not isinstance(output, Tensor):
        raise TypeError(
            f"predict(model, batch) must return a tensor. Got {type(output).__name__}: give predict= that does."
        )
    shape = tuple(output.shape)
    if output.dim() == 0 or shape[0] != size:
        raise ValueError(
            f"predict(model, batch) must return one output per sample along dimension 0. "
            f"Got shape {shape} for {size} samples."
        )
    if problem.likelihood == "categorical" and output.dim() < 2:
        raise ValueError(
            f'likelihood="categorical" needs logits of shape (batch, classes, ...). Got shape '
            f'{shape}: return logits, or give likelihood="gaussian".'
        )
    return output


# -- which positions count ------------------------------------------------------------------------------------------


def counts(problem: Problem, samples: Samples) -> Tensor | None:
    """How many positions of each sample count; None where nothing says that some do not."""
    mask = None if problem.mask is None else problem.mask(samples.batch)
    return None if mask is None else mask.bool().reshape(len(mask), -1).sum(1)


def that_count(problem: Problem, samples: Samples) -> Samples:
    """The samples with a position that counts: one that is all padding has no loss, and is no sample."""
    number = counts(problem, samples)
    return samples if number is None or bool(number.all()) else samples.pick(number.nonzero().flatten())


def alike(problem: Problem, samples: Samples) -> Iterator[Samples]:
    """The samples, in groups with the same number of positions that count.

    A mean over all tokens of a group is the mean of its samples' losses, which it is not where lengths differ.
    """
    number = counts(problem, samples)
    if number is None or bool((number == number[:1]).all()):
        yield samples
        return
    for value in sorted(set(number.tolist())):
        yield samples.pick((number == value).nonzero().flatten())


# -- where the classes are ------------------------------------------------------------------------------------------


def laid_out(problem: Problem, output: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """The output as (batch, positions, classes), and the share (batch, positions) of each position in its sample's loss.

    The shares of a sample add up to 1; those of positions that do not count are 0. The problem is `settled`.
    """
    size = len(output)
    axis = problem.class_axis
    if axis is None or output.dim() < 2:  # one answer per sample, whatever its shape
        places = output.reshape(size, 1, -1)
        positions: tuple[int, ...] = (size,)
    else:
        moved = output.movedim(axis, -1)
        places, positions = moved.reshape(size, -1, moved.shape[-1]), tuple(moved.shape[:-1])
    dtype = torch.promote_types(output.dtype, torch.float32)
    mask = None if problem.mask is None else problem.mask(batch)
    if mask is None:
        return places, torch.full(places.shape[:2], 1 / places.shape[1], dtype=dtype, device=output.device)
    if tuple(mask.shape) != positions:
        raise ValueError(
            f"mask(batch) must say for each position whether it counts, in shape {positions}, for an output of shape "
            f"{tuple(output.shape)} with the classes along dimension {axis}. Got shape {tuple(mask.shape)}."
        )
    mask = mask.bool().reshape(places.shape[:2])
    share = mask.to(dtype) / mask.sum(1, keepdim=True).clamp_min(1)
    return places.masked_fill(~mask[:, :, None], 0), share


def settled(problem: Problem, samples: Samples) -> Problem:
    """The problem with its class axis known, found out on some samples; or an error that asks for it."""
    one = samples.take(0, 1)
    output = output_of(problem, one.batch, one.size)
    given = _checked_axis(problem.class_axis, output)
    if output.dim() <= 2:
        return replace(problem, class_axis=1)
    if problem.mask is not None:
        return replace(problem, class_axis=given if given is not None else _axis_of_mask(problem, output, one.batch))
    if problem.mean_squares:
        return replace(problem, class_axis=given)
    targets = None if problem.likelihood == "gaussian" else _targets(one.batch)
    fits = _axes(output, targets) if given is None else [axis for axis in _axes(output, targets) if axis == given]
    if len(fits) > 1:
        raise ValueError(_ambiguous(output, "targets", fits))
    if targets is not None and fits:
        found = replace(problem, class_axis=fits[0], mask=_not_ignored)
        if not _explains_loss(found, samples):
            raise ValueError(
                f"cannot tell which positions of the output count: its shape is {tuple(output.shape)}, and the "
                f"cross-entropy at the batch's own targets, {tuple(targets.shape)}, is not the loss that loss_fn gives "
                f"(a shift between tokens and targets, another ignored index, smoothing or a sum make it so). {_ASK}"
            )
        return found
    if given is None:
        what = "outputs" if problem.likelihood == "gaussian" else "classes"
        raise ValueError(
            f"cannot tell which axis of the output holds the {what}: its shape is {tuple(output.shape)}, and neither the "
            f"loss nor targets say more. Give class_axis= (1 for (batch, {what}, ...), -1 for (batch, ..., {what})) and, "
            f"where padding must not count, mask=lambda batch: ..."
        )
    if problem.likelihood != "gaussian" and any(_has_ignored(tensor) for tensor in tensors(samples.batch)):
        raise ValueError(
            f"cannot tell which positions of the output, of shape {tuple(output.shape)}, count: the batch has targets "
            f"{IGNORED} (ignored), but not in the shape of the output's positions. {_ASK}"
        )
    return replace(problem, class_axis=given)


_ASK = (
    "Give mask=lambda batch: ... with True at each position of the output that counts, and class_axis=; for tokens that "
    "predict the next one: predict=lambda model, batch: model(**batch).logits[:, :-1] and mask=lambda batch: "
    'batch["labels"][:, 1:] != -100. Or use fisher="empirical" or "batched", which need neither.'
)


def _checked_axis(axis: int | None, output: Tensor) -> int | None:
    if axis is None:
        return None
    dims = max(output.dim(), 2)
    if not (1 <= axis < dims or -dims < axis <= -1):
        raise ValueError(
            f"class_axis must be an axis of the output other than the first, which holds the samples. "
            f"Got class_axis={axis} for an output of shape {tuple(output.shape)}."
        )
    return axis % dims


def _axes(output: Tensor, positions: Tensor | None) -> list[int]:
    """The axes without which the output has the shape of `positions`."""
    if positions is None:
        return []
    shape = tuple(output.shape)
    return [axis for axis in range(1, len(shape)) if shape[:axis] + shape[axis + 1 :] == tuple(positions.shape)]


def _axis_of_mask(problem: Problem, output: Tensor, batch: Any) -> int:
    assert problem.mask is not None, "asked for where there is one"
    mask = problem.mask(batch)
    fits = _axes(output, mask)
    if len(fits) > 1:
        raise ValueError(_ambiguous(output, "mask", fits))
    if not fits:
        got = None if mask is None else tuple(mask.shape)
        raise ValueError(
            f"mask(batch) must have the shape of the output without its class axis. Got {got} for an output of shape "
            f"{tuple(output.shape)}. Change the mask, or give class_axis= where it returns None (every position counts)."
        )
    return fits[0]


def _ambiguous(output: Tensor, what: str, fits: list[int]) -> str:
    choices = " or ".join(map(str, fits))
    return (
        f"the output's shape {tuple(output.shape)} can be read in two ways: the {what} fit with the classes along "
        f"dimension {choices}. Give class_axis={fits[0]} or class_axis={fits[-1]}."
    )


def _targets(batch: Any) -> Tensor | None:
    """Integer targets where they usually are: second in a tuple, "labels" in a mapping."""
    found: Any = None
    if isinstance(batch, tuple | list) and len(batch) > 1:
        found = batch[1]
    elif isinstance(batch, Mapping):
        found = batch.get("labels")
    return found if isinstance(found, Tensor) and found.dtype == torch.long else None


def _not_ignored(batch: Any) -> Tensor | None:
    targets = _targets(batch)
    return None if targets is None else targets != IGNORED


def _has_ignored(tensor: Tensor) -> bool:
    return tensor.dtype == torch.long and bool((tensor == IGNORED).any())


def _explains_loss(problem: Problem, samples: Samples) -> bool:
    """Is the loss of a sample the cross-entropy of its output at its targets?"""
    seen = 0
    with torch.no_grad():
        for sample in that_count(problem, samples).take(0, VERIFIED).chunks(1):
            targets = _targets(sample.batch)
            assert targets is not None, "settled() has seen it"
            places, share = laid_out(problem, output_of(problem, sample.batch, 1), sample.batch)
            labels = targets.reshape(places.shape[:2])[share > 0]
            if not bool(((labels >= 0) & (labels < places.shape[2])).all()):
                return False
            loss = scalar_loss(problem, sample.batch)
            mean = F.cross_entropy(places[share > 0].to(share.dtype), labels)
            noise = 16 * torch.finfo(loss.dtype).eps
            if not torch.allclose(loss.to(mean), mean, rtol=max(1e-3, noise), atol=noise):
                return False
            seen += 1
    return seen > 0
