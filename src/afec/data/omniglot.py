"""Omniglot from its official files: drawings of the characters of 50 alphabets, each character by 20 people.

The 30 alphabets of `images_background` and the 20 of `images_evaluation` are read, as folders or as the zip files that they
come in, from `omniglot/` (or `omniglot-py/`, where torchvision puts them) under the data root:

    omniglot/images_background/Greek/character01/0394_01.png      or      omniglot/images_background.zip

The drawings have 105×105 pixels in black and white; they are given as 28×28 bytes with the ink bright: 255 is all ink, 0 is
none. A pixel of the small image is the mean over the square of 3.75 × 3.75 pixels that it covers, parts of pixels counted as
parts, so that no ink is lost.

An alphabet is read when it is asked for: the 32,460 files of all take about ten seconds.
"""

from __future__ import annotations

import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from afec.data.root import DataError, data_root
from afec.naming import unknown

__all__ = ["PARTS", "SIZE", "Alphabet", "Omniglot", "open_omniglot"]

PARTS = {"images_background": 30, "images_evaluation": 20}
"""The two parts of the dataset, and how many alphabets each has."""
FOLDERS = ("omniglot", "omniglot-py")
DRAWN = 105
SIZE = 28
MOST_BYTES = 1_000_000  # of one drawing
_PLACE = re.compile(r"(?P<alphabet>[^/]+)/(?P<character>character\d+)/(?P<file>[^/]+\.png)")


@dataclass(frozen=True, repr=False)
class Alphabet:
    """The drawings of one alphabet, character by character: uint8 of shape (drawings, 1, 28, 28), and int64 labels."""

    name: str
    images: Tensor
    labels: Tensor
    """The number of the character, from 0."""

    @property
    def characters(self) -> int:
        """How many characters it has."""
        return int(self.labels.max()) + 1


class Omniglot:
    """The alphabets that were found; nothing but the names of the files is read yet."""

    def __init__(self, parts: dict[str, Path]) -> None:
        self._files: dict[str, tuple[Path, dict[str, list[str]]]] = {}
        for part, place in parts.items():
            found = _sorted_out(part, place)
            if len(found) != PARTS[part]:
                raise DataError(
                    f"{place}: {len(found)} alphabets, expected {PARTS[part]}; get it anew: `afec data get omniglot --again`"
                )
            self._files |= {alphabet: (place, characters) for alphabet, characters in found.items()}

    @property
    def alphabets(self) -> tuple[str, ...]:
        """Their names: the 30 of the background, then the 20 of the evaluation, each by name."""
        return tuple(self._files)

    def count(self, alphabet: str) -> tuple[int, int]:
        """How many characters and how many drawings an alphabet has."""
        characters = self._files[alphabet][1]
        return len(characters), sum(map(len, characters.values()))

    def read(self, alphabet: str) -> Alphabet:
        """The drawings of one alphabet."""
        if alphabet not in self._files:
            raise ValueError(unknown("alphabet", alphabet, self._files))
        place, characters = self._files[alphabet]
        names = [name for files in characters.values() for name in files]
        with warnings.catch_warnings(action="ignore"):  # Pillow's do not say which file they are about
            drawings = np.stack([_drawing(where, content) for where, content in _contents(place, names)])
        counts = torch.tensor([len(files) for files in characters.values()])
        return Alphabet(
            alphabet,
            _scaled(torch.from_numpy(drawings)).unsqueeze(1),
            torch.arange(len(counts)).repeat_interleave(counts),
        )


def open_omniglot(root: str | os.PathLike[str] | None = None) -> Omniglot:
    """The 50 alphabets under the data root (see `data_root`)."""
    base = data_root(root)
    for folder in FOLDERS:
        places = {part: _place(base / folder, part) for part in PARTS}
        found = {part: place for part, place in places.items() if place}
        if len(found) == len(PARTS):
            return Omniglot(found)
        if found:
            missing = ", ".join(part for part in PARTS if part not in found)
            raise DataError(
                f"{base / folder} lacks {missing}: put the folder or its zip file there; `afec data get omniglot` downloads it"
            )
    wanted = "\n".join(f"  {base / FOLDERS[0] / part}.zip  or the folder  {part}/  from it" for part in PARTS)
    raise DataError(
        f"Omniglot is not in the data directory {base}.\nPut these there:\n{wanted}\n`afec data get omniglot` downloads them; "
        "--data or AFEC_DATA names another data directory"
    )


def _place(folder: Path, part: str) -> Path | None:
    """The folder of a part, else its zip file."""
    return next((place for place in (folder / part, folder / f"{part}.zip") if place.exists()), None)


def _sorted_out(part: str, place: Path) -> dict[str, dict[str, list[str]]]:
    """Alphabets, their characters and the names of the drawings of each, all in the order of their names."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in sorted(_names(place)):
        if match := _PLACE.fullmatch(name.removeprefix(f"{part}/")):
            found.setdefault(match["alphabet"], {}).setdefault(match["character"], []).append(name)
    for alphabet, characters in found.items():
        counts = {len(files) for files in characters.values()}
        if len(counts) != 1:
            raise DataError(
                f"{place}: the characters of {alphabet} have {min(counts)} to {max(counts)} drawings, expected as many of "
                "each; files are missing: `afec data get omniglot --again`"
            )
    return found


def _names(place: Path) -> list[str]:
    if place.is_dir():
        return [f"{place.name}/{path.relative_to(place).as_posix()}" for path in place.glob("*/*/*.png")]
    with _archive(place) as archive:
        return archive.namelist()


def _archive(place: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(place)
    except Exception as error:  # a damaged archive makes zipfile raise nearly anything
        raise DataError(
            f"{place} is damaged or no zip file ({_message(error)}); fetch it again: `afec data get omniglot --again`"
        ) from error


def _contents(place: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Where each file is, for messages, and its bytes; a drawing has about 300."""
    if place.is_dir():
        for name in names:
            path = place.parent / name
            yield str(path), _content(str(path), partial(io.FileIO, path))
        return
    with _archive(place) as archive:
        for name in names:
            where = f"{place}, {name}"
            yield where, _content(where, partial(archive.open, name))


def _content(where: str, opened: Callable[[], IO[bytes]]) -> bytes:
    try:
        with opened() as file:
            content = file.read(MOST_BYTES + 1)
    except Exception as error:
        raise DataError(f"{where}: it cannot be read ({_message(error)}); `afec data get omniglot --again`") from error
    if len(content) > MOST_BYTES:
        raise DataError(f"{where}: more than {MOST_BYTES:,} bytes are no drawing of {DRAWN}×{DRAWN} pixels")
    return content


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__


def _drawing(where: str, content: bytes) -> np.ndarray:
    """105×105 bools: whether there is ink."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.size == (DRAWN, DRAWN):
                return np.asarray(image.convert("L")) < 128
            size = "×".join(map(str, image.size))
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        message = f"it cannot be read as a PNG ({_message(error)}); `afec data get omniglot --again`"
        raise DataError(f"{where}: {message}") from error
    raise DataError(f"{where}: {size} pixels, expected {DRAWN}×{DRAWN}")


def _scaled(ink: Tensor) -> Tensor:
    """(n, 105, 105) bools → (n, 28, 28) bytes: the mean over the square that each small pixel covers."""
    edges = torch.linspace(0, DRAWN, SIZE + 1, dtype=torch.float64)
    low, high = edges[:-1, None], edges[1:, None]
    pixel = torch.arange(DRAWN, dtype=torch.float64)
    # What part of each small pixel lies on each large one, along one side.
    cover = ((torch.minimum(high, pixel + 1) - torch.maximum(low, pixel)).clamp(min=0) * (SIZE / DRAWN)).float()
    parts = [255 * (cover @ part.float() @ cover.T) for part in torch.split(ink, 1024)]
    return torch.cat([part.round().to(torch.uint8) for part in parts])
