"""Methods by name: `ewc+afec` on the command line, in a config, in a table, is `EWC(…) + AFEC(…)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afec.guard import Guard, OptionFields, Term
from afec.methods.afec import AFEC
from afec.methods.ags_cl import AGSCL
from afec.methods.average import Average
from afec.methods.derpp import DERPP
from afec.methods.er import ER
from afec.methods.ewc import EWC
from afec.methods.icarl import ICaRL
from afec.methods.lucir import LUCIR
from afec.methods.lwf import LwF
from afec.methods.mas import MAS
from afec.methods.merge import Merge
from afec.methods.podnet import PODNet
from afec.methods.prior import Prior
from afec.methods.progress_compress import ProgressCompress
from afec.methods.recycle import Recycle
from afec.methods.rwalk import RWALK
from afec.methods.si import SI
from afec.naming import Record, Registry, did_you_mean, unknown, with_defaults
from afec.strategy import Strategy

__all__ = [
    "FINETUNE",
    "METHODS",
    "check_settings",
    "make_method",
    "name_of",
    "terms_of",
    "whole_settings",
]

FINETUNE = "finetune"
"""The name of plain training, a sum without any term."""


METHODS = Registry(
    "method",
    (
        Record("ewc", EWC, "elastic weight consolidation: each weight is held by its Fisher information"),
        Record("mas", MAS, "memory aware synapses: held by how much the output depends on it"),
        Record("si", SI, "synaptic intelligence: held by what its path gave to the loss"),
        Record("rwalk", RWALK, "Riemannian walk: Fisher information and path together"),
        Record("afec", AFEC, "active forgetting: pulled to where the new task alone would have it"),
        Record("prior", Prior, "pulled back to zero or to the initial weights: the paper's Eq. 5 to the letter"),
        Record("average", Average, "the average of the weights along the training takes their place when a task ends"),
        Record("merge", Merge, "learned freely, then old and new weights merged in closed form: mode-IMM"),
        Record("recycle", Recycle, "units that no task uses get fresh weights, and nothing old listens to them"),
        Record("ags-cl", AGSCL, "adaptive group sparsity: nodes that mattered are held, others kept free (strategy)"),
        Record(
            "progress-compress",
            ProgressCompress,
            "a column learns the task, the net learns from it under EWC (strategy)",
        ),
        Record("er", ER, "experience replay: new images and exemplars of old classes alike (replay)"),
        Record(
            "lwf", LwF, "learning without forgetting: on new images the old outputs are kept up; no memory (strategy)"
        ),
        Record("derpp", DERPP, "dark experience replay: exemplars with the outputs of their time (replay)"),
        Record("icarl", ICaRL, "exemplars, distillation of the old net, the class of the nearest mean (replay)"),
        Record("lucir", LUCIR, "exemplars, a cosine classifier, features that keep their direction, margins (replay)"),
        Record("podnet", PODNet, "exemplars, proxies, pooled feature maps that stay as they were (replay)"),
    ),
    base=(Term, Strategy),
)


def terms_of(expression: str) -> tuple[str, ...]:
    """The terms, sorted as the guard sorts them, each as `METHODS` finds it; `finetune` has none."""
    names = [part if ":" in part else part.lower() for part in map(str.strip, expression.split("+"))]
    if names == [FINETUNE]:
        return ()
    for name in names:
        if name == FINETUNE:
            raise ValueError(f"'{expression}': {FINETUNE} is no method at all, so it adds to nothing; leave it out")
        if ":" not in name and name not in METHODS:
            alone = len(names) == 1
            where = "" if alone else f"'{expression}': "
            raise ValueError(where + unknown("method", name, [FINETUNE, *METHODS] if alone else METHODS))
    records = {name: METHODS[name] for name in names}
    if len({record.name for record in records.values()}) != len(names):
        raise ValueError(f"'{expression}' has one method twice; add each at most once")
    strategies = [record.name for record in records.values() if issubclass(record.make, Strategy)]
    if len(strategies) > 1:
        raise ValueError(f"'{expression}': {' and '.join(strategies)} are both strategies; a sum has one at most")
    return tuple(sorted(names, key=lambda name: (records[name].make.rank, records[name].name)))


def name_of(expression: str) -> str:
    """The method's name in tables: `mine+afec` for `mine.py:Mine+afec`."""
    return "+".join(METHODS[term].name for term in terms_of(expression)) or FINETUNE


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise for a setting that the method does not have."""
    valid = METHODS[name].options
    for key in settings:
        if key not in valid:
            near = did_you_mean(key, valid) or "."
            raise ValueError(f"{name} has no setting '{key}'{near} It has: {', '.join(valid)}")


def whole_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method with what its preset says written out."""
    record = METHODS[name]
    if not issubclass(record.make, OptionFields):  # a constructor of its own, without presets
        return {key: value for key, value in with_defaults(METHODS, {"name": name, **given}).items() if key != "name"}
    chosen = record.make.settings(**given)
    return {key: chosen[key] for key in record.options if chosen[key] is not None}


def make_method(expression: str, settings: Mapping[str, Mapping[str, Any]]) -> Guard | Strategy | None:
    """The method of an expression, from the settings of each of its terms; None for `finetune`.

    The settings of a term from elsewhere may stand under its name as well as under `file.py:Class`.
    """
    method: Guard | Strategy | None = None
    for name in terms_of(expression):
        record = METHODS[name]
        own = settings.get(name, settings.get(record.name, {}))
        check_settings(name, own)
        try:
            term = record.make(**own)
        except TypeError as error:
            raise ValueError(f"the settings of {name}, {dict(own)}, do not fit: {error}") from error
        method = term if method is None else method + term
    return method
