"""Several processes with one model each (DDP): Fisher sums are added, θ_e is trained once and sent to all.

Or with one model between them (FSDP2): gradients are means over all processes already, each process knows its own part of every
weight and of all that is known about it, and θ_e is trained by all of them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from afec.fisher import FisherSum
from afec.parallel import group_here

__all__ = ["Processes", "processes_of", "reshard"]


class Processes:
    """One process; `Ensemble` is the same for many."""

    rank = 0
    count = 1
    several = False
    sharded = False
    part: tuple[int, int] | None = None
    """This process's number and how many there are, where each has all data and measures a part of them."""

    def total(self, fisher: FisherSum) -> FisherSum:
        """The sum over all processes."""
        return fisher

    def mean(self, value: float) -> float:
        """The mean over all processes, so that all of them decide alike."""
        return value

    def sum_of_parts(self, value: Tensor) -> Tensor:
        """The sum over the parts of the weights that the processes hold; of a whole weight it is there already."""
        return value

    def either(self, seen: Tensor) -> Tensor:
        """True where it is so in any process."""
        return seen

    def once(self, model: nn.Module, train: Callable[[], None]) -> None:
        """Train in one process and give all of them its weights and buffers."""
        train()


class Ensemble(Processes):
    """The processes of a DDP model."""

    several = True

    def __init__(self, group: Any, device: torch.device, part: tuple[int, int] | None = None) -> None:
        self.part = part
        self.group, self.device, self.rank = group, device, distributed.get_rank(group)
        self.source, self.count = distributed.get_global_rank(group, 0), distributed.get_world_size(group)

    def total(self, fisher: FisherSum) -> FisherSum:
        """The sum over all processes, each of which saw its own share of the data."""
        squares = {name: value.clone() for name, value in fisher.squares.items()}
        for value in squares.values():
            distributed.all_reduce(value, group=self.group)
        return FisherSum(squares, self._sum(fisher.count))

    def mean(self, value: float) -> float:
        """The mean over all processes."""
        return self._sum(value) / self.count

    def either(self, seen: Tensor) -> Tensor:
        """True where it is so in any process."""
        found = seen.to(torch.uint8)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return found.bool()

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total, group=self.group)
        return float(total)

    def once(self, model: nn.Module, train: Callable[[], None]) -> None:
        """Train in the first process; an error there is raised everywhere, so that nobody waits for ever."""
        error: list[Any] = [None]
        if self.rank == 0:
            try:
                train()
            except Exception as raised:
                error = [raised]
        message = [None if error[0] is None else f"{type(error[0]).__name__}: {error[0]}"]
        distributed.broadcast_object_list(message, src=self.source, group=self.group)
        if error[0] is not None:
            raise error[0]
        if message[0] is not None:
            raise RuntimeError(f"the expansion failed in the first process: {message[0]}")
        for tensor in [*model.parameters(), *model.buffers()]:
            distributed.broadcast(tensor.detach(), src=self.source, group=self.group)


class Shards(Ensemble):
    """The processes of a model that is sharded by FSDP2 (`fully_shard`)."""

    sharded = True

    def total(self, fisher: FisherSum) -> FisherSum:
        """Its sums are of gradients over all processes already; each of them has counted its own part of every batch."""
        return FisherSum(fisher.squares, self.mean(fisher.count))

    def sum_of_parts(self, value: Tensor) -> Tensor:
        """The sum over the processes."""
        value = value.detach().clone()
        distributed.all_reduce(value, group=self.group)
        return value

    def once(self, model: nn.Module, train: Callable[[], None]) -> None:
        """Train in all processes together."""
        train()


def reshard(model: nn.Module) -> None:
    """Give up gathered weights: after a forward pass alone FSDP2 keeps the whole ones in the model, in place of the parts."""
    for module in model.modules():
        if callable(again := getattr(module, "reshard", None)) and hasattr(module, "unshard"):
            again()


def processes_of(model: nn.Module) -> Processes:
    """The processes that a (wrapped) model is spread over."""
    while isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model._orig_mod  # type: ignore[assignment]
    if isinstance(model, DistributedDataParallel):
        return Ensemble(model.process_group, next(model.parameters()).device)
    reshard(model)
    sharded = [weight for weight in model.parameters() if hasattr(weight, "to_local")]
    if sharded:
        return Shards(sharded[0].device_mesh.get_group(), sharded[0].device)  # type: ignore[attr-defined]
    if (group := group_here()) is not None:
        return Ensemble(distributed.group.WORLD, group.device, (group.rank, group.size))
    return Processes()
