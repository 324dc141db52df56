"""What the page shows from weights and data: the circles of a regression, Grad-CAM of a classification, or why it cannot."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from afec.files import FileError
from afec.lab import build
from afec.learner import Machine
from afec.nets import MultiHead
from afec.report.picture import circle_panels, load_weights
from afec.report.reading import Reading
from afec.report.saliency import Look, captum_is_there, last_convolution, look, scene
from afec.report.svg import draw_circle
from afec.report.table import Line
from afec.streams import STREAMS, Stream
from afec.streams.folder import PREFIX

__all__ = ["NOTHING", "Pictures", "Tile", "pictures_of"]

METHODS = 6
SEEDS = 5
IMAGES = 2
LARGEST = 10_000
_EXPECTED = (FileError, OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Tile:
    """One picture in a table of pictures, with the words under it."""

    picture: Markup
    words: str
    state: str = ""
    """`right`, `wrong`, or nothing."""


@dataclass(frozen=True)
class Pictures:
    """Rows of tiles under the names of the methods; a note where there are none."""

    kind: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[Tile, ...]], ...] = ()
    caption: str = ""
    missing: str = ""
    faults: tuple[str, ...] = field(default=())
    """Methods that could not be drawn, and why."""


NOTHING = Pictures("none")


def pictures_of(rows: Sequence[Line]) -> Pictures:
    """Circles where the tasks are regressions on the circle, else Grad-CAM; nothing here raises."""
    methods = [row for row in rows if row.config.method != "scratch" and row.readings][:METHODS]
    if not methods:
        return NOTHING
    config = methods[0].config
    try:
        if str(config.stream["name"]).startswith(PREFIX) or config.stream["name"] not in STREAMS:
            # A folder is named by the run, and a page must not show what somebody else's run directory points at.
            raise ValueError(f"the stream {config.stream['name']} is not one of the package's own")
        if any(isinstance(v, int) and v > LARGEST for table in (config.net, config.stream) for v in table.values()):
            raise ValueError("its net or stream is larger than any that is built for a picture")
        regression = str(config.stream["name"]).endswith("-regression")
        return _circles(methods) if regression else _saliency(methods)
    except _EXPECTED as error:
        return Pictures("saliency", missing=f"no picture from the weights: {error}")


def _common_seeds(methods: Sequence[Line]) -> list[int]:
    return sorted(set.intersection(*(set(row.readings) for row in methods)))[:SEEDS]


def _circles(methods: Sequence[Line]) -> Pictures:
    seeds = _common_seeds(methods)
    if not seeds:
        return Pictures("circles", missing="no seed has a finished run of every method")
    names, panels = circle_panels([row.config for row in methods], [row.readings[seeds[0]].run for row in methods])
    rows = []
    for number, name in enumerate(names):
        tiles = [Tile(draw_circle(line[number], name), f"{line[number].accuracy:.0%} right") for line in panels]
        rows.append((name, tuple(tiles)))
    caption = (
        f"Where each method puts test images of seed {seeds[0]} after the whole stream: the colour is the true class, a "
        "numbered ring its place. An image counts as right where its own place is the nearest. The tables have the means "
        "over all seeds."
    )
    return Pictures("circles", tuple(row.label for row in methods), tuple(rows), caption)


def _saliency(methods: Sequence[Line]) -> Pictures:
    if not captum_is_there():
        return Pictures("saliency", missing='Grad-CAM needs captum: pip install "afec[explain]"')
    seeds = _common_seeds(methods)
    if not seeds:
        return Pictures("saliency", missing="no seed has a finished run of every method")
    rows: list[tuple[str, tuple[Tile, ...]]] = []
    faults: dict[str, str] = {}
    for seed in seeds:
        stream, net = build(methods[0].config, seed)
        if stream.tasks[-1].loss != "cross_entropy" or last_convolution(net.backbone) is None:
            return Pictures("saliency", missing="Grad-CAM needs a classification by a net with convolutions")
        rows += _seed_rows(methods, seed, stream, net, faults)
    caption = (
        f"Grad-CAM of the latest task after the whole stream: the first {IMAGES} test images of its last task for each "
        f"of {len(seeds)} seeds, not chosen by anybody. Bright: what speaks for the class that the method predicts, in "
        "the last convolution; all dark where nothing there does. ✓ and a solid frame: predicted rightly; ✗ and a dashed "
        "frame: wrongly."
    )
    said = tuple(f"{label}: {fault}" for label, fault in faults.items())
    return Pictures("saliency", ("image", *(row.label for row in methods)), tuple(rows), caption, faults=said)


def _seed_rows(
    methods: Sequence[Line], seed: int, stream: Stream, net: MultiHead, faults: dict[str, str]
) -> list[tuple[str, tuple[Tile, ...]]]:
    numbers = range(min(IMAGES, stream.tasks[-1].test.size))
    tiles: list[list[Tile]] = [[] for _ in numbers]
    for number in numbers:
        found = scene(stream, number)
        tiles[number].append(Tile(_png(found.image), f"class {found.true}"))
    for row in methods:
        try:
            looks = _looks(row.readings[seed], net, stream, list(numbers))
        except _EXPECTED as error:
            faults[row.label] = str(error)
            for line in tiles:
                line.append(Tile(Markup(""), "–"))
            continue
        for line, one in zip(tiles, looks, strict=True):
            mark, state = ("✓", "right") if one.correct else ("✗", "wrong")
            line.append(Tile(_png(one.heat), f"{mark} class {one.predicted}", state))
    return [(f"seed {seed}: {stream.tasks[-1].name}", tuple(line)) for line in tiles]


def _looks(reading: Reading, net: MultiHead, stream: Stream, rows: list[int]) -> list[Look]:
    assert reading.config
    load_weights(net, reading.run, len(stream.tasks))
    machine = Machine(channels_last=bool(reading.config.training.get("channels_last", False)))
    return look(net, stream, rows, machine)


def _png(image: NDArray[np.uint8]) -> Markup:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", optimize=True)
    text = base64.b64encode(file.getvalue()).decode()
    return Markup('<img alt="" width="96" height="96" src="data:image/png;base64,{}">').format(text)
