"""Benchmarks and studies are TOML files: of the package by name, or anybody's by path. What is said when one cannot be read."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from afec.naming import did_you_mean, unknown

__all__ = ["SpecError", "TomlText", "in_words", "names_of", "packaged", "read", "validated"]

Model = TypeVar("Model", bound=BaseModel)
FOLDERS = {"benchmark": "benchmarks", "study": "studies"}


class SpecError(ValueError):
    """A benchmark or a study that cannot be read, with the place in the file."""


class TomlText(NamedTuple):
    """A file's text, the name of what is in it, and how errors call the file."""

    text: str
    name: str
    where: str


def names_of(kind: str) -> list[str]:
    """The benchmarks or studies that come with the package."""
    files = [entry.name for entry in (resources.files("afec") / FOLDERS[kind]).iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def packaged(kind: str, name: str) -> str:
    """The text of one that comes with the package."""
    return (resources.files("afec") / FOLDERS[kind] / f"{name}.toml").read_text(encoding="utf-8")


def read(kind: str, name_or_path: str, known: list[str], more: str = "") -> TomlText:
    """One of the `known` ones of the package by its name, or any TOML file by its path; `more` is what else may be given."""
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        try:
            return TomlText(path.read_text(encoding="utf-8"), path.stem, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{path}: cannot be read as a {kind} ({error}); give a TOML file or a name") from error
    if name_or_path not in known:
        raise SpecError(unknown(kind, name_or_path, known) + f"; or give the path of a .toml file{more}")
    return TomlText(packaged(kind, name_or_path), name_or_path, f"{name_or_path}.toml")


def validated(
    kind: str, file: TomlText, model: type[Model], model_at: Callable[[tuple[Any, ...]], type[BaseModel]]
) -> Model:
    """The file as a model, by its name; `model_at` says what belongs at a place in it, for the message about a wrong key."""
    try:
        data = tomllib.loads(file.text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{file.where}: this is no TOML: {error}") from error
    if "name" in data:
        raise SpecError(f"{file.where}: name: unknown key; the file name is the {kind}'s name")
    try:
        return model.model_validate({"name": file.name, **data})
    except ValidationError as error:
        raise SpecError(in_words(error, file.where, model_at)) from error


def in_words(error: ValidationError, where: str, model_at: Callable[[tuple[Any, ...]], type[BaseModel]]) -> str:
    """The first thing that is wrong, by file and key."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        valid = set(model_at(first["loc"]).model_fields) - {"name"}
        return f"{where}: {place}: unknown key{did_you_mean(str(first['loc'][-1]), valid)}"
    given = "" if first["type"] == "missing" or not first["loc"] else f"; got {first['input']!r}"
    return f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}{given}"
