"""The concept figure of docs/active-forgetting.md: `python docs/figures/active_forgetting.py`.

Two weights, two posteriors. Left, EWC: the new task's loss and the old posterior. Right, AFEC: the expansion from the initial
weights to θ_e, and the convergence between θ* and θ_e. The end points are computed: the minima of the losses drawn.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

Point = NDArray[np.float64]

OLD, NEW, START = np.array([1.0, 3.0]), np.array([3.6, 1.2]), np.array([0.2, 0.2])
F_OLD, F_NEW = np.array([0.35, 2.0]), np.array([2.0, 0.6])  # one weight matters to the new task, the other to the old
LOSS = np.array([0.25, 0.25])  # of the new task, near the old weights: flatter than around its own minimum
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#666666"


def minimum(*quadratics: tuple[Point, Point]) -> Point:
    """Where the sum of quadratics (mean, precision) is smallest."""
    return sum(precision * mean for mean, precision in quadratics) / sum(precision for _, precision in quadratics)


def posterior(axes: Axes, mean: Point, precision: Point, colour: str) -> None:
    """Two lines of equal penalty."""
    for radius in (0.5, 1.0):
        width, height = 2 * radius / np.sqrt(precision)
        axes.add_patch(Ellipse(tuple(mean), width, height, facecolor=colour, alpha=0.12, edgecolor="none"))
        axes.add_patch(Ellipse(tuple(mean), width, height, facecolor="none", edgecolor=colour, linewidth=1.2))


def point(axes: Axes, where: Point, text: str, colour: str, offset: tuple[float, float], marker: str = "o") -> None:
    """A dot with its name."""
    axes.plot(*where, marker, color=colour, markersize=8)
    axes.annotate(text, where, xytext=offset, textcoords="offset points", color=colour, fontsize=11)


def arrow(axes: Axes, start: Point, end: Point, colour: str, bend: float, style: str = "-") -> None:
    """A bent arrow."""
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "linestyle": style, "shrinkA": 7, "shrinkB": 7}
    axes.annotate("", end, xytext=start, arrowprops={**look, "connectionstyle": f"arc3,rad={bend}"})


def frame(axes: Axes, title: str) -> None:
    """Axes and title."""
    axes.set(xlim=(-0.6, 5.2), ylim=(-0.6, 4.6), xticks=[], yticks=[], aspect="equal")
    axes.set_xlabel("a weight that matters to the new task")
    axes.set_ylabel("a weight that matters to the old tasks")
    axes.set_title(title, fontsize=12)


def draw(out: Path) -> None:
    """Both panels."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.9), layout="constrained")
    frame(left, "EWC: held to the old tasks")
    posterior(left, OLD, F_OLD, BLUE)
    held = minimum((OLD, F_OLD), (NEW, LOSS))
    arrow(left, OLD, held, GREY, 0.2)
    point(left, OLD, "θ* (F)", BLUE, (-14, 12))
    point(left, NEW, "best for the new task", ORANGE, (-52, -20), "x")
    point(left, held, "θ", "black", (9, 2), "s")

    frame(right, "AFEC: expansion, then convergence")
    posterior(right, OLD, F_OLD, BLUE)
    posterior(right, NEW, F_NEW, ORANGE)
    both = minimum((OLD, F_OLD), (NEW, LOSS), (NEW, F_NEW))
    arrow(right, START, NEW, ORANGE, 0.25, "--")
    arrow(right, OLD, both, GREY, -0.2)
    point(right, START, "initial weights", GREY, (-8, -18))
    right.text(1.35, -0.35, "1  expansion: the new task alone", color=ORANGE, fontsize=10)
    right.text(2.5, 3.55, "2  convergence: both pulls", color=GREY, fontsize=10)
    point(right, OLD, "θ* (F)", BLUE, (-14, 12))
    point(right, NEW, "θ_e (F_e)", ORANGE, (8, -16))
    point(right, both, "θ", "black", (9, 4), "s")
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    plt.rcParams.update({"svg.hashsalt": "afec", "svg.fonttype": "none", "font.family": "sans-serif"})
    draw(Path(__file__).parent.parent / "active-forgetting.svg")
