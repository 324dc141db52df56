"""What a strategy is, and how guards add to it.

A guard is a pull on the weights, in anybody's loop. A strategy may also have its own data, loss, schedule, steps, ends of
epochs, several trainings one after the other, and its own prediction, so it runs in our learner. It is one generator, which
reads like the algorithm that it is:

    def trainings(self, context):
        yield Training("train", context.net, context.loss, after_epoch=…)   # the learner trains it, guard and all
        context.state = {…}                                                 # the task is learned: what is kept of it

The learner knows nothing else of it. Every method is a strategy there: a guard alone, or no method at all, is `Plain`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NoReturn, Self

from torch import Tensor, nn

from afec.guard import Guard, State
from afec.nets import Chain, ClassifierKind, MultiHead, Readout, SingleHead
from afec.strategy.context import Learnable, LearningContext, TaskContext, TaskLoss, Training

__all__ = ["Plain", "ScenarioWarning", "Strategy", "as_strategy"]


class ScenarioWarning(UserWarning):
    """A method does not work well in the scenario that it is used in."""


class Strategy(ABC):
    """A method for our learner. A strategy and a guard add, `AGSCL(…) + AFEC(…)`; two strategies do not.

    Args:
        guard: what the method itself pulls by, if anything.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = -1  # before every guard in the name of a sum
    needs_chain: ClassVar[bool] = False  # whether it looks at layers and nodes, and so needs a backbone that is a chain
    needs_heads: ClassVar[bool] = False  # whether each task must have outputs of its own: the scenario `task` only
    needs_classes: ClassVar[bool] = False  # whether one classifier must tell all classes: the scenario `class` only
    keeps_examples: ClassVar[bool] = False  # whether examples of old classes are trained on again
    classifier: ClassVar[ClassifierKind] = "linear"  # the one that the method is defined with, in the scenario `class`
    learns_games: ClassVar[bool] = False  # whether its one training is of the net, by the task's loss and data
    guards_rows: ClassVar[bool] = True  # whether a guard guards the classifier of the scenario `class` too

    def __init__(self, guard: Guard | None = None) -> None:
        self.own = self.guard = guard
        self.added: Guard | None = None
        self.state: State = {}
        """What is kept over the tasks: plain dictionaries of tensors and numbers."""

    # -- what a method says ---------------------------------------------------------------------------------------

    @abstractmethod
    def trainings(self, context: TaskContext) -> Iterator[Training]:
        """The trainings of one task; after the last one `context.state` becomes the state, if nothing was raised.

        After a stop it is called again with the `context.task_state` that was saved, and leaves out the trainings that this
        says are over; the one that was stopped is gone on with.
        """

    @abstractmethod
    def described(self) -> str:
        """The expression that makes it, such as `AGSCL(strength=1000, …)`."""

    def check(self, net: Readout) -> None:
        """Raise a ValueError for a net that this method cannot be used with."""
        if net.scenario == "class" and self.needs_heads:
            raise ValueError(
                f"{self.method} needs outputs of its own for each task, so it knows the scenario 'task' only; the net is a "
                f"{type(net).__name__}, for the scenario '{net.scenario}'. Use MultiHead, or ewc, finetune, joint"
            )
        if self.needs_classes:
            self._check_classifier(net)
        if self.needs_chain:
            Chain(net.backbone)

    def _check_classifier(self, net: Readout) -> None:
        if not isinstance(net, SingleHead):
            raise ValueError(
                f"{self.method} trains one classifier of all classes, so it knows the scenario 'class' only; the net is a "
                f"{type(net).__name__}, for the scenario '{net.scenario}'. Set stream.scenario=class, or use SingleHead"
            )
        if net.kind != self.classifier and self.classifier != "linear":
            raise ValueError(
                f"{self.method} is defined with a classifier of the kind '{self.classifier}'; the net has '{net.kind}'. Set "
                f"net.classifier=method, or use SingleHead(backbone, {self.classifier!r})"
            )

    def check_tasks(self, tasks: Sequence[Learnable]) -> None:  # noqa: B027 - most learn any
        """Raise a ValueError for tasks that this method cannot learn, before the first is begun."""

    def kept_megabytes(self, task: Learnable) -> float:
        """What the examples of old tasks that are kept take, 10⁶ bytes each; `task` is one of their stream."""
        return 0.0

    def samples_replayed(self, classes: Sequence[int], epochs: int) -> int:
        """How many samples of old classes are learned from at most, over tasks with so many classes and so many epochs each."""
        return 0

    def readout(self, backbone: nn.Module) -> Readout:
        """The readout that the method is used with, where nothing else is said."""
        return SingleHead(backbone, self.classifier) if self.needs_classes else MultiHead(backbone)

    def advice(self, net: Readout) -> str:
        """Why this method does not work well with this net and what to use instead; empty where it does."""
        if net.scenario == "task" or self.guard is None or self.keeps_examples:
            return ""
        return (
            "no examples of old classes are kept, and in the scenario 'class' that does not work well: every batch has new "
            "classes only, so the classifier learns never to answer with an old one, and a pull on the weights does not "
            "prevent it. Use a method that trains on old examples again ('joint' trains on all of them, and is the upper "
            "bound), or the scenario 'task'"
        )

    def learning(self, *_: object, **__: object) -> NoReturn:
        """Strategies have trainings of their own, so there is no loop of anybody's that they could stand around."""
        raise TypeError(
            f"{self.method} is a strategy, with trainings of its own: it runs in afec.Learner, as {type(self).__name__}(…), "
            "not around a loop. For your own loop there are the guards: EWC, MAS, SI, RWALK, AFEC"
        )

    def outputs(self, net: nn.Module, loss: TaskLoss, batch: Any) -> Tensor:
        """The prediction, in evaluation: by default the net's outputs. What else it needs must be in the state."""
        return loss.outputs(net, batch)

    # -- sums -----------------------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """The method's name everywhere: `ags-cl+afec`, whichever way it was written."""
        return "+".join([self.name, *(term.name for term in self.added.terms)] if self.added else [self.name])

    def __add__(self, other: object) -> Self:
        if isinstance(other, Strategy):
            raise TypeError(
                f"{self.name} + {other.name}: both are strategies, and one training cannot be done in two ways. A strategy "
                "adds to guards only (EWC, MAS, SI, RWALK, AFEC)"
            )
        if not isinstance(other, Guard):
            return NotImplemented
        if self.state or (self.guard is not None and (self.guard.tasks_done or self.guard.in_task)):
            raise RuntimeError("methods are added before they learn their first task; this one has learned already")
        mine = {term.name for term in self.own.terms} if self.own else set()
        if both := mine & {term.name for term in other.terms}:
            raise ValueError(
                f"{self.name} pulls by {both.pop()} itself; set its strength there instead of adding it a second time"
            )
        new = copy.copy(self)
        new.added = other if self.added is None else self.added + other
        new.guard = new.added if self.own is None else self.own + new.added
        return new

    def __radd__(self, other: object) -> Self:
        return self + other

    def __repr__(self) -> str:
        return self.described() if self.added is None else f"{self.described()} + {self.added!r}"

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any] | None:
        """What is kept over the tasks, with the guard's."""
        guard = None if self.guard is None else self.guard.state_dict()
        return {"method": self.method, "state": dict(self.state), "guard": guard}

    def prediction_state(self) -> State:
        """What `outputs` needs of the state; nothing, where a strategy has no `outputs` of its own."""
        return {} if type(self).outputs is Strategy.outputs else dict(self.state)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take over a `state_dict()` of a strategy with the same terms."""
        if not isinstance(state, dict) or set(state) != {"method", "state", "guard"} or state["method"] != self.method:
            found = state.get("method") if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"this is no state of {self.method!r}: got {found!r}; build the method that was saved")
        if self.guard is not None:
            self.guard.load_state_dict(state["guard"])
        self.state = dict(state["state"])


class Plain(Strategy):
    """A guard alone, or none: one training of the net by the task's own loss."""

    name = "finetune"
    learns_games = True

    def trainings(self, context: LearningContext) -> Iterator[Training]:
        """One; in the first task a guard that neither pulls nor watches changes nothing of it."""
        yield Training("train", context.net, context.loss, pure=context.number == 0)

    def described(self) -> str:
        """The expression that makes the guard."""
        return repr(self.guard)

    @property
    def method(self) -> str:
        """The name of the method: the guard's, or `finetune`."""
        return self.name if self.guard is None else self.guard.method

    def state_dict(self) -> dict[str, Any] | None:
        """The state of the guard."""
        return None if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take over that of a guard with the same terms."""
        if self.guard is not None:
            self.guard.load_state_dict(state or {})


def as_strategy(method: Strategy | Guard | None) -> Strategy:
    """The method as the learner has it."""
    return method if isinstance(method, Strategy) else Plain(method)
