"""What a guard is and how guards add.

A guard is one or more terms, the methods (see `term`). Their states are plain dictionaries of tensors and numbers, so that
saving them is saving the guard, and leaving a block by an exception is forgetting the new ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from afec.fisher import Likelihood
from afec.guard.block import Block, Lookout
from afec.guard.problem import BlockArguments, LossFn, Mask, Params, Predict
from afec.guard.task import GuardedTask

if TYPE_CHECKING:
    from afec.guard.check import CheckReport
    from afec.guard.term import Term

__all__ = ["Guard", "State", "Sum"]

State = dict[str, Any]
FORMAT = 2


class Guard(ABC):
    """A pull on the weights, in anybody's training loop. Guards add: `EWC(strength=100) + AFEC(forgetting=10, epochs=20)`."""

    def __init__(self, params: Params = None) -> None:
        # An iterator would be empty at the second task.
        self.params: Params = params if params is None or isinstance(params, nn.Module) else list(params)
        self._tasks_done = 0
        self._seed: int | None = None
        self._states: dict[str, State] = {}
        self._task_states: dict[str, State] | None = None  # of a task that was loaded in its middle
        self._task: GuardedTask | None = None
        self._lookout: Lookout | None = None  # of the latest block that waits to be entered
        self._warned: set[str] = set()

    # -- what it consists of --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def terms(self) -> tuple[Term, ...]:
        """The methods that are added up, sorted."""

    @property
    def method(self) -> str:
        """The method's name everywhere: `ewc+afec`, whichever way it was written."""
        return "+".join(term.name for term in self.terms)

    def __add__(self, other: object) -> Sum:
        if not isinstance(other, Guard):
            return NotImplemented
        return Sum((*self.terms, *other.terms), (self, other))

    def __repr__(self) -> str:
        return " + ".join(term.described() for term in self.terms)

    # -- in the loop ----------------------------------------------------------------------------------------------

    @property
    def tasks_done(self) -> int:
        """The number of tasks learned to the end."""
        return self._tasks_done

    @property
    def in_task(self) -> bool:
        """Whether a task has begun and not ended, in this process or in the one that saved the state."""
        return self._task is not None or self._task_states is not None

    @property
    def task(self) -> GuardedTask | None:
        """The task that is being learned now."""
        return self._task

    def learning(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        data: Any,
        loss_fn: LossFn,
        *,
        predict: Predict | None = None,
        likelihood: Likelihood | None = None,
        split: Callable[[Any], Iterable[Any]] | None = None,
        class_axis: int | None = None,
        mask: Mask | None = None,
        batch_size: int = 64,
        progress: bool | None = None,
        train: Callable[[], object] | None = None,
        seed: int | None = None,
    ) -> Block:
        """Learn one task inside a `with` block: expansion on entry, the pull in every step, consolidation on exit.

        Args:
            model: the network; DDP and `torch.compile` wrappers are seen through.
            optimizer: the one or the several that will step, or None; it may be replaced inside the block.
            data: this task's training data: a DataLoader, a tuple of tensors, an iterable of batches, or a function that
                returns batches whenever they are needed. Used for the expansion and for the Fisher.
            loss_fn: a criterion (output, target) with mean reduction, or a function (model, batch).
            predict: (model, batch) → output, for the `exact` and `sample` Fisher; default `model(batch[0])`.
            likelihood: "categorical" or "gaussian", what `exact` and `sample` need; known for CrossEntropyLoss and MSELoss.
            split: batch → its single-sample batches, where slicing tensors along the first dimension is not enough.
            class_axis: the axis of the output with the classes, where it has more than two and the loss does not tell: -1 for
                (batch, time, vocabulary), 1 for (batch, classes, height, width).
            mask: batch → True at each position of the output that counts, (batch, time) for tokens; padding does not. Known for
                CrossEntropyLoss, which ignores targets.
            batch_size: of our passes where `data` are tensors.
            progress: a progress bar for the expansion; by default when standard error is a terminal.
            train: how θ_e is trained where AFEC says neither `epochs=` nor `expand=`: a function that trains the model
                in place.
            seed: what all draws of this guard come from; taken in its first task. By default `torch.initial_seed()`.

        An exception inside the block leaves the guard as it was on entry. Without `with` nothing begins: the next optimiser
        step on the model raises.
        """
        self._stop_lookout()
        self._lookout = Lookout(model)
        arguments = BlockArguments(
            model,
            optimizer,
            data,
            loss_fn,
            predict=predict,
            likelihood=likelihood,
            split=split,
            class_axis=class_axis,
            mask=mask,
            batch_size=batch_size,
            progress=progress,
            train=train,
        )
        return Block(partial(self._begin, arguments, seed), self._lookout)

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        data: Any,
        loss_fn: LossFn,
        *,
        predict: Predict | None = None,
        likelihood: Likelihood | None = None,
        split: Callable[[Any], Iterable[Any]] | None = None,
        class_axis: int | None = None,
        mask: Mask | None = None,
        batch_size: int = 64,
        progress: bool | None = None,
        train: Callable[[], object] | None = None,
        seed: int | None = None,
    ) -> GuardedTask:
        """The entry of `learning` by hand, for callbacks and notebooks; then `task.end()` or `task.abort()`."""
        arguments = BlockArguments(
            model,
            optimizer,
            data,
            loss_fn,
            predict=predict,
            likelihood=likelihood,
            split=split,
            class_axis=class_axis,
            mask=mask,
            batch_size=batch_size,
            progress=progress,
            train=train,
        )
        return self._begin(arguments, seed)

    def check(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        data: Any,
        loss_fn: LossFn,
        *,
        predict: Predict | None = None,
        likelihood: Likelihood | None = None,
        split: Callable[[Any], Iterable[Any]] | None = None,
        class_axis: int | None = None,
        mask: Mask | None = None,
        batch_size: int = 64,
        train: Callable[[], object] | None = None,
        seconds: float = 5.0,
    ) -> CheckReport:
        """A preflight of a few seconds in your own setting; prints what it found and returns it. Changes nothing.

        It takes some steps with your optimiser and puts everything back: does the pull reach the weights, is `loss_fn` a
        mean, can the data be passed over again, and how large are task gradient, old pull and forgetting pull?
        """
        from afec.guard.check import check

        arguments = BlockArguments(
            model,
            optimizer,
            data,
            loss_fn,
            predict=predict,
            likelihood=likelihood,
            split=split,
            class_axis=class_axis,
            mask=mask,
            batch_size=batch_size,
            progress=False,
            train=train,
        )
        return check(self, arguments, seconds)

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, also in the middle of a task: plain dictionaries of tensors and numbers.

        With model, optimiser, RNG and data position restored as well, a fresh process goes on bit for bit; the next
        `learning()` then continues the task without a second expansion.
        """
        task_states = self._task.task_states if self._task is not None and self._task.started else self._task_states
        return {
            "format": FORMAT,
            "method": self.method,
            "tasks_done": self._tasks_done,
            "seed": self._seed,
            "states": dict(self._states),
            "task_states": None if task_states is None else dict(task_states),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict()` of a guard with the same terms; strengths may differ."""
        if self._task is not None:
            raise RuntimeError("cannot load a state inside a block; end or abort the task first (guard.task.abort())")
        if (
            isinstance(state, Mapping) and state.get("format") == 1 and "flights" in state
        ):  # another word for task states
            state = {**state, "format": FORMAT, "task_states": state["flights"]}
            del state["flights"]
        keys = {"format", "method", "tasks_done", "seed", "states", "task_states"}
        if not isinstance(state, Mapping) or set(state) != keys or state["format"] != FORMAT:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"this is no state_dict of a guard (format {FORMAT}): expected {sorted(keys)}, got {found}"
            )
        if state["method"] != self.method:
            raise ValueError(
                f"the state is of {state['method']!r}, this guard is {self.method!r}; build the guard that was saved"
            )
        self._tasks_done, self._seed = int(state["tasks_done"]), state["seed"]
        self._states, self._task_states = dict(state["states"]), state["task_states"]

    def _begin(self, arguments: BlockArguments, seed: int | None) -> GuardedTask:
        self._stop_lookout()
        if self._task is not None:
            raise RuntimeError(
                f"{self!r} is already learning task {self._task.number + 1}: blocks of one guard do not nest. "
                "End it first with guard.task.end(), or drop it with guard.task.abort()"
            )
        first = self._seed is None
        if first:
            self._seed = torch.initial_seed() if seed is None else seed
        try:
            task = GuardedTask(self, arguments)
        except BaseException:
            self._seed = None if first else self._seed
            raise
        task.gave_seed = first
        self._task = task
        try:
            task._start()
        except BaseException:
            task.abort()
            raise
        return task

    def _stop_lookout(self) -> None:
        if self._lookout is not None:
            self._lookout.end()
            self._lookout = None

    def _commit(self, states: dict[str, State]) -> None:
        self._states, self._task_states, self._tasks_done = states, None, self._tasks_done + 1


class Sum(Guard):
    """The sum of several methods, sorted, so that a+b and b+a are one method."""

    def __init__(self, terms: Iterable[Term], parts: Sequence[Guard] = ()) -> None:
        if any(part.tasks_done or part.in_task for part in parts):
            raise RuntimeError("guards are added before they learn their first task; this one has learned already")
        if any(isinstance(part, Sum) and part.params is not None for part in parts):
            raise ValueError("params= belongs to a method: give it to each method that is added, not to their sum")
        super().__init__()
        self._terms = tuple(sorted(terms, key=lambda term: (term.rank, term.name)))
        names = [term.name for term in self._terms]
        if len(set(names)) != len(names):
            raise ValueError(f"{'+'.join(names)} has one method twice; add each at most once")

    @property
    def terms(self) -> tuple[Term, ...]:
        """The methods, the pull to the old tasks first."""
        return self._terms
