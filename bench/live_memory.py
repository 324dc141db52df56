"""The peak of live tensors while something runs: what torch's allocator was asked for and has not got back yet."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler says when it starts and stops, otherwise

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def peak_bytes(run: Callable[[], object]) -> int:
    """By how many bytes the live CPU tensors grow at most while `run` runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    assert seen.profiler is not None
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
