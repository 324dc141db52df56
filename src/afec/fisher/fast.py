"""Route one: hooks on the layers collect inputs and output gradients, and a rule per layer type squares them.

No weight gradient is ever computed: autograd stops at the layers' outputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from afec.fisher.batches import Samples
from afec.fisher.objectives import Objective
from afec.fisher.rules import RULES

__all__ = ["Site", "accumulate", "find_sites"]

TOGETHER = 16
"""Objectives whose output gradients are held at once; `exact` with more goes in several rounds."""


@dataclass(frozen=True)
class Site:
    """The one place where a weight lives: a layer with a rule, and the weight's name in it."""

    module: nn.Module
    key: str


@dataclass(frozen=True)
class Call:
    """One call of a layer."""

    inputs: Tensor
    output_size: int
    edge: GradientEdge | None
    """Where the output's gradient arrives. An edge, not the output itself: an in-place ReLU after it changes that."""


def find_sites(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, Site]:
    """The weights that may go this way: owned by one layer only, and by one of a type with a rule."""
    owners: dict[int, list[Site]] = defaultdict(list)
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners[id(parameter)].append(Site(module, key))
    sites = {name: owners[id(weight)] for name, weight in weights.items()} return {name: places[0] for name,
    places in sites.items() if len(places) == 1 and type(places[0].module) in RULES}


def accumulate(
    objective: Objective,
    weights: Mapping[str, nn.Parameter],
    sites: Mapping[str, Site],
    samples: Samples,
    into: Mapping[str, Tensor],
) -> tuple[set[str], Tensor]:
    """Add the squares of the weights at `sites`; return the names that could be served, and the objectives'
    sum.

    What cannot be served on these samples is left as it was.
    """
    with _recorded({site.module for site in sites.values()}) as calls:
        scalars = objective(samples)
    value = scalars.detach().sum()
    uses = _count_uses(scalars)
    served = {
        name: site
        for name, site in sites.items()
        if _readable(site.module, calls[site.module], uses[id(weights[name])], samples.size)
    }
    wanted: dict[nn.Module, dict[str, Tensor]] = defaultdict(dict)
    for name, site in served.items():
        if uses[id(weights[name])]:
            wanted[site.module][site.key] = into[name]
    if not wanted:
        return set(served), value
    seen = {module: calls[module][0] for module in wanted}
    edges = [call.edge for call in seen.values() if call.edge is not None]
    for start in range(0, len(scalars), TOGETHER):
        rounds = [
            torch.autograd.grad(scalar, edges, retain_graph=True, allow_unused=True)
            for scalar in scalars[start : start + TOGETHER]
        ]
        for (module, call), *grads in zip(seen.items(), *rounds, strict=True):
            dtype = next(iter(wanted[module].values())).dtype
            inputs = call.inputs.to(dtype) if call.inputs.is_floating_point() else call.inputs
            present = [grad.to(dtype) for grad in grads if grad is not None]
            if present:
                RULES[type(module)].add(module, inputs, present, wanted[module])
    return set(served), value


@contextmanager
def _recorded(modules: Iterable[nn.Module]) -> Iterator[dict[nn.Module, list[Call]]]:
    """Record every call of `modules` in the block."""
    calls: dict[nn.Module, list[Call]] = defaultdict(list)

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        inputs: Tensor = args[0] if args else kwargs["input"]
        edge = get_gradient_edge(output) if output.requires_grad else None
        calls[module].append(Call(inputs.detach(), len(output) if output.dim() else 0, edge))

    # First in line, so that we see what the layer gave and not what a hook of the user's made of it.
    handles = [module.register_forward_hook(record, prepend=True, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _count_uses(scalars: Tensor) -> Counter[int]:
    """How many operations in the graph read each leaf tensor, by identity."""
    uses: Counter[int] = Counter()
    if scalars.grad_fn is None:
        return uses
    stack, seen = [scalars.grad_fn], {scalars.grad_fn}
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is None:
                continue
            if hasattr(node, "variable"):
                uses[id(node.variable)] += 1
            elif node not in seen:
                seen.add(node)
                stack.append(node)
    return uses


def _readable(module: nn.Module, calls: list[Call], uses: int, size: int) -> bool:
    """Is the layer's call the only use of its weight, and one that its rule can read?

    Attention multiplies by `out_proj.weight` without calling `out_proj`; an embedding's weight may serve as
    the output layer too; a layer may be called twice. A weight that nothing uses is fine: its gradient is
    zero.
    """
    if uses == 0:
        return True
    if uses > 1 or len(calls) != 1 or calls[0].edge is None:
        return False
    (call,) = calls
    fits = call.inputs.dim() > 0 and call.inputs.shape[0] == size and call.output_size == size
    return fits and RULES[type(module)].applies(module, call.inputs)
