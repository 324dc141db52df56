"""Charts as files for a paper: PNG, SVG or PDF, by matplotlib. The page draws the same charts in `svg.py`.

matplotlib takes half a second to import, and most commands draw nothing: it is not imported before it is needed.
"""

from __future__ import annotations

import math
import textwrap
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from afec.report.chart import Bars, Chart, Figure, Heat, Lines, Trace
from afec.whole_files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = ["draw_figure", "new_drawing", "save_drawing"]

# Okabe and Ito's, without the yellow: told apart by colour-blind people.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a51a3", "#5b6470")
MARKERS = "osD^"
DASHES = ("-", "--", ":", "-.")
AXIS = 270.0
"""About how many points wide the axis of one chart is."""
INSIDE = 6
"""So many names have room inside a chart."""
LINE = 0.19
"""Inches that a line of names takes below a chart."""


def new_drawing(width: float, height: float) -> Drawing:
    """An empty drawing of so many inches. No pyplot: it keeps every figure alive and asks for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def save_drawing(drawing: Drawing, path: Path, dpi: int) -> None:
    """Write it whole or not at all, as the kind of file that its name says (.png, .svg, .pdf)."""
    written = BytesIO()
    drawing.savefig(written, format=path.suffix.removeprefix(".").lower() or "png", dpi=dpi)
    write_bytes(path, written.getvalue())


def draw_figure(path: Path, figure: Figure, title: str) -> None:
    """Write the figure to `path`."""
    if figure.missing:
        raise ValueError(figure.missing)
    columns = min(3, len(figure.charts))
    rows = math.ceil(len(figure.charts) / columns)
    most = max((len(chart.traces) for chart in figure.charts if isinstance(chart, Lines)), default=0)
    below = LINE * math.ceil(most / 2) if most > INSIDE else 0.0
    drawing = new_drawing(4.6 * columns + 0.4, (3.9 + below) * rows + 0.4)
    axes = drawing.subplots(rows, columns, squeeze=False)
    for chart, ax in zip(figure.charts, axes.flat, strict=False):
        ax.set_title(textwrap.fill(chart.title, 48), fontsize=10)
        _draw(ax, chart)
    for ax in list(axes.flat)[len(figure.charts) :]:
        ax.set_axis_off()
    named: set[tuple[str, ...]] = set()
    for chart, ax in zip(figure.charts, axes.flat, strict=False):  # a legend wherever there are other names than before
        names = tuple(trace.label for trace in chart.traces) if isinstance(chart, Lines) else ()
        if names and names not in named:
            _legend(ax, len(names))
        named.add(names)
    drawing.suptitle(textwrap.fill(title, 52 * columns), fontsize=10)
    save_drawing(drawing, path, dpi=100)


def _legend(ax: Any, names: int) -> None:
    """Many names stand below the chart, where they hide nothing."""
    if names <= INSIDE:
        ax.legend(fontsize=8)
    else:
        ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def _draw(ax: Any, chart: Chart) -> None:
    if isinstance(chart, Lines):
        _lines(ax, chart)
    elif isinstance(chart, Bars):
        _bars(ax, chart)
    else:
        _heat(ax, chart)


def _style(trace: Trace) -> dict[str, Any]:
    return {"color": COLOURS[trace.colour % len(COLOURS)], "label": trace.label}


def _lines(ax: Any, chart: Lines) -> None:
    from matplotlib.ticker import LogFormatter
    from matplotlib.transforms import ScaledTranslation

    offsets = chart.offsets(AXIS)
    for trace, offset in zip(chart.traces, offsets, strict=True):
        spread = np.nan_to_num(np.array(trace.spread))  # one seed has none
        x, y = np.array(trace.x), np.array(trace.y)
        dash = "--" if trace.dashed else DASHES[min(trace.colour // len(COLOURS), 3)]
        marker = MARKERS[(trace.colour + trace.colour // len(COLOURS)) % len(MARKERS)]
        moved = ax.transData + ScaledTranslation(offset / 72, 0, ax.figure.dpi_scale_trans)
        ax.plot(x, y, dash, marker=marker, markersize=4, transform=moved, **_style(trace))
        if chart.error_bars:
            ax.errorbar(
                x, y, spread, fmt="none", ecolor=_style(trace)["color"], elinewidth=1, capsize=2, transform=moved
            )
        elif chart.bands:
            ax.fill_between(x, y - spread, y + spread, color=_style(trace)["color"], alpha=0.15, linewidth=0)
        else:
            wide = np.nan_to_num(np.array(trace.spread_x or [0.0] * len(x)))
            ax.errorbar(x, y, spread, wide, fmt="none", ecolor=_style(trace)["color"], elinewidth=1)
            for place, mark in enumerate(trace.marks):
                ax.annotate(mark, (x[place], y[place]), xytext=(3, 3), textcoords="offset points", fontsize=6.5)
    if chart.log_x:
        with_zero = any(0 in trace.x for trace in chart.traces)
        ax.set_xscale("symlog" if with_zero else "log")
        if not with_zero:  # 1.2, not 1.2 × 10⁰
            ax.xaxis.set_major_formatter(LogFormatter())
            ax.xaxis.set_minor_formatter(LogFormatter())
    ax.set(xlabel=chart.x_label, ylabel=chart.y_label)
    ax.grid(color="0.92")


def _bars(ax: Any, chart: Bars) -> None:
    places = np.arange(len(chart.traces))[::-1]
    spread = [0.0 if math.isnan(trace.spread[0]) else trace.spread[0] for trace in chart.traces]
    colours = [_style(trace)["color"] for trace in chart.traces]
    ax.barh(places, [trace.y[0] for trace in chart.traces], xerr=spread, color=colours, ecolor="0.2", height=0.6)
    ax.set_yticks(places, [textwrap.fill(trace.label, 26) for trace in chart.traces], fontsize=8)
    ax.axvline(0, color="0.3", linewidth=0.8)
    ax.set_xlabel(chart.unit)


def _heat(ax: Any, chart: Heat) -> None:
    low, high = chart.limits
    ax.imshow(chart.values, vmin=low, vmax=high, cmap="viridis", aspect="auto")
    if chart.values.shape[1] <= 10:
        for (i, j), value in np.ndenumerate(chart.values):
            if math.isfinite(value):
                colour = "black" if chart.level(value) >= 0.55 else "white"
                ax.text(j, i, f"{value:.{chart.digits}f}", ha="center", va="center", fontsize=7, color=colour)
    ax.set(xlabel=chart.x_label, ylabel=chart.y_label)
    first = 1 if chart.confusion else 0
    ax.set_yticks(range(chart.values.shape[0]), [str(k + first) for k in range(chart.values.shape[0])], fontsize=6)
    ax.set_xticks(range(chart.values.shape[1]), [str(k + 1) for k in range(chart.values.shape[1])], fontsize=6)
