"""Was a tensor written to? Told by two sums, without a copy of it."""

from __future__ import annotations

import torch
from torch import Tensor

from afec.fisher.shards import local

__all__ = ["checksum"]

TOGETHER = 2**15
"""Numbers that are converted to float64 at a time."""


@torch.no_grad()
def checksum(tensor: Tensor) -> str:
    """Changes when the values do; a string, so that NaN equals itself."""
    own = local(tensor)
    flat = (torch.view_as_real(own) if own.is_complex() else own).reshape(-1)
    total = squares = 0.0
    for start in range(0, len(flat), TOGETHER):
        wide = flat[start : start + TOGETHER].double()
        total += float(wide.sum())
        squares += float(wide.dot(wide))
    return f"{total!r} {squares!r}"
