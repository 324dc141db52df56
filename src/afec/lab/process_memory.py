"""The largest amount of memory that this process has held at once."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["peak_memory_mb", "reset_peak_memory"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Count from here on: a worker runs one run after the other. Linux only; elsewhere the peak is the process's."""
    with suppress(OSError):
        CLEAR.write_text("5")


def peak_memory_mb() -> float:
    """In megabytes; 0 where the system does not say."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
