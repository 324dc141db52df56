"""Charts as SVG inside the page: colours come from its style sheet, values are shown by its script where the pointer is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from afec.report.chart import Bars, Chart, Heat, Lines, Trace
from afec.report.circles import EDGE, REACH, Panel
from afec.report.html import clean, tag
from afec.report.statistics import number

__all__ = ["draw", "draw_circle", "marker", "ticks"]

WIDTH, HEIGHT = 460.0, 290.0
RIGHT, TOP, BOTTOM = 14.0, 12.0, 42.0
NAME, DIGIT = 30.0, 8.5
"""Left of an axis: the room for its name, and for each digit of its numbers in the largest type of the style sheet."""
COLOURS = 8
LEVELS = 20
POINTS = 400
Pixel = Callable[[float], float]


def draw(chart: Chart) -> Markup:
    """A chart as SVG."""
    if isinstance(chart, Lines):
        return _lines(chart)
    return _bars(chart) if isinstance(chart, Bars) else _heat(chart)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about so many."""
    span = (high - low) or 1.0
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _svg(label: str, width: float, height: float, *children: Markup, **more: object) -> Markup:
    return tag(
        "svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_="chart", **more
    )


def _text(x: float, y: float, words: str, anchor: str = "middle", class_: str | None = None, **more: object) -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_, **more)


def _colour(trace: Trace) -> str:
    return f"c{trace.colour % COLOURS} d{min(trace.colour // COLOURS, 3)}" + (" ref" if trace.dashed else "")


def _value(mean: float, spread: float, seeds: int, digits: int = 1) -> str:
    return number(mean, digits) + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}") + f" (n {seeds})"


def _range(values: Iterable[float], low: float = -math.inf, high: float = math.inf) -> tuple[float, float]:
    """What the axis spans: the values with some air, within what is possible."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    air = 0.06 * (max(known) - min(known)) or 1.0
    return max(low, min(known) - air), min(high, max(known) + air)


# -- lines ----------------------------------------------------------------------------------------------------------


def _lines(chart: Lines) -> Markup:
    def across(x: float) -> float:
        return math.log10(x) if chart.log_x else x

    traces = [_without_gaps(trace, zero=chart.log_x) for trace in chart.traces]
    tall = [y + sign * s for t in traces for y, s in zip(t.y, _known(t.spread), strict=True) for sign in (-1, 1)]
    sides = [(t, _known(t.spread_x) or [0.0] * len(t.x)) for t in traces]
    wide = [across(x) + sign * s for t, side in sides for x, s in zip(t.x, side, strict=True) for sign in (-1, 1)]
    y_low, y_high = _range(tall, *chart.limits)
    x_low, x_high = _range(wide) if chart.bands else _range(wide, *chart.limits)
    y_ticks = [(y, f"{y:g}") for y in ticks(y_low, y_high)]
    left = NAME + DIGIT * max((len(name) for _, name in y_ticks), default=1)

    def px(x: float) -> float:
        return left + (across(x) - x_low) / (x_high - x_low) * (WIDTH - left - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (min(max(y, y_low), y_high) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    if chart.log_x:
        x_ticks = [10.0**k for k in range(math.floor(x_low), math.ceil(x_high) + 1) if x_low <= k <= x_high]
        x_ticks = x_ticks if len(x_ticks) > 1 else sorted({x for t in traces for x in t.x})
    elif chart.bands:
        x_ticks = [x for x in ticks(x_low, x_high, 8) if x == int(x)]
    else:
        x_ticks = ticks(x_low, x_high)
    parts = [_frame(chart, left, [(px(x), f"{x:g}") for x in x_ticks], [(py(y), name) for y, name in y_ticks])]
    offsets = chart.offsets(WIDTH - left - RIGHT)
    parts += [_trace(chart, trace, px, py, offset) for trace, offset in zip(traces, offsets, strict=True)]
    return _svg(f"{chart.title}: {chart.y_label} by {chart.x_label}", WIDTH, HEIGHT, *parts)


def _known(spread: Sequence[float]) -> list[float]:
    return [0.0 if math.isnan(one) else one for one in spread]


def _without_gaps(trace: Trace, *, zero: bool) -> Trace:
    """Points that exist; on a logarithmic axis, those above zero."""
    keep = [k for k, (x, y) in enumerate(zip(trace.x, trace.y, strict=True)) if math.isfinite(x) and math.isfinite(y)]
    keep = [k for k in keep if trace.x[k] > 0] if zero else keep

    kept: dict[str, Any] = {
        name: tuple(values[k] for k in keep)
        for name in ("x", "y", "spread", "marks", "spread_x")
        if (values := getattr(trace, name))
    }
    return replace(trace, **kept)


def _frame(chart: Lines, left: float, x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]]) -> Markup:
    parts = [tag("path", d="".join(f"M{left:g} {y:.1f}H{WIDTH - RIGHT:g}" for y, _ in y_ticks), class_="grid")]
    parts.append(tag("path", d=f"M{left:g} {HEIGHT - BOTTOM:g}H{WIDTH - RIGHT:g}", class_="axis"))
    parts += [_text(left - 6, y + 4, name, "end") for y, name in y_ticks]
    parts += [_text(x, HEIGHT - BOTTOM + 16, name) for x, name in x_ticks]
    parts.append(_text((left + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.x_label, class_="label"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(_text(16.0, middle, chart.y_label, class_="label", transform=f"rotate(-90 16 {middle:g})"))
    return tag("g", *parts)


def _trace(chart: Lines, trace: Trace, across: Pixel, py: Pixel, offset: float) -> Markup:
    def px(x: float) -> float:
        return across(x) + offset

    points = [(px(x), py(y)) for x, y in zip(trace.x, trace.y, strict=True)]
    known = _known(trace.spread)
    parts = []
    if chart.bands and not chart.error_bars and trace.spreads:
        upper = [(px(x), py(y + s)) for x, y, s in zip(trace.x, trace.y, known, strict=True)]
        lower = [(px(x), py(y - s)) for x, y, s in zip(trace.x, trace.y, known, strict=True)]
        parts.append(tag("path", d=_path([*upper, *reversed(lower)]) + "Z", class_="band"))
    if not chart.bands:
        for k, (x, y) in enumerate(zip(trace.x, trace.y, strict=True)):
            wide = trace.spread_x[k] if trace.spread_x and not math.isnan(trace.spread_x[k]) else 0.0
            arms = f"M{px(x - wide):.1f} {py(y):.1f}H{px(x + wide):.1f}"
            arms += f"M{px(x):.1f} {py(y - known[k]):.1f}V{py(y + known[k]):.1f}"
            parts.append(tag("path", d=arms, class_="arm"))
    if chart.error_bars and trace.spreads:
        bars = [(x, py(y - s), py(y + s)) for (x, _), y, s in zip(points, trace.y, known, strict=True)]
        d = "".join(
            f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 2:.1f} {low:.1f}h4M{x - 2:.1f} {high:.1f}h4" for x, low, high in bars
        )
        parts.append(tag("path", d=d, class_="arm"))
    if len(points) > 1:
        parts.append(tag("path", d=_path(points), class_="line"))
    for k, (x, y) in enumerate(points):
        at = trace.marks[k] if trace.marks else f"{chart.x_label} {trace.x[k]:g}"
        message = f"{at}: {_value(trace.y[k], trace.spread[k], trace.seeds)}"
        if not chart.bands:
            old = _value(trace.x[k], trace.spread_x[k] if trace.spread_x else math.nan, trace.seeds)
            new = _value(trace.y[k], trace.spread[k], trace.seeds)
            message = f"{trace.marks[k] + ': ' if trace.marks else ''}old {old}, new {new}"
        parts.append(tag("path", d=marker(x, y, trace.colour), class_="dot", data_t=message))
    return tag("g", *parts, class_=_colour(trace), data_s=trace.label)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def marker(x: float, y: float, colour: int) -> str:
    """Shapes tell traces apart where colours do not."""
    shape = colour % 4
    if shape == 0:
        return f"M{x - 3.5:.1f} {y:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0"
    if shape == 1:
        return f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z"
    if shape == 2:
        return f"M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4-4.4z"
    return f"M{x:.1f} {y - 4.2:.1f}l4.4 7.4h-8.8z"


# -- bars -----------------------------------------------------------------------------------------------------------


def _bars(chart: Bars) -> Markup:
    step = 38.0
    height = 34 + step * len(chart.traces)
    known = [_known(trace.spread)[0] for trace in chart.traces]
    ends = [t.y[0] + sign * s for t, s in zip(chart.traces, known, strict=True) for sign in (-1, 1)]
    low, high = _range([0.0, *ends])
    positive = all(trace.y[0] >= 0 for trace in chart.traces)  # then a whisker below zero would be nonsense
    low, high = 0.0 if positive or min(ends) >= 0 else low, high if max(ends) > 0 else 0.0
    high = high if high > low else low + 1  # all of them zero

    def px(x: float) -> float:
        return 8 + (x - low) / (high - low) * (WIDTH - 16)

    marks = ticks(low, high, 6)
    parts = [tag("path", d="".join(f"M{px(x):.1f} 4V{height - 26:g}" for x in marks), class_="grid")]
    parts += [_text(min(max(px(x), 14), WIDTH - 14), height - 10, f"{x:g}".replace("-", "−")) for x in marks]
    parts.append(tag("path", d=f"M{px(0.0):.1f} 4V{height - 26:g}", class_="axis"))
    for place, (trace, spread) in enumerate(zip(chart.traces, known, strict=True)):
        y = 6 + step * place
        value = trace.y[0]
        message = f"{_value(value, trace.spread[0], trace.seeds, chart.digits)} {chart.unit}"
        left, right = sorted((px(0.0), px(value)))
        bar = tag("rect", x=left, y=y + 15, width=max(right - left, 0.8), height=14.0, class_="bar", data_t=message)
        whisker = tag(
            "path", d=f"M{px(max(value - spread, low)):.1f} {y + 22:.1f}H{px(value + spread):.1f}", class_="whisker"
        )
        name = _text(11.0, y + 10, f"{clean(trace.label, 44)}: {number(value, chart.digits)} {chart.unit}", "start")
        parts.append(tag("g", name, bar, *([whisker] if spread else []), class_=_colour(trace), data_s=trace.label))
    return _svg(f"{chart.title}, {chart.unit}", WIDTH, height, *parts)


# -- heat maps ------------------------------------------------------------------------------------------------------


def _heat(chart: Heat) -> Markup:
    """Cells of one level are one path: a matrix of fifty tasks stays small."""
    rows, columns = chart.values.shape
    cells: dict[int, list[str]] = {}
    for (i, j), value in np.ndenumerate(chart.values):
        if math.isfinite(value):
            level = min(int(chart.level(value) * LEVELS), LEVELS - 1)
            cells.setdefault(level, []).append(f"M{j} {i}h1v1h-1z")
    parts = [tag("path", d="".join(cells[level]), class_=f"h{level}") for level in sorted(cells)]
    # The diagonal: a task just after it was learned, or an answer within the right task.
    steps = "".join(f"M{j} {j + rows - columns}h1v1h-1z" for j in range(columns))
    parts.append(tag("path", d=steps, class_="new"))
    if columns <= 10:
        for (i, j), value in np.ndenumerate(chart.values):
            if math.isfinite(value):
                bright = "on-light" if chart.level(value) >= 0.55 else "on-dark"
                x, y = f"{j + 0.5:g}", f"{i + 0.64:g}"
                parts.append(tag("text", number(value, chart.digits), x=x, y=y, text_anchor="middle", class_=bright))
    message = [["" if math.isnan(v) else number(v, chart.digits) + chart.unit for v in row] for row in chart.values]
    values = ";".join(map(",".join, message))
    names = "\n".join(clean(name, 60) for name in chart.names)
    places = f"{chart.x_label} (columns), {chart.y_label} (rows)"
    label = f"{chart.title}: {places if chart.confusion else f'{chart.score} of each task (columns) after each task (rows)'}"
    return tag(
        "svg", *parts, viewBox=f"-0.1 -0.1 {columns + 0.2:g} {rows + 0.2:g}", role="img", aria_label=label,
        class_="heat", data_v=values, data_names=names, data_s=chart.title, data_square=chart.confusion or None,
    )  # fmt: skip


# -- the circle -----------------------------------------------------------------------------------------------------


def draw_circle(panel: Panel, label: str) -> Markup:
    """Where the images of one task lie; at most 400 of them, evenly picked."""
    parts = [tag("circle", cx=0, cy=0, r=100, class_="grid")]
    picked = np.linspace(0, len(panel.points) - 1, min(POINTS, len(panel.points))).round().astype(int)
    radius = np.linalg.norm(panel.points, axis=1, keepdims=True)
    points = 100 * panel.points * np.minimum(1, REACH / np.maximum(radius, 1e-9))
    for k in range(len(panel.targets)):
        mine = [points[p] for p in picked if panel.classes[p] == k and np.isfinite(points[p]).all()]
        d = "".join(f"M{x:.0f} {-y:.0f}h0" for x, y in mine)
        x, y = float(100 * panel.targets[k][0]), float(-100 * panel.targets[k][1])
        cloud, ring = tag("path", d=d or "M0 0", class_="cloud"), tag("circle", cx=x, cy=y, r=15, class_="ring")
        parts.append(tag("g", cloud, ring, _text(x, y + 6, str(k)), class_=f"k{k % 10}"))
    edge = 100 * EDGE
    box = f"{-edge:g} {-edge:g} {2 * edge:g} {2 * edge:g}"
    words = f"{label}: {panel.accuracy:.0%} of the images nearest to their own place"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=words, class_="circle")
