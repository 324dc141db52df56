"""What pictures are drawn on, and how they become files: whole or not at all."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from afec.files import write_bytes

__all__ = ["canvas", "save"]


def canvas(width: float, height: float) -> Figure:
    """An empty figure of so many inches. No pyplot: it keeps every figure alive and asks for a display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Into a file of the kind that its name says (.png, .svg, .pdf)."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix(".").lower() or "png", dpi=dpi)
    write_bytes(path, picture.getvalue())
