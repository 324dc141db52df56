"""A strength that needs no search: hold the old tasks as strongly as the new one allows.

The new task alone, without the old pull, says how well it can be learned: from the loss L₀ on entry down to the reference L_r.
While θ is learned, an epoch that ends with the loss L has missed the part m of that gain,

    m = (L − L_r) / (L₀ − L_r)

λ starts strong and falls where the new task is stuck above the tolerance τ: where, as fast as m fell over the latest epochs, it
would not be at τ soon enough. Below τ it rises again, up to where it started:

    log λ ← log λ − log(factor) · clip(log(m/τ), −1, 1),     λ ≤ λ₀ = start · (L₀ − L_r) / (½·Σ Ω(θ_r − θ*)²)

θ_r are the weights of the reference: with start = 1 the way to them would cost as much in penalty as it gains in loss. So no
unit of the loss or of the importance Ω matters. No old data are needed, and θ is trained once.

A training of few epochs has no time for a slow search: it starts lower, takes larger steps and is less patient (`Pace`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

__all__ = ["LONG", "Pace", "after_epoch", "first_strength"]

LONG = 80
"""A training of so many epochs, or more, is searched at the slowest pace."""
UNKNOWN = 20
"""The pace where nobody has said how many epochs there will be: right for 20, and near enough for 5 to 100."""

Known = dict[str, Any]


class Pace(NamedTuple):
    """How λ is searched in a training of so many epochs."""

    start: float  # the first λ and the largest, in units of what the way to the reference gains by what it costs
    factor: float  # how much λ changes in an epoch, at most
    horizon: float  # how many epochs the new task is given to get to τ at its present rate, before λ falls
    window: int  # over how many epochs its progress is looked at

    @classmethod
    def of(cls, epochs: int) -> Pace:
        """With LONG epochs: 100, 1.2, 40, 5. With fewer, λ can still fall a thousandfold before they are over."""
        short = min(epochs, LONG)
        return cls(100.0 ** (short / LONG), max(1.2, 1000.0 ** (1 / short)), short / 2, max(1, min(5, short // 4)))


def first_strength(before: float, reference: float, penalty: float, epochs: int | None) -> Known:
    """What is known when a task begins: the loss on entry, that of the reference, and the penalty of its weights at λ = 1."""
    gain, epochs = before - reference, epochs or UNKNOWN
    scaled = gain / penalty if gain > 0 and penalty > 0 else 1.0
    first = Pace.of(epochs).start * scaled
    return {"before": before, "reference": reference, "epochs": epochs, "missed": [1.0], "path": [first]}


def after_epoch(known: Known, loss: float, tolerance: float) -> Known:
    """The same with one more λ, after an epoch that has ended with this loss."""
    gain, path, pace = known["before"] - known["reference"], known["path"], Pace.of(known["epochs"])
    if gain <= 0:  # the reference has learned nothing: there is no part of it to miss
        return {**known, "path": [*path, path[-1]]}
    missed = (loss - known["reference"]) / gain
    recent = [*known["missed"], missed][-pace.window - 1 :]
    fall = (recent[0] - missed) / (len(recent) - 1)
    if missed > tolerance and fall * pace.horizon >= missed - tolerance:
        above = 0.0  # it is on its way
    else:
        above = max(-1.0, min(1.0, math.log(max(missed, 1e-12) / tolerance)))
    strength = min(path[0], path[-1] * pace.factor**-above)
    return {**known, "missed": recent, "path": [*path, strength]}
