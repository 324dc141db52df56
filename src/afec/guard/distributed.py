"""Several processes with one model each (DDP): Fisher sums are added, θ_e is trained once and sent to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from afec.fisher import FisherSum
from afec.parallel import group_here

__all__ = ["Processes", "processes_of"]


class Processes:
    """One process; `Ensemble` is the same for many."""

    rank = 0
    count = 1
    several = False
    part: tuple[int, int] | None = None
    """This process's number and how many there are, where each has all data and measures a part of them."""

    def total(self, fisher: FisherSum) -> FisherSum:
        """The sum over all processes."""
        return fisher

    def mean(self, value: float) -> float:
        """The mean over all processes, so that all of them decide alike."""
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


def processes_of(model: nn.Module) -> Processes:
    """The processes that a (wrapped) model is spread over."""
    while isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model._orig_mod  # type: ignore[assignment]
    if isinstance(model, DistributedDataParallel):
        return Ensemble(model.process_group, next(model.parameters()).device)
    if (group := group_here()) is not None:
        return Ensemble(distributed.group.WORLD, group.device, (group.rank, group.size))
    return Processes()
