"""Route one: hooks on the layers collect inputs and output gradients, and a rule per layer type squares them.

No weight gradient is ever computed: autograd stops at the layers' outputs. A weight that several calls share (tied layers,
a layer that is called twice) is served, too: the calls' parts in its gradient are added up before they are squared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from afec.fisher.batches import Samples
from afec.fisher.objectives import Objective
from afec.fisher.products import add_parts
from afec.fisher.rules import Rule, rule_of

__all__ = ["Site", "Sites", "accumulate", "find_sites"]

TOGETHER = 16
"""Objectives whose output gradients are held at once; `exact` with more of them goes in several rounds."""


@dataclass(frozen=True)
class Site:
    """A place where a weight lives: a layer with a rule, and the weight's name in it."""

    module: nn.Module
    key: str
    rule: Rule


Sites = Mapping[str, tuple[Site, ...]]
"""The places of each weight: one, or several where layers are tied."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer during the forward pass: what went in, and the gradient of what came out."""

    module: nn.Module
    rule: Rule
    inputs: Tensor
    output_size: int

    edge: GradientEdge | None
    """Where the output's gradient arrives. Not the output itself: an in-place ReLU would change that."""

    largest: int
    """How many numbers the output has per sample."""

    def readable(self, size: int) -> bool:
        """Can its rule read this call on so many samples?"""
        if self.edge is None:
            return False
        fits = self.inputs.dim() > 0 and self.inputs.shape[0] == size == self.output_size
        return fits and self.rule.applies(self.module, self.inputs)


@dataclass
class _Wanted:
    """What is asked of the recorded calls: sums for a call's own weights, and for those that several calls share."""

    own: dict[Call, dict[str, Tensor]] = field(default_factory=lambda: defaultdict(dict))
    shared: list[tuple[list[tuple[Call, str]], Tensor]] = field(default_factory=list)

    def calls(self) -> list[Call]:
        """All calls whose output gradients are needed."""
        return list(dict.fromkeys([*self.own, *(call for uses, _ in self.shared for call, _ in uses)]))


def find_sites(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, tuple[Site, ...]]:
    """The weights that may go this way, with the layers that own them and have a rule."""
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners[id(parameter)].append((module, key))
    found = {}
    for name, weight in weights.items():
        rules = [(module, key, rule_of(module)) for module, key in owners[id(weight)]]
        sites = tuple(Site(module, key, rule) for module, key, rule in rules if rule is not None)
        if sites:
            found[name] = sites
    return found


def accumulate(
    objective: Objective,
    weights: Mapping[str, nn.Parameter],
    sites: Sites,
    samples: Samples,
    into: Mapping[str, Tensor],
) -> tuple[set[str], Tensor, int]:
    """Add the squares of the weights at `sites`.

    Returns the names that could be served on these samples (the others are left as they were), the objectives' sum, and how
    many numbers the largest output of a layer has per sample.
    """
    rules = {site.module: site.rule for places in sites.values() for site in places}
    with _recorded(rules, samples.size) as calls:
        scalars = objective(samples)
    largest = max((call.largest for made in calls.values() for call in made), default=1)
    value = scalars.detach().sum()
    uses = _count_uses(scalars, weights)
    served, wanted = set(), _Wanted()
    for name, places in sites.items():
        made = [(call, site.key) for site in places for call in calls[site.module]]
        if uses[name] == 0:
            served.add(name)  # nothing reads it: its gradient is zero
        # Attention multiplies by `out_proj.weight` without calling `out_proj`: every use must be a call.
        elif uses[name] == len(made) and all(call.readable(samples.size) for call, _ in made):
            if len(made) == 1:
                (call, key), *_ = made
                wanted.own[call][key] = into[name]
            elif all(call.rule.part is not None for call, _ in made):
                wanted.shared.append((made, into[name]))
            else:
                continue
            served.add(name)
    if needed := wanted.calls():
        edges = [call.edge for call in needed if call.edge is not None]
        for start in range(0, len(scalars), TOGETHER):
            rounds = [
                torch.autograd.grad(scalar, edges, retain_graph=j < len(scalars) - 1, allow_unused=True)
                for j, scalar in enumerate(scalars[start : start + TOGETHER], start)
            ]
            _add(wanted, {call: list(of) for call, *of in zip(needed, *rounds, strict=True)}, objective)
    return served, value, largest


def _add(wanted: _Wanted, grads: dict[Call, list[Tensor | None]], objective: Objective) -> None:
    """Add the squares of all that is wanted, from each call's output gradients, one for each objective of this round."""
    for made, into in wanted.shared:
        for j in range(len(grads[made[0][0]])):
            parts = []
            for call, key in made:
                grad = grads[call][j]
                if grad is not None:
                    assert call.rule.part is not None, "accumulate() has seen to it"
                    parts.append(call.rule.part(call.module, key, _as(into, call.inputs), grad.to(into.dtype)))
            add_parts(parts, into, objective.power)
    for call, squares in wanted.own.items():
        first = next(iter(squares.values()))
        # Popped where nothing else needs them: they are as large as what training keeps.
        present = [grad.to(first.dtype) for grad in grads.pop(call) if grad is not None]
        if present:
            call.rule.add(call.module, _as(first, call.inputs), present, squares, objective.power)


def _as(sums: Tensor, inputs: Tensor) -> Tensor:
    return inputs.to(sums.dtype) if inputs.is_floating_point() else inputs


@contextmanager
def _recorded(rules: Mapping[nn.Module, Rule], size: int) -> Iterator[dict[nn.Module, list[Call]]]:
    """Record every call of the layers in the block, on so many samples.

    An embedding of positions is looked up once for all samples, and what comes out is added to each of them: the gradient
    there would be their sum. So each sample is given its own view of it.
    """
    calls: dict[nn.Module, list[Call]] = defaultdict(list)

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        inputs: Tensor = args[0] if args else next(iter(kwargs.values()))
        once = isinstance(module, nn.Embedding) and inputs.dim() > 1 and len(inputs) == 1 < size
        if once:
            inputs, output = inputs.expand(size, *inputs.shape[1:]), output.expand(size, *output.shape[1:])
        edge = get_gradient_edge(output) if output.requires_grad else None
        length = output.shape[0] if output.dim() else 0
        numbers = output.numel() // max(1, length)
        calls[module].append(Call(module, rules[module], inputs.detach(), length, edge, numbers))
        return output if once else None

    # First in line, so that we see what the layer gave and not what a hook of the user's made of it.
    handles = [module.register_forward_hook(record, prepend=True, with_kwargs=True) for module in rules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _count_uses(scalars: Tensor, weights: Mapping[str, nn.Parameter]) -> Counter[str]:
    """How many operations in the graph of `scalars` read each weight."""
    names = {get_gradient_edge(weight).node: name for name, weight in weights.items()}
    uses: Counter[str] = Counter()
    stack = [] if scalars.grad_fn is None else [scalars.grad_fn]
    seen = set(stack)
    while stack:
        for node, _ in stack.pop().next_functions:
            if node in names:
                uses[names[node]] += 1
            elif node is not None and node not in seen:
                seen.add(node)
                stack.append(node)
    return uses
