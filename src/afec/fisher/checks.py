"""What a pass refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from afec.fisher.batches import Samples
from afec.fisher.positions import counts, scalar_loss, that_count
from afec.fisher.problem import KINDS, Kind, Power, Problem
from afec.fisher.shards import any_sharded, local

__all__ = ["check_finite", "check_mean", "check_request"]


def check_request(
    problem: Problem,
    weights: Mapping[str, nn.Parameter],
    *,
    kind: Kind,
    batch_size: int | None,
    train: bool,
    chunk: int,
    power: Power = 2,
) -> None:
    """Raise where the arguments of `estimate` do not fit together."""
    if kind not in KINDS:
        raise ValueError(f"unknown Fisher kind {kind!r}. Expected one of {_list(KINDS)}.")
    if power not in (1, 2) or (power == 1 and kind not in ("empirical", "batched")):
        raise ValueError(
            f'power must be 2 (squared gradients), or 1 (absolute ones) with kind="empirical" or "batched". '
            f"Got power={power!r} with kind={kind!r}."
        )
    if train and kind != "batched":
        raise ValueError(
            f'train=True needs kind="batched". Got kind={kind!r}: in train mode (dropout, batch statistics) '
            f"a sample has no gradient of its own."
        )
    if kind in ("exact", "sample"):
        missing = [name for name in ("predict", "likelihood") if getattr(problem, name) is None]
        if missing:
            raise ValueError(
                f"the {kind!r} Fisher needs the problem's {' and '.join(missing)}. Give "
                f'likelihood="categorical" (logits) or likelihood="gaussian" (unit variance), and '
                f'predict(model, batch) -> output; or use fisher="empirical" or "batched", which need neither.'
            )
        if problem.likelihood not in ("categorical", "gaussian"):
            raise ValueError(f'likelihood must be "categorical" or "gaussian". Got {problem.likelihood!r}.')
    if kind == "reversed" and problem.likelihood != "categorical":
        raise ValueError(
            f"the 'reversed' Fisher negates logits, so it needs a classification, likelihood=\"categorical\". Got "
            f'likelihood={problem.likelihood!r}: use fisher="exact", "sample", "empirical" or "batched" for other losses.'
        )
    for argument, number in (("chunk", chunk), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"{argument} must be at least 1. Got {number}.")
    if kind != "batched" and any_sharded(weights.values()):
        raise ValueError(
            f"the {kind!r} Fisher needs gradients of single samples, and of a sharded model (FSDP2) there are none: gradients "
            'are the mean over all processes. Use fisher="batched", and a strength that belongs to it'
        )
    own = {id(parameter) for parameter in problem.model.parameters()}
    strangers = [name for name, weight in weights.items() if id(weight) not in own]
    if strangers:
        raise ValueError(
            f"not in the model: {_list(strangers)}. Weights must be parameters of problem.model itself, the "
            f"unwrapped one; a parameter that was replaced meanwhile must be asked for again."
        )
    if len({id(weight) for weight in weights.values()}) < len(weights):
        raise ValueError("one parameter was given under two names: a pull on it would count twice.")


def check_mean(problem: Problem, samples: Samples) -> Tensor:
    """The loss of each sample alone; raise where the loss of all of them is not the mean.

    Samples may weigh as much as they have positions that count: so it is where the loss is the mean over all tokens.
    """
    samples = that_count(problem, samples)
    together = scalar_loss(problem, samples.batch).detach()
    alone = torch.stack([scalar_loss(problem, sample.batch).detach() for sample in samples.chunks(1)])
    mean = alone.mean()
    # Losses that are all but zero differ by rounding alone, and halves round a lot sooner.
    noise = 16 * torch.finfo(together.dtype).eps
    means = [mean]
    if (number := counts(problem, samples)) is not None:
        means.append((alone * number).sum() / number.sum())
    if not any(torch.allclose(together, m, rtol=max(1e-3, noise), atol=noise, equal_nan=True) for m in means):
        raise ValueError(
            f"this loss is not the mean of its samples' losses: on {samples.size} samples together it is "
            f"{together:.6g}, and the mean of their single losses is {mean:.6g} (so it is with PPO, token means, "
            f'class weights, sums, and layers that mix samples). Use fisher="batched", or give split= '
            f'(batch -> its samples as batches of one), or reduction="mean" where the loss is a sum, or mask= '
            f"(batch -> which positions count) where it is the mean over all tokens but padding."
        )
    return alone


def check_finite(squares: Mapping[str, Tensor], weights: Mapping[str, nn.Parameter], total: Tensor) -> None:
    """Raise where a result is NaN or infinite, and say where that comes from.

    `total` is the sum of all losses seen: not finite once one of them was not.
    """
    # A sum is quicker than a look at each, and squares do not cancel in it; it may overflow, so look then.
    suspects = [name for name, square in squares.items() if not square.sum().isfinite()]
    bad = [name for name in suspects if not squares[name].isfinite().all()]
    if not bad:
        return
    broken = [name for name, weight in weights.items() if not local(weight).isfinite().all()]
    if broken:
        why = f"Already NaN or infinite are the weights {_list(broken)}: training diverged before this pass."
    elif not total.isfinite():
        why = "The weights are finite, but the loss is NaN or infinite: look at the data and the loss function."
    else:
        why = "Weights and loss are finite, so a gradient overflows: look for a root or a logarithm at zero."
    raise FloatingPointError(f"the Fisher is NaN or infinite at {_list(bad)}. {why}")


def _list(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
