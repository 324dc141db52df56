"""Images that the page makes of weights and data: circles of a regression, Grad-CAM of a classification, or why not."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from afec.experiments import EXPERIMENTS
from afec.experiments.supervised import build
from afec.lab import RunDirectory
from afec.nets import Readout
from afec.report.circles import Panel, panels_of
from afec.report.figures import shown_rows
from afec.report.reading import load_learner
from afec.report.rows import Row
from afec.report.saliency import captum_is_there, last_convolution, look, scene
from afec.report.svg import draw_circle
from afec.streams import STREAMS, Stream
from afec.streams.folder import PREFIX
from afec.whole_files import FileError

__all__ = ["NOTHING", "Tile", "Tiles", "tiles_of"]

SEEDS = 5
IMAGES = 2
LARGEST = 10_000
_EXPECTED = (FileError, OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Tile:
    """One image of a method, with the words under it."""

    picture: Markup
    words: str
    state: str = ""
    """`right`, `wrong`, or nothing."""


@dataclass(frozen=True)
class Tiles:
    """Rows of tiles under the names of the methods; a note where there are none."""

    kind: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[Tile, ...]], ...] = ()
    caption: str = ""
    missing: str = ""
    faults: tuple[str, ...] = field(default=())
    """Methods that could not be drawn, and why."""


NOTHING = Tiles("none")
NO_TILE = Tile(Markup(""), "–")


def tiles_of(rows: Sequence[Row]) -> Tiles:
    """Circles where the tasks are regressions on the circle, else Grad-CAM; nothing here raises."""
    methods, more = shown_rows([row for row in rows if row.readings])
    if not methods or methods[0].config.experiment not in EXPERIMENTS:  # of somebody's own, which no learner can load
        return NOTHING
    config = methods[0].config
    try:
        if str(config.stream["name"]).startswith(PREFIX) or config.stream["name"] not in STREAMS:
            # A folder is named by the run, and a page must not show what somebody else's run directory points at.
            raise ValueError(f"the stream {config.stream['name']} is not one of the package's own")
        if any(isinstance(v, int) and v > LARGEST for table in (config.net, config.stream) for v in table.values()):
            raise ValueError("its net or stream is larger than any that is built for a picture")
        regression = str(config.stream["name"]).endswith("-regression")
        found = _circles(methods) if regression else _saliency(methods)
        if found.faults and not any(tile.picture for _, tiles in found.rows for tile in tiles[-len(methods) :]):
            raise ValueError("; ".join(found.faults))
        return replace(found, caption=found.caption + more)
    except _EXPECTED as error:
        return Tiles("saliency", missing=f"no picture from the weights: {error}")


def _seeds(methods: Sequence[Row]) -> list[int]:
    """Those that the most methods have, at most five."""
    counts = Counter(seed for row in methods for seed in row.readings)
    return sorted(seed for seed, number in counts.items() if number == max(counts.values()))[:SEEDS]


def _circles(methods: Sequence[Row]) -> Tiles:
    seed, faults = _seeds(methods)[0], dict[str, str]()
    stream, net = build(methods[0].config, seed)
    tiles: list[list[Tile]] = [[] for _ in stream.tasks]
    for row in methods:
        panels: Sequence[Panel | None] = [None] * len(stream.tasks)
        try:
            panels = panels_of(net, stream, row.config, _run_of(row, seed))
        except _EXPECTED as error:
            faults[row.label] = str(error)
        for line, task, panel in zip(tiles, stream.tasks, panels, strict=True):
            line.append(Tile(draw_circle(panel, task.name), f"{panel.accuracy:.0%} right") if panel else NO_TILE)
    rows = tuple((task.name, tuple(line)) for task, line in zip(stream.tasks, tiles, strict=True))
    caption = (
        f"Where each method puts test images of seed {seed} after the whole stream: the colour is the true class, a "
        "numbered ring its place. An image counts as right where its own place is the nearest. The tables have the means "
        "over all seeds."
    )
    return Tiles("circles", tuple(row.label for row in methods), rows, caption, faults=_message(faults))


def _saliency(methods: Sequence[Row]) -> Tiles:
    if not captum_is_there():
        return Tiles("saliency", missing='Grad-CAM needs captum: pip install "afec[explain]"')
    seeds = _seeds(methods)
    rows: list[tuple[str, tuple[Tile, ...]]] = []
    faults: dict[str, str] = {}
    for seed in seeds:
        stream, net = build(methods[0].config, seed)
        if stream.tasks[-1].loss != "cross_entropy" or last_convolution(net.backbone) is None:
            return Tiles("saliency", missing="Grad-CAM needs a classification by a net with convolutions")
        rows += _seed_rows(methods, seed, stream, net, faults)
    caption = (
        f"Grad-CAM of the latest task after the whole stream: the first {IMAGES} test images of its last task for each "
        f"of {len(seeds)} seeds, not chosen by anybody. Bright: what speaks for the class that the method predicts, in "
        "the last convolution; all dark where nothing there does. ✓ and a solid frame: predicted rightly; ✗ and a dashed "
        "frame: wrongly."
    )
    return Tiles("saliency", ("image", *(row.label for row in methods)), tuple(rows), caption, faults=_message(faults))


def _seed_rows(
    methods: Sequence[Row], seed: int, stream: Stream, net: Readout, faults: dict[str, str]
) -> list[tuple[str, tuple[Tile, ...]]]:
    numbers = range(min(IMAGES, stream.tasks[-1].test.size))
    tiles: list[list[Tile]] = [[] for _ in numbers]
    for number in numbers:
        found = scene(stream, number)
        tiles[number].append(Tile(_image(found.image), stream.tasks[-1].class_name(found.true)))
    for row in methods:
        try:
            looks = look(load_learner(net, row.config, _run_of(row, seed)), stream, list(numbers))
        except _EXPECTED as error:
            faults[row.label] = str(error)
            for line in tiles:
                line.append(NO_TILE)
            continue
        for line, one in zip(tiles, looks, strict=True):
            mark, state = ("✓", "right") if one.correct else ("✗", "wrong")
            line.append(Tile(_image(one.heat), f"{mark} {one.predicted}", state))
    return [(f"seed {seed}: {stream.tasks[-1].name}", tuple(line)) for line in tiles]


def _run_of(row: Row, seed: int) -> RunDirectory:
    if seed not in row.readings:
        raise ValueError(f"it has no finished run of seed {seed}")
    return row.readings[seed].run


def _message(faults: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{label}: {fault}" for label, fault in faults.items())


def _image(image: NDArray[np.uint8]) -> Markup:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=85)  # a third of a PNG's size
    text = base64.b64encode(file.getvalue()).decode()
    return Markup('<img alt="" width="96" height="96" src="data:image/jpeg;base64,{}">').format(text)
