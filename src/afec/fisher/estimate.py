"""One pass over the data: `estimate`, and the rule that picks a kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from afec.fisher import loop
from afec.fisher.batches import Samples, size_of
from afec.fisher.checks import check_finite, check_request
from afec.fisher.objectives import Objective
from afec.fisher.plan import Plan, make_plan, zeros
from afec.fisher.positions import alike, output_of, scalar_loss, settled, that_count
from afec.fisher.problem import FisherSum, Kind, Power, Problem
from afec.fisher.reversed import ReversedLoss
from afec.fisher.shards import any_sharded
from afec.fisher.untouched import untouched

__all__ = ["EXACT_UP_TO", "choose_kind", "estimate", "taken_apart"]

EXACT_UP_TO = 10
"""Outputs per sample up to which `choose_kind` says `exact`, at the cost of a backward pass for each of them."""


def estimate(
    problem: Problem,
    weights: Mapping[str, nn.Parameter],
    batches: Iterable[Any],
    *,
    kind: Kind,
    batch_size: int | None = 20,
    train: bool = False,
    seed: int = 0,
    chunk: int = 16,
    power: Power = 2,
    part: tuple[int, int] | None = None,
) -> FisherSum:
    """The diagonal Fisher information of `weights` on `batches`, as a sum and a count.

    Args:
        problem: the model and its loss; `exact` and `sample` also need its `predict` and `likelihood`.
        weights: parameters of the model, all or some, under any names.
        batches: on the model's device. Per-sample kinds take them apart, `batched` takes them as they come.
        kind: see `Kind`.
        batch_size: of `batched` only: B in F = (B/N) Σ_b g_b², where a smaller last batch weighs as much as
            the others. None: the plain mean over batches.
        train: run in train mode, dropout on (preset `official`). Of `batched` only.
        seed: of the draws of `sample`, and of whatever else is drawn during the pass.
        chunk: how many samples go through the network at once, at most (fewer where an output is large, as logits over a
            vocabulary are): speed and memory, not the result.
        power: 2 adds up squared gradients, 1 absolute ones (MAS). Of `empirical` and `batched` only.
        part: `(rank, size)` measures every `size`-th piece, a chunk or a batch, from number `rank` on. The sums of all ranks
            add up to the whole, draws included.

    Returns:
        The sum, the count, and the route that served each weight.

    Nothing else changes: no buffer, `.grad`, mode or RNG state, and no hook is left.
    """
    check_request(problem, weights, kind=kind, batch_size=batch_size, train=train, chunk=chunk, power=power)
    with untouched(problem.model, weights.values(), train=train, seed=seed) as generator:
        squares = {name: zeros(weight) for name, weight in weights.items()}
        if kind == "reversed":
            problem, kind = replace(problem, loss=ReversedLoss(problem)), "empirical"
        if kind == "batched":
            return _batched(problem, weights, _some(batches), batch_size, squares, power, part)
        return _per_sample(Objective(problem, kind, power), weights, _some(batches), generator, chunk, squares, part)


def _some(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, of which there must be one."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise ValueError(
            "no batch: the data is empty, or a one-shot iterator that is used up already. "
            "A Fisher needs at least one batch."
        )


def _batched(
    problem: Problem,
    weights: Mapping[str, nn.Parameter],
    batches: Iterator[Any],
    batch_size: int | None,
    squares: dict[str, Tensor],
    power: Power,
    part: tuple[int, int] | None,
) -> FisherSum:
    count, total, sharded = 0, torch.zeros(()), any_sharded(weights.values())
    for number, batch in enumerate(batches):
        if part is not None and number % part[1] != part[0]:
            continue
        if batch_size is None:
            count += 1
        else:
            count += size_of(batch) if problem.split is None else sum(1 for _ in problem.split(batch))
        loss = scalar_loss(problem, batch)
        total = total.to(loss.device) + loss.detach()
        if sharded:
            loop.add_squares_of_shards(loss, weights, squares, power)
        else:
            loop.add_squares(loss.reshape(1), weights, squares, power)
    check_finite(squares, weights, total)
    return FisherSum(squares, count / (batch_size or 1), dict.fromkeys(weights, "batch"))


def _per_sample(
    objective: Objective,
    weights: Mapping[str, nn.Parameter],
    batches: Iterator[Any],
    generator: torch.Generator,
    chunk: int,
    squares: dict[str, Tensor],
    part: tuple[int, int] | None,
) -> FisherSum:
    plan: Plan | None = None
    count = number = 0
    for whole in chain.from_iterable(taken_apart(objective.problem, batch) for batch in batches):
        if whole.size == 0 or (whole := that_count(objective.problem, whole)).size == 0:
            continue
        if plan is None:
            if objective.kind != "empirical":
                objective = replace(objective, problem=settled(objective.problem, whole))
                whole = that_count(objective.problem, whole)  # it may know of a mask only now
            plan = make_plan(objective, weights, whole, squares)
        example = objective.example(whole)
        groups = alike(objective.problem, whole) if objective.kind == "empirical" else [whole]
        for samples in chain.from_iterable(group.chunks(min(chunk, plan.most)) for group in groups):
            drawn = objective.draw(
                samples, example, generator
            )  # also for what others measure: the same draws everywhere
            if part is None or number % part[1] == part[0]:
                plan.accumulate(drawn, squares)
                count += samples.size
            number += 1
    if plan is None:
        raise ValueError("no batch holds a sample. A Fisher needs at least one.")
    check_finite(squares, weights, plan.total)
    return FisherSum(squares, float(count), plan.routes)


def taken_apart(problem: Problem, batch: Any) -> Iterator[Samples]:
    """The samples of a batch: all at once, or one by one where only `split` can take it apart."""
    if problem.split is None:
        yield Samples.all_of(batch)
    else:
        yield from map(Samples.single, problem.split(batch))


def choose_kind(problem: Problem, batch: Any) -> Kind:
    """The default kind: a true Fisher where the likelihood is known, `exact` up to ten outputs per sample.

    `batch` is any one batch of the data; it tells the size of the output.
    """
    if problem.predict is None or problem.likelihood is None:
        return "empirical"
    with untouched(problem.model, (), train=False, seed=0):
        samples = next(taken_apart(problem, batch)).take(0, 1)
        shape = output_of(problem, samples.batch, samples.size).shape
    return "sample" if shape[1:].numel() > EXACT_UP_TO else "exact"
