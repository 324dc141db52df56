"""Methods by name: `ewc+afec` on the command line, in a config, in a table, is `EWC(…) + AFEC(…)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from afec.guard import Guard
from afec.methods.afec import AFEC
from afec.methods.ags_cl import AGSCL
from afec.methods.ewc import EWC
from afec.methods.mas import MAS
from afec.methods.progress_compress import ProgressCompress
from afec.methods.rwalk import RWALK
from afec.methods.si import SI
from afec.naming import did_you_mean, unknown
from afec.strategy import Strategy

__all__ = ["FINETUNE", "METHODS", "MethodRecord", "check_settings", "make_method", "terms_of", "whole_settings"]

FINETUNE = "finetune"
"""No term at all."""


@dataclass(frozen=True)
class MethodRecord:
    """One term that can be named."""

    name: str
    make: Any
    description: str

    @property
    def settings(self) -> tuple[str, ...]:
        """What can be set by a config: the constructor's arguments, without those that are objects of Python."""
        return tuple(name for name, option in self.make.options.items() if option.from_config)


METHODS = {
    record.name: record
    for record in (
        MethodRecord("ewc", EWC, "elastic weight consolidation: each weight is held by its Fisher information"),
        MethodRecord("mas", MAS, "memory aware synapses: held by how much the output depends on it"),
        MethodRecord("si", SI, "synaptic intelligence: held by what its path gave to the loss"),
        MethodRecord("rwalk", RWALK, "Riemannian walk: Fisher information and path together"),
        MethodRecord("afec", AFEC, "active forgetting: pulled to where the new task alone would have it"),
        MethodRecord(
            "ags-cl", AGSCL, "adaptive group sparsity: nodes that mattered are held, others kept free (strategy)"
        ),
        MethodRecord(
            "progress-compress",
            ProgressCompress,
            "a column learns the task, the net learns from it under EWC (strategy)",
        ),
    )
}


def terms_of(expression: str) -> tuple[str, ...]:
    """The names of the terms, sorted as the guard sorts them; `finetune` has none."""
    names = [part.strip().lower() for part in expression.split("+")]
    if names == [FINETUNE]:
        return ()
    for name in names:
        if name == FINETUNE:
            raise ValueError(f"'{expression}': {FINETUNE} is no method at all, so it adds to nothing; leave it out")
        if name not in METHODS:
            alone = len(names) == 1
            where = "" if alone else f"'{expression}': "
            raise ValueError(where + unknown("method", name, [FINETUNE, *METHODS] if alone else METHODS))
    if len(set(names)) != len(names):
        raise ValueError(f"'{expression}' has one method twice; add each at most once")
    strategies = [name for name in names if issubclass(METHODS[name].make, Strategy)]
    if len(strategies) > 1:
        raise ValueError(f"'{expression}': {' and '.join(strategies)} are both strategies; a sum has one at most")
    return tuple(sorted(names, key=lambda name: (METHODS[name].make.rank, name)))


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise for a setting that the method does not have."""
    valid = METHODS[name].settings
    for key in settings:
        if key not in valid:
            near = did_you_mean(key, valid) or "."
            raise ValueError(f"{name} has no setting '{key}'{near} It has: {', '.join(valid)}")


def whole_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method with what its preset says written out."""
    chosen = METHODS[name].make.settings(**given)
    return {key: chosen[key] for key in METHODS[name].settings if chosen[key] is not None}


def make_method(expression: str, settings: Mapping[str, Mapping[str, Any]]) -> Guard | Strategy | None:
    """The method of an expression, from the settings of each of its terms; None for `finetune`."""
    method: Guard | Strategy | None = None
    for name in terms_of(expression):
        check_settings(name, settings.get(name, {}))
        try:
            term = METHODS[name].make(**settings.get(name, {}))
        except TypeError as error:
            raise ValueError(f"the settings of {name}, {dict(settings.get(name, {}))}, do not fit: {error}") from error
        method = term if method is None else method + term
    return method
