"""One task under a guard: begin, the pull in every step, end or abort; and what its terms do at each of these.

A term is a method: settings that never change, and functions from its state to a new state. A function never writes into the
states that it is given: they may have been saved. So leaving a task by an exception is forgetting the new ones.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from afec.fisher import Kind, Power, Problem, choose_kind, estimate
from afec.fisher.batches import Samples, size_of
from afec.fisher.checks import check_request
from afec.fisher.estimate import taken_apart
from afec.fisher.positions import settled, that_count
from afec.fisher.shards import local
from afec.fisher.untouched import buffers_kept, untouched
from afec.gaussian import Derived, Gaussian, Quadratic
from afec.guard.borrow import borrowed, load
from afec.guard.distributed import processes_of, reshard
from afec.guard.low_rank import LowRankPull
from afec.guard.memory import Memory, State, TermBytes
from afec.guard.options import FisherOptions
from afec.guard.passes import Passes
from afec.guard.problem import BlockArguments, Params, guarded_weights, read_problem, unwrapped
from afec.guard.pull import Mover, Puller
from afec.guard.reach import check_reaches
from afec.guard.steps import Step, observer_of
from afec.randomness import forked, seed_from

__all__ = ["Alone", "GuardedTask", "TermFunctions", "is_guarded"]

MEASURED_BATCHES = 8  # enough to see whether the loss went down at all
KEPT_UP_TO = 2**22  # weights for which D and c are kept: of more they are derived in every step, and take no memory
TRIAL_SAMPLES = 16  # on which a measurement is tried when a task begins
_UNDER_GUARD: dict[int, str] = {}  # the weights that a live task holds, so that no two guards pull one weight


def is_guarded(weight: Tensor) -> bool:
    """Whether a task that has begun and not ended guards this weight."""
    return id(weight) in _UNDER_GUARD


@dataclass(frozen=True)
class Alone:
    """The new task learned alone, without what is old: its loss, and the weights."""

    loss: float
    weights: dict[str, Tensor]


class TermFunctions(ABC):
    """What a term does at each turn of a task. `Guard` is the other half of a method."""

    params: Params
    name: ClassVar[str]
    rank: ClassVar[int] = 0  # sorts the terms of a sum; the pull to the old tasks comes first
    pull_name: ClassVar[str] = "old"  # in reports: the pull to the old tasks, or the forgetting pull

    @abstractmethod
    def described(self) -> str:
        """The expression that makes it, such as `EWC(strength=500)`."""

    @property
    @abstractmethod
    def is_off(self) -> bool:
        """Whether its weight is zero in every task: then it is dropped before anything runs."""

    def with_strength(self, strength: float) -> TermFunctions | None:
        """The same method with another λ, for `guard.suggest`; None of one that holds no old task by a strength."""
        return None

    def not_on_shards(self) -> str | None:
        """What does not work where each process holds a part of every weight, as the beginning of a sentence."""
        return f"{self.name} does not work on the parts"

    def lacks(self, task: GuardedTask) -> str | None:
        """What the method still has to be told before its first task, as an error message."""
        return None

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """The task state on entry; it lives as long as the task."""
        return {}

    def first_weights(self, task: GuardedTask, task_state: State, total: Quadratic | Derived) -> Mapping[str, Tensor]:
        """Weights to start the task from, by name, given all that pulls; by default none: it starts where it is."""
        return {}

    def begin_epoch(self, task: GuardedTask, state: State, task_state: State) -> State:
        """The new task state at `task.epoch()`."""
        return task_state

    @property
    def asks_alone(self) -> bool:
        """Whether it wants to know how well the new task is learned alone."""
        return False

    def strengths(self, task_state: State) -> list[float]:
        """The strength in each epoch so far, of a method that finds it by itself; else nothing."""
        return []

    def acts_later(self, task_state: State) -> bool:
        """Whether `begin_epoch` has still something to do in this task."""
        return type(self).begin_epoch is not TermFunctions.begin_epoch

    @property
    def observes(self) -> frozenset[str]:
        """What the method wants to see of every step: "gradient" (the task's), "total" (with the pull); by default nothing."""
        return frozenset()

    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """The new task state after an optimiser's step, with new tensors: the old ones may have been saved."""
        return task_state

    def bookmark(self, task_state: State) -> State:
        """The new task state when the learner copies the weights because they are the best so far."""
        return task_state

    def return_to_bookmark(self, task_state: State) -> State:
        """The new task state when the learner has loaded them back."""
        return task_state

    @abstractmethod
    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """The weighted Gaussians that pull during the task."""

    def low_rank(self, task: GuardedTask, state: State, task_state: State) -> list[LowRankPull]:
        """The pulls on products of two weights (LoRA) during the task, beside `quadratics`."""
        return []

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """About what `quadratics` would give in the next task, in a few seconds, for `check`; None if it cannot tell."""
        return None

    def memory(self, task: GuardedTask) -> TermBytes:
        """How many bytes it will take, for `check`."""
        return TermBytes()

    def mover(self, task: GuardedTask, state: State, task_state: State) -> Mover | None:
        """What moves weights right after each step, beside the pull: a function of those that stepped and their lr."""
        return None

    def change_weights(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Change weights at the end of the task, before any method measures importance; returns the new task state.

        The methods of a sum do so in the order of their `rank` and name.
        """
        return task_state

    @abstractmethod
    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """The new state, from the weights at the end of the task."""


class GuardedTask:
    """The task that `guard.learning()` or `guard.begin()` opened."""

    def __init__(
        self, guard: str, terms: Sequence[TermFunctions], params: Params, memory: Memory, arguments: BlockArguments
    ) -> None:
        self.guard = guard  # as an expression, for messages
        self.memory, self.number = memory, memory.tasks_done  # counted from 0
        self.model = unwrapped(arguments.model)
        self.processes = processes_of(arguments.model)
        self.terms = tuple(term for term in terms if not term.is_off)
        for term in self.terms:
            if self.processes.sharded and (why := term.not_on_shards()):
                raise TypeError(f"{why} of a sharded model (FSDP2); EWC and AFEC with a number as their strength do")
        # A term's own `params=`, else the guard's.
        chosen = [params if term.params is None else term.params for term in self.terms or terms]
        parts = [guarded_weights(self.model, params) for params in chosen]
        self._weights_of = {term.name: part for term, part in zip(self.terms, parts, strict=False)}
        self.weights = {name: weight for part in parts for name, weight in part.items()}
        self.device = next(iter(self.weights.values())).device
        self.optimizers = _as_optimizers(arguments.optimizer)
        self.passes = Passes(arguments.data, self.device, arguments.batch_size)
        self.problem = read_problem(self.model, arguments)
        self.progress, self.train, self.evaluate = arguments.progress, arguments.train, arguments.evaluate
        self.epochs = _whole(arguments.epochs)
        self.alone: Alone | None = None  # of the term that has learned the new task alone
        self.epoch_loss: float | None = None  # of the latest epoch, as `epoch` was told
        self.task_states: dict[str, State] = {}
        self.started = False  # the expansion is over
        self.fisher_kinds: dict[str, str] = {}  # by the name of the method that measured
        self.samples_measured = 0  # how many samples went through Fisher and importance passes
        self.gave_seed = False  # whether the guard took its seed when this task began
        self.is_open = True  # neither ended nor aborted
        self.when_closed: Callable[[], None] | None = None
        self._puller = Puller(self.model, self.weights)
        self._reached = False  # the loss is known to reach the weights
        self._first: Any = None  # the first batch, while the task begins
        self._most_batches: int | None = None  # of a pass; `check` looks at a few
        self._trial: Samples | None = None  # the few samples that a measurement is tried on
        self._held: list[int] = []
        self.epochs_begun = 0  # how often `epoch` was called
        self._steps_told = 0  # how many steps there were when `epoch` was last called

    # -- for the user ---------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Add the pull to the gradients now, so that clipping clips both; the step will not add it again.

        Call it after `backward()` (and after `scaler.unscale_()`), as often as you like.
        """
        self._puller.pull()

    def penalty(self, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The value of the penalty at the present weights, or at others: Σ λ·½·F·(θ−θ*)² over all terms."""
        return self.processes.sum_of_parts(self._puller.penalty(weights))

    def penalties(self, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The value of each kind of pull apart, by its name ("old", "forgetting"); `penalty()` is their sum."""
        at = self.weights if weights is None else weights
        total = {term.pull_name: torch.zeros(()) for term in self.terms}
        for term in self.terms:
            for weight, gaussian in self._quadratics(term):
                here = {key: local(at[key]).to(mean) for key, mean in gaussian.mean.items()}
                value = self.processes.sum_of_parts(weight * gaussian.penalty(here))
                total[term.pull_name] = total[term.pull_name].to(value) + value
            for one in self._low_rank(term) if weights is None else ():
                total[term.pull_name] = total[term.pull_name] + one.penalty()
        return total

    def bookmark(self) -> None:
        """The present weights are the best so far and were copied: remember the path that led to them (SI, RWALK)."""
        self._check_alive()
        self.task_states = {t.name: t.bookmark(self.task_states[t.name]) for t in self.terms}

    def return_to_bookmark(self) -> None:
        """The weights of the latest `bookmark()` were loaded back: what the steps since have added is forgotten."""
        self._check_alive()
        self.task_states = {t.name: t.return_to_bookmark(self.task_states[t.name]) for t in self.terms}

    @torch.inference_mode(False)
    def epoch(self, optimizer: Optimizer | None = None, *, loss: float | Tensor | None = None) -> None:
        """Once per epoch, at its start, under `AFEC(schedule="interleaved")` and `strength="auto"`; harmless otherwise.

        `optimizer` is the one in use from now on, if it was replaced: θ_e follows its learning rate. One that has stepped
        already is known without this. `loss` is that of the epoch that has just ended, without the penalty: a strength of
        `auto` follows it. Where `learning` was given `evaluate=`, it is found without.
        """
        self._check_alive()
        self.epochs_begun += 1
        if optimizer is not None:
            self.optimizers = _as_optimizers(optimizer)
            self._puller.latest = None
        if any(term.asks_alone and term.acts_later(self.task_states[term.name]) for term in self.terms):
            self.epoch_loss = self._loss_of_epoch(loss)
        self.task_states = {t.name: self._begin_epoch(t) for t in self.terms}
        self._merge()

    def strengths(self) -> dict[str, list[float]]:
        """The strengths that a method finds by itself, by its name: one for each epoch so far, the present one last."""
        paths = {term.name: term.strengths(self.task_states[term.name]) for term in self.terms}
        return {name: path for name, path in paths.items() if path}

    def accept(self) -> None:
        """The guarded weights were changed outside an optimiser's step on purpose (clipped, averaged, swapped)."""
        self._puller.excuse()

    @torch.inference_mode(False)
    def end(self) -> None:
        """Consolidate: measure what mattered for this task and merge it into the guard's memory."""
        self._check_alive()
        reshard(self.model)
        try:
            self.settle()
            states = {t.name: self._end_task(t) for t in self.terms}
        except BaseException:
            self.abort()
            raise
        self._close()
        self.memory.learned(states)

    def settle(self) -> None:
        """The first half of `end`: no step pulls any more, and methods that change weights at the end have done so."""
        self._puller.verify()
        self._puller.detach()
        self.task_states = {t.name: self._change_weights(t) for t in self.terms}

    def abort(self) -> None:
        """Drop the task: all hooks are gone and the guard is as on entry. The weights stay as they are now."""
        if self.gave_seed and self.is_open:
            self.memory.seed = None
        self._close()

    # -- for the methods ------------------------------------------------------------------------------------------

    @contextmanager
    def only(self, term: TermFunctions) -> Iterator[None]:
        """Inside, `weights` and all that is measured on them are the term's own: what its `params=` says."""
        everything, self.weights = self.weights, self._weights_of[term.name]
        try:
            yield
        finally:
            self.weights = everything

    @contextmanager
    def measuring(self, weights: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Inside, what is measured is measured on these weights of the model, frozen ones too."""
        everything, self.weights = self.weights, dict(weights)
        frozen = [weight for weight in weights.values() if not weight.requires_grad]
        for weight in frozen:
            weight.requires_grad_(True)
        try:
            yield
        finally:
            self.weights = everything
            for weight in frozen:
                weight.requires_grad_(False)

    @property
    def idle(self) -> bool:
        """Whether the guard will neither pull nor watch any step of this task, as most do in the first one."""
        later = any(term.acts_later(self.task_states[term.name]) for term in self.terms)
        puller = self._puller
        return not puller.pulls and puller.observer is None and not puller.movers and not later

    @property
    def steps(self) -> int:
        """How many optimiser steps have touched guarded weights so far."""
        return self._puller.steps

    def state_of(self, term: TermFunctions) -> State:
        """The state of a term as the last task left it."""
        return self.memory.states.get(term.name, {})

    def seed(self, *purpose: object) -> int:
        """A seed that depends on the guard's seed, the task and the purpose only."""
        return seed_from(self.memory.seed, self.number, *purpose)

    def values(self) -> dict[str, Tensor]:
        """Copies of the guarded weights' present values."""
        return {name: local(weight).clone() for name, weight in self.weights.items()}

    def present(self) -> dict[str, Tensor]:
        """All weights of the model, as they are: of a sharded one the parts that this process holds."""
        return {name: local(weight) for name, weight in self.model.named_parameters()}

    def remembered(self, gaussian: Gaussian) -> Gaussian:
        """A Gaussian of earlier tasks, fitted to the present weights: grown heads, and only what is guarded now."""
        return gaussian.grown_to(self.present()).only(self.weights)

    def batches(
        self, *purpose: object, batch_size: int | None = None, training: bool = False, samples: int | None = None
    ) -> Iterator[Any]:
        """One pass over the data, or over so many samples of them; iterate it inside `forked`."""
        seed = self.seed("data", *purpose)
        share = None if samples is None else math.ceil(samples / (1 if self.processes.part else self.processes.count))
        whole = training and not self.processes.sharded  # there all processes learn together, each from its share
        one = self.passes.one(seed, batch_size=batch_size, training=training, whole=whole, samples=share)
        for batch in one:
            if not self._reached:
                for part in {frozenset(part): part for part in self._weights_of.values()}.values() or [self.weights]:
                    check_reaches(self.problem, part, batch, self.seed("first"))
                self._reached = True
                self._first = None if self.started else batch
            yield batch

    @property
    def first_batch(self) -> Any:
        """The first batch, while the task begins; None later, and where the data are made on demand."""
        return self._first

    @contextmanager
    def briefly(self, most_batches: int) -> Iterator[None]:
        """Inside, Fisher and importance are measured on so many batches, as if for a preview."""
        self._most_batches = most_batches
        try:
            yield
        finally:
            self._most_batches = None

    def fisher(self, options: FisherOptions, *purpose: object) -> dict[str, Tensor]:
        """The diagonal Fisher of the guarded weights at their present values, over all processes."""
        seed = self.seed("fisher", *purpose)
        kind = options.kind
        if kind == "auto":
            with forked(seed, self.device):
                kind = choose_kind(self.problem, self._first if self._trial else next(iter(self.batches("kind"))))
            if kind == "empirical":
                self._warn_once(
                    "the loss has no known likelihood, so the Fisher is the `empirical` one (true labels). For the true "
                    'Fisher give likelihood="categorical" or "gaussian" to learning(); to choose, fisher="empirical"'
                )
        self.fisher_kinds[str(purpose[0]) if purpose else ""] = kind
        size = options.batch_size if kind == "batched" and self.passes.rebatches else None
        if size is not None and self.processes.sharded and self.passes.is_split:
            size = max(1, size // self.processes.count)  # of each process: the gradient is over the batches of all
        return self.moment(
            self.problem,
            *purpose,
            kind=kind,
            pass_size=size,
            batch_size=size,
            train=options.dropout,
            samples=options.samples,
        )

    def refuses(self, options: FisherOptions) -> str | None:
        """Why this Fisher cannot be measured here, known before anything is learned; None if it can."""
        kind = options.kind
        if kind == "auto" and self.processes.sharded:
            return (
                "a sharded model (FSDP2) has no gradients of single samples, so there is no Fisher to choose: give "
                'fisher="batched", and a strength that belongs to it'
            )
        try:
            if kind != "auto":
                check_request(self.problem, self.weights, kind=kind, batch_size=None, train=options.dropout, chunk=1)
        except ValueError as error:
            return str(error)
        reads = self.problem.likelihood is not None if kind == "auto" else kind in ("exact", "sample")
        return (self.cannot_read_output() if reads else None) or self.cannot_measure(lambda: self.fisher(options))

    def cannot_measure(self, measure: Callable[[], object]) -> str | None:
        """Why `measure()` would fail when the task ends, found out on a few samples of its first batch; None if it works."""
        if self._first is None:  # made on demand: found out when it is measured
            return None
        try:
            samples = that_count(self.problem, next(taken_apart(self.problem, self._first)).take(0, TRIAL_SAMPLES))
        except ValueError:  # a batch that is no rows of samples: `batched` takes it whole
            samples = Samples.single(self._first)
        if samples.size == 0:
            return None
        self._trial = samples
        try:
            measure()
        except FloatingPointError:  # the weights will be others
            return None
        except ValueError as error:
            return str(error)
        finally:
            self._trial = None
        return None

    def cannot_read_output(self) -> str | None:
        """Why classes and positions of the output cannot be told apart, seen on the first batch; None if they can."""
        if self._first is None:  # made on demand: found out when it is measured
            return None
        samples = next(taken_apart(self.problem, self._first))
        try:
            with untouched(self.model, (), train=False, seed=self.seed("first")):
                self.problem = settled(self.problem, samples)
        except ValueError as error:
            return str(error)
        return None

    def moment(
        self,
        problem: Problem,
        *purpose: object,
        kind: Kind,
        pass_size: int | None,
        batch_size: int | None,
        train: bool,
        power: Power = 2,
        samples: int | None = None,
    ) -> dict[str, Tensor]:
        """The mean of squared or absolute gradients of the guarded weights, over one pass and all processes.

        `pass_size` is how many samples a batch of the pass has, where the data can be cut anew (None: as they come);
        `samples` is how many of the data are looked at (None: all); the rest is as in `fisher.estimate`.
        """
        options: dict[str, Any] = {"kind": kind, "batch_size": batch_size, "train": train, "power": power}
        if self._trial is not None:
            own = self._trial.of is None  # one sample as it stands, from `split=`
            problem = replace(problem, split=lambda batch: [batch]) if own and problem.split is not None else problem
            return estimate(problem, self.weights, [self._trial.batch], seed=self.seed("first"), **options).mean()
        if self._most_batches is not None:
            purpose = ("preview",)
        everything = self.batches("fisher", *purpose, batch_size=pass_size, samples=samples)
        batches = itertools.islice(everything, self._most_batches)
        seed = self.seed("fisher", *purpose)
        part = None if train else self.processes.part  # with dropout on, the draws of the batches follow each other
        found = estimate(problem, self.weights, self.counted(batches), seed=seed, part=part, **options)
        if train and self.processes.part is not None:  # every process has measured all
            return found.take_mean()
        return self.processes.total(found).take_mean()

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, their samples counted as measured."""
        for batch in batches:
            with suppress(ValueError, TypeError):  # a batch whose size only `split` knows
                self.samples_measured += size_of(batch)
            yield batch

    def loss(self) -> float:
        """The loss of the new task with the present weights: what `evaluate=` says, else on some batches of the data."""
        if self.evaluate is None:
            found = self.mean_loss()
            assert found is not None, "lacks() has seen to it"
            return found
        with untouched(self.model, (), train=False, seed=self.seed("loss")), torch.no_grad():
            return self.processes.mean(_finite(self.evaluate(), "evaluate()"))

    def mean_loss(self) -> float | None:
        """The loss of some batches of the data; None where they are made on demand."""
        if self.passes.on_demand:
            return None
        # In the mode of training: batch-norm's running statistics lag behind in a short expansion.
        with (
            torch.no_grad(),
            buffers_kept(self.model),
            forked(self.seed("loss"), self.device),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "None of the inputs have requires_grad")  # activation checkpointing
            batches = itertools.islice(self.batches("loss"), MEASURED_BATCHES)
            losses = [float(self.problem.loss(self.model, batch)) for batch in batches]
        reshard(self.model)
        return self.processes.mean(sum(losses) / len(losses))

    def now_alone(self) -> Alone:
        """The new task as the borrowed weights have it now."""
        return Alone(self.loss(), self.values())

    def run(self, function: Callable[[], object], *purpose: object) -> None:
        """Run the user's own training function without touching the random numbers outside."""
        with forked(self.seed(*purpose), self.device), torch.enable_grad():
            function()

    @contextmanager
    def borrowing(self, written: Container[str] = ()) -> Iterator[None]:
        """The module and its optimisers are ours inside; no pull; everything is put back after it.

        A frozen weight is put back if its name is in `written`: nobody else changes it.
        """
        optimizers = [*self.optimizers, *self.current_optimizers()]
        with self._puller.suspended(), borrowed(self.model, optimizers, self._means(), written):
            yield

    def _means(self) -> dict[str, list[Tensor]]:
        """Where the earlier tasks left each weight: as a rule where it still is, and then no copy of it is needed."""
        found: dict[str, list[Tensor]] = {}
        for state in self.memory.states.values():
            for name, mean in state.get("mean", {}).items():
                found.setdefault(name, []).append(mean)
        return found

    def current_optimizers(self) -> list[Optimizer]:
        """The optimisers in use: a single one may have been replaced inside the block."""
        latest = self._puller.latest() if self._puller.latest is not None else None
        return [latest] if latest is not None and len(self.optimizers) <= 1 else self.optimizers

    # -- inside ---------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def _start(self) -> None:
        taken = [name for name, weight in self.weights.items() if id(weight) in _UNDER_GUARD]
        if taken:
            other = _UNDER_GUARD[id(self.weights[taken[0]])]
            raise RuntimeError(
                f"weight {taken[0]!r} is in a block of {other} already: blocks do not nest. "
                "To use two methods at once, add them: guard = one + other"
            )
        own = {id(weight) for weight in self.model.parameters()}
        for optimizer in self.optimizers:
            self._puller.refuse_climbing(optimizer)
            if not any(id(weight) in own for group in optimizer.param_groups for weight in group["params"]):
                raise ValueError(
                    f"the {type(optimizer).__name__} that was given holds no weight of this model: nothing would be learned. "
                    "Was the model made anew after its optimiser? Make the optimiser from model.parameters()"
                )
        self._held = [id(weight) for weight in self.weights.values()]
        _UNDER_GUARD.update(dict.fromkeys(self._held, self.guard))
        if not self.passes.on_demand:
            with forked(self.seed("first"), self.device):
                next(iter(self.batches("first")))
        for term in self.terms:
            with self.only(term):
                lacking = term.lacks(self)
            if lacking:
                raise ValueError(lacking)
        self._first = None
        if self.memory.task_states is not None:  # saved in the middle of this task
            self.task_states = dict(self.memory.task_states)
        # One that was off when the task was saved begins now. AFEC comes first: others may ask what it has learned.
        for term in reversed(self.terms):
            if term.name not in self.task_states:
                with self.only(term):
                    self.task_states[term.name] = term.begin_task(self, self.state_of(term))
        total = self._merge()
        moved = self.memory.task_states is None and self._move_to_first_weights(total)
        self._puller.observer = observer_of(self.terms, self._after_step, reduces=self.processes.several)
        self._puller.movers = [mover for term in self.terms if (mover := self._mover(term)) is not None]
        self._puller.attach()
        if moved:
            self.accept()
        self.started = True

    def _loss_of_epoch(self, told: float | Tensor | None) -> float | None:
        """The loss of the epoch that has ended; None before the first step."""
        steps, self._steps_told = self.steps - self._steps_told, self.steps
        if told is not None:
            return self.processes.mean(_finite(told, "task.epoch(loss=…)"))
        if steps == 0:
            return None
        if self.evaluate is not None:
            return self.loss()
        raise ValueError(
            f"{self.guard} finds its strength by the loss of every epoch: call task.epoch(loss=…) with the loss of the epoch "
            "that has ended, best on validation data and without the penalty; or give learning(…, evaluate=…)"
        )

    def _after_step(self, step: Step) -> None:
        for term in self.terms:
            if term.observes:
                with self.only(term):
                    own = step.only(self.weights)
                    self.task_states[term.name] = term.after_step(self, self.task_states[term.name], own)

    def _begin_epoch(self, term: TermFunctions) -> State:
        with self.only(term):
            return term.begin_epoch(self, self.state_of(term), self.task_states[term.name])

    def _mover(self, term: TermFunctions) -> Mover | None:
        with self.only(term):
            return term.mover(self, self.state_of(term), self.task_states[term.name])

    def _change_weights(self, term: TermFunctions) -> State:
        with self.only(term):
            return term.change_weights(self, self.state_of(term), self.task_states[term.name])

    def _end_task(self, term: TermFunctions) -> State:
        with self.only(term):
            return term.end_task(self, self.state_of(term), self.task_states[term.name])

    def _quadratics(self, term: TermFunctions) -> list[tuple[float, Gaussian]]:
        with self.only(term):
            return term.quadratics(self, self.state_of(term), self.task_states[term.name])

    @torch.no_grad()
    def _move_to_first_weights(self, total: Quadratic | Derived) -> bool:
        """Put the weights where a term wants them to start from; returns whether one does."""
        found: dict[str, Tensor] = {}
        for term in self.terms:
            with self.only(term):
                found.update(term.first_weights(self, self.task_states[term.name], total))
        if found:
            load(self.model, found)
        return bool(found)

    def _merge(self) -> Quadratic | Derived:
        derived = Derived.of([quadratic for term in self.terms for quadratic in self._quadratics(term)])
        numbers = sum(center.numel() for center in derived.center.values())
        total = derived if numbers > KEPT_UP_TO else derived.kept()
        self._puller.set(total, [pull for term in self.terms for pull in self._low_rank(term)])
        return total

    def without_state(self) -> GuardedTask:
        """A copy of a task that is over, for what it can still be asked (its data, its loss), without its tensors."""
        light = copy.copy(self)
        light.task_states, light.alone, light.when_closed = {}, None, None
        light._puller = Puller(self.model, {})
        return light

    def _low_rank(self, term: TermFunctions) -> list[LowRankPull]:
        with self.only(term):
            return term.low_rank(self, self.state_of(term), self.task_states[term.name])

    def _close(self) -> None:
        self._puller.detach()
        for key in self._held:
            _UNDER_GUARD.pop(key, None)
        self._held = []
        self.is_open = False
        if self.when_closed is not None:
            self.when_closed()
            self.when_closed = None

    def _check_alive(self) -> None:
        if not self.is_open:
            raise RuntimeError("this task has ended already; open the next one with guard.learning() or guard.begin()")

    def _warn_once(self, message: str) -> None:
        if message not in self.memory.warned:
            self.memory.warned.add(message)
            warnings.warn(message, UserWarning, stacklevel=2)


def _finite(loss: float | Tensor, what: str) -> float:
    try:
        found = float(loss)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be one number, the loss of the new task; got {loss!r}") from error
    if not math.isfinite(found):
        raise FloatingPointError(f"{what} is {found}: training diverged; lower the learning rate")
    return found


def _whole(epochs: int | None) -> int | None:
    if epochs is not None and (isinstance(epochs, bool) or epochs != int(epochs) or epochs < 1):
        raise ValueError(f"epochs must be a whole number ≥ 1, or None; got {epochs!r}")
    return epochs


def _as_optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    if optimizer is None:
        return []
    found = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for one in found:
        if not hasattr(one, "param_groups"):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, several, or None; got {type(one).__name__}")
    return found
