"""A small benchmark with grids, and plans to tune on it."""

from __future__ import annotations

import math

from afec.lab.spec import parse_benchmark
from afec.lab.tuning import Plan
from small_lab import TEXT

GRIDS = """
[tune.ewc]
strength = [1, 10, 100]
fisher = "exact"

[tune.mas]
strength = [0.1, 1, 10]

[tune.afec]
forgetting = [0.1, 1, 10]
beta = [0.1, 0.5, 0.9]
fisher = "exact"
"""


def bench(grids=GRIDS, text=TEXT):
    return parse_benchmark(text + grids, "quick", "quick.toml")


def how(method="ewc+afec", **options):
    options = {"scale": "tiny", "seeds": (100, 101), "benchmark": bench()} | options
    return Plan(method=method, **options)


def peak(strength=10, forgetting=1):
    """Validation is best at these two by more than noise, and test where validation is worst."""

    def score(settings, seed):
        distance = abs(math.log10(settings["ewc"]["strength"] / strength))
        if "afec" in settings:
            distance += abs(math.log10(settings["afec"]["forgetting"] / forgetting))
        away = distance / (1 + distance)
        return 0.9 - away / 2, 0.1 + away / 2

    return score
