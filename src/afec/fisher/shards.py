"""Weights of which this process holds a part only (FSDP2): what is done to a weight is done to that part.

Everything here is elementwise, so a shard needs nothing of the others; only sums over all weights do.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

__all__ = ["any_sharded", "local"]


def local(tensor: Tensor) -> Tensor:
    """The part that this process holds, detached, in the same memory; of a plain tensor all of it."""
    own = tensor.detach()
    return own.to_local() if hasattr(own, "to_local") else own  # a DTensor, without importing its module


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether some of them are spread over processes."""
    return any(hasattr(tensor, "to_local") for tensor in tensors)
