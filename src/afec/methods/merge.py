"""Merge: the new task is learned freely, and old and new weights are merged in closed form when it ends.

    θ_e: fine-tuned on the new task, from the old weights θ*, without any pull
    θ ← (λF·θ* + F_e·θ_e) / (λF + F_e),     F ← F + F_e

This is the mode of the product of two Gaussians, the posterior of the old tasks (mean θ*, precision F) to the power of λ and
that of the new one (θ_e, F_e). With λ = 1 every task counts alike: mode-IMM (Lee et al. 2017) with equal weights and weight
transfer. Only the ratio of the two counts, so there is one `strength`, λ. A weight that neither knows (λF + F_e = 0) stays at
θ_e. The cost is that of fine-tuning and one Fisher pass, at θ_e.

    guard = afec.Merge(strength=1)

Output layers that are not guarded (heads), and running statistics, stay as they were learned, beside θ_e.
"""

from __future__ import annotations

import copy
from typing import final

from afec.gaussian import Gaussian, merge, running_sum
from afec.guard import FisherFields, GuardedTask, State, TermBytes, bytes_of, load, option, precision_bytes
from afec.methods.regulariser import OptionTerm

__all__ = ["Merge"]


@final
class Merge(FisherFields, OptionTerm):
    """Learn the new task freely, then go to the mode of the product of old and new posterior."""

    name = "merge"
    rank = 1  # before methods that look at the weights that stay, such as Recycle

    strength: float = option(
        default=1.0,
        kw_only=False,
        symbol="λ",
        at_least=0,
        doc="λ ≥ 0: how much the old tasks count beside the new one. Zero switches the method off: fine-tuning, bit for bit.",
    )

    @property
    def is_off(self) -> bool:
        """Whether λ = 0."""
        return self.strength == 0

    def with_strength(self, strength: float) -> Merge:
        """The same method with another λ."""
        other = copy.copy(self)
        other.strength = strength
        return other

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why."""
        return {
            "pulls": "it merges weights at the end of a task, and pulls nothing",
            "untouched": "it merges old and new weights at the end of a task",
        }

    def lacks(self, task: GuardedTask) -> str | None:
        """A likelihood, for a Fisher that needs one."""
        return task.refuses(self.fisher_options)

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Merge has no pull."""
        return []

    def memory(self, task: GuardedTask) -> TermBytes:
        """θ* and F."""
        weights = task.weights.values()
        return TermBytes({"θ*": bytes_of(weights), "precision": precision_bytes(weights, self.store)}, measures=True)

    def change_weights(self, task: GuardedTask, state: State, task_state: State) -> State:
        """θ ← the mode of the product; in the first task nothing is old."""
        new = Gaussian(task.values(), task.fisher(self.fisher_options, self.name))
        if state:
            old = task.remembered(Gaussian(state["mean"], state["precision"]))
            load(task.model, merge([(1.0, new), (self.strength, old)]).mode(new.mean))
        return {**task_state, "precision": new.precision}

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F with this task's F_e, around the merged weights, kept as `store` says."""
        old = Gaussian(state["mean"], state["precision"]).grown_to(task.present()) if state else None
        total = running_sum(old, Gaussian(task.values(), task_state["precision"]))
        return self.at_rest(mean=total.mean, precision=total.precision)
