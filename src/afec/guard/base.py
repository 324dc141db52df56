"""What a guard is and how guards add: one or more terms, the methods, and what they know (see `memory`)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn
from torch.optim import Optimizer

from afec.files import load_tree, save_tree
from afec.fisher import Likelihood
from afec.guard.block import Block, Lookout
from afec.guard.check import CheckReport, check
from afec.guard.memory import Memory, State
from afec.guard.problem import BlockArguments, BlockOptions, LossFn, Mask, Params, Predict, ReadingOptions, unwrapped
from afec.guard.suggest import Suggestion, searched_term, suggest
from afec.guard.task import GuardedTask, TermFunctions
from afec.posterior import Posterior, hash_of

__all__ = ["Guard", "Sum", "Term"]


class Guard(ABC):
    """A pull on the weights, in anybody's training loop. Guards add: `EWC(strength=100) + AFEC(forgetting=10, epochs=20)`."""

    def __init__(self, params: Params = None) -> None:
        # An iterator would be empty at the second task.
        self.params: Params = params if params is None or isinstance(params, nn.Module) else list(params)
        self._memory = Memory()
        self._task: GuardedTask | None = None  # the latest one
        self._lookout: Lookout | None = None  # of the latest block that waits to be entered

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
        return self._memory.tasks_done

    @property
    def in_task(self) -> bool:
        """Whether a task has begun and not ended, in this process or in the one that saved the state."""
        return self.task is not None or self._memory.task_states is not None

    @property
    def task(self) -> GuardedTask | None:
        """The task that is being learned now."""
        return self._task if self._task is not None and self._task.is_open else None

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
        evaluate: Callable[[], float] | None = None,
        epochs: int | None = None,
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
                in place. So is the new task alone, which a strength of `auto` is found by.
            evaluate: the loss of the new task with the present weights, best on validation data: what a strength of `auto` is
                found by. By default the guard measures it on some batches of `data`.
            epochs: for how many epochs, at most, you will train: the pace at which a strength of `auto` is found.
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
            evaluate=evaluate,
            epochs=epochs,
        )
        return Block(partial(self._begin, arguments, seed), self._lookout)

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        data: Any,
        loss_fn: LossFn,
        *,
        seed: int | None = None,
        **options: Unpack[BlockOptions],
    ) -> GuardedTask:
        """The entry of `learning` by hand, with the same arguments; then `task.end()` or `task.abort()`."""
        return self._begin(BlockArguments(model, optimizer, data, loss_fn, **options), seed)

    def check(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        data: Any,
        loss_fn: LossFn,
        *,
        seconds: float = 5.0,
        **options: Unpack[BlockOptions],
    ) -> CheckReport:
        """A preflight of a few seconds in your own setting; prints what it found and returns it. Changes nothing.

        It takes the arguments of `learning`, and some steps with your optimiser, and puts everything back: does the pull
        reach the weights, is `loss_fn` a mean, can the data be passed over again, and how large are task gradient, old pull
        and forgetting pull?
        """
        if self.task is not None:
            raise RuntimeError("guard.check() is a preflight: call it before the block, not inside one")
        seed = torch.initial_seed() if self._memory.seed is None else self._memory.seed
        options["progress"] = False
        arguments = BlockArguments(model, optimizer, data, loss_fn, **options)
        return check(self._task_of(arguments, replace(self._memory, seed=seed)), self.method, seconds)

    def suggest(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        data: Any,
        loss_fn: LossFn,
        *,
        train: Callable[[nn.Module, Any], object],
        score: Callable[[nn.Module], float],
        strengths: Sequence[float] | None = None,
        of: str | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Suggestion:
        """Try several strengths λ for the task that comes next, on borrowed weights, and say which one scored best.

        Each strength is one training from the present weights, with the same random numbers and a fresh state of the
        optimiser. Model, optimiser, guard, random numbers and the generators of a DataLoader are put back bit for bit.

        Args:
            model, optimizer, data, loss_fn, options: as for `learning`.
            train: (model, optimizer) → your own training of the task, as you would write it inside the block; shorter is
                fine. It also trains θ_e, where AFEC does not say how.
            score: model → what is to be as high as possible, such as the mean of old and new validation accuracy. The model
                is in eval mode.
            strengths: the λ to try; by default five, a decade apart, around one whose pull `check` judges to be at work.
            of: the name of the method whose strength is searched, where a sum has several.
        """
        if self.in_task:
            raise RuntimeError("guard.suggest() chooses a strength for the next task: call it before the block")
        for name, function in (("train", train), ("score", score)):
            if not callable(function):
                raise TypeError(f"guard.suggest(): {name} must be a function; got {function!r}")
        seed = torch.initial_seed() if self._memory.seed is None else self._memory.seed
        options["progress"] = False
        searched = searched_term(self.terms, of)
        alone, warned = partial(train, model, optimizer), set(self._memory.warned)
        arguments = BlockArguments(model, optimizer, data, loss_fn, **options, train=alone)

        def task_of(term: TermFunctions) -> GuardedTask:
            terms = tuple(term if one is searched else one for one in self.terms)
            memory = replace(self._memory, seed=seed, warned=warned)
            return GuardedTask(repr(self), terms, self.params, memory, arguments)

        return suggest(task_of, searched, strengths, alone, partial(score, model))

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, also in the middle of a task: plain dictionaries of tensors and numbers.

        With model, optimiser, RNG and data position restored as well, a fresh process goes on bit for bit; the next
        `learning()` then continues the task without a second expansion.
        """
        task = self.task
        task_states = self._memory.task_states if task is None or not task.started else task.task_states
        return self._memory.saved(self.method, task_states)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict()` of a guard with the same terms; strengths may differ."""
        if self.task is not None:
            raise RuntimeError("cannot load a state inside a block; end or abort the task first (guard.task.abort())")
        self._memory.load(self.method, state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` into one safetensors file."""
        save_tree(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take over what `save` wrote; nothing in the file is executed."""
        self.load_state_dict(load_tree(path))

    def save_posterior(self, path: str | os.PathLike[str], *, mean: bool = True, checkpoint: str = "") -> None:
        """Write what the guard knows as a file for others: a Gaussian over the weights, and how it was measured.

        Args:
            path: the safetensors file.
            mean: False where the weights are a public checkpoint: then only their hash is written.
            checkpoint: what people call these weights.
        """
        found = {term.name: state for term in self.terms if "mean" in (state := self._memory.states.get(term.name, {}))}
        if self.in_task or len(found) != 1:
            reason = (
                "a task is being learned"
                if self.in_task
                else "it has learned nothing yet"
                if not found
                else "it has two"
            )
            raise RuntimeError(
                f"{self!r} has no posterior to save: {reason}. Learn a task first; of a pretrained model: "
                "`with guard.learning(model, None, data, loss_fn): pass`"
            )
        ((name, state),) = found.items()
        task = self._task
        # Only what was measured in this process is known, and the loss only while the weights are those.
        there = task is not None and all(
            torch.equal(task.weights[key].detach(), value.to(task.weights[key]))
            for key, value in state["mean"].items()
            if key in task.weights
        )
        Posterior(
            method=name,
            precision=dict(state["precision"]),
            mean=dict(state["mean"]) if mean else None,
            weights_hash=hash_of(state["mean"]),
            checkpoint=checkpoint,
            fisher=None if task is None else task.fisher_kinds.get(name),
            samples=None if task is None else task.samples_measured,
            loss=task.mean_loss() if task is not None and there else None,
            tasks=self.tasks_done,
        ).save(path)

    def load_posterior(self, path: str | os.PathLike[str], model: nn.Module) -> Posterior:
        """Begin from what somebody has measured of this very model, as if this guard had learned it; returns what was read.

        A file of another method, Fisher kind, model, shape or version is refused by name.
        """
        if self.tasks_done or self.in_task:
            raise RuntimeError("a posterior is loaded before the first task; this guard has learned already")
        found = Posterior.load(path)
        term = next((term for term in self.terms if term.name == found.method), None)
        if term is None:
            raise ValueError(f"{path} is a posterior of {found.method!r}, and this guard is {self.method!r}")
        kind = getattr(term, "fisher", "auto")
        if found.fisher is not None and kind not in ("auto", found.fisher):
            raise ValueError(
                f"{path} was measured by the {found.fisher!r} Fisher and this guard has fisher={kind!r}; a strength belongs to "
                f"a kind, so they are not mixed. Give fisher={found.fisher!r} and a strength for it"
            )
        self._memory.states[term.name] = term.from_posterior(found, unwrapped(model), str(path))
        self._memory.tasks_done = found.tasks
        return found

    def _begin(self, arguments: BlockArguments, seed: int | None) -> GuardedTask:
        self._stop_lookout()
        if self.task is not None:
            raise RuntimeError(
                f"{self!r} is already learning task {self.task.number + 1}: blocks of one guard do not nest. "
                "End it first with guard.task.end(), or drop it with guard.task.abort()"
            )
        first = self._memory.seed is None
        if first:
            self._memory.seed = torch.initial_seed() if seed is None else seed
        try:
            task = self._task_of(arguments, self._memory)
        except BaseException:
            self._memory.seed = None if first else self._memory.seed
            raise
        task.gave_seed = first
        self._task, task.when_closed = task, self._drop_task
        try:
            task._start()
        except BaseException:
            task.abort()
            raise
        return task

    def _drop_task(self) -> None:
        """What it knew of the present task is of no use now, and as large as the weights."""
        self._task = None if self._task is None else self._task.without_state()

    def _task_of(self, arguments: BlockArguments, memory: Memory) -> GuardedTask:
        return GuardedTask(repr(self), self.terms, self.params, memory, arguments)

    def _stop_lookout(self) -> None:
        if self._lookout is not None:
            self._lookout.end()
            self._lookout = None


class Term(TermFunctions, Guard):
    """One method. A subclass is final: settings in the constructor, and functions of its state."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the sum: this method alone."""
        return (self,)

    def from_posterior(self, posterior: Posterior, model: nn.Module, where: str) -> State:
        """The state that a posterior file gives; `where` is the file, for messages."""
        known = posterior.over(dict(model.named_parameters()), where)
        return {"mean": known.mean, "precision": known.precision}


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
