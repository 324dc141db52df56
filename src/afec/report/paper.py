"""The figures that the paper prints, beside which ours stand."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from afec.lab import RunConfig

__all__ = [
    "Published",
    "published",
    "published_after",
    "published_increase",
    "published_replay",
    "published_scratch",
    "published_transfer",
]

REGRESSION = "cifar10-regression"
TASKS = {"two-task": 2, "ten-task": 10}
AS_PUBLISHED = ("", "official")
"""Variants of a benchmark that are the paper's own rows."""


@dataclass(frozen=True)
class Published:
    """Per cent; the standard deviation is None where the paper gives none."""

    mean: float
    std: float | None = None


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files("afec.report").joinpath("paper.toml").read_text(encoding="utf-8"))


def published_after(benchmark: str) -> list[int]:
    """After how many tasks the paper prints the averaged accuracy of this benchmark."""
    return sorted(map(int, _tables()["after"].get(benchmark, {})))


def published(config: RunConfig, tasks: int) -> Published | None:
    """The paper's averaged accuracy of this row after so many tasks."""
    if config.benchmark == REGRESSION:
        return _of(_regression(config), config) if tasks == TASKS.get(str(config.stream.get("setting"))) else None
    return _of(_tables()["after"].get(config.benchmark, {}).get(str(tasks), {}), config)


def published_transfer(config: RunConfig) -> Published | None:
    """The paper's accuracy of new heads on the final features."""
    return _of(_regression(config), config) if config.stream.get("setting") == "transfer" else None


def published_replay(config: RunConfig) -> Published | None:
    """The paper's average incremental accuracy, 20 exemplars a class."""
    return _of(_tables()["replay"].get(config.benchmark, {}), config)


def published_increase(config: RunConfig) -> Published | None:
    """By how many per cent the maximum of each new game is higher with AFEC: the paper's table of Atari."""
    return _of(_tables()["increase"].get(config.benchmark, {}), config)


def published_scratch(config: RunConfig) -> Published | None:
    """The maximum of a game learned from random weights, divided by fine-tuning's, the mean over the games."""
    return _of(_tables()["scratch"].get(config.benchmark, {}), config)


def _regression(config: RunConfig) -> dict[str, list[float]]:
    if config.benchmark != REGRESSION:
        return {}
    setting, net = (str(name) for name in (config.stream.get("setting"), config.net["name"]))
    found: dict[str, list[float]] = _tables()["regression"].get(setting, {}).get(net, {})
    return found


def _of(rows: dict[str, list[float]], config: RunConfig) -> Published | None:
    return Published(*rows[config.method]) if config.variant in AS_PUBLISHED and config.method in rows else None
