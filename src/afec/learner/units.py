"""Dead and saturated units of each hidden layer, as the data of a task show them: one forward pass.

A unit is dead where it is 0 for every training sample: it has no gradient and Fisher 0, so that the task cannot move it and
nothing holds it. It is saturated where it is above 0 for every sample, at every place of its map: what follows the layer never
bends, and the unit is linear on these data. Both are seen where the next layer reads the unit, after activation and pooling.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from afec.fisher.untouched import untouched
from afec.learner.tasks import Batches, BatchLoss
from afec.nets import HiddenLayer, HiddenLayers, Readout
from afec.streams import Split

__all__ = ["UnitCount", "count_units"]

TRIED = 8  # samples with which it is tried whether the layers form a chain


@dataclass(frozen=True)
class UnitCount:
    """The units of one hidden layer."""

    layer: str
    units: int
    dead: int
    """How many are 0 for every sample."""
    saturated: int
    """How many are above 0 for every sample, everywhere."""


def count_units(net: Readout, loss: BatchLoss, data: Split, seed: int) -> list[UnitCount]:
    """Count over all of `data`, in eval mode; nothing changes. Raises `NoChainError` where layers do not form a chain."""
    rows = torch.arange(data.size, device=loss.machine.torch_device)
    smallest: dict[str, Tensor] = {}
    largest: dict[str, Tensor] = {}

    def see(layer: HiddenLayer, active: Tensor) -> None:
        rest = (0, *range(2, active.dim()))
        low, high = active.amin(dim=rest).float(), active.amax(dim=rest).float()  # aminmax is twenty times as slow
        smallest[layer.name] = torch.minimum(smallest.get(layer.name, low), low)
        largest[layer.name] = torch.maximum(largest.get(layer.name, high), high)

    with untouched(net, (), train=False, seed=seed), torch.no_grad(), loss.machine.precision():
        first = Batches(data).take(rows[:TRIED])
        trial = copy.deepcopy(net)  # its weights are changed
        seen = HiddenLayers(trial, partial(loss, trial, first))
        seen.check(seen.layers, partial(loss, trial, first))
        found = HiddenLayers(net, partial(loss, net, first))
        with found.watched(found.layers, see):
            for batch in _batches(data, rows, loss.chunk):
                loss.outputs(net, batch)
    return [
        UnitCount(
            layer.name,
            layer.units,
            int(((smallest[layer.name] == 0) & (largest[layer.name] == 0)).sum()),
            int((smallest[layer.name] > 0).sum()),
        )
        for layer in found.layers
    ]


def _batches(data: Split, rows: Tensor, size: int) -> Iterator[Any]:
    return map(Batches(data).take, torch.split(rows, size))
