"""What EWC, MAS, SI and RWALK share: each weight is held where the old tasks left it, by its importance Ω.

    L(θ) = L_new(θ) + λ/2 · Σ_i Ω_i (θ_i − θ*_i)²

θ* are the weights at the end of the latest task and λ is `strength`; the ½ is not part of it. A regulariser says how it
measures the importance of the weights for a task that ends, and how it counts over the tasks:

    class L2(Regulariser):
        name = "l2"

        def importance(self, task, task_state):
            return {name: torch.ones_like(value) for name, value in task.values().items()}
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn

from afec.gaussian import Gaussian, running_average, running_sum
from afec.guard import GuardedTask, OptionFields, Params, State, Term, option, trial_steps

__all__ = ["OptionTerm", "Regulariser"]


class OptionTerm(OptionFields, Term):
    """A method for anybody's loop whose options are fields."""

    params: Params = option(
        default=None,
        from_config=False,
        doc="What is guarded, a module or parameters; by default all that require grad (multi-head nets: the backbone).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.params is not None and not isinstance(self.params, nn.Module):
            self.params = list(self.params)  # an iterator would be empty at the second task


class Regulariser(OptionTerm):
    """Hold each weight where the old tasks left it, by its importance to them."""

    strength: float = option(
        kw_only=False,
        symbol="λ",
        at_least=0,
        doc="λ ≥ 0. Zero switches the method off: fine-tuning, bit for bit.",
    )

    @abstractmethod
    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """How much each guarded weight matters to the task whose end this is."""

    @property
    def over_tasks(self) -> float | Literal["mean"]:
        """How importance counts over the tasks: γ in Ω ← γ·Ω + Ω_t (1 is the sum), or the running average."""
        return 1.0

    @property
    def weight(self) -> float:
        """What the Gaussian's penalty, which has the ½, is multiplied by."""
        return self.strength

    @property
    def is_off(self) -> bool:
        """Whether λ = 0."""
        return self.strength == 0

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Ω of the tasks so far around the latest weights, times λ; nothing in the first task."""
        if not state:
            return []
        return [(self.weight, task.remembered(Gaussian(state["mean"], state["precision"])))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """Before the first task: as if the present weights had just learned these data."""
        if not state:
            start, task_state = task.values(), self.begin_task(task, state)
            if self.observes:
                seen = trial_steps(task, self, task_state, seconds)
                if seen is None:
                    return None
                task_state = seen
            state = {"mean": start, "precision": self.importance(task, task_state)}
        return self.quadratics(task, state, {})

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Ω with this task's, around the weights as they are now."""
        old, how = None, self.over_tasks
        if state:
            factor = 1.0 if how == "mean" else how
            precision = {name: factor * known for name, known in state["precision"].items()}
            old = Gaussian(state["mean"], precision).grown_to(dict(task.model.named_parameters()))
        new = Gaussian(task.values(), self.importance(task, task_state))
        total = running_average(old, new, task.number + 1) if how == "mean" else running_sum(old, new)
        return {"mean": total.mean, "precision": total.precision}
