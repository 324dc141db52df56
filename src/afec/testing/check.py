"""`check_method`: every contract over one method, yours or ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from afec.randomness import forked
from afec.strategy import Strategy
from afec.testing import conduct, results
from afec.testing.compare import global_hooks, remove_hooks_since
from afec.testing.method import Make, Method
from afec.testing.report import ContractError, Report, Result, ViolationError
from afec.testing.strategies import STRATEGY_CONTRACTS, StrategyMethod

__all__ = ["CONTRACTS", "check_method"]

# In the order in which they are checked: what the others rest on comes first, so that the first failure is the cause.
CONTRACTS: dict[str, Callable[[Method], None]] = {
    "deterministic": results.deterministic,
    "zero": results.zero,
    "untouched": conduct.untouched,
    "abort": conduct.abort,
    "state": results.state,
    "resume": results.resume,
    "bounded": conduct.bounded,
    "pulls": results.pulls,
    "nonnegative": results.nonnegative,
    "guards_only_params": conduct.guards_only_params,
    "grows": conduct.grows,
    "commutes": results.commutes,
}


def check_method(
    make: Make,
    *,
    strength: float = 10.0,
    exempt: Mapping[str, str] | None = None,
    only: Iterable[str] | None = None,
    raise_on_failure: bool = True,
) -> Report:
    """Check a method against the contracts, on a small MLP and random data; raises `ContractError` at the first broken one.

    Args:
        make: builds a fresh guard, `make(strength=…)`: a Term class (`check_method(L2)`), or a function
            (`check_method(lambda strength: EWC(strength) + AFEC(strength, epochs=2))`). Or a fresh strategy: that is checked
            in a small learner, against `STRATEGY_CONTRACTS`.
        strength: a positive strength at which the method pulls.
        exempt: {contract: reason} that do not apply, beside those that the terms declare in an attribute `exempt_contracts`.
            They are checked and listed all the same, and the report says where one holds.
        only: the names of the contracts to check; default all.
        raise_on_failure: False goes on and leaves the failures in the report.

    Torch only, on the CPU, in a second or a few. Your random states are left as they were.
    """
    started = [set(place) for place in global_hooks()]
    try:
        with forked(0):
            strategy = callable(make) and strength > 0 and isinstance(make(strength=strength), Strategy)
            method: Any = StrategyMethod(make, strength) if strategy else Method(make, strength)
            contracts: Mapping[str, Callable[[Any], None]] = STRATEGY_CONTRACTS if strategy else CONTRACTS
            exempt = {**method.declared(), **(exempt or {})}
            found: list[Result] = []
            for name in _chosen(only, exempt, contracts):
                result = _checked(method, contracts[name], name, exempt.get(name))
                if result.outcome == "failed" and raise_on_failure:
                    assert result.error is not None
                    raise result.error
                found.append(result)
            return Report(method.name, tuple(found))
    finally:
        remove_hooks_since(started)


def _checked(method: Any, contract: Callable[[Any], None], name: str, reason: str | None) -> Result:
    start, error = time.perf_counter(), None
    try:
        contract(method)
    except ViolationError as violation:
        error = ContractError(method.name, name, violation.seen, violation.expected)
    except Exception as exception:
        error = ContractError(method.name, name, f"{type(exception).__name__}: {exception}", "no exception")
        error.__cause__ = exception
    finally:
        method.close()
    seconds = time.perf_counter() - start
    if reason is not None:
        return Result(name, "exempt", seconds, reason, error)
    return Result(name, "passed" if error is None else "failed", seconds, "", error)


def _chosen(only: Iterable[str] | None, exempt: Mapping[str, str], contracts: Iterable[str]) -> list[str]:
    """The contracts to check, in their order; unknown names and exemptions without a reason raise."""
    wanted = list(contracts) if only is None else [only] if isinstance(only, str) else list(only)
    for what, names in (("only", wanted), ("exempt", exempt)):
        unknown = [name for name in names if name not in contracts]
        if unknown:
            raise ValueError(
                f"{what}= names {unknown[0]!r}, which is no contract; the contracts are {', '.join(contracts)}"
            )
    for name, reason in exempt.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"the exemption from {name!r} needs a reason, in words; got {reason!r}")
    return [name for name in contracts if name in wanted]
