"""What a pass refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from afec.fisher.batches import Samples
from afec.fisher.objectives import scalar_loss
from afec.fisher.problem import KINDS, Kind, Problem

__all__ = ["check_finite", "check_mean", "check_request"]


def check_request(
    problem: Problem,
    weights: Mapping[str, nn.Parameter],
    *,
    kind: Kind,
    batch_size: int | None,
    train: bool,
    chunk: int,
) -> None:
    """Raise where the arguments of `estimate` do not fit together."""
    if kind not in KINDS:
        raise ValueError(f"unknown Fisher kind {kind!r}. Expected one of {', '.join(map(repr, KINDS))}.")
    if train and kind != "batched":
        raise ValueError(
            f'train=True needs kind="batched". Got kind={kind!r}: in train mode (dropout, batch statistics) a sample '
            f"has no gradient of its own."
        )
    if kind in ("exact", "sample"):
        missing = [name for name in ("predict", "likelihood") if getattr(problem, name) is None]
        if missing:
            raise ValueError(
                f'the {kind!r} Fisher needs the problem\'s {" and ".join(missing)}: give likelihood="categorical" '
                f'(logits) or "gaussian" (unit variance) and predict(model, batch) -> output. '
                f'Without a likelihood use "empirical" or "batched".'
            )
        if problem.likelihood not in ("categorical", "gaussian"):
            raise ValueError(f'likelihood must be "categorical" or "gaussian". Got {problem.likelihood!r}.')
    for name, number in (("chunk", chunk), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1. Got {number}.")
    own = {id(parameter) for parameter in problem.model.parameters()}
    strangers = [name for name, weight in weights.items() if id(weight) not in own]
    if strangers:
        raise ValueError(
            f"not in the model: {', '.join(map(repr, strangers))}. Weights must be parameters of problem.model itself "
            f"(the unwrapped one), as given by its named_parameters(); after a parameter is replaced, ask for it again."
        )


def check_mean(problem: Problem, samples: Samples) -> Tensor:
    """The loss of each sample alone; raise where the loss of all is not their mean."""
    together = scalar_loss(problem, samples.batch).detach()
    alone = torch.stack([scalar_loss(problem, sample.batch).detach() for sample in samples.chunks(1)])
    mean = alone.mean()
    # A mean of losses that are all but zero differs by rounding alone; halves round a lot sooner.
    noise = 16 * torch.finfo(together.dtype).eps
    if not torch.allclose(together, mean, rtol=max(1e-3, noise), atol=noise, equal_nan=True):
        raise ValueError(
            f"this loss is not the mean of its samples' losses: on {samples.size} samples it is {together:.6g}, and the "
            f"mean of the {samples.size} single losses is {mean:.6g} (as with PPO, token means, class weights, sums, or "
            f'layers that mix samples). Use fisher="batched", or give split= (batch -> its samples as batches of one), '
            f'or reduction="mean" if the loss is a sum.'
        )
    return alone


def check_finite(squares: Mapping[str, Tensor], weights: Mapping[str, nn.Parameter], total: Tensor) -> None:
    """Raise where a result is NaN or infinite, and say where that came from; `total` is the sum of all losses seen."""
    bad = [name for name, square in squares.items() if not square.isfinite().all()]
    if not bad:
        return
    broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
    if broken:
        why = f"Already not finite: the weights {', '.join(map(repr, broken))}; training diverged before this pass."
    elif not total.isfinite():
        why = "The weights are finite, but the loss is NaN or infinite: look at the data and at the loss itself."
    else:
        why = "Weights and loss are finite, so a gradient overflows: look for a square root or a logarithm at zero."
    raise FloatingPointError(f"the Fisher is NaN or infinite at {', '.join(map(repr, bad))}. {why}")
