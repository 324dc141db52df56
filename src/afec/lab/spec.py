"""Benchmarks as TOML: what may stand in one, and what is said when something else does.

experiment = "…"    what kind of run it is: `supervised` (the default), or one of your own as `file.py:Class`
[stream]            where the tasks come from: `name`, and the options of that stream
[net]               the backbone: `name`, `zero_heads`, and the backbone's options
[training]          the fields of `Schedule` and `Machine`
[method.ewc]        the settings of a method; [method."ewc+afec".ewc] where a sum wants others
[scale.smoke. …]    the same sections again: what another scale changes
[variant.long. …]   the same: what a row like `ewc@long` changes; [scale.smoke.variant.long. …] where a scale wants another one
[case."net.name=vgg11bn". …]  the same: what changes wherever stream, net or training have this value, be it by `--set`
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from afec.experiments import SECTIONS, Experiment, Section, find_experiment
from afec.lab.toml_file import SpecError, TomlText, in_words, names_of, packaged, read, validated
from afec.naming import did_you_mean, unknown

__all__ = [
    "FULL",
    "Benchmark",
    "Changes",
    "SpecError",
    "benchmark_names",
    "check_methods",
    "condition",
    "factors",
    "load_benchmark",
    "merged",
    "stacked",
    "value_of",
    "without_factors",
]

FULL = "full"
"""The scale of the file itself."""
PREFIX = "folder:"
FOLDER, OWN_IMAGES = f"{PREFIX}PATH", "folder"
"""How a folder of images is asked for, and the benchmark that this stands for."""


class Changes(BaseModel):
    """What a scale or a variant changes."""

    model_config = ConfigDict(extra="forbid")
    description: str = ""
    stream: Section = Field(default_factory=dict)
    net: Section = Field(default_factory=dict)
    training: Section = Field(default_factory=dict)
    method: dict[str, Section] = Field(default_factory=dict)


class Scale(Changes):
    """What a scale changes."""

    variant: dict[str, Changes] = Field(default_factory=dict)
    """Variants of the benchmark that are something else at this scale."""


class Benchmark(Changes):
    """One benchmark file."""

    name: str
    experiment: str = "supervised"
    scale: dict[str, Scale] = Field(default_factory=dict)
    variant: dict[str, Changes] = Field(default_factory=dict)
    case: dict[str, Changes] = Field(default_factory=dict)
    tune: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The grid of each method: lists of values, and the Fisher kind that they belong to."""

    @property
    def scales(self) -> list[str]:
        """The scales that can be asked for."""
        return [FULL, *self.scale]

    def variant_at(self, scale: str, variant: str) -> Changes:
        """What a variant changes at a scale; nothing where there is no variant."""
        own = self.scale[scale].variant if scale in self.scale else {}
        return own.get(variant) or self.variant.get(variant) or Changes()

    @property
    def kind(self) -> type[Experiment]:
        """The class of the experiment that its runs are."""
        return find_experiment(self.experiment)


def benchmark_names() -> list[str]:
    """The benchmarks that come with the package; beside them there is `folder:PATH`, for every PATH."""
    return [name for name in names_of("benchmark") if name != OWN_IMAGES]


def load_benchmark(name_or_path: str) -> Benchmark:
    """A benchmark of the package by its name, any TOML file by its path, or `folder:PATH`: the images in a folder."""
    if name_or_path.startswith(PREFIX) and not name_or_path.endswith(".toml"):
        return parse_benchmark(*_of_folder(name_or_path.removeprefix(PREFIX)))
    if name_or_path in benchmark_names():
        return _of_package(name_or_path).model_copy(deep=True)
    return parse_benchmark(*read("benchmark", name_or_path, benchmark_names(), f", or {FOLDER} for your own images"))


@cache
def _of_package(name: str) -> Benchmark:
    """Checked once: that takes a twentieth of a second, and a study asks for the same ones again and again."""
    return parse_benchmark(*read("benchmark", name, [name]))


def _of_folder(path: str) -> TomlText:
    """The benchmark of a folder of images; its name is that of the folder. Whether the folder is there, the stream says."""
    if path in ("", "PATH"):
        raise SpecError(f"{PREFIX}{path}: write your own folder for PATH, such as {PREFIX}my/images")
    text = packaged("benchmark", OWN_IMAGES).replace(f'"{FOLDER}"', json.dumps(PREFIX + path))
    name = re.sub(r"[^\w.-]+", "-", Path(path).expanduser().absolute().name) or "images"
    return TomlText(text, f"folder-{name}", PREFIX + path)


def parse_benchmark(text: str, name: str, where: str) -> Benchmark:
    """A benchmark from its text; `where` is how errors call the file."""
    file = TomlText(text, name, where)
    benchmark = validated("benchmark", file, Benchmark, _model_at)
    _check(benchmark, where)
    return benchmark


def _model_at(place: tuple[object, ...]) -> type[BaseModel]:
    """Which keys are known at a place of the file."""
    if len(place) == 1:
        return Benchmark
    return Scale if place[0] == "scale" and len(place) == 3 else Changes


def load_tuned(path: Path) -> Changes:
    """The settings that `afec tune` has found: a TOML file with [method] tables."""
    where = str(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        tuned = Changes.model_validate(data)
    except ValidationError as error:
        raise SpecError(in_words(error, where, lambda _: Changes)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(
            f"{where}: cannot be read as the settings of a tuning ({error}); `afec tune` writes such files"
        ) from error
    return tuned


def merged(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the changes on top, table by table; `"*2"` is twice the number that is there."""
    result = dict(base)
    for change in changes:
        for key, value in change.items():
            below = result.get(key)
            both = isinstance(value, Mapping) and isinstance(below, Mapping)
            result[key] = merged(result[key], value) if both else _times(below, value)
    return result


def stacked(alternatives: Mapping[str, str], *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of methods, merged; of two that say one thing (`alternatives`) a later one takes the place of the other."""
    result: dict[str, Any] = {}
    for layer in layers:
        result = merged(_without_alternatives(alternatives, result, layer), layer)
    return result


def _without_alternatives(
    alternatives: Mapping[str, str], below: Mapping[str, Any], above: Mapping[str, Any]
) -> dict[str, Any]:
    kept = {}
    for key, value in below.items():
        both = isinstance(value, Mapping) and isinstance(above.get(key), Mapping)
        if key not in alternatives or alternatives[key] not in above or key in above:
            kept[key] = _without_alternatives(alternatives, value, above[key]) if both else value
    return kept


def factors(section: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a section that multiply what is below them, such as `"*2"`."""
    return {key: value for key, value in section.items() if _factor(value)}


def without_factors(changes: Changes) -> Changes:
    """The changes that give values of their own."""
    plain = {s: {k: v for k, v in getattr(changes, s).items() if not _factor(v)} for s in SECTIONS}
    return changes.model_copy(update=plain)


def _factor(value: Any) -> re.Match[str] | None:
    return re.fullmatch(r"\*(\d+(?:\.\d+)?)", value) if isinstance(value, str) else None


def _times(below: Any, value: Any) -> Any:
    """The value, or so many times the number below it; a factor with no number below it stays, and is no valid number."""
    factor = _factor(value)
    if factor is None or type(below) not in (int, float):
        return value
    product = below * float(factor[1])
    return int(product) if isinstance(below, int) and product.is_integer() else product


def condition(name: str, where: str) -> tuple[str, str, Any]:
    """The section, key and value that the name of a [case] asks for."""
    path, equals, text = name.partition("=")
    section, _, key = (part.strip() for part in path.partition("."))
    if not equals or not key or section not in SECTIONS:
        raise SpecError(
            f'{where}: case."{name}": expected section.key=value with stream, net or training, e.g. "net.name=vgg11bn"'
        )
    return section, key, value_of(text)


def value_of(text: str) -> Any:
    """What a word of a command line or of a condition means: TOML, or a plain word."""
    if text.strip().lower() in ("true", "false"):  # as Python writes them, too
        return text.strip().lower() == "true"
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML, or a number of thousands of digits
        return text.strip()
    return found["value"] if len(found) == 1 else text.strip()


def _check(benchmark: Benchmark, where: str) -> None:
    """Every section of the file, of each scale and of each variant, as it would be used."""
    try:
        kind = benchmark.kind
    except ValueError as error:
        raise SpecError(f"{where}: experiment: {error}") from error
    parts = {"": Changes()} | {f"scale.{n}.": c for n, c in benchmark.scale.items()}
    parts |= {f"variant.{n}.": c for n, c in benchmark.variant.items()}
    for name, scale in benchmark.scale.items():
        for variant, change in scale.variant.items():
            if variant not in benchmark.variant:
                raise SpecError(f"{where}: scale.{name}.{unknown('variant', variant, benchmark.variant)}")
            parts[f"scale.{name}.variant.{variant}."] = change
    for name, change in benchmark.case.items():
        section, key, value = condition(name, where)
        assumed = Changes.model_validate({section: {key: value}})
        parts[f'case."{name}".'] = Changes.model_validate(merged(assumed.model_dump(), change.model_dump()))
    for prefix, change in parts.items():
        for section in SECTIONS:
            try:
                kind.complete(section, merged(getattr(benchmark, section), getattr(change, section)))
            except (ValueError, TypeError) as error:
                message = str(error)
                whole = message.startswith((f"{section}.", f"{section}:"))  # a key of the section, or all of it
                raise SpecError(f"{where}: {prefix}{message if whole else f'{section}.{message}'}") from error
        check_methods(kind, benchmark if prefix == "" else change, f"{where}: {prefix}")
    for name, grids in benchmark.tune.items():
        try:
            kind.terms(name)
            kind.check_grid(name, grids)
        except ValueError as error:
            raise SpecError(f"{where}: tune.{name}: {error}".replace(f"{name}: .", f"{name}.")) from error


def check_methods(kind: type[Experiment], changes: Changes, where: str) -> None:
    """Raise for a [method] table with a name or a setting that does not exist."""
    for place, name, settings in _settings(kind, changes, where):
        try:
            kind.complete_term(name, settings)
        except ValueError as error:
            raise SpecError(f"{where}method.{place}: {error}") from error


def _settings(kind: type[Experiment], changes: Changes, where: str) -> Iterator[tuple[str, str, Section]]:
    """The place, the method and the settings of each table under [method]."""
    for key, table in changes.method.items():
        try:
            terms = kind.terms(key)
        except ValueError as error:
            raise SpecError(f"{where}method.{key}: {error}") from error
        if terms == (key,):
            yield key, key, table
            continue
        for name, settings in table.items():
            if name not in terms or not isinstance(settings, dict):
                expected = f"expected a table of settings for one of {', '.join(terms)}{did_you_mean(name, terms)}"
                raise SpecError(f'{where}method."{key}".{name}: {expected}')
            yield f'"{key}".{name}', name, settings
