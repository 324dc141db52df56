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

import copy
from abc import abstractmethod
from typing import Any, Literal

from torch import Tensor, nn

from afec.gaussian import Gaussian, running_average, running_sum, widened
from afec.guard import (
    Alone,
    GuardedTask,
    OptionFields,
    Params,
    State,
    Term,
    TermBytes,
    bytes_of,
    optimizers_for_theta_e,
    option,
    precision_bytes,
    train_theta_e,
    trial_steps,
)
from afec.methods.automatic import after_epoch, first_strength

__all__ = ["OptionTerm", "Regulariser"]

TOLERANCE = 0.05
REFERENCE_EPOCHS = 10


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

    strength: float | Literal["auto"] = option(
        kw_only=False,
        symbol="λ",
        at_least=0,
        doc="λ ≥ 0, or `auto`: as strong as the new task allows. Zero switches the method off: fine-tuning, bit for bit.",
    )
    tolerance: float | None = option(
        default=None,
        symbol="τ",
        above=0,
        doc=f"Of `auto`: the part of what the new task alone could gain that it may miss; {TOLERANCE} if not given.",
    )
    reference_epochs: int | None = option(
        default=None,
        at_least=1,
        doc="Of `auto`: how long the new task is learned alone, in passes over its data, where neither AFEC nor "
        f"`learning(…, train=)` says so. If not given, `learning(…, epochs=)`, or {REFERENCE_EPOCHS}.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tolerance", "reference_epochs"):
            if self.strength != "auto" and getattr(self, name) is not None:
                raise ValueError(
                    f"{type(self).__name__}: {name} is of strength='auto' only; got {name}={getattr(self, name)!r} with "
                    f"strength={self.strength!r}"
                )

    @classmethod
    def settings(cls, **given: Any) -> dict[str, Any]:
        """As declared; and what `auto` needs, where λ is found by itself."""
        chosen = super().settings(**given)
        if chosen["strength"] == "auto" and chosen["tolerance"] is None:
            chosen["tolerance"] = TOLERANCE
        return chosen

    @abstractmethod
    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """How much each guarded weight matters to the task whose end this is."""

    @property
    def over_tasks(self) -> float | Literal["mean"]:
        """How importance counts over the tasks: γ in Ω ← γ·Ω + Ω_t (1 is the sum), or the running average."""
        return 1.0

    @property
    def per_strength(self) -> float:
        """What the Gaussian's penalty, which has the ½, is multiplied by at λ = 1."""
        return 1.0

    def with_strength(self, strength: float) -> Regulariser:
        """The same method with another λ."""
        other = copy.copy(self)
        other.strength, other.tolerance, other.reference_epochs = strength, None, None
        return other

    @property
    def is_off(self) -> bool:
        """Whether λ = 0."""
        return self.strength == 0

    @property
    def asks_alone(self) -> bool:
        """Whether λ is `auto`: then it follows from how well the new task alone is learned."""
        return self.strength == "auto"

    def lacks(self, task: GuardedTask) -> str | None:
        """A loss to compare, or an optimiser, where λ is `auto`; or what the importance needs."""
        if self.asks_alone and task.evaluate is None and task.passes.on_demand:
            return (
                f'{type(self).__name__}(strength="auto") compares losses, and these data are made on demand; give '
                "learning(…, evaluate=a function that returns the loss of the new task with the present weights)"
            )
        if self.asks_alone and task.train is None and not task.optimizers:
            return (
                f'{type(self).__name__}(strength="auto") learns the new task alone first, and there is no optimiser: '
                "learning() was given optimizer=None. Give it one, or train=a function that trains the model in place"
            )
        return self.cannot_measure(task)

    def cannot_measure(self, task: GuardedTask) -> str | None:
        """Why the importance cannot be measured when the task ends, as an error message."""
        return None

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """What is watched of the task; and, where λ is `auto`, its first value."""
        watched = self.watched(task, state)
        if not self.asks_alone or not state:
            return watched
        before, alone = task.loss(), task.alone or self._learn_alone(task)
        old = task.remembered(Gaussian(state["mean"], state["precision"])).only(alone.weights)
        theta_e = {name: value.to(old.mean[name]) for name, value in alone.weights.items() if name in old.mean}
        penalty = abs(self.per_strength * float(old.penalty(theta_e)))
        return {**watched, "automatic": first_strength(before, alone.loss, penalty, task.epochs)}

    def watched(self, task: GuardedTask, state: State) -> State:
        """What is known of the task's path before its first step."""
        return {}

    def begin_epoch(self, task: GuardedTask, state: State, task_state: State) -> State:
        """The next λ, where it is `auto`, from the loss of the epoch that has ended."""
        if "automatic" not in task_state or task.epoch_loss is None:
            return task_state
        assert self.tolerance is not None, "settings() has seen to it"
        return {**task_state, "automatic": after_epoch(task_state["automatic"], task.epoch_loss, self.tolerance)}

    def acts_later(self, task_state: State) -> bool:
        """Where λ is `auto`, from the second task on."""
        return "automatic" in task_state or type(self).begin_epoch is not Regulariser.begin_epoch

    def strengths(self, task_state: State) -> list[float]:
        """λ of each epoch so far, where it is `auto`."""
        return list(task_state["automatic"]["path"]) if "automatic" in task_state else []

    def _learn_alone(self, task: GuardedTask) -> Alone:
        """The new task without the old pull, on borrowed weights, from the present ones."""
        with task.borrowing():
            if task.train is not None:
                task.run(task.train, "alone")
            else:
                optimizers = optimizers_for_theta_e(task, None, from_initial_lr=True)
                epochs = range(self.reference_epochs or task.epochs or REFERENCE_EPOCHS)
                task.processes.once(task.model, lambda: train_theta_e(task, optimizers, epochs))
            return task.now_alone()

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Ω of the tasks so far around the latest weights, times λ; nothing in the first task."""
        if not state:
            return []
        strength: float
        if self.strength == "auto":
            if "automatic" not in task_state:
                raise ValueError(
                    f'{type(self).__name__}(strength="auto") cannot go on in the middle of a task that was begun with a '
                    "number; end this task with that strength first"
                )
            strength = self.strengths(task_state)[-1]
        else:
            strength = self.strength
        return [(self.per_strength * strength, task.remembered(Gaussian(state["mean"], state["precision"])))]

    def memory(self, task: GuardedTask) -> TermBytes:
        """θ* and Ω."""
        weights = task.weights.values()
        kept = {"θ*": bytes_of(weights), "precision": precision_bytes(weights, getattr(self, "store", None))}
        return TermBytes(kept, pulls=True, measures=not self.observes)

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """Before the first task: as if the present weights had just learned these data."""
        if self.asks_alone:
            return None
        if not state:
            start, task_state = task.values(), self.watched(task, state)
            if self.observes:
                seen = trial_steps(task, self, task_state, seconds)
                if seen is None:
                    return None
                task_state = seen
            state = {"mean": start, "precision": self.importance(task, task_state)}
        return self.quadratics(task, state, {})

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Ω with this task's, around the weights as they are now."""
        self.check_told(task, task_state)
        old, how = None, self.over_tasks
        if state:
            factor, precision = 1.0 if how == "mean" else how, state["precision"]
            if factor != 1:
                precision = {name: factor * widened(known) for name, known in precision.items()}
            old = Gaussian(state["mean"], precision).grown_to(task.present())
        importance = self.importance(task, task_state)
        new = Gaussian(task.values(), importance)
        total = running_average(old, new, task.number + 1) if how == "mean" else running_sum(old, new)
        return {"mean": total.mean | self.mean_over_tasks(old, new, task.number + 1), "precision": total.precision}

    def mean_over_tasks(self, old: Gaussian | None, new: Gaussian, task: int) -> dict[str, Tensor]:
        """Around which weights the tasks so far are held, `task` of them, the new one included: the latest ones."""
        return new.mean

    def check_told(self, task: GuardedTask, task_state: State) -> None:
        """Raise where λ is `auto` and nobody has said how the epochs went."""
        if len(self.strengths(task_state)) == 1 and task.steps > 0 and task.epochs_begun == 0:
            raise RuntimeError(
                f'{type(self).__name__}(strength="auto") finds λ by the loss of every epoch, and was told none: call '
                "task.epoch(loss=…) after every epoch (`with guard.learning(…) as task: … task.epoch(loss=…)`), or give a "
                "number"
            )
