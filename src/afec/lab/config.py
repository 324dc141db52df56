"""One run's whole configuration, resolved: what the hash of its directory stands for."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tomli_w

from afec.experiments import SCORE_KINDS, SECTIONS, Context, Experiment, ScoreKind, Setup, experiment_for
from afec.lab.spec import (
    FULL,
    Benchmark,
    Changes,
    SpecError,
    check_methods,
    condition,
    factors,
    merged,
    stacked,
    value_of,
    without_factors,
)
from afec.naming import unknown

__all__ = ["RunConfig", "differing", "grid", "parse_set", "resolve"]

FORMAT = 2


@dataclass(frozen=True)
class RunConfig(Setup):
    """Everything that determines a run, but its seed, and what it is called."""

    benchmark: str
    scale: str
    variant: str
    experiment: str
    score: str
    """The kind of its scores."""
    title: str = ""
    """The method as tables call it; a method of somebody's own file has a name of its own."""
    reference: bool = False
    """Whether it is a bound or a reference, and no method: then it competes with none."""

    @property
    def label(self) -> str:
        """The name of the run's row in a table."""
        name = self.title or self.method
        return f"{name}@{self.variant}" if self.variant else name

    @property
    def folder(self) -> str:
        """The method as a directory is called."""
        return re.sub(r"[^\w.+-]+", "-", self.method).strip("-.")

    @property
    def kind(self) -> type[Experiment]:
        """The class of the experiment that runs it."""
        return experiment_for(self.experiment, self.method)

    @property
    def score_kind(self) -> ScoreKind:
        """The kind of its scores: accuracy, or a return."""
        return SCORE_KINDS[self.score]

    @property
    def pooled(self) -> bool:
        """Whether the scenario is `class`: an accuracy is then over all classes so far."""
        return self.stream.get("scenario") == "class"

    @property
    def hash(self) -> str:
        """Of the content: names of benchmark, scale and variant take no part."""
        content = [FORMAT, self.experiment, self.method, self.stream, self.net, self.training, self.settings]
        text = json.dumps(_plain(content), sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def build(self, context: Context) -> Experiment:
        """The run itself, before its first task."""
        return self.kind(self, context)

    def to_toml(self) -> str:
        """As it stands in the run directory."""
        return tomli_w.dumps(asdict(self))

    @classmethod
    def from_toml(cls, text: str) -> RunConfig:
        """The configuration that `to_toml` has written."""
        found = cls(**tomllib.loads(text))
        for name in ("benchmark", "scale", "method", "variant", "experiment"):
            if not isinstance(getattr(found, name), str):
                raise TypeError(f"{name} is no text: {getattr(found, name)!r}")
        if found.score not in SCORE_KINDS:
            raise ValueError(unknown("kind of score", str(found.score), SCORE_KINDS))
        for name, section in (*((name, getattr(found, name)) for name in SECTIONS), *found.settings.items()):
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
    later = [benchmark.variant_at(scale, variant), tuned or Changes()]
    layers += [*_cases(benchmark, [*layers, *later], sets), *later]
    plain = [without_factors(layer) if layer is later[0] else layer for layer in layers]
    parts = {
        s: merged({}, *(getattr(c, s) for c in plain), sets.get(s, {}), factors(getattr(later[0], s)))  # of what is run
        for s in SECTIONS
    }
    kind = experiment_for(benchmark.experiment, expression)
    if tuned is not None:
        check_methods(benchmark.kind, tuned, "the tuned settings: ")
    name, settings = _method_of(benchmark, kind, expression, [c.method for c in layers], sets.get("method", {}))
    try:
        stream, net, training = (kind.complete(section, parts[section]) for section in SECTIONS)
    except (ValueError, TypeError) as error:
        raise SpecError(f"{benchmark.name}: {error}") from error
    return RunConfig(
        name, stream, net, training, settings,
        benchmark.name, scale, variant, benchmark.experiment, kind.score.name, kind.title(name),
        kind.is_reference,
    )  # fmt: skip


def _cases(benchmark: Benchmark, layers: Sequence[Changes], sets: dict[str, Any]) -> list[Changes]:
    """What the file changes where it is run as these layers and `--set` say."""
    found = []
    for name, changes in benchmark.case.items():
        section, key, value = condition(name, benchmark.name)
        known: dict[str, Any] = merged({}, *(getattr(layer, section) for layer in layers), sets.get(section, {}))
        try:
            whole = benchmark.kind.complete(section, known)
        except (ValueError, TypeError, KeyError):  # said where the sections are checked
            whole = known
        if whole.get(key) == value:
            found.append(changes)
    return found


def _method_of(
    benchmark: Benchmark,
    kind: type[Experiment],
    expression: str,
    layers: Sequence[dict[str, Any]],
    sets: dict[str, Any],
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The method's name and the settings of its terms: the file's, the file's for this sum, then --set."""
    given = stacked(kind.alternatives, *layers)
    names, references = [part.strip().lower() for part in expression.split("+")], benchmark.kind.references
    if len(names) > 1 and (added := [name for name in names if name in references]):
        raise SpecError(
            f"'{expression}': {added[0]} is a reference and no method, so it adds to nothing; give it alone"
        )
    if "" in names and len(names) > 1:
        raise SpecError(f"method '{expression}': there is nothing on one side of a +; give methods such as ewc+afec")
    try:
        terms = kind.terms(expression)
    except ValueError as error:
        more = f", {', '.join(references)}" if len(names) == 1 and references and "Known:" in str(error) else ""
        raise SpecError(f"{error}{more}") from error
    sums = [table for key, table in given.items() if kind.terms(key) == terms != (key,)]
    settings = {
        term: stacked(kind.alternatives, given.get(term, {}), *(s.get(term, {}) for s in sums), sets.get(term, {}))
        for term in terms
    }
    try:
        return kind.complete_method(expression, settings)
    except ValueError as error:
        raise SpecError(f"method {expression}: {error}") from error


def parse_set(text: str) -> tuple[list[str], list[Any]]:
    """`method.ewc.strength=10,100` as its key and its values; values are TOML, or plain words."""
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path) or len(path) < 2:
        raise SpecError(
            f"--set {text!r}: expected section.key=value, e.g. training.lr=0.01 or method.ewc.strength=10,100"
        )
    if path[0] not in (*SECTIONS, "method"):
        raise SpecError(f"--set {text!r}: {unknown('section', path[0], [*SECTIONS, 'method'])}")
    if path[0] == "method" and len(path) < 3:
        raise SpecError(f"--set {text!r}: expected method.NAME.setting=value, e.g. method.ewc.strength=10")
    if path[0] == "method":  # a name may have dots: my/file.py:Mine
        path = [path[0], ".".join(path[1:-1]), path[-1]]
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
