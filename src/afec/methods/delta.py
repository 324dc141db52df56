"""EWC on the change of a matrix, ΔW = s·B·A, instead of on A and B apart: `EWC(on="delta")`.

    λ/2 · Σ F (ΔW − ΔW*)²

F is the Fisher of the whole matrix; ΔW* is zero for `anchor="base"`, and what the leg before has left for `anchor="last"`. An
adapter that was merged into the frozen weights between two legs is recognised, and ΔW* is counted from where they are now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from afec.gaussian import Gaussian, running_average, running_sum
from afec.guard import FisherFields, FisherOptions, GuardedTask, State, option
from afec.guard.low_rank import (
    LowRankPull,
    LowRankWeight,
    by_name,
    concatenated,
    low_rank_weights,
    negated,
    newly_merged,
    plain_name,
)
from afec.methods.regulariser import Regulariser
from afec.posterior import Posterior

__all__ = ["FisherRegulariser"]

NO_ADAPTER = (
    'EWC(on="delta") holds the change ΔW = B·A that a LoRA adapter makes, and no guarded weight of this model is of one. Make '
    'it with peft.get_peft_model(model, LoraConfig(…)), or use on="weights"'
)


class FisherRegulariser(FisherFields, Regulariser):
    """What holds by a Fisher information: weights, or the change of matrices; to the last task, or to the base model."""

    on: Literal["weights", "delta"] | None = option(
        default=None,  # not a word, so that configurations from before the option stay the same
        doc="What is held: the `weights` (if not given), of LoRA A and B apart; or LoRA's `delta`, the change ΔW = B·A of each "
        "matrix.",
    )
    anchor: Literal["last", "base"] | None = option(
        default=None,
        doc="Where to: the weights that the `last` task left (if not given); or the `base` model, as it is on entry to the "
        "first block, by its Fisher on the data of that block. Later tasks change neither.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = self.on != "delta" and self.anchor != "base"
        for what, special in (("strength", "auto"), ("anchors", "each")):
            if getattr(self, what, None) == special and not usual:
                raise ValueError(
                    f'{type(self).__name__}({what}="{special}") goes with on="weights" and anchor="last"; got on={self.on!r}, '
                    f"anchor={self.anchor!r}"
                )

    def cannot_measure(self, task: GuardedTask) -> str | None:
        """An adapter, where its change is held; a likelihood, for a Fisher that needs one."""
        if self.on != "delta":
            return task.refuses(self.fisher_options)
        weights = adapted(task)
        if not weights:
            return NO_ADAPTER
        with task.measuring({weight.name: weight.base for weight in weights}):
            return task.refuses(self.fisher_options)

    def fisher_of_task(self, task: GuardedTask) -> dict[str, Tensor]:
        """The Fisher information of what is held."""
        if self.on == "delta":
            return fisher_of_change(task, self.fisher_options)
        return task.fisher(self.fisher_options, self.name)

    def watched(self, task: GuardedTask, state: State) -> State:
        """The posterior of the base model, where that is held and not known yet."""
        if self.anchor != "base" or state:
            return {}
        precision = self.importance(task, {})
        if self.on == "delta":
            return {"base": state_now(task, precision, {})}
        return {"base": {"mean": task.values(), "precision": precision}}

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """As of every regulariser; nothing where it is the change of a matrix that is held."""
        return [] if self.on == "delta" else super().quadratics(task, state or task_state.get("base", {}), task_state)

    def low_rank(self, task: GuardedTask, state: State, task_state: State) -> list[LowRankPull]:
        """The pull on the change of each matrix."""
        known = state or task_state.get("base", {})
        if self.on != "delta" or not known:
            return []
        assert not isinstance(self.strength, str), "__post_init__ has seen to it"
        return pulls(task, known, self.strength, to_base=self.anchor == "base")

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """As of every regulariser; it cannot tell of the change of a matrix."""
        return None if self.on == "delta" else super().preview(task, state, seconds)

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F with this task's around the weights as they are now; or the base model's, as it was."""
        known = state or task_state.get("base", {})
        if self.anchor == "base":
            return state_now(task, known["precision"], known) if self.on == "delta" else known
        if self.on == "delta":
            return consolidated(task, state, self.importance(task, task_state), self.over_tasks)
        return super().end_task(task, state, task_state)

    def from_posterior(self, posterior: Posterior, model: nn.Module, where: str) -> State:
        """As of every method; of a LoRA model the file is that of its base, measured before it got an adapter."""
        if self.on != "delta":
            return super().from_posterior(posterior, model, where)
        weights = low_rank_weights(model, model.parameters())
        if not weights:
            raise ValueError(NO_ADAPTER)
        plain = {plain_name(name): weight for name, weight in model.named_parameters() if "lora_" not in name}
        known = replace(posterior, mean=None).over(plain, where).precision
        missing = [plain_name(weight.name) for weight in weights if plain_name(weight.name) not in known]
        if missing:
            raise ValueError(f"{where} has no precision for {missing[0]!r}, which this model adapts")
        found = {weight.name: known[plain_name(weight.name)] for weight in weights}
        return {
            "precision": {w.name: found[w.name].T.contiguous() if w.transposed else found[w.name] for w in weights},
            "factors": {},
            "probe": {},
            "merged": {},
        }


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
