"""The commands that make these runs again, checked: each is resolved anew and must come to the same configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from afec.lab import Benchmark, RunConfig, SpecError, benchmark_names, load_benchmark, resolve
from afec.lab.spec import FULL

__all__ = ["Command", "command_for"]


@dataclass(frozen=True)
class Command:
    """A command line, or why there is none."""

    text: str
    exact: bool
    """Whether it was checked to give the same configuration, hash and all."""


def command_for(config: RunConfig, seeds: Sequence[int]) -> Command:
    """`afec run …` for these seeds of this configuration."""
    if config.benchmark not in benchmark_names():
        return Command(f"its benchmark, {config.benchmark}, is a file of your own: give its path to `afec run`", False)
    try:
        benchmark = _benchmark(config.benchmark)
        sets = _changes(resolve(benchmark, config.label, config.scale), config)
        again = resolve(benchmark, config.label, config.scale, sets)
        options = [text for section, keys in sets.items() for text in _written(section, keys)]
    except (SpecError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return Command(f"this version of the benchmark cannot make it again ({error})", False)
    if again.hash != config.hash:
        return Command("this version of the benchmark comes to other settings; those that were run are below", False)
    words = ["afec", "run", config.benchmark, "--method", config.label]
    words += ["--scale", config.scale] if config.scale != FULL else []
    words += ["--set", *options] if options else []
    lines = [shlex.join([*words, *_range(first, count)]) for first, count in _blocks(seeds)]
    return Command("\n".join(lines), True)


@cache
def _benchmark(name: str) -> Benchmark:
    """One of the package's own: it stays what it is."""
    return load_benchmark(name)


def _changes(plain: RunConfig, config: RunConfig) -> dict[str, Any]:
    """What --set has to say: the values that differ from the benchmark's own."""
    sets: dict[str, Any] = {}
    for section in ("stream", "net", "training"):
        before, after = getattr(plain, section), getattr(config, section)
        changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
        if changed:
            sets[section] = changed
    for term, settings in config.settings.items():
        before = plain.settings.get(term, {})
        changed = {key: value for key, value in settings.items() if key not in before or before[key] != value}
        if changed:
            sets.setdefault("method", {})[term] = changed
    return sets


def _written(section: str, keys: dict[str, Any]) -> list[str]:
    found = []
    for key, value in keys.items():
        if isinstance(value, dict):
            found += _written(f"{section}.{key}", value)
        else:
            found.append(f"{section}.{key}={_toml(value)}")
    return found


def _toml(value: Any) -> str:
    """A value as `--set` reads it."""
    if value is None:
        return "off"
    return value if isinstance(value, str) else json.dumps(value)


def _blocks(seeds: Sequence[int]) -> list[tuple[int, int]]:
    """Seeds in a row, as (first, how many)."""
    found: list[tuple[int, int]] = []
    for seed in sorted(seeds):
        if found and seed == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((seed, 1))
    return found


def _range(first: int, count: int) -> list[str]:
    return ["--seeds", str(count), *(["--first-seed", str(first)] if first else [])]
