"""The presets, in one place: what each of them sets. docs/presets.md says why.

`default` is what we would use ourselves; `paper` takes the paper's equations to the letter; `official` does what the released
code does. An option that is given beside a preset wins over it.
"""

from __future__ import annotations

from typing import Any, Literal

from afec.guard import one_of

__all__ = ["PRESETS", "Preset", "settings"]

Preset = Literal["default", "paper", "official"]

PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "fisher": "auto",
        "fisher_batch": 20,
        "fisher_dropout": False,
        "expand_from": "init",
        "schedule": "sequential",
    },
    "paper": {
        "fisher": "empirical",
        "fisher_batch": 20,
        "fisher_dropout": False,
        "expand_from": "init",
        "schedule": "sequential",
    },
    "official": {
        "fisher": "batched",
        "fisher_batch": 20,
        "fisher_dropout": True,
        "expand_from": "carry",
        "schedule": "interleaved",
    },
}


def settings(preset: str, **given: Any) -> dict[str, Any]:
    """The preset's settings, with those that were given (not None) instead."""
    one_of("preset", preset, tuple(PRESETS))
    chosen = {**PRESETS[preset], **{key: value for key, value in given.items() if value is not None}}
    if given.get("fisher") is not None and given.get("fisher_dropout") is None and chosen["fisher"] != "batched":
        chosen["fisher_dropout"] = False  # the preset's dropout belongs to its own kind
    return chosen
