"""Does the loss reach the guarded weights at all? Found out on the first batch of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from afec.fisher import Problem
from afec.fisher.loop import add_squares_of_shards
from afec.fisher.plan import zeros
from afec.fisher.shards import any_sharded
from afec.fisher.untouched import buffers_kept, untouched

__all__ = ["check_reaches"]


def check_reaches(problem: Problem, weights: Mapping[str, nn.Parameter], batch: Any, seed: int) -> None:
    """Raise unless the loss is a number and some guarded weight gets a gradient from it."""
    with torch.enable_grad(), buffers_kept(problem.model):
        try:
            reached = _reaches(problem, weights, batch)
        except RuntimeError as error:
            if "checkpoint" not in str(error):
                raise
            # Reentrant activation checkpointing wants backward(), which would fire the user's own hooks; it is a
            # matter of training mode only.
            with untouched(problem.model, (), train=False, seed=seed):
                reached = _reaches(problem, weights, batch)
    if not reached:
        raise ValueError(
            f"no guarded weight gets a gradient from loss_fn on the first batch ({len(weights)} are guarded, "
            f"{next(iter(weights))!r} first). Is this the model that the loss uses, and does params= name what trains?"
        )


def _reaches(problem: Problem, weights: Mapping[str, nn.Parameter], batch: Any) -> bool:
    loss = problem.loss(problem.model, batch)
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(
            f"the loss of the first batch is {loss.item()}; the guard needs a finite one. "
            "Check the inputs and the weights"
        )
    if not loss.requires_grad:
        return False
    if any_sharded(weights.values()):
        squares = {name: zeros(weight) for name, weight in weights.items()}
        add_squares_of_shards(loss, weights, squares)
        return True  # a shard may be empty: what is seen here says nothing of the others
    grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return any(grad is not None for grad in grads)
