"""Image files to bytes: one file, or many of them on all cores."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

__all__ = ["FORMATS", "converted", "decode", "decode_all", "listed", "opened"]

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
"""What is tried on a file, whatever its name. Pillow knows more of them, and starts other programs for some."""
AT_ONCE = 256
SHOWN = 5  # bad files in a message


def converted(image: Image.Image, mode: str) -> Image.Image:
    """The image as `RGB` or `L`: grey becomes three alike colours, CMYK its colours, and transparency is dropped."""
    if image.mode.startswith(("I", "F")):  # I, F, and I;16 in either order of its bytes
        raise ValueError(f"it has more than a byte per pixel (mode {image.mode}); save it with 8 bits")
    if image.mode == "P":  # colours by number, perhaps with a transparent one
        image = image.convert("RGBA")
    return image.convert(mode)


def opened(file: Path) -> Image.Image:
    """The image in a file, turned as its camera says. A damaged file makes Pillow raise nearly anything."""
    with Image.open(file, formats=FORMATS) as image:
        return ImageOps.exif_transpose(image)


def decode(file: Path, short: int) -> np.ndarray:
    """The image as bytes (height, width, 3), scaled down so that its short side has `short` pixels.

    A smaller image stays as it is. A photograph is turned as its camera says.
    """
    image = converted(opened(file), "RGB")
    width, height = image.size
    if min(width, height) > short:
        part = short / min(width, height)
        size = max(short, round(width * part)), max(short, round(height * part))
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image)


def decode_all(files: Sequence[Path], short: int) -> Iterator[np.ndarray | str]:
    """Each image in turn, or what is wrong with its file. Threads: Pillow lets others work while it decodes."""

    def one(file: Path) -> np.ndarray | str:
        try:
            return decode(file, short)
        except Exception as error:
            return f"{file}: {error or type(error).__name__}"

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(cores) as pool:
        for start in range(0, len(files), AT_ONCE):  # so that no more than these wait in memory to be written
            with warnings.catch_warnings(action="ignore"):  # Pillow's do not say which file they are about
                found = list(pool.map(one, files[start : start + AT_ONCE]))
            yield from found


def listed(bad: Sequence[str]) -> str:
    """What is wrong with files, a line each; of many the first."""
    more = [f"… and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    return "\n  ".join(["", *bad[:SHOWN], *more])
