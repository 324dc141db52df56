"""Which route serves which weight: found out at the start of every pass, by trying.

The definition is a backward pass per sample (`loop`). On two samples its squares are computed for every
weight; a weight goes by the hooks (`fast`) if they give the same there, else by `torch.func` (`func`) if
that does, else by the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from afec.fisher import fast, func, loop
from afec.fisher.batches import Samples
from afec.fisher.checks import check_finite, check_mean
from afec.fisher.objectives import Objective
from afec.fisher.problem import Route

__all__ = ["Plan", "make_plan", "zeros"]

CHECKED = 16
"""Samples on which a loss must be the mean of its samples' losses."""

TOLERANCE = 1e-4
"""Largest difference between a route and the loop, relative to the weight's largest square."""


def zeros(weight: Tensor) -> Tensor:
    """An accumulator: float32 at least."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.zeros(weight.shape, dtype=dtype, device=weight.device)


@dataclass
class Plan:
    """The route of each weight, and the means to follow it."""

    objective: Objective
    weights: Mapping[str, nn.Parameter]
    sites: Mapping[str, fast.Site]
    routes: dict[str, Route]
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    """The sum of all objectives so far: not finite once one of them was not."""

    def accumulate(self, samples: Samples, into: Mapping[str, Tensor]) -> None:
        """Add the squares of all weights on some samples.

        A weight that its route cannot serve on these samples (a model may branch on its data) goes by the
        loop from here on.
        """
        if hooked := self._by("fast"):
            sites = {name: self.sites[name] for name in hooked}
            served, value = fast.accumulate(self.objective, hooked, sites, samples, into)
            self._add(value)
            self.routes.update(dict.fromkeys(hooked.keys() - served, "loop"))
        if mapped := self._by("func"):
            try:
                squares, value = func.squares(self.objective, mapped, samples)
            except Exception:
                self.routes.update(dict.fromkeys(mapped, "loop"))
            else:
                self._add(value)
                for name, square in squares.items():
                    into[name].add_(square)
        if left := self._by("loop"):
            self._add(loop.accumulate(self.objective, left, samples, into))

    def _by(self, route: Route) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.weights.items() if self.routes[name] == route}

    def _add(self, value: Tensor) -> None:
        self.total = self.total.to(value.device) + value


def make_plan(objective: Objective, weights: Mapping[str, nn.Parameter], whole: Samples) -> Plan:
    """The plan for a pass whose first batch is `whole`."""
    routes: dict[str, Route] = dict.fromkeys(weights, "loop")
    if whole.of is None:  # from split=: nothing to take several of
        return Plan(objective, weights, {}, routes)
    samples = whole.take(0, 2)
    if objective.kind == "empirical":
        losses = check_mean(objective.problem, whole.take(0, CHECKED))
        # A well-fitted sample's gradient is rounding noise, which no two routes share: take the worst fitted.
        samples = whole.pick(losses.topk(min(2, len(losses))).indices)
    probe = objective.probe()
    samples = probe.draw(samples, probe.example(samples), torch.Generator().manual_seed(0))

    reference = {name: zeros(weight) for name, weight in weights.items()}
    check_finite(reference, weights, loop.accumulate(probe, weights, samples, reference))

    def agreeing(squares: Mapping[str, Tensor], route: Route) -> None:
        routes.update({n: route for n, square in squares.items() if _agree(square, reference[n], weights[n])})

    sites = fast.find_sites(objective.problem.model, weights)
    try:
        squares = {name: zeros(weights[name]) for name in sites}
        served, _ = fast.accumulate(probe, weights, sites, samples, squares)
    except Exception:
        served = set()
    agreeing({name: squares[name] for name in served}, "fast")
    squares = {}
    rest = {name: weight for name, weight in weights.items() if routes[name] == "loop"}
    if rest:
        try:
            squares, _ = func.squares(probe, rest, samples)
        except Exception:
            squares = {}
        agreeing(squares, "func")
    return Plan(objective, weights, {name: site for name, site in sites.items() if routes[name] == "fast"}, routes)


def _agree(square: Tensor, reference: Tensor, weight: Tensor) -> bool:
    # A half's gradient has been rounded before it is squared.
    tolerance = max(TOLERANCE, 8 * torch.finfo(weight.dtype).eps)
    if square.numel() == 0:
        return True
    return bool(((square - reference).abs().max() <= tolerance * reference.max()).item())
