"""The grids of a benchmark, as a method is searched over them.

A grid of λ belongs to a Fisher kind: under another kind it is converted where a rule of thumb exists (`batched` of B samples
and `empirical` differ by up to about B), and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afec.gaussian import beta_from_forgetting, forgetting_from_beta
from afec.lab.config import RunConfig
from afec.lab.spec import Benchmark, SpecError
from afec.methods.expression import METHODS
from afec.methods.presets import settings as preset_settings

__all__ = ["Space", "search_space"]

Space = dict[str, tuple[float, ...]]
"""The values of each setting, by `term.setting`."""

TRUE_KINDS = {"auto", "exact", "sample"}


def search_space(benchmark: Benchmark, config: RunConfig, term: str, *, beta: bool = False) -> Space:
    """The grid of one term of a method, for the Fisher kind that the run will use."""
    given = dict(benchmark.tune.get(term, {}))
    if term == "afec":
        given.pop("forgetting" if beta else "beta", None)
    if not given.keys() - {"fisher", "fisher_batch"}:
        example = "strength = [1, 10, 100]" if term != "afec" else "forgetting = [0.1, 1, 10]"
        raise SpecError(
            f"{benchmark.name} has no grid for {term}{' in β' if beta and term == 'afec' else ''}: give one in its file, "
            f"[tune.{term}] {'beta = [0.1, 0.5, 0.9]' if beta and term == 'afec' else example}, with "
            'fisher = "…" where these values belong to a Fisher kind'
        )
    if not all(value < 1 for value in given.get("beta", ())):
        raise SpecError(f"{benchmark.name}: tune.{term}.beta: β lies in [0, 1); got {given['beta']}")
    factor = _factor(benchmark.name, term, given, config.settings.get(term, {}))
    grids = {key: value for key, value in given.items() if key not in ("fisher", "fisher_batch")}
    return {f"{term}.{key}": tuple(_times(factor, key, float(v)) for v in values) for key, values in grids.items()}


def _times(factor: float, key: str, value: float) -> float:
    """A value of the grid under another Fisher kind: λ and λ_e are multiplied, β is the one of the multiplied λ_e."""
    if key == "beta" and factor != 1:
        return beta_from_forgetting(factor * forgetting_from_beta(value))
    return factor * value if key in ("strength", "forgetting") else value


def _factor(name: str, term: str, grid: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    """What the grid's λ are multiplied by under the run's own Fisher kind."""
    if "fisher" not in METHODS[term].settings or "fisher" not in grid:
        return 1.0
    given = {key: settings.get(key) for key in ("fisher", "fisher_batch")}
    own = preset_settings(term, settings.get("preset", "default"), **given)
    there, here = str(grid["fisher"]), str(own["fisher"])
    if {there, here} <= TRUE_KINDS:
        return 1.0
    if {there, here} <= {"batched", "empirical"}:
        # The squared mean of B gradients is 1/B of the mean square where the mean gradient is small; its λ is B times as large.
        size = {"empirical": 1.0, "batched": float(own["fisher_batch"])}[here]
        return size / {"empirical": 1.0, "batched": float(grid.get("fisher_batch", 20))}[there]
    raise SpecError(
        f"the grid of {term} in {name} belongs to the `{there}` Fisher, and this run uses `{here}`: their λ are different "
        f'numbers and cannot be converted. Use --set method.{term}.fisher={there}, or a grid with fisher = "{here}"'
    )
