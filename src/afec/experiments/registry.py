"""The experiments that have a name, for benchmark files."""

from __future__ import annotations

from afec.experiments.base import Experiment
from afec.naming import load_object, unknown

__all__ = ["EXPERIMENTS", "experiment_for", "find_experiment"]

EXPERIMENTS = {
    "supervised": "afec.experiments.supervised:Supervised",
    "games": "afec.experiments.games:Games",
}
"""Where each is; it is imported when it is asked for."""


def find_experiment(name: str) -> type[Experiment]:
    """The experiment called `name`, or found as `module:Class` or `file.py:Class`."""
    if name not in EXPERIMENTS and ":" not in name:
        raise ValueError(unknown("experiment", name, EXPERIMENTS) + "; or give module:Class or file.py:Class")
    found = load_object(EXPERIMENTS.get(name, name))
    if not isinstance(found, type) or not issubclass(found, Experiment):
        raise ValueError(
            f"'{name}' is no experiment: expected a subclass of afec.experiments.Experiment; got {found!r}"
        )
    return found


def experiment_for(name: str, method: str) -> type[Experiment]:
    """The experiment that runs this row: `name`'s own, or one of its references (`joint`, `scratch`)."""
    kind = find_experiment(name)
    return find_experiment(kind.references[method]) if method in kind.references else kind
