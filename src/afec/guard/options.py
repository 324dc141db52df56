"""Settings that methods share, and how they are checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from afec.fisher import KINDS, Kind

__all__ = ["FisherOptions", "checked_flag", "checked_weight", "one_of"]


@dataclass(frozen=True)
class FisherOptions:
    """Which Fisher: `auto` is `exact` up to ten outputs, `sample` beyond, `empirical` where no likelihood is known."""

    kind: Kind | Literal["auto"] = "auto"
    batch_size: int = 20  # of the `batched` kind
    dropout: bool = False  # the released code leaves dropout on

    def __post_init__(self) -> None:
        one_of("fisher", self.kind, ("auto", *KINDS))
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"fisher_batch must be an integer ≥ 1; got {self.batch_size!r}")
        checked_flag("fisher_dropout", self.dropout)
        if self.dropout and self.kind != "batched":
            raise ValueError(f"fisher_dropout=True goes with fisher='batched' only; got fisher={self.kind!r}")


def checked_weight(what: str, value: object) -> float:
    """A finite number ≥ 0, or an error that says what was given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} must be a finite number ≥ 0; got {value!r}")
    return float(value)


def checked_flag(what: str, value: object) -> bool:
    """True or False, or an error that says what was given; a word like "no" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be True or False; got {value!r}")
    return value


def one_of(what: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
