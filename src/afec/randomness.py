"""Our own randomness: every draw we make is seeded, and none of it is taken from the user's generators.

Passes over the user's data, the expansion and the sampled Fisher run inside `forked`, so that a run with them and a
run without them see the same random numbers outside.
"""

from __future__ import annotations

import hashlib
import platform
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

__all__ = ["forked", "processor", "reseed", "seed_from"]


def seed_from(*keys: object) -> int:
    """A 63-bit seed that is a pure function of `keys` (ints and strings), the same in every process."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def reseed(seed: int) -> None:
    """Seed torch, numpy and `random`; to be used inside `forked`."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def forked(seed: int, device: torch.device | None = None) -> Iterator[torch.Generator]:
    """Seed torch, numpy and `random` for the block and put all three back after it, whatever happens inside.

    Yields a CPU generator of our own, for what takes one.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            reseed(seed)
            yield torch.Generator().manual_seed(seed)
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def processor() -> str:
    """The model of the processor, where the system tells: numbers are the same bit for bit on one model only."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
