"""The grids of a benchmark, as a method is searched over them.

A grid of λ belongs to a Fisher kind: under another kind it is converted where a rule of thumb exists (`batched` of B samples
and `empirical` differ by up to about B), and refused otherwise. Where a benchmark has no grid for a method, there is a default
one for each Fisher kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from afec.fisher import KINDS
from afec.gaussian import beta_from_forgetting, forgetting_from_beta
from afec.methods.expression import METHODS, check_settings
from afec.naming import unknown

__all__ = ["Space", "check_grid", "has_grid", "search_space"]

Space = dict[str, tuple[float, ...]]
"""The values of each setting."""

TRUE_KINDS = {"auto", "exact", "sample"}

_EWC = (
    {"strength": (1, 10, 100, 1000, 10_000), "fisher": "exact"},
    {"strength": (100, 1000, 10_000, 100_000, 1_000_000), "fisher": "empirical"},  # of `batched`, B times as large
    {"strength": (0.01, 0.1, 1, 10, 100), "fisher": "reversed"},
)
_AFEC = (
    {"forgetting": (0.01, 0.1, 1, 10, 100), "beta": (0.01, 0.1, 0.5, 0.9, 0.99), "fisher": "exact"},
    {"forgetting": (0.001, 0.01, 0.1, 1, 10), "beta": (0.001, 0.01, 0.1, 0.5, 0.9), "fisher": "empirical"},
    {"forgetting": (0.001, 0.01, 0.1, 1, 10), "beta": (0.001, 0.01, 0.1, 0.5, 0.9), "fisher": "reversed"},
)
NOTHING: tuple[dict[str, Any], ...] = ({},)  # there is nothing to search: it has no strength
_OWN = ({"strength": (0.1, 1, 10, 100, 1000)},)  # of a method of somebody's own
DEFAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "ewc": _EWC,
    "progress-compress": _EWC,
    "mas": ({"strength": (0.1, 1, 10, 100, 1000)},),
    "si": ({"strength": (0.1, 1, 10, 100, 1000)},),
    "rwalk": ({"strength": (0.1, 1, 10, 100, 1000)},),
    "ags-cl": ({"strength": (1, 10, 100, 1000, 10_000)},),
    "afec": _AFEC,
    "prior": ({"strength": (0.01, 0.1, 1, 10, 100)},),  # decoupled; in the gradient Adam makes much smaller ones act
    "recycle": NOTHING,
    "average": NOTHING,
    "merge": _OWN,
    "er": NOTHING,
    "lwf": ({"strength": (0.1, 0.3, 1, 3, 10)},),
    "derpp": ({"alpha": (0.1, 0.3, 1, 3, 10)},),
    "icarl": ({"strength": (0.1, 0.3, 1, 3, 10)},),
    "lucir": ({"strength": (0.1, 0.3, 1, 3, 10)},),
    "podnet": ({"spatial": (0.1, 0.3, 1, 3, 10)},),
}
"""Grids for benchmarks without one, of equal length for every method; the Fisher kind of the run decides which is taken."""


def check_grid(term: str, grid: Mapping[str, Any]) -> None:
    """Raise unless these are lists of numbers for settings of the method, and the Fisher kind that they belong to."""
    check_settings(term, grid)
    if grid.get("fisher", "exact") not in ("auto", *KINDS):
        raise ValueError(f".fisher: {unknown('Fisher kind', str(grid['fisher']), KINDS)}")
    for key in grid.keys() - {"fisher", "fisher_batch"}:
        values = grid[key]
        numbers = isinstance(values, list) and all(type(v) in (int, float) and 0 <= v < math.inf for v in values)
        if not numbers or not values:
            raise ValueError(f".{key}: expected a list of numbers ≥ 0, such as [1, 10, 100]; got {values!r}")
    batch = grid.get("fisher_batch", 1)
    if type(batch) is not int or batch < 1:
        raise ValueError(f".fisher_batch: expected the number of samples in a batch, such as 20; got {batch!r}")


def has_grid(term: str, grid: Mapping[str, Any], *, beta: bool = False) -> bool:
    """Whether the grid says anything about what is searched, or there is nothing to search."""
    return bool(_numbers(grid, term, beta)) or DEFAULTS.get(term, _OWN) is NOTHING


def _numbers(grid: Mapping[str, Any], term: str, beta: bool) -> dict[str, Any]:
    """The lists of a grid: without the Fisher kind, and with λ_e or β, whichever is searched."""
    left_out = {"fisher", "fisher_batch"} | ({"forgetting" if beta else "beta"} if term == "afec" else set())
    return {key: values for key, values in grid.items() if key not in left_out}


def search_space(term: str, given: Mapping[str, Any], settings: Mapping[str, Any], *, beta: bool = False) -> Space:
    """The grid of one term of a method, for the Fisher kind of its settings: the given one, or else the default one."""
    if DEFAULTS.get(term, _OWN) is NOTHING and not _numbers(given, term, beta):
        return {}
    if not has_grid(term, given, beta=beta):
        here = str(settings.get("fisher", "auto"))
        fitting = (one for one in DEFAULTS.get(term, _OWN) if _family(str(one.get("fisher", here))) == _family(here))
        given = next(fitting, {})
    grids = _numbers(given, term, beta)
    if not grids:
        raise ValueError(
            f"there is no grid for {term}, and no default one either: give one in the file, such as "
            f"[tune.{term}] strength = [1, 10, 100]"
        )
    if not all(value < 1 for value in grids.get("beta", ())):
        raise ValueError(f"tune.{term}.beta: β lies in [0, 1); got {grids['beta']}")
    factor = _factor(term, given, settings)
    return {key: tuple(_times(factor, key, float(v)) for v in values) for key, values in grids.items()}


def _family(kind: str) -> str:
    """The Fisher kinds whose λ can be converted into each other."""
    return "true" if kind in TRUE_KINDS else "of the labels" if kind in ("batched", "empirical") else kind


def _times(factor: float, key: str, value: float) -> float:
    """A value of the grid under another Fisher kind: λ and λ_e are multiplied, β is the one of the multiplied λ_e."""
    if key == "beta" and factor != 1:
        return beta_from_forgetting(factor * forgetting_from_beta(value))
    return factor * value if key in ("strength", "forgetting") else value


def _factor(term: str, grid: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    """What the grid's λ are multiplied by under the run's own Fisher kind."""
    if "fisher" not in METHODS[term].options or "fisher" not in grid:
        return 1.0
    given = {key: settings.get(key) for key in ("fisher", "fisher_batch")}
    own = METHODS[term].make.settings(preset=settings.get("preset"), **given)
    there, here = str(grid["fisher"]), str(own["fisher"])
    if _family(there) == _family(here) == "true":
        return 1.0
    if _family(there) == _family(here) == "of the labels":
        # The squared mean of B gradients is 1/B of the mean square where the mean gradient is small; its λ is B times as large.
        size = {"empirical": 1.0, "batched": float(own["fisher_batch"])}[here]
        return size / {"empirical": 1.0, "batched": float(grid.get("fisher_batch", 20))}[there]
    raise ValueError(
        f"the grid of {term} belongs to the `{there}` Fisher, and this run uses `{here}`: their λ are different "
        f'numbers and cannot be converted. Use --set method.{term}.fisher={there}, or a grid with fisher = "{here}"'
    )
