"""Which route serves which weight: found out at the start of every pass, by trying.

The definition is one backward pass per sample (`loop`). On two samples it is computed for every weight. A weight
goes by the hooks (`fast`) if they give the same there, else by `torch.func` (`func`) if that does, else by the
loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from afec.fisher import fast, func, loop
from afec.fisher.batches import Samples
from afec.fisher.checks import check_finite, check_mean
from afec.fisher.objectives import Objective
from afec.fisher.positions import counts
from afec.fisher.problem import Route
from afec.fisher.shards import local

__all__ = ["Plan", "make_plan", "zeros"]

CHECKED = 16
"""Samples on which a loss must be the mean of its samples' losses."""

OUTPUT = 2**24
"""Numbers in the largest output of a layer, over the samples that are in flight: of logits over a vocabulary 64 MB."""

ROUNDING = 32
"""A gradient of so many times the machine's precision, relative to the largest one, is taken to be rounding."""

TOLERANCE = 1e-4
"""Largest difference between a route and the loop, relative to the weight's largest square."""


def zeros(weight: Tensor) -> Tensor:
    """An accumulator for a weight's squares: float32 at least."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    own = local(weight)
    return torch.zeros(own.shape, dtype=dtype, device=own.device)


@dataclass
class Plan:
    """The route of each weight, and the means to follow it."""

    objective: Objective
    weights: Mapping[str, nn.Parameter]
    sites: fast.Sites
    routes: dict[str, Route]
    most: int = OUTPUT
    """How many samples may be in flight at once, for the size of what the layers give."""

    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    """The sum of all objectives so far: not finite once one of them was not."""

    def accumulate(self, samples: Samples, into: Mapping[str, Tensor]) -> None:
        """Add the squares of all weights on some samples.

        A model may branch on its data: a weight whose route cannot serve these samples goes by the loop from
        here on.
        """
        if hooked := self.by("fast"):
            sites = {name: self.sites[name] for name in hooked}
            served, value, _ = fast.accumulate(self.objective, hooked, sites, samples, into)
            self._add(value)
            self.routes.update(dict.fromkeys(hooked.keys() - served, "loop"))
        if mapped := self.by("func"):
            try:
                squares, value = func.squares(self.objective, mapped, samples)
            except Exception:
                self.routes.update(dict.fromkeys(mapped, "loop"))
            else:
                self._add(value)
                for name, square in squares.items():
                    into[name].add_(square)
        if left := self.by("loop"):
            self._add(loop.accumulate(self.objective, left, samples, into))

    def by(self, route: Route) -> dict[str, nn.Parameter]:
        """The weights that go by a route."""
        return {name: weight for name, weight in self.weights.items() if self.routes[name] == route}

    def _add(self, value: Tensor) -> None:
        self.total = self.total.to(value.device) + value


def make_plan(
    objective: Objective, weights: Mapping[str, nn.Parameter], whole: Samples, sums: Mapping[str, Tensor]
) -> Plan:
    """The plan for a pass whose first batch is `whole`. `sums` are the pass's own, zero now and zero again after it."""
    plan = Plan(objective, weights, {}, dict.fromkeys(weights, "loop"))
    if whole.of is None:  # from split=: there are never several samples at once
        return plan
    samples = whole.take(0, 2)
    if objective.kind == "empirical":
        losses = check_mean(objective.problem, whole.take(0, CHECKED))
        number = counts(objective.problem, whole.take(0, CHECKED))
        alike = torch.ones_like(losses, dtype=torch.bool) if number is None else number == number.mode().values
        # A well-fitted sample's gradient is zero or rounding noise, and proves nothing: take the worst fitted.
        worst = losses.masked_fill(~alike, -torch.inf).topk(min(2, int(alike.sum()))).indices
        samples = whole.pick(worst)
    probe = objective.probe()
    samples = probe.draw(samples, probe.example(samples), torch.Generator().manual_seed(0))

    reference = {name: zeros(weight) for name, weight in weights.items()}
    check_finite(reference, weights, loop.accumulate(probe, weights, samples, reference))

    largest_square = max((float(square.max()) for square in reference.values() if square.numel()), default=0.0)

    def settle(squares: Mapping[str, Tensor], route: Route) -> None:
        for name, square in squares.items():
            if _agree(square, reference[name], weights[name].dtype, largest_square):
                plan.routes[name] = route

    # What a route raises is its way to say no; an error of the model's own has been raised by the loop above.
    with suppress(Exception):
        if not _mix(objective, samples):
            plan.sites = fast.find_sites(objective.problem.model, weights)
            squares = {name: sums[name] for name in plan.sites}
            served, _, largest = fast.accumulate(probe, weights, plan.sites, samples, squares)
            plan.most = max(1, OUTPUT // max(1, largest))
            settle({name: squares.pop(name) for name in served}, "fast")
    for total in sums.values():
        total.zero_()
    if rest := plan.by("loop"):
        with suppress(Exception):
            settle(func.squares(probe, rest, samples)[0], "func")
    return plan


def _mix(objective: Objective, samples: Samples) -> bool:
    """Does a sample's output depend on who else is in the batch? (A loss has been checked by `check_mean`.)"""
    if objective.kind == "empirical":
        return False
    together = objective.output(samples.batch, samples.size).detach()
    alone = torch.cat([objective.output(sample.batch, 1).detach() for sample in samples.chunks(1)])
    if together.shape != alone.shape:
        return True
    # Some logits may be masked with -inf.
    scale = torch.where(alone.isfinite(), alone, 0).abs().max().item()
    return not torch.allclose(together, alone, rtol=0, atol=_tolerance(alone.dtype) * scale)


def _agree(square: Tensor, reference: Tensor, dtype: torch.dtype, largest: float) -> bool:
    """Is `square`, which is used up here, the reference?

    A gradient that is zero but for rounding (of the bias of an attention's keys, say) has squares that are nothing beside the
    `largest` of the network: by no route are they twice the same.
    """
    if square.numel() == 0:
        return True
    noise = (ROUNDING * torch.finfo(reference.dtype).eps) ** 2 * largest
    if float(torch.maximum(square, reference).max()) <= noise:
        return True
    return bool((square.sub_(reference).abs_().max() <= _tolerance(dtype) * reference.max()).item())


def _tolerance(dtype: torch.dtype) -> float:
    # A half's gradient has been rounded before it is squared.
    return max(TOLERANCE, 8 * torch.finfo(dtype).eps)
