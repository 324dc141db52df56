"""The presets, in one place: what each of them sets, method by method. docs/presets.md says why.

`default` is what we would use ourselves; `paper` takes the papers' equations to the letter; `official` does what the released
code does. An option that is given beside a preset wins over it.
"""

from __future__ import annotations

from typing import Any, Literal

from afec.guard import one_of

__all__ = ["PRESETS", "Preset", "settings"]

Preset = Literal["default", "paper", "official"]
Options = dict[str, Any]

_TRUE_FISHER: Options = {"fisher": "auto", "fisher_batch": 20, "fisher_dropout": False}
_PAPER_FISHER: Options = {"fisher": "empirical", "fisher_batch": 20, "fisher_dropout": False}
_RELEASED_FISHER: Options = {"fisher": "batched", "fisher_batch": 20, "fisher_dropout": True}

_ALGORITHM_1: Options = {"expand_from": "init", "schedule": "sequential"}
_RELEASED_EXPANSION: Options = {"expand_from": "carry", "schedule": "interleaved"}

_MAS: Options = {"norm": "squared", "batch": 1, "dropout": False, "merge": "sum"}
_RELEASED_MAS: Options = {"norm": "l2", "batch": 20, "dropout": True, "merge": "sum"}

_PATH: Options = {"clamp": True, "half": True, "gradient": "task", "rewind": True}
_RELEASED_PATH: Options = {"clamp": False, "half": False, "gradient": "total", "rewind": False}

_SI: Options = {"damping": 0.1, **_PATH}
_RELEASED_SI: Options = {"damping": 0.01, **_RELEASED_PATH}

_RWALK: Options = {"alpha": 0.9, "damping": 0.01, **_PATH}
_RELEASED_RWALK: Options = {"alpha": 0.9, "damping": 0.01, **_RELEASED_PATH}

_AGS_CL: Options = {"mu": 10.0, "rho": 0.3, "eta": 0.9, "proximal": "epoch", "freeze": True, "cut": True}

_COLUMN: Options = {"column": "fresh", "adapters": True, "adapter_width": 0.25, "temperature": 1.0}
_ONLINE: Options = {**_COLUMN, "decay": 0.9}
_ON_THE_BASIS_OF_EWC: Options = {**_COLUMN, "decay": "mean"}

PRESETS: dict[str, dict[str, Options]] = {
    "default": {
        "ewc": _TRUE_FISHER,
        "mas": _MAS,
        "si": _SI,
        "rwalk": _RWALK,
        "afec": {**_TRUE_FISHER, **_ALGORITHM_1},
        "ags-cl": _AGS_CL,
        "progress-compress": {**_TRUE_FISHER, **_ONLINE},
    },
    "paper": {
        "ewc": _PAPER_FISHER,
        "mas": _MAS,
        "si": _SI,
        "rwalk": _RWALK,
        "afec": {**_PAPER_FISHER, **_ALGORITHM_1},
        "ags-cl": _AGS_CL,
        "progress-compress": {**_PAPER_FISHER, **_ON_THE_BASIS_OF_EWC},
    },
    "official": {
        "ewc": _RELEASED_FISHER,
        "mas": _RELEASED_MAS,
        "si": _RELEASED_SI,
        "rwalk": _RELEASED_RWALK,
        "afec": {**_RELEASED_FISHER, **_RELEASED_EXPANSION},
        "ags-cl": _AGS_CL,
        "progress-compress": {**_RELEASED_FISHER, **_ON_THE_BASIS_OF_EWC},
    },
}


def settings(method: str, preset: str, **given: Any) -> Options:
    """The preset's settings of a method, with those that were given (not None) instead."""
    one_of("preset", preset, tuple(PRESETS))
    chosen = {**PRESETS[preset][method], **{key: value for key, value in given.items() if value is not None}}
    if given.get("fisher") is not None and given.get("fisher_dropout") is None and chosen["fisher"] != "batched":
        chosen["fisher_dropout"] = False  # the preset's dropout belongs to its own kind
    return chosen
