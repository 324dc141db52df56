"""The table of dead and saturated units: per method and hidden layer, after k tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from afec.report.reading import Reading, mean
from afec.report.rows import Row
from afec.report.table import UNKNOWN, Cell, Column, Table

__all__ = ["unit_table"]

AFTER = (1, 2, 3, 5, 10, 20, 25, 50, 100)
MEANING = (
    "after {k}: dead / saturated units of the layer at the end of task {k}, the mean over the seeds, before the method looks "
    "at the weights; the other columns likewise. Dead: 0 for every training image of the task. Saturated: above 0 for every "
    "one of them, everywhere"
)


def unit_table(rows: Sequence[Row], where: str) -> Table | None:
    """A line for each row and layer; None where no run has tried to count units."""
    layers = {row.label: _layers(row.every_reading) for row in rows}
    tasks = max((count[0] for found in layers.values() for counts in found.values() for count in counts), default=0)
    why = [
        str(task["no_units"]) for row in rows for one in row.every_reading for task in one.tasks if task.get("no_units")
    ]
    if not tasks and not why:
        return None
    steps = [*(k for k in AFTER if k < tasks), tasks] if tasks else []
    head = (
        Column("method", kind="label"),
        Column("layer", kind="label"),
        Column("units"),
        *(Column(f"after {k}", MEANING.format(k=k) if k == steps[0] else "") for k in steps),
    )
    body = [
        (Cell(label), Cell(layer), Cell(str(found[0][1]), sort=found[0][1]), *(_cell(found, k) for k in steps))
        for label, counted in layers.items()
        for layer, found in counted.items()
    ]
    body += [(Cell(label), *[UNKNOWN] * (len(head) - 1)) for label, counted in layers.items() if not counted]
    caption = f"Where there is no number: {why[0]}." if why else ""
    return Table("units", f"{where}: dead / saturated units", head, tuple(body), caption)


def _layers(readings: Sequence[Reading]) -> dict[str, list[tuple[int, int, int, int]]]:
    """By layer: task, units, dead and saturated, of all seeds; what is no count is left out, as in runs of other versions."""
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    for task in (task for one in readings for task in one.tasks):
        listed = task.get("units")
        for count in listed if isinstance(listed, list) else ():
            if _is_count(count) and type(task["task"]) is int:
                place = task["task"], count["units"], count["dead"], count["saturated"]
                found.setdefault(count["layer"], []).append(place)
    return found


def _is_count(count: Any) -> bool:
    if not isinstance(count, dict) or not isinstance(count.get("layer"), str):
        return False
    numbers = [count.get(key) for key in ("dead", "saturated", "units")]
    return all(type(number) is int and 0 <= number <= count["units"] < 2**53 for number in numbers)


def _cell(found: Sequence[tuple[int, int, int, int]], task: int) -> Cell:
    dead = mean(dead for number, _, dead, _ in found if number == task)
    saturated = mean(saturated for number, _, _, saturated in found if number == task)
    return UNKNOWN if math.isnan(dead) else Cell(f"{_short(dead)} / {_short(saturated)}", sort=dead)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
