"""One run's whole configuration, resolved: what the hash of its directory stands for."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import tomli_w

from afec.lab.spec import (
    FULL,
    Benchmark,
    Changes,
    SpecError,
    check_net,
    condition,
    factors,
    merged,
    stacked,
    training_of,
    value_of,
    without_factors,
)
from afec.learner import Machine, Schedule
from afec.methods.expression import FINETUNE, METHODS, check_settings, make_method, terms_of, whole_settings
from afec.naming import unknown, with_defaults
from afec.nets import NETS
from afec.streams import STREAMS, check_stream

__all__ = ["REFERENCES", "RunConfig", "differing", "grid", "parse_set", "resolve"]

REFERENCES = {
    "joint": "all tasks so far at once, from all their data: the upper bound",
    "scratch": "each task alone from the random initial weights: the reference of fwt_vs_scratch",
}
"""What runs like a method and is none."""

FORMAT = 1


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run, but its seed."""

    benchmark: str
    scale: str
    method: str
    variant: str
    stream: dict[str, Any]
    net: dict[str, Any]
    training: dict[str, Any]
    """All fields of `Schedule` and `Machine`."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each term of the method. Here and above every default is written out, so that the hash moves when one does."""

    @property
    def label(self) -> str:
        """How a table calls it."""
        return f"{self.method}@{self.variant}" if self.variant else self.method

    @property
    def hash(self) -> str:
        """Of the content: names of benchmark, scale and variant take no part."""
        # An empty list says nothing: an option that came later, and is not used, leaves finished runs where they are.
        training = {key: value for key, value in self.training.items() if value not in ((), [])}
        content = [FORMAT, self.method, self.stream, self.net, training, self.settings]
        text = json.dumps(_plain(content), sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def schedule(self) -> Schedule:
        """How each task is trained."""
        return training_of({f.name: self.training[f.name] for f in fields(Schedule) if f.name in self.training})[0]

    @property
    def machine(self) -> Machine:
        """Where it runs."""
        return training_of(self.training)[1]

    def machine_on(self, device: str | None) -> Machine:
        """The same on another device."""
        return training_of({**self.training, "device": device or self.training["device"]})[1]

    def to_toml(self) -> str:
        """As it stands in the run directory."""
        training = {key: "off" if value is None else value for key, value in self.training.items()}
        return tomli_w.dumps({**asdict(self), "training": training})

    @classmethod
    def from_toml(cls, text: str) -> RunConfig:
        """What `to_toml` wrote."""
        data = tomllib.loads(text)
        if data["training"].get("patience") == "off":
            data["training"]["patience"] = None
        data["training"]["lr_steps"] = tuple(data["training"].get("lr_steps", ()))
        found = cls(**data)
        for name in ("benchmark", "scale", "method", "variant"):
            if not isinstance(getattr(found, name), str):
                raise TypeError(f"{name} is no text: {getattr(found, name)!r}")
        for name, section in (("stream", found.stream), ("net", found.net), *found.settings.items()):
            if not isinstance(section, dict):
                raise TypeError(f"{name} is no table: {section!r}")
        return found


def _plain(value: Any) -> Any:
    """The same content for numbers that are written differently: 100 and 100.0 are one strength."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def differing(configs: Sequence[RunConfig]) -> list[str]:
    """What tells each of these from the others, `lr=0.1, ewc.strength=10`; nothing where they are alike."""
    flat = [
        {"scale": config.scale, **config.stream, **config.net, **config.training}
        | {f"{term}.{key}": value for term, table in config.settings.items() for key, value in table.items()}
        for config in configs
    ]
    every = dict.fromkeys(key for keys in flat for key in keys)
    keys = [key for key in every if any(one.get(key) != flat[0].get(key) for one in flat)]
    return [", ".join(f"{key}={one[key]}" for key in keys if key in one) for one in flat]


def resolve(
    benchmark: Benchmark,
    method: str,
    scale: str = FULL,
    sets: dict[str, Any] | None = None,
    tuned: Changes | None = None,
) -> RunConfig:
    """The configuration of one row: a method, or `method@variant`, of a benchmark at a scale.

    On top of the file lie the scale, the cases that hold, the variant, what a tuning has found, and `--set`.
    """
    sets = sets or {}
    expression, _, variant = method.partition("@")
    if scale != FULL and scale not in benchmark.scale:
        raise SpecError(unknown(f"scale of {benchmark.name}", scale, benchmark.scales))
    if variant and variant not in benchmark.variant:
        raise SpecError(unknown(f"variant of {benchmark.name}", variant, benchmark.variant))
    layers: list[Changes] = [benchmark, benchmark.scale.get(scale, Changes())]
    later = [benchmark.variant.get(variant, Changes()), tuned or Changes()]
    layers += [*_cases(benchmark, [*layers, *later], sets), *later]
    plain = [without_factors(layer) if layer is later[0] else layer for layer in layers]
    parts = {
        s: merged({}, *(getattr(c, s) for c in plain), sets.get(s, {}), factors(getattr(later[0], s)))  # of what is run
        for s in ("stream", "net", "training")
    }
    name, settings = _method_of(expression, stacked(*(c.method for c in layers)), sets.get("method", {}))
    try:
        schedule, machine = training_of(parts["training"])
        check_stream(parts["stream"])
        check_net(parts["net"])
    except (ValueError, TypeError) as error:
        raise SpecError(f"{benchmark.name}: {error}") from error
    training = {**asdict(schedule), **asdict(machine)}
    stream, net = with_defaults(STREAMS, parts["stream"]), {"zero_heads": False, **with_defaults(NETS, parts["net"])}
    return RunConfig(benchmark.name, scale, name, variant, stream, net, training, settings)


def _cases(benchmark: Benchmark, layers: Sequence[Changes], sets: dict[str, Any]) -> list[Changes]:
    """What the file changes where it is run as these layers and `--set` say."""
    found = []
    for name, changes in benchmark.case.items():
        section, key, value = condition(name, benchmark.name)
        known: dict[str, Any] = merged({}, *(getattr(layer, section) for layer in layers), sets.get(section, {}))
        if _whole(section, known).get(key) == value:
            found.append(changes)
    return found


def _whole(section: str, given: dict[str, Any]) -> dict[str, Any]:
    """With the defaults written out, where the section is one that can be."""
    try:
        if section == "training":
            schedule, machine = training_of(given)
            return {**asdict(schedule), **asdict(machine)}
        return with_defaults(STREAMS if section == "stream" else NETS, given)
    except (ValueError, TypeError, KeyError):  # said where the sections are checked
        return given


def _method_of(expression: str, given: dict[str, Any], sets: dict[str, Any]) -> tuple[str, dict[str, dict[str, Any]]]:
    """The method's name, sorted, and the settings of its terms: the file's, the file's for this sum, then --set."""
    if expression in REFERENCES:
        return expression, {}
    names = [part.strip().lower() for part in expression.split("+")]
    if added := [name for name in names if name in REFERENCES]:
        raise SpecError(
            f"'{expression}': {added[0]} is a reference and no method, so it adds to nothing; give it alone"
        )
    if "" in names and len(names) > 1:
        raise SpecError(f"method '{expression}': there is nothing on one side of a +; give methods such as ewc+afec")
    try:
        terms = terms_of(expression)
    except ValueError as error:
        more = f", {', '.join(REFERENCES)}" if len(names) == 1 and "There is:" in str(error) else ""
        raise SpecError(f"{error}{more}") from error
    name = "+".join(terms) or FINETUNE
    sums = [table for key, table in given.items() if key not in METHODS and terms_of(key) == terms]
    settings = {
        term: stacked(given.get(term, {}), *(s.get(term, {}) for s in sums), sets.get(term, {})) for term in terms
    }
    try:
        for term in terms:
            check_settings(term, settings[term])
        settings = {term: whole_settings(term, given) for term, given in settings.items()}
        make_method(name, settings)
    except ValueError as error:
        raise SpecError(f"method {name}: {error}") from error
    return name, settings


def parse_set(text: str) -> tuple[list[str], list[Any]]:
    """`method.ewc.strength=10,100` as its key and its values; values are TOML, or plain words."""
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path) or len(path) < 2:
        raise SpecError(
            f"--set {text!r}: expected section.key=value, e.g. training.lr=0.01 or method.ewc.strength=10,100"
        )
    if path[0] not in ("stream", "net", "training", "method"):
        raise SpecError(f"--set {text!r}: {unknown('section', path[0], ['stream', 'net', 'training', 'method'])}")
    if path[0] == "method" and (len(path) != 3 or path[1] not in METHODS):
        raise SpecError(f"--set {text!r}: expected method.NAME.setting=value with NAME one of {', '.join(METHODS)}")
    if path[0] != "method" and len(path) != 2:
        raise SpecError(f"--set {text!r}: expected {path[0]}.key=value")
    return path, [value_of(part) for part in _at_commas(value)]


def grid(sets: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of the values of several --set, each as the sections that it changes."""
    parsed = [parse_set(text) for text in sets]
    found: list[dict[str, Any]] = []
    for values in itertools.product(*(values for _, values in parsed)):
        combination: dict[str, Any] = {}
        for (path, _), value in zip(parsed, values, strict=True):
            inner: dict[str, Any] = {path[-1]: value}
            for part in reversed(path[:-1]):
                inner = {part: inner}
            combination = merged(combination, inner)
        found.append(combination)
    return found


def _at_commas(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
