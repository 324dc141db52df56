"""One task while it is learned: the trainings of the method, one after the other, each with the guard around it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from afec.guard import GuardedTask
from afec.learner.fit import Data, Fit, LossFn
from afec.learner.machine import Machine
from afec.learner.memo import Memo
from afec.learner.records import Cost, Progress, Stopwatch, TaskRecord, telling
from afec.learner.tasks import (
    LIKELIHOOD,
    Batches,
    BatchLoss,
    Mixture,
    features_of,
    mixture_loss,
    outputs_of,
    stored,
)
from afec.learner.units import UnitCount, count_units
from afec.methods import AFEC
from afec.nets import NoChainError, Readout
from afec.randomness import seed_from
from afec.stopping import Stop, StoppedError
from afec.strategy import Schedule, Strategy, TaskContext, Training
from afec.streams import Split, Task

__all__ = ["Owner", "TaskRun", "accepted"]


ALONE = ("theta_e", "reference")
"""The phases in which the new task is learned alone, in the net's place."""


class Owner(Protocol):
    """What a task run needs of the learner that it belongs to."""

    net: Readout
    machine: Machine
    schedule: Schedule
    seed: int
    memo: Memo | None
    progress: bool | None
    on_progress: Callable[[Progress], None] | None
    stop: Stop | None
    counts_units: bool

    def state_dict(self) -> dict[str, Any]:
        """Everything, in the middle of a task too."""
        ...


class TaskRun:
    """A task in progress; several at once where all are learned jointly, and then the last one gives the name.

    `unfinished` is the `state_dict()` of a run that an earlier process left in its middle.
    """

    def __init__(
        self,
        learner: Owner,
        strategy: Strategy,
        number: int,
        tasks: Sequence[Task],
        unfinished: dict[str, Any] | None,
    ) -> None:
        self.learner, self.strategy, self.number, self.tasks = learner, strategy, number, tasks
        self.unfinished, self.net, self.machine = unfinished, learner.net, learner.machine
        self.seed = partial(seed_from, "learner", learner.seed, number)
        numbers = range(number - len(tasks) + 1, number + 1)
        losses = [BatchLoss.of(n, task, self.machine) for n, task in zip(numbers, tasks, strict=True)]
        self.task, self.loss, self.chunk = tasks[-1], losses[-1], min(task.chunk for task in tasks)
        self.train = [stored(task.train, self.machine, self.net, n) for n, task in zip(numbers, tasks, strict=True)]
        self.validation = [
            stored(task.validation, self.machine, self.net, n)
            for n, task in zip(numbers, tasks, strict=True)
            if task.validation is not None
        ]
        self.joint_loss: LossFn | None = partial(mixture_loss, losses) if len(tasks) > 1 else None
        self.task_state: dict[str, Any] = {} if unfinished is None else dict(unfinished["task_state"])
        self.cost, self.watch = Cost(), Stopwatch()
        self.units: list[UnitCount] = []
        self.no_units = ""
        self.running: tuple[str, Fit] | None = None  # the phase, and its training
        self.guarded: GuardedTask | None = None
        self.entry: dict[str, Tensor] | None = None  # the weights on entry of the guard's block, while θ_e is trained
        self.stopped: dict[str, Any] | None = None  # the learner's state where a training was stopped

    def run(self) -> TaskRecord:
        """Learn the task to its end, and say what it took."""
        context, best = self._context(), 0
        with self.watch.phase("fisher"):
            for training in self.strategy.trainings(context):
                fit = self._new_fit(training)
                with self._guard_block(training, fit):
                    with self.watch.phase(training.name):
                        self._train(fit, training)
                    if self.learner.counts_units and training.model is self.net:
                        self._count_units()
                self.cost.add(training.name, fit.epochs, fit.train.size)
                best = fit.best_epoch
        self.strategy.state = context.state
        total, alone = self.cost.epochs.total(), sum(self.cost.epochs[phase] for phase in ALONE)
        seconds, cpu_seconds = dict(self.watch.wall), dict(self.watch.cpu)
        return TaskRecord(
            self.task.name, total - alone, best, alone, self.cost.samples, seconds, cpu_seconds, self.cost.recalled,
            self.units, self.no_units, self.strategy.kept_megabytes(self.task),
        )  # fmt: skip

    def _count_units(self) -> None:
        """Before the guard's block ends: what the training has left, and no method has changed yet."""
        with self.watch.phase("units"):
            try:
                if self.joint_loss is not None:
                    raise NoChainError("tasks that are learned at once have no single output layer")
                self.units = count_units(self.net, self.loss, self.train[-1], self.seed("units"))
            except NoChainError as error:
                self.no_units = str(error).partition(";")[0]  # what to do about it is said for methods

    def state_dict(self) -> dict[str, Any] | None:
        """Where it is, after any epoch; what belongs to the net and to the method is not here."""
        if self.running is None:
            return self.unfinished
        phase, fit = self.running
        return {
            "tasks": [task.name for task in self.tasks],
            "phase": phase,
            "fit": fit.state_dict(),
            "weights": dict(fit.model.state_dict()) if phase in ALONE or fit.model is not self.net else None,
            "cost": self.cost.state_dict(0 if self.guarded is None else self.guarded.samples_measured),
            "task_state": dict(self.task_state),
        }

    def _context(self) -> TaskContext:
        """The task as a strategy sees it."""
        train, device = self.train[-1], self.machine.torch_device

        def passes() -> Iterator[Any]:
            self.cost.samples += train.size
            rows = torch.arange(train.size, device=device)
            return map(Batches(train).take, torch.split(rows, self.learner.schedule.batch_size))

        def predict(model: nn.Module, images: Tensor, task: int | None = None, ask: Any = outputs_of) -> Tensor:
            self.cost.samples += len(images)
            found: Tensor = ask(model, self.loss.of_task(self.number if task is None else task), images)
            return found

        return TaskContext(
            number=self.number,
            net=self.net,
            example=lambda: self.loss.prepared(train.inputs[:2]),
            inputs=lambda: (self.loss.prepared(inputs) for inputs, _ in passes()),
            classes=self.task.classes,
            loss=self.loss,
            train=train,
            validation=self.validation[-1] if self.validation else None,
            schedule=self.learner.schedule,
            state=self.strategy.state,
            task_state=self.task_state,
            seed=self.seed,
            passes=passes,
            place=self.machine.placed,
            predict=predict,
            features=partial(predict, ask=features_of),
        )

    def _data(self, own: tuple[Tensor, Tensor] | None, of_tasks: list[Split]) -> Data | None:
        """What a training says, or the tasks' own; None where one of them has none."""
        if own is not None:
            return Batches(Split(*own), self.chunk)
        if len(of_tasks) < len(self.tasks):
            return None
        return Batches(of_tasks[0], self.chunk) if len(of_tasks) == 1 else Mixture(of_tasks, self.chunk)

    def _new_fit(self, training: Training) -> Fit:
        """A training at its start, or where an earlier process left it."""
        train, validation = self._data(training.data, self.train), self._data(training.validation, self.validation)
        assert train is not None
        schedule, loss = training.schedule or self.learner.schedule, self.joint_loss or training.loss
        fit = Fit(training.model, train, validation, loss, schedule, self.seed(training.name), self.machine)
        if self.unfinished is not None and self.unfinished["phase"] == training.name:
            fit.load_state_dict(self.unfinished["fit"])
            self.cost.load_state_dict(self.unfinished["cost"])
            if self.unfinished["weights"] is not None:
                fit.model.load_state_dict(self.unfinished["weights"])
            self.unfinished = None
        return fit

    @contextmanager
    def _guard_block(self, training: Training, fit: Fit) -> Iterator[None]:
        """The block of the guard around a training, where there is one: expansion, pull, consolidation."""
        guard, data = self.strategy.guard, Split(*(training.guard_data or self.train[-1]))
        if guard is None or not training.guarded:
            yield
            return
        self.entry = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        with guard.learning(
            self.net,
            fit.optimizer,
            data,
            self.loss,
            predict=self.loss.outputs,
            likelihood=LIKELIHOOD.get(self.task.loss),
            batch_size=fit.schedule.batch_size,
            train=partial(self._learn_alone, training),
            evaluate=None if fit.validation is None else fit.validation_loss,
            epochs=fit.schedule.max_epochs,
            progress=self.learner.progress,
            seed=seed_from("learner", self.learner.seed),
        ) as self.guarded:
            self.entry = None
            yield
            self.cost.add("theta_e", _own_epochs(self.guarded), data.size)
        self.cost.samples += self.guarded.samples_measured
        self.guarded = None

    def _learn_alone(self, around: Training) -> None:
        """The new task alone: θ_e, by the same rule as everything else; or a short run, the reference of `strength="auto"`."""
        assert self.strategy.guard is not None
        expands = any(isinstance(term, AFEC) for term in self.strategy.guard.terms)
        name, schedule = "theta_e" if expands else "reference", self.learner.schedule
        with self.watch.phase("expand" if expands else "reference"):
            training = Training(
                name,
                self.net,
                self.loss,
                data=around.guard_data,
                schedule=schedule if expands else short(schedule),
                pure=True,
            )
            fit = self._new_fit(training)
            self._train(fit, training)
            self.cost.add(name, fit.epochs, fit.train.size)

    def _train(self, fit: Fit, training: Training) -> None:
        """Run one training, with what the guard adds; or take its outcome from the memo."""
        learner, guarded, known = self.learner, self.guarded, None
        if learner.memo is not None and fit.epochs == 0 and training.pure and (guarded is None or guarded.idle):
            known = learner.memo.path(fit)
            if known is not None and (maker := learner.memo.recall(known, fit)) is not None:
                self.cost.recalled[training.name] = maker
                return
        self.running = training.name, fit
        hooks: dict[str, Any] = {"after_step": training.after_step, "after_epoch": training.after_epoch}
        if guarded is not None:
            hooks = {name: accepted(hook, guarded) for name, hook in hooks.items()}
            hooks["before_epoch"] = partial(_before_epoch, guarded, fit)
            hooks["extra_loss"] = _penalty(guarded, fit.schedule.select)
            hooks["on_best"] = guarded.bookmark
        strengths = dict if guarded is None else guarded.strengths
        place = self.number, self.task.name, training.name
        with telling(learner.progress, learner.on_progress, *place, strengths) as on_epoch:
            try:
                fit.run(**hooks, on_epoch=on_epoch, stop=learner.stop)
            except StoppedError:  # now: the guard puts its weights back on the way out
                self.stopped = copy.deepcopy(learner.state_dict())
                raise
        if guarded is not None and fit.schedule.best_weights:
            guarded.return_to_bookmark()
        self.running = None
        if learner.memo is not None and known is not None:
            learner.memo.keep(known, fit)


def short(schedule: Schedule) -> Schedule:
    """The schedule of a reference: it ends where the learning rate would first fall, after half the patience."""
    if schedule.patience is None:
        return schedule
    return replace(schedule, patience=max(1, schedule.patience // 2), lr_min=schedule.lr)


def _before_epoch(guarded: GuardedTask, fit: Fit) -> None:
    """The guard looks at the epoch that has ended. Where it changes a strength, the best weights are judged by the new one."""
    before = guarded.strengths()
    guarded.epoch(fit.optimizer, loss=fit.loss)
    if fit.best is not None and guarded.strengths() != before:
        penalty = _penalty(guarded, fit.schedule.select, fit.best)
        fit.judge_best_again(penalty() if penalty is not None else 0.0)


def _penalty(
    guarded: GuardedTask, select: str, weights: Mapping[str, Tensor] | None = None
) -> Callable[[], float] | None:
    """What a guard adds to the loss that decides, at the present weights or at others."""
    if select == "loss":
        return None
    if select == "old-penalised":
        return lambda: float(guarded.penalties(weights).get("old", torch.zeros(())))
    return lambda: float(guarded.penalty(weights))


def accepted(hook: Callable[[float], None] | None, guarded: GuardedTask) -> Callable[[float], None] | None:
    """A hook that moves weights on purpose: the guard does not take it for a step that has lost its pull."""

    def call(lr: float) -> None:
        assert hook is not None
        hook(lr)
        guarded.accept()

    return None if hook is None else call


def _own_epochs(guarded: GuardedTask) -> int:
    """How long AFEC has trained θ_e by itself: `epochs=`, or an epoch beside each of ours under its interleaved schedule."""
    for term in guarded.terms:
        task_state = guarded.task_states[term.name]
        if isinstance(term, AFEC) and "mean" in task_state:
            return int(task_state.get("epochs", term.epochs or 0))
    return 0
