"""Our own passes over the user's data: their DataLoader object is never iterated.

With persistent workers, or a sampler that keeps state, iterating the user's loader would change what their loop sees. So a
pass builds a loader of its own over the same dataset, with the same `collate_fn`, a copy of the sampler and a generator of
ours. Random state inside a Dataset is the user's.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from afec.fisher.batches import Samples, map_tensors
from afec.randomness import seed_from

__all__ = ["Passes"]


class Passes:
    """Passes over a DataLoader, a tuple of tensors, an iterable of batches, or a function that returns batches."""

    def __init__(self, data: Any, device: torch.device, batch_size: int = 64) -> None:
        self.data, self.device, self.batch_size = _readable(data), device, batch_size

    @property
    def on_demand(self) -> bool:
        """Whether the batches are made when they are asked for (rollouts), so that no two passes are the same."""
        return not isinstance(self.data, (DataLoader, Dataset)) and callable(self.data)

    @property
    def rebatches(self) -> bool:
        """Whether a pass can be asked for another batch size."""
        data = self.data
        if isinstance(data, DataLoader):
            if isinstance(data.dataset, IterableDataset):
                return data.batch_size is not None
            return type(data.batch_sampler) is BatchSampler
        return isinstance(data, Dataset)

    @property
    def is_split(self) -> bool:
        """Whether each process sees its own share of the data."""
        return isinstance(self.data, DataLoader) and isinstance(self.data.sampler, DistributedSampler)

    def one(
        self,
        seed: int,
        *,
        batch_size: int | None = None,
        training: bool = False,
        whole: bool = False,
        samples: int | None = None,
    ) -> Iterable[Any]:
        """One pass, on the device of the weights; iterate it inside `randomness.forked`.

        `batch_size` re-batches where that is possible (a loader with its own batch sampler, an iterable and a function give
        batches as they are); `training` keeps the loader's `drop_last`; `whole` undoes a split over processes. `samples`
        is how many of the data are seen: drawn at random where they have an order, else those that come first.
        """
        return _Pass(self, seed, batch_size, training, whole, samples)


class _Pass:
    def __init__(
        self, passes: Passes, seed: int, batch_size: int | None, training: bool, whole: bool, samples: int | None
    ) -> None:
        self.passes, self.seed, self.batch_size = passes, seed, batch_size
        self.training, self.whole, self.samples = training, whole, samples

    def __iter__(self) -> Iterator[Any]:
        empty = True
        for batch in self._source() if self.samples is None else _first_samples(self._source(), self.samples):
            empty = False
            yield map_tensors(lambda tensor: tensor.to(self.passes.device), batch)
        if empty:
            raise ValueError(
                f"the data are empty: a pass over {_described(self.passes.data)} gave no batch. "
                "Expected at least one (is drop_last on with fewer samples than a batch, or the source used up?)"
            )

    def _source(self) -> Iterable[Any]:
        data, generator = self.passes.data, torch.Generator().manual_seed(self.seed)
        if isinstance(data, DataLoader):
            return self._own_loader(data, generator)
        if isinstance(data, Dataset):
            size = self.batch_size or self.passes.batch_size
            if isinstance(data, IterableDataset):
                return DataLoader(data, size, generator=generator)
            if self.samples is not None:
                order = range(len(data))  # type: ignore[arg-type]
                return DataLoader(data, size, sampler=_Some(order, self.samples, self.seed), generator=generator)
            return DataLoader(data, size, shuffle=self.training or None, generator=generator)
        if callable(data):
            return self._checked(data())
        return self._checked(data)

    @staticmethod
    def _checked(batches: Any) -> Iterable[Any]:
        if not isinstance(batches, Iterable):
            raise TypeError(f"the data function returned {type(batches).__name__}; expected an iterable of batches")
        return batches

    def _own_loader(self, loader: DataLoader[Any], generator: torch.Generator) -> DataLoader[Any]:
        options: dict[str, Any] = {
            "collate_fn": loader.collate_fn,
            "num_workers": loader.num_workers,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
            "generator": generator,
        }
        if loader.num_workers > 0:
            options["prefetch_factor"] = loader.prefetch_factor
        if isinstance(loader.dataset, IterableDataset):
            size = self.batch_size or loader.batch_size
            drop_last = loader.drop_last and self.training and loader.batch_size is not None
            return DataLoader(
                loader.dataset,
                size if loader.batch_size is not None else None,
                drop_last=drop_last,
                **options,
            )
        whole_batches = loader.batch_sampler  # None where the dataset itself gives batches
        if self.whole and hasattr(whole_batches, "num_processes"):  # accelerate's: the share of one process
            whole_batches = getattr(whole_batches, "batch_sampler", whole_batches)
        if whole_batches is not None and type(whole_batches) is not BatchSampler:
            return DataLoader(loader.dataset, batch_sampler=_copied(whole_batches, generator), **options)
        sampler: Any = loader.sampler if whole_batches is None else whole_batches.sampler
        if self.whole and isinstance(sampler, DistributedSampler):
            sampler = RandomSampler(loader.dataset, generator=generator)  # type: ignore[arg-type]
        else:
            sampler = _copied(sampler, generator)
        if self.samples is not None and whole_batches is not None:
            sampler = _Some(sampler, self.samples, self.seed)
        if whole_batches is None:
            return DataLoader(loader.dataset, batch_size=None, sampler=sampler, **options)
        size, drop_last = self.batch_size or whole_batches.batch_size, whole_batches.drop_last and self.training
        return DataLoader(loader.dataset, size, sampler=sampler, drop_last=drop_last, **options)


class _Some(Sampler[Any]):
    """So many of what another sampler gives, drawn at random and in its order; all of it where that is no more."""

    def __init__(self, whole: Iterable[Any], samples: int, seed: int) -> None:
        self.whole, self.samples, self.seed = whole, samples, seed

    def __iter__(self) -> Iterator[Any]:
        indices = list(self.whole)
        if len(indices) > self.samples:
            generator = torch.Generator().manual_seed(seed_from(self.seed, "some"))
            chosen = torch.randperm(len(indices), generator=generator)[: self.samples].sort().values
            indices = [indices[i] for i in chosen.tolist()]
        return iter(indices)


def _first_samples(batches: Iterable[Any], samples: int) -> Iterator[Any]:
    """The batches with the first samples; a batch that no cut can take apart stays whole."""
    for batch in batches:
        try:
            found = Samples.all_of(batch).take(0, samples)
        except ValueError:  # its size is not known: it counts as one
            yield batch
            samples -= 1
        else:
            yield found.batch
            samples -= found.size
        if samples <= 0:
            return


# What a sampler may shuffle or draw from in place.
_OWN_STATE = (list, dict, set, Tensor, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)


def _copied(sampler: Any, generator: torch.Generator) -> Any:
    """A sampler with the same settings whose state is its own and whose draws are ours; the data are shared."""
    if isinstance(sampler, Sequence):
        return copy.copy(sampler)  # plain indices or batches of them
    twin = copy.copy(sampler)
    for key, value in vars(twin).items():
        if isinstance(value, torch.Generator):
            vars(twin)[key] = generator
        elif isinstance(value, Sampler):
            vars(twin)[key] = _copied(value, generator)
        elif isinstance(value, _OWN_STATE):
            vars(twin)[key] = copy.deepcopy(value)
    if isinstance(vars(twin).get("epoch"), int):  # one that shuffles by the number of the user's epoch
        twin.epoch = generator.initial_seed() % 2**31
    return twin


def _readable(data: Any) -> Any:
    """The data in a form that can be passed over again and again, or an error that says why not."""
    if isinstance(data, Tensor):
        data = (data,)
    if isinstance(data, (tuple, list)) and data and all(isinstance(part, Tensor) for part in data):
        sizes = {part.shape[0] if part.dim() else None for part in data}
        if len(sizes) != 1 or None in sizes:
            raise ValueError(
                f"data as tensors need one first dimension for all, the samples; got shapes {[tuple(t.shape) for t in data]}"
            )
        return TensorDataset(*data)
    if isinstance(data, (DataLoader, Dataset)) or (callable(data) and not isinstance(data, Iterable)):
        return data
    if isinstance(data, Iterator):
        raise TypeError(
            f"data is a one-shot iterator ({type(data).__name__}): a second pass over it would find nothing. "
            "Give a DataLoader, a tuple of tensors, a list of batches, or a function that returns batches"
        )
    if isinstance(data, Iterable):
        return data
    raise TypeError(
        f"data must be a DataLoader, a tuple of tensors, an iterable of batches, or a function that returns batches; "
        f"got {type(data).__name__}"
    )


def _described(data: Any) -> str:
    if isinstance(data, DataLoader):
        return f"DataLoader({type(data.dataset).__name__})"
    return getattr(data, "__name__", type(data).__name__)
