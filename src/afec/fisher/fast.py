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
"""Objectives whose output gradients are held at once; `exact` with more of them goes in several rounds."""


@dataclass(frozen=True)
class Site:
    """The one place where a weight lives: a layer with a rule, and the weight's name in it."""

    module: nn.Module
    key: str


@dataclass(frozen=True)
class Call:
    """One call of a layer during the forward pass: what went in, and the gradient of what came out."""

    inputs: Tensor
    output_size: int

    edge: GradientEdge | None
    """Where the output's gradient arrives. Not the output itself: an in-place ReLU would change that."""


def find_sites(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, Site]:
    """The weights that may go this way: owned by one layer only, of a type with a rule."""
    owners: dict[int, list[Site]] = defaultdict(list)
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners[id(parameter)].append(Site(module, key))
    found = {name: owners[id(weight)] for name, weight in weights.items()}
    return {name: at[0] for name, at in found.items() if len(at) == 1 and type(at[0].module) in RULES}


def accumulate(
    objective: Objective,
    weights: Mapping[str, nn.Parameter],
    sites: Mapping[str, Site],
    samples: Samples,
    into: Mapping[str, Tensor],
) -> tuple[set[str], Tensor]:
    """Add the squares of the weights at `sites`.

    Returns the names that could be served on these samples (the others are left as they were), and the
    objectives' sum.
    """
    with _recorded({site.module for site in sites.values()}) as calls:
        scalars = objective(samples)
    value = scalars.detach().sum()
    uses = _count_uses(scalars, weights)
    served = set()
    wanted: dict[nn.Module, dict[str, Tensor]] = defaultdict(dict)
    for name, site in sites.items():
        if uses[name] == 0:
            served.add(name)  # nothing reads it: its gradient is zero
        elif uses[name] == 1 and _readable(site.module, calls[site.module], samples.size):
            served.add(name)
            wanted[site.module][site.key] = into[name]
    if not wanted:
        return served, value
    edges = [edge for module in wanted if (edge := calls[module][0].edge) is not None]
    for start in range(0, len(scalars), TOGETHER):
        rounds = [
            torch.autograd.grad(scalar, edges, retain_graph=True, allow_unused=True)
            for scalar in scalars[start : start + TOGETHER]
        ]
        for (module, squares), *grads in zip(wanted.items(), *rounds, strict=True):
            dtype = next(iter(squares.values())).dtype
            inputs = calls[module][0].inputs
            inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
            present = [grad.to(dtype) for grad in grads if grad is not None]
            if present:
                RULES[type(module)].add(module, inputs, present, squares, objective.power)
    return served, value


@contextmanager
def _recorded(modules: Iterable[nn.Module]) -> Iterator[dict[nn.Module, list[Call]]]:
    """Record every call of `modules` in the block."""
    calls: dict[nn.Module, list[Call]] = defaultdict(list)

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        inputs: Tensor = args[0] if args else kwargs["input"]
        edge = get_gradient_edge(output) if output.requires_grad else None
        calls[module].append(Call(inputs.detach(), output.shape[0] if output.dim() else 0, edge))

    # First in line, so that we see what the layer gave and not what a hook of the user's made of it.
    handles = [module.register_forward_hook(record, prepend=True, with_kwargs=True) for module in modules]
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


def _readable(module: nn.Module, calls: list[Call], size: int) -> bool:
    """Is the one use of a weight this layer's only call, and can its rule read that?

    Attention multiplies by `out_proj.weight` without calling `out_proj`. Two calls, or a call and an embedding's
    second life as output layer, are two uses and do not come here.
    """
    if len(calls) != 1 or calls[0].edge is None:
        return False
    inputs = calls[0].inputs
    fits = inputs.dim() > 0 and inputs.shape[0] == size == calls[0].output_size
    return fits and RULES[type(module)].applies(module, inputs)
