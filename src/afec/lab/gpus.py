"""GPUs, shared out among the workers: unproven, there was none to try it on."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["available_cores", "default_workers", "shared_gpus"]


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_gpus(devices: Iterable[str]) -> list[str]:
    """The GPUs that are shared out, each as CUDA_VISIBLE_DEVICES names it: all that are visible, where runs ask for `cuda`.

    A run that asks for a certain one, `cuda:1`, means the numbers of this process: nothing is shared out then.
    """
    if {device for device in devices if device != "cpu"} != {"cuda"}:
        return []
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in named.split(",") if name.strip()]
    return names[:count] if names else [str(number) for number in range(count)]


def default_workers(devices: Iterable[str]) -> int:
    """One process per GPU where they are shared out, otherwise one per core."""
    return len(shared_gpus(devices)) or available_cores()
