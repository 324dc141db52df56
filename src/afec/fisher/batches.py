"""Batches as nests of tensors: how many samples there are, and how to take some of them.

A batch is any nest of tuples, named tuples, lists and mappings (`UserDict` too, hence Hugging Face's
`BatchEncoding`). Its size is the first dimension of its first tensor. Every tensor with that first dimension
holds one row per sample; everything else (task ids, strings, scalars, tables) belongs to the batch as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

__all__ = ["Samples", "size_of"]


def tensors(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from tensors(value)


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """A nest of the same make with `function` applied to each tensor, in the order of `tensors`."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        # A mutable mapping keeps its type and all else it carries; one that cannot be written becomes a dict.
        new: Any = copy.copy(batch) if isinstance(batch, MutableMapping) else {}
        for key, value in batch.items():
            new[key] = map_tensors(function, value)
        return new
    if isinstance(batch, tuple | list):
        values = [map_tensors(function, value) for value in batch]
        return batch._make(values) if hasattr(batch, "_make") else type(batch)(values)
    return batch


def size_of(batch: Any) -> int:
    """How many samples a batch holds."""
    for tensor in tensors(batch):
        if tensor.dim() > 0:
            return tensor.shape[0]
    raise ValueError(
        f"cannot tell how many samples a batch holds: no tensor with a first dimension in it (its type is "
        f"{type(batch).__name__}). Give batches with tensors, or split= (batch -> its samples as batches of "
        f'one), or fisher="batched" with batch_size=None.'
    )


@dataclass(frozen=True)
class Samples:
    """Some samples of a batch, and the noise that goes with each of them where the Fisher kind draws any.

    Which tensors hold one row per sample is decided once, on the whole batch: a table of 16 class weights
    must not turn into rows because a chunk happens to have 16 samples.
    """

    whole: Any
    """The batch they are from."""

    of: int | None
    """The size of that batch; None where it is one sample as it stands, from `split=`."""

    rows: tuple[Tensor, ...]
    """The tensors with one row per sample, in the order of the batch, cut down to these samples."""

    size: int
    noise: Tensor | None = None

    @staticmethod
    def all_of(batch: Any) -> Samples:
        """All samples of a batch."""
        size = size_of(batch)
        rows = tuple(tensor for tensor in tensors(batch) if _has_rows(tensor, size))
        return Samples(batch, size, rows, size)

    @staticmethod
    def single(batch: Any) -> Samples:
        """A batch that is one sample as it stands."""
        return Samples(batch, None, (), 1)

    @cached_property
    def batch(self) -> Any:
        """These samples, as a batch of the same make as the whole one."""
        return self.rebuilt(self.rows)

    def rebuilt(self, rows: tuple[Tensor, ...]) -> Any:
        """A batch of the same make around other rows."""
        if self.of is None:
            return self.whole
        size, remaining = self.of, iter(rows)
        return map_tensors(lambda tensor: next(remaining) if _has_rows(tensor, size) else tensor, self.whole)

    def take(self, start: int, stop: int) -> Samples:
        """Samples start:stop, each with its own noise."""
        if start == 0 and stop >= self.size:
            return self
        rows = tuple(row[start:stop] for row in self.rows)
        noise = None if self.noise is None else self.noise[start:stop]
        return replace(self, rows=rows, noise=noise, size=min(stop, self.size) - start)

    def pick(self, indices: Tensor) -> Samples:
        """The samples at `indices`, without noise."""
        rows = tuple(row[indices.to(row.device)] for row in self.rows)
        return replace(self, rows=rows, noise=None, size=len(indices))

    def chunks(self, chunk: int) -> Iterator[Samples]:
        """The samples, at most `chunk` at a time."""
        return (self.take(start, start + chunk) for start in range(0, self.size, chunk))


def _has_rows(tensor: Tensor, size: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == size
