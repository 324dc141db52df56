"""The trade-off: accuracy of the old tasks against the new one, along a row of strengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["Curve", "draw_trade_off"]


@dataclass(frozen=True)
class Curve:
    """One method at several strengths, from weak to strong."""

    label: str
    points: Sequence[tuple[float, float, float]]
    """(λ, accuracy of the old tasks, accuracy of the new task), fractions."""


def draw_trade_off(path: Path, panels: Sequence[tuple[str, Sequence[Curve]]], title: str) -> None:
    """Write the picture: one panel for each regulariser; further to the upper right is better, each point says its λ."""
    figure = Figure(figsize=(4.6 * len(panels), 4.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for (name, curves), ax in zip(panels, axes, strict=True):
        for place, curve in enumerate(curves):
            colour = mpl.colormaps["tab10"](place)
            points = sorted(curve.points)
            old, new = [100 * point[1] for point in points], [100 * point[2] for point in points]
            ax.plot(old, new, color=colour, marker="o", markersize=4, linewidth=1.3, label=curve.label)
            for (strength, _, _), x, y in zip(points, old, new, strict=True):
                ax.annotate(
                    f"{strength:g}", (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6.5, color=colour
                )
        ax.set(title=name, xlabel="old task, %")
        ax.grid(color="0.92")
        ax.legend(fontsize=8, loc="lower left")
    axes[0].set_ylabel("new task, %")
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
