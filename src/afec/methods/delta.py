"""EWC on the change of a matrix, ΔW = s·B·A, instead of on A and B apart: `EWC(on="delta")`.

    λ/2 · Σ F (ΔW − ΔW*)²

F is the Fisher of the whole matrix; ΔW* is zero for `anchor="base"`, and what the leg before has left for `anchor="last"`. An
adapter that was merged into the frozen weights between two legs is recognised, and ΔW* is counted from where they are now.
"""

from __future__ import annotations

from torch import Tensor

from afec.gaussian import Gaussian, running_average, running_sum
from afec.guard import FisherOptions, GuardedTask, State
from afec.guard.low_rank import (
    LowRankPull,
    LowRankWeight,
    by_name,
    concatenated,
    low_rank_weights,
    negated,
    newly_merged,
)

__all__ = ["adapted", "consolidated", "fisher_of_change", "pulls", "state_now"]


def adapted(task: GuardedTask) -> list[LowRankWeight]:
    """The adapted matrices of the task's model."""
    return low_rank_weights(task.model, task.weights.values())


def fisher_of_change(task: GuardedTask, options: FisherOptions) -> dict[str, Tensor]:
    """F of every adapted matrix, as (outputs, inputs)."""
    weights = adapted(task)
    with task.measuring({weight.name: weight.base for weight in weights}):
        found = task.fisher(options, "ewc")
    return {w.name: found[w.name].T.contiguous() if w.transposed else found[w.name] for w in weights}


def state_now(task: GuardedTask, precision: dict[str, Tensor], state: State) -> State:
    """What is known when the present weights are consolidated with this F."""
    weights = adapted(task)
    merged = dict(state.get("merged", {}))
    for weight in weights:
        if weight.name in state.get("factors", {}):
            kept = tuple(state["factors"][weight.name])
            if newly_merged(weight, state["probe"][weight.name], kept):
                merged[weight.name] = concatenated(merged.get(weight.name), kept)
    return {
        "precision": precision,
        "factors": {weight.name: weight.factors() for weight in weights},
        "probe": {weight.name: weight.probe() for weight in weights},
        "merged": merged,
    }


def consolidated(task: GuardedTask, state: State, new: dict[str, Tensor], decay: float | str) -> State:
    """F with this task's, and ΔW as it is now."""
    old = state.get("precision")
    if old is not None and decay == "mean":
        new = running_average(Gaussian(old, old), Gaussian(new, new), task.number + 1).precision
    elif old is not None:
        kept = {name: float(decay) * f for name, f in old.items()}
        new = running_sum(Gaussian(kept, kept), Gaussian(new, new)).precision
    return state_now(task, new, state)


def pulls(task: GuardedTask, state: State, strength: float, *, to_base: bool) -> list[LowRankPull]:
    """The pull on every matrix, to the base model or to what the leg before has left."""
    weights, found = by_name(adapted(task)), []
    for name, precision in state["precision"].items():
        if name not in weights:
            raise ValueError(
                f"the matrix {name!r} was adapted in an earlier leg and has no guarded adapter now; adapt the same modules"
            )
        weight = weights[name]
        factors = tuple(state["factors"][name]) if name in state["factors"] else None
        if factors is not None and factors[0].shape[1] != weight.a.shape[1]:
            raise ValueError(f"the matrix {name!r} changed its shape between two legs; start a new guard")
        is_merged = factors is not None and newly_merged(weight, state["probe"][name], factors)
        if to_base:
            known = state["merged"].get(name)
            known = None if known is None else tuple(known)
            mean = negated(concatenated(known, factors) if is_merged and factors is not None else known)
        else:
            mean = None if is_merged else factors
        found.append(LowRankPull(weight, strength, precision.to(weight.a.device), mean))
    return found
