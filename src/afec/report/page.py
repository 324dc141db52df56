"""One page about a study that needs nothing else: no network, no other file. `afec report RUNS -o report.html`."""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from afec.report.chart import Figure
from afec.report.figures import figures_of
from afec.report.html import clean, prose
from afec.report.reading import STATES, Reading, mean
from afec.report.reproduce import Command, command_for
from afec.report.rows import Row, ordered, problems, rows_of_readings
from afec.report.study_tables import metrics_of, score_cell, tables_of, to_csv
from afec.report.svg import draw, marker
from afec.report.table import Table, to_latex, to_markdown
from afec.report.tiles import NOTHING, Tiles, tiles_of
from afec.report.trust import Verdict, missing_runs, verdicts

__all__ = ["Study", "page", "studies"]

TRACEBACK = 6000
REFRESH_SECONDS = 10
SURE = {
    "outside": "",
    "unknown": "",
    "unknown: all seeds alike": "; all seeds differ by the same, so nothing is known of chance",
    "inside Student's": "; zero is inside Student's interval",
}
"""What a headline says of zero and the bootstrap's interval, which it shows."""
TileCache = dict[str, tuple[list[Reading], Tiles]]
"""The images from the weights of each study, and the runs that they are of."""


@dataclass(frozen=True)
class Study:
    """Runs that can be compared: one section of the page."""

    key: str
    title: str
    mark: str
    rows: list[Row]
    readings: list[Reading]
    tables: list[Table]
    figures: list[Figure]
    verdicts: list[Verdict]
    headlines: list[str]
    commands: list[tuple[Row, Command]]
    missing: list[tuple[Row, int]]
    exports: list[tuple[str, str]]
    """The tables for a paper, and every seed."""
    tiles: Tiles = field(default=NOTHING)

    @property
    def labelled(self) -> list[tuple[str, Reading]]:
        """Every run with the label of its row, strengths included, in the order of the rows."""
        places = {(row.config.label, row.config.hash): place for place, row in enumerate(self.rows)}
        found = [(places[one.config.label, one.config.hash], one) for one in self.readings if one.config]
        return [(self.rows[place].label, one) for place, one in sorted(found, key=lambda x: (x[0], x[1].run.seed))]

    @property
    def average(self) -> str:
        """What the average is that its rows are ranked by."""
        return metrics_of(self.rows[0])[self.rows[0].parts.average].meaning

    @property
    def about(self) -> dict[str, str]:
        """What was run, in a few words."""
        config = self.rows[0].config
        tasks = max((one.matrix.shape[1] for one in self.readings if one.matrix is not None), default=0)
        seeds = sorted({one.run.seed for one in self.readings})
        return {
            "benchmark": config.benchmark,
            "scale": config.scale,
            "tasks": str(tasks or "not known yet"),
            "net": str(config.net.get("name", "none")),
            "rows": str(len(self.rows)),
            "seeds": f"{len(seeds)} ({', '.join(map(str, seeds[:8]))}{', …' if len(seeds) > 8 else ''})",
            "runs": str(len(self.readings)),
        }


def studies(readings: Sequence[Reading], cache: TileCache | None = None) -> list[Study]:
    """The sections; runs that cannot be read at all belong to none. Without `cache` there are no images from weights."""
    rows = rows_of_readings(readings)
    have = {(row.config.benchmark, row.config.label, row.config.hash) for row in rows}
    mine: dict[str, list[Reading]] = {}
    for one in readings:
        if config := one.config:
            mine.setdefault(Row(config).problem, []).append(one)
            if (key := (config.benchmark, config.label, config.hash)) not in have:  # no run of it is finished yet
                have.add(key)
                rows.append(Row(config))
    named: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        named.setdefault((row.config.benchmark, row.config.scale), []).append(row)
    groups = [group for alike in named.values() for group in problems(alike)]
    found = []
    for place, (mark, group) in enumerate(groups, start=1):
        own = {(row.config.label, row.config.hash) for row in group}  # not of another memory or prediction rule
        runs = [one for one in mine[group[0].problem] if one.config and (one.config.label, one.config.hash) in own]
        found.append(_study(f"study{place}", mark, ordered(group), runs, cache))
    return found


def _study(key: str, mark: str, rows: list[Row], readings: list[Reading], cache: TileCache | None) -> Study:
    finished = [row for row in rows if row.metrics]
    config, tables = rows[0].config, tables_of(rows, mark)
    seeds: dict[tuple[str, str], list[int]] = {}
    for one, found in [(one, one.config) for one in readings if one.config]:
        seeds.setdefault((found.label, found.hash), []).append(one.run.seed)
    exports = [("LaTeX", to_latex(tables)), ("Markdown", to_markdown(tables)), ("CSV", to_csv(finished))]
    return Study(
        key,
        f"{config.benchmark}, scale {config.scale}",
        mark,
        rows,
        readings,
        tables,
        figures_of(finished) if finished else [],
        verdicts(rows, readings),
        _headlines(finished, next((table for table in tables if table.key == "differences"), None)),
        [(row, command_for(row.config, seeds[row.config.label, row.config.hash])) for row in rows],
        missing_runs(rows, readings),
        exports if finished else [],
        NOTHING if cache is None or not finished else _tiles(finished, mark, cache),
    )


def _tiles(rows: list[Row], mark: str, cache: TileCache) -> Tiles:
    """Made again only where there are other runs than the last time: weights and data are slow."""
    runs = [one for row in rows for one in row.readings.values()]
    key = f"{rows[0].problem} {mark}"
    known = cache.get(key)
    if known is None or known[0] != runs:
        known = cache[key] = (runs, tiles_of(rows))
    return known[1]


def _headlines(rows: Sequence[Row], gains: Table | None) -> list[str]:
    """What came out, in words: the best average, then AFEC's gain at the same schedule and at equal compute."""
    if not rows:
        return []
    message, kind, parts = [], rows[0].kind, rows[0].parts
    names = {key: column.name for key, column in metrics_of(rows[0]).items()}
    known = [(mean(v), row) for row in rows if not row.config.reference and (v := row.values(parts.average))]
    ranked = sorted(((value, row) for value, row in known if not math.isnan(value)), key=lambda pair: -pair[0])
    if ranked:
        best = ranked[0][1]
        plain = next((row for _, row in ranked if row.config.label == "finetune" and row is not best), None)
        shown = [
            f"{row.label}, {score_cell(row.values(parts.average), kind)}{kind.in_unit}" for row in (best, plain) if row
        ]
        what = f"Highest {names[parts.average]} of {len(ranked)} rows" if len(ranked) > 1 else names[parts.average]
        message.append(f"{what}: {'; '.join(shown)}")
    if gains is None:
        return message
    found: dict[tuple[str, str], list[str]] = {}
    for ours, theirs, metric, gain, interval, _, won, zero in gains.rows:
        if metric.text in [names[part] for part in parts]:
            sure = SURE.get(zero.text, "; zero is inside")
            more = f" ({interval.text}{sure}; {won.text} seeds won)" if metric.text == names[parts.average] else ""
            text = f"{metric.text} {gain.text}{more}"
            found.setdefault((ours.text, theirs.text), []).append(text)
    unit = kind.in_difference
    return message + [f"{ours} against {theirs}: {', '.join(texts)}{unit}" for (ours, theirs), texts in found.items()]


def page(
    readings: Sequence[Reading], root: str, command: str, *, watching: bool = False, cache: TileCache | None = None
) -> str:
    """The whole page as text; with circles and Grad-CAM where `cache` is a dict, which keeps them for the next time."""
    style, script = (_source(name) for name in ("page.css", "page.js"))
    found = studies(readings, cache)
    states = Counter(one.state for one in readings)
    context: dict[str, Any] = {
        "style": Markup(style),
        "script": Markup(script),
        "policy": policy(style, script),
        "title": f"{', '.join(dict.fromkeys(study.rows[0].config.benchmark for study in found)) or 'no runs'} · afec report",
        "root": root,
        "command": command,
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "states": [(state, states[state]) for state in STATES if states[state]],
        "missing": sum(len(study.missing) for study in found),
        "studies": found,
        "readings": readings,
        "strays": [one for one in readings if one.config is None],
        "environments": environments(readings),
        "refresh": REFRESH_SECONDS if watching else None,
    }
    return _environment().get_template("page.html").render(context)


def policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere; only our own script and style, known by their hashes, are obeyed."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def environments(readings: Sequence[Reading]) -> list[tuple[dict[str, str], int]]:
    """The places where runs were made, and how many were made there."""
    keys = ("afec", "commit", "python", "torch", "numpy", "processor", "machine", "host", "threads")
    found = Counter(tuple((key, one.environment.get(key, "")) for key in keys) for one in readings if one.environment)
    return [(dict(where), number) for where, number in found.most_common()]


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _source(name: str) -> str:
    return files("afec.report").joinpath("templates", name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, finalize=_finalize,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals.update(draw=draw, marker=marker, config_text=_config_text)
    environment.filters.update(short=lambda text, most=160: clean(str(text), most), tail=_tail, prose=prose)
    return environment


def _finalize(value: object) -> object:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _tail(text: str, most: int = TRACEBACK) -> str:
    """The end of a traceback is what matters."""
    return text if len(text) <= most else "… " + text[-most:]


def _config_text(row: Row) -> str:
    try:
        return row.config.to_toml()
    except (TypeError, ValueError, AttributeError) as error:
        return f"it cannot be written down ({error})"
