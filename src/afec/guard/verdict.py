"""Is a term's pull inert, at work, or too strong? Measured by what the user's optimiser does with it.

Norms of pull and gradient do not tell: Adam divides both by their size, and turns any pull on a weight without a gradient into
full steps. So the same steps are taken several times from the same weights, on the same batches, and the movements u of the
guarded weights are compared:

    change = ‖u(all terms) − u(all but this one)‖ / ‖u(no term)‖           what the term does beside the others (alone, if
                                                                           one of the others is too strong)
    left   = ‖u⁺ − u⁻‖ / max(‖u⁺ + u⁻‖, ‖u⁺₀ − u⁻₀‖)                        what the task's gradient still does beside the term

u⁺ are steps under this term alone, u⁻ the same with the task's gradient turned around; u₀ has no term. The half difference is
the gradient's part of the movement, the half sum the pull's part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from afec.gaussian import Gaussian, merge
from afec.guard.borrow import borrowed
from afec.guard.task import GuardedTask
from afec.guard.trial import MOST_STEPS, Walk, walk

__all__ = ["Judgement", "Verdict", "judge", "percent"]

INERT = 0.01  # a term that changes the movement by less than this will not be noticed
TOO_STRONG = 0.2  # beside a term that leaves less than this of the task's own movement the task is not learned

Judgement = Literal["inert", "at work", "too strong", "not measured"]
Terms = Mapping[str, Sequence[tuple[float, Gaussian]]]


@dataclass(frozen=True)
class Verdict:
    """What a term's pull does to the first steps of a task."""

    judgement: Judgement
    change: float = math.nan
    """By how much it changes the movement of the weights, relative to the movement without any term."""

    left: float = math.nan
    """The share of what the task's gradient does that is left beside this term alone."""

    why: str = ""
    """Why it was not measured."""

    def __str__(self) -> str:
        numbers = f"changes the steps by {percent(self.change)}, leaves {percent(self.left)} of the task's own"
        return f"{self.judgement} ({self.why or numbers})"


def judge(task: GuardedTask, terms: Terms, seconds: float) -> tuple[dict[str, Verdict], int]:
    """A verdict for each term, and the number of steps that they rest on. The weights are put back."""
    share = seconds / (2 * len(terms) + 3)
    batches = _kept(task, share) if task.passes.on_demand else None

    def moved(*own: tuple[float, Gaussian], **options: Any) -> tuple[Tensor, Walk]:
        return _moved(task, own, batches=batches, **options)

    free, taken = moved(until=time.monotonic() + share)
    size, most = float(free.norm()), taken.steps
    if not 0 < size < math.inf:
        why = "moves no weight: is its learning rate 0?" if size == 0 else "diverges: lower its learning rate"
        return dict.fromkeys(terms, Verdict("not measured", why=f"without any pull the optimiser {why}")), most
    gradient = float((free - moved(most=most, against=taken)[0]).norm())
    alone = {name: moved(*own, most=most) for name, own in terms.items()}
    found: dict[str, Verdict] = {}
    usable = []
    for name, own in terms.items():
        under, walked = alone[name]
        if not float(under.norm()) < size / TOO_STRONG:
            found[name] = Verdict("too strong", why="its pull overshoots: the weights swing or become infinite")
            continue
        opposite = moved(*own, most=most, against=walked)[0]
        left = float((under - opposite).norm()) / max(float((under + opposite).norm()), gradient)
        change = float((under - free).norm()) / size
        judgement: Judgement = "too strong" if left < TOO_STRONG else "inert" if change < INERT else "at work"
        found[name] = Verdict(judgement, change, left)
        if judgement != "too strong":
            usable.append(name)
    if 1 < len(usable) == len(terms):  # beside a term that is too strong every other one would look inert
        every = moved(*(one for own in terms.values() for one in own), most=most)[0]
        for name in usable:
            others = [one for other, ones in terms.items() if other != name for one in ones]
            change = float((every - moved(*others, most=most)[0]).norm()) / size
            found[name] = Verdict("inert" if change < INERT else "at work", change, found[name].left)
    return found, most


def _kept(task: GuardedTask, seconds: float) -> list[Any]:
    """Batches that are made on demand are never the same again, so they are kept."""
    batches, until = [], time.monotonic() + seconds
    for batch in task.batches("walk", training=True):
        batches.append(batch)
        if len(batches) == MOST_STEPS or time.monotonic() > until:
            break
    return batches


def _moved(task: GuardedTask, terms: Sequence[tuple[float, Gaussian]], **options: Any) -> tuple[Tensor, Walk]:
    """How far the guarded weights move under these terms, as one vector."""
    before = task.values()
    with torch.enable_grad(), borrowed(task.model, task.optimizers):
        if not task.model.training:
            task.model.train()
        walked = walk(task, merge(terms), **options)
        moved = [(weight.detach() - before[name]).double().flatten().cpu() for name, weight in task.weights.items()]
    return torch.cat(moved), walked


def percent(share: float) -> str:
    """A share for people: 0.03 %, 5.1 %, 83 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
