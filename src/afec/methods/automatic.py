"""A strength that needs no search: hold the old tasks as strongly as the new one allows.

The new task alone, without the old pull, says how well it can be learned: from the loss L₀ on entry down to the reference L_r.
While θ is learned, an epoch that ends with the loss L has missed the part m of that gain,

    m = (L − L_r) / (L₀ − L_r)

λ starts strong and falls where the new task is stuck above the tolerance τ: where, as fast as m fell over the latest WINDOW
epochs, it would not be at τ within HORIZON more of them. Below τ it rises again, up to where it started:

    log λ ← log λ − log(FACTOR) · clip(log(m/τ), −1, 1),     λ ≤ λ₀ = START · (L₀ − L_r) / (½·Σ Ω(θ_r − θ*)²)

θ_r are the weights of the reference: with START = 1 the way to them would cost as much in penalty as it gains in loss. So no
unit of the loss or of the importance Ω matters. No old data are needed, and θ is trained once.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["FACTOR", "HORIZON", "START", "WINDOW", "after_epoch", "first_strength"]

START = 100.0
"""The first λ and the largest, in units of what the way to the reference gains by what it costs."""
FACTOR = 1.2
"""How much λ changes in an epoch, at most."""
WINDOW = 5
"""Over how many epochs the progress of the new task is looked at."""
HORIZON = 40
"""How many epochs the new task is given to get there at its present rate, before λ falls."""

Known = dict[str, Any]


def first_strength(before: float, reference: float, penalty: float) -> Known:
    """What is known when a task begins: the loss on entry, that of the reference, and the penalty of its weights at λ = 1."""
    gain = before - reference
    scaled = gain / penalty if gain > 0 and penalty > 0 else 1.0
    return {"before": before, "reference": reference, "missed": [1.0], "path": [START * scaled]}


def after_epoch(known: Known, loss: float, tolerance: float) -> Known:
    """The same with one more λ, after an epoch that has ended with this loss."""
    gain, path = known["before"] - known["reference"], known["path"]
    if gain <= 0:  # the reference has learned nothing: there is no part of it to miss
        return {**known, "path": [*path, path[-1]]}
    missed = (loss - known["reference"]) / gain
    recent = [*known["missed"], missed][-WINDOW - 1 :]
    fall = (recent[0] - missed) / (len(recent) - 1)
    if missed > tolerance and fall * HORIZON >= missed - tolerance:
        above = 0.0  # it is on its way
    else:
        above = max(-1.0, min(1.0, math.log(max(missed, 1e-12) / tolerance)))
    strength = min(path[0], path[-1] * FACTOR**-above)
    return {**known, "missed": recent, "path": [*path, strength]}
