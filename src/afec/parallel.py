"""One run in several processes, each of which computes its share of every batch: what they say to each other.

All processes hold the same weights and take the same steps. A gradient is the sum over the shares, and so is everything else
that is a sum over samples. What is squared, is squared before it is added up, never after. Draws are those of one process: the
mask of a dropout is drawn for the whole batch, and each process takes its part of it; batch-norm takes the statistics of
the whole batch. So the numbers are those of one process, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["Group", "Share", "group_here", "grouped"]

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Share:
    """The rows of a batch that are this process's."""

    start: int
    stop: int
    whole: int
    """How many rows the batch has."""

    @property
    def part(self) -> float:
        """How much of the batch it is."""
        return (self.stop - self.start) / self.whole

    def of(self, rows: Tensor) -> Tensor:
        """This process's part of something with a row for each sample of the batch."""
        return rows[self.start : self.stop]


@dataclass(frozen=True)
class Group:
    """The processes that compute one run; this one has the number `rank`."""

    rank: int
    size: int
    device: torch.device = CPU

    def share(self, rows: int) -> Share | None:
        """This process's share of a batch; None where it is too small to be shared, and every process computes all of it."""
        if rows < 2 * self.size:  # batch-norm has a variance of two samples at least
            return None
        ends = [rows * number // self.size for number in range(self.size + 1)]
        return Share(ends[self.rank], ends[self.rank + 1], rows)

    def mine(self, number: int) -> bool:
        """Whether piece `number` of something that is dealt out is this process's."""
        return number % self.size == self.rank

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes; one message for all of a dtype."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for alike in kinds.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            distributed.all_reduce(flat)
            place = 0
            for tensor in alike:
                tensor.detach().copy_(flat[place : place + tensor.numel()].view(tensor.shape))
                place += tensor.numel()

    def total(self, value: float) -> float:
        """The sum of a number over the processes."""
        found = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(found)
        return float(found)

    def agreed(self, content: Any = None) -> Any:
        """What the first process says, in all of them."""
        box = [content]
        distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    @contextmanager
    def sharing(self, share: Share) -> Iterator[None]:
        """The block in which a share of a batch goes through a net, with the draws and statistics of the whole batch."""
        with _WholeBatch(share):
            yield


_GROUP: ContextVar[Group | None] = ContextVar("group", default=None)


def group_here() -> Group | None:
    """The group that this process computes a run in; None where it is alone."""
    return _GROUP.get()


@contextmanager
def grouped(group: Group | None) -> Iterator[None]:
    """The block in which everything that is learned is learned by the group."""
    token = _GROUP.set(group)
    try:
        yield
    finally:
        _GROUP.reset(token)


class _WholeBatch(TorchFunctionMode):
    """Dropout and batch-norm as if the whole batch were here."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share
        self.own: dict[Any, Callable[..., Tensor]] = {F.dropout: self._dropout, F.batch_norm: self._batch_norm}

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        return self.own.get(function, function)(*arguments, **(options or {}))

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return input
        last = torch.channels_last if input.dim() == 4 and _is_channels_last(input) else torch.contiguous_format
        ones = torch.ones((self.share.whole, *input.shape[1:]), dtype=input.dtype, device=input.device)
        mask = self.share.of(torch.dropout(ones.contiguous(memory_format=last), p, train=True))
        return input.mul_(mask) if inplace else input * mask

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        count = self.share.whole * input.numel() // (input.shape[0] * input.shape[1])
        mean = _summed(input.sum(axes)) / count
        centred = input - mean.view(shape)
        variance = _summed((centred**2).sum(axes)) / count
        with torch.no_grad():
            if running_mean is not None and running_var is not None:
                running_mean.lerp_(mean.to(running_mean), momentum)
                running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
        found = centred / torch.sqrt(variance + eps).view(shape)
        if weight is not None:
            found = found * weight.view(shape)
        return found if bias is None else found + bias.view(shape)


class _Sum(torch.autograd.Function):
    """The sum over the processes; so is its gradient, because every process's loss depends on it."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        found = value.clone()
        distributed.all_reduce(found)
        return found

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        found = gradient.clone()
        distributed.all_reduce(found)
        return found


def _summed(value: Tensor) -> Tensor:
    found: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return found


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
