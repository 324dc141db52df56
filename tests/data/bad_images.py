"""Image files that cannot be taken as they are."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def truncated(file: Path) -> None:
    """A JPEG without its end."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(out, "JPEG")
    file.write_bytes(out.getvalue()[:-600])


def deep(file: Path) -> None:
    """Sixteen bits of grey."""
    Image.fromarray(np.full((80, 80), 40_000, np.uint16)).save(file)
