"""One task while it is learned: the trainings of the method, one after the other, each with the guard around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from afec.guard import GuardedTask
from afec.learner.fit import Fit
from afec.learner.learned import Cost, Learned
from afec.learner.schedule import Schedule
from afec.learner.stopwatch import Stopwatch
from afec.learner.tasks import LIKELIHOOD, Batches, HeadLoss, predict_in_chunks, stored
from afec.methods import AFEC
from afec.randomness import seed_from
from afec.strategy import Training, Work
from afec.streams import Split, Task

if TYPE_CHECKING:
    from afec.learner.learner import Learner

__all__ = ["Course"]


class Course:
    """A task in progress. `unfinished` is the `state_dict()` of a course that an earlier process left in its middle."""

    def __init__(self, learner: Learner, number: int, task: Task, unfinished: dict[str, Any] | None) -> None:
        self.learner, self.number, self.task, self.unfinished = learner, number, task, unfinished
        self.net, self.machine, self.guard = learner.net, learner.machine, learner.strategy.guard
        self.loss = HeadLoss.of(number, task, self.machine)
        self.train = stored(task.train, self.machine)
        self.validation = None if task.validation is None else stored(task.validation, self.machine)
        self.seed = partial(seed_from, "learner", learner.seed, number)
        self.flight: dict[str, Any] = {} if unfinished is None else dict(unfinished["flight"])
        self.cost, self.watch = Cost(), Stopwatch()
        self.running: tuple[str, Fit] | None = None  # the phase, and its training
        self.guarded: GuardedTask | None = None
        self.entry: dict[str, Tensor] | None = (
            None  # the weights at the entry of the guard's block, while θ_e is trained
        )

    def run(self) -> Learned:
        """Learn it to the end."""
        strategy, best = self.learner.strategy, 0
        work = self._work()
        with self.watch.phase("fisher"):
            for training in strategy.trainings(work):
                fit = self._new_fit(training)
                with self._guarding(training, fit), self.watch.phase(training.name):
                    self._train(fit, training, self.guarded)
                self.cost.epochs[training.name], best = fit.epochs, fit.best_epoch
        strategy.state = work.state
        return self.cost.learned(self.task.name, best, self.train.size, self.watch)

    def state_dict(self) -> dict[str, Any] | None:
        """Where it is, after any epoch; what belongs to the net and to the method is not here."""
        if self.running is None:
            return self.unfinished
        phase, fit = self.running
        return {
            "task": self.task.name,
            "phase": phase,
            "fit": fit.state_dict(),
            "weights": dict(fit.model.state_dict()) if phase == "theta_e" or fit.model is not self.net else None,
            "cost": self.cost.state_dict(0 if self.guarded is None else self.guarded.samples_measured),
            "flight": dict(self.flight),
        }

    def _work(self) -> Work:
        """The task as a strategy sees it."""

        def passes() -> Iterator[Any]:
            self.cost.measured += self.train.size
            rows = torch.arange(self.train.size, device=self.machine.torch_device)
            return map(Batches(self.train, self.task.chunk).take, torch.split(rows, self.learner.schedule.batch_size))

        def predict(model: nn.Module, loss: Any, inputs: Tensor) -> Tensor:
            self.cost.measured += len(inputs)
            return predict_in_chunks(model, loss, inputs).to(self.machine.torch_device)

        return Work(
            self.number,
            self.net,
            self.task.outputs,
            self.loss,
            self.train,
            self.validation,
            self.learner.strategy.state,
            self.flight,
            self.seed,
            passes,
            self.machine.placed,
            predict,
        )

    def _new_fit(self, training: Training) -> Fit:
        """A training at its start, or where an earlier process left it."""
        train, validation, schedule = self.train, self.validation, self.learner.schedule
        if training.targets is not None:
            own, watched = training.targets
            train = Split(train.inputs, own)
            validation = None if validation is None or watched is None else Split(validation.inputs, watched)
        if training.max_epochs is not None:
            schedule = replace(schedule, max_epochs=training.max_epochs)
        watching = None if validation is None else Batches(validation, self.task.chunk)
        learned, seed = Batches(train, self.task.chunk), self.seed(training.name)
        fit = Fit(training.model, learned, watching, training.loss, schedule, seed, self.machine)
        if self.unfinished is not None and self.unfinished["phase"] == training.name:
            fit.load_state_dict(self.unfinished["fit"])
            self.cost.load_state_dict(self.unfinished["cost"])
            if self.unfinished["weights"] is not None:
                fit.model.load_state_dict(self.unfinished["weights"])
            self.unfinished = None
        return fit

    @contextmanager
    def _guarding(self, training: Training, fit: Fit) -> Iterator[None]:
        """The block of the guard around a training, where there is one: expansion, pull, consolidation."""
        if self.guard is None or not training.guarded:
            yield
            return
        self.entry = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        with self.guard.learning(
            self.net,
            fit.optimizer,
            self.train,
            self.loss,
            predict=self.loss.outputs,
            likelihood=LIKELIHOOD.get(self.task.loss),
            batch_size=self.learner.schedule.batch_size,
            train=self._expand,
            progress=self.learner.progress,
        ) as self.guarded:
            self.entry = None
            yield
            self.cost.epochs["theta_e"] += _own_epochs(self.guarded)
        self.cost.measured += self.guarded.samples_measured
        self.guarded = None

    def _expand(self) -> None:
        """θ_e: the new task alone, by the same rule as everything else."""
        with self.watch.phase("expand"):
            training = Training("theta_e", self.net, self.loss, pure=True)
            self.cost.epochs["theta_e"] = self._train(self._new_fit(training), training).epochs

    def _train(self, fit: Fit, training: Training, guarded: GuardedTask | None = None) -> Fit:
        """Run one training, with what the guard adds."""
        memo, known = self.learner.memo, None
        if memo is not None and fit.epochs == 0 and training.pure and (guarded is None or guarded.idle):
            known = memo.path(fit)
            if known is not None and (origin := memo.recall(known, fit)) is not None:
                self.cost.recalled[training.name] = origin
                return fit
        self.running = training.name, fit
        with self.learner.shown(self.number, self.task.name, training.name) as on_epoch:
            if guarded is None:
                fit.run(after_step=training.after_step, after_epoch=training.after_epoch, on_epoch=on_epoch)
            else:
                fit.run(
                    extra_loss=_penalty(guarded, self.learner.schedule),
                    before_epoch=lambda: guarded.epoch(fit.optimizer),
                    after_step=_accepted(training.after_step, guarded),
                    after_epoch=_accepted(training.after_epoch, guarded),
                    on_best=guarded.bookmark,
                    on_epoch=on_epoch,
                )
                if fit.schedule.best_weights:
                    guarded.return_to_bookmark()
        self.running = None
        if memo is not None and known is not None:
            memo.keep(known, fit)
        return fit


def _penalty(guarded: GuardedTask, schedule: Schedule) -> Callable[[], float] | None:
    if schedule.select == "loss":
        return None
    if schedule.select == "old-penalised":
        return lambda: float(guarded.penalties().get("old", torch.zeros(())))
    return lambda: float(guarded.penalty())


def _accepted(hook: Callable[[float], None] | None, guarded: GuardedTask) -> Callable[[float], None] | None:
    """A hook that moves weights on purpose: the guard does not take it for a step that has lost its pull."""

    def call(lr: float) -> None:
        assert hook is not None
        hook(lr)
        guarded.accept()

    return None if hook is None else call


def _own_epochs(guarded: GuardedTask) -> int:
    """How long AFEC has trained θ_e by itself: `epochs=`, or an epoch beside each of ours under its interleaved schedule."""
    for term in guarded.terms:
        flight = guarded.flights[term.name]
        if isinstance(term, AFEC) and "mean" in flight:
            return int(flight.get("epochs", term.epochs or 0))
    return 0
