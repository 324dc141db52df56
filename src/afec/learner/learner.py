"""`Learner`: task after task, for people without a loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from afec.files import FileError, load_tree, save_tree
from afec.guard import Guard, GuardedTask
from afec.learner.fit import Epoch, Fit
from afec.learner.machine import Machine
from afec.learner.memo import Memo
from afec.learner.progress import shown
from afec.learner.schedule import Schedule
from afec.learner.state import FORMAT, check_net, check_state
from afec.learner.stopwatch import Stopwatch
from afec.learner.tasks import (
    LIKELIHOOD,
    Batches,
    HeadLoss,
    Mixture,
    mixture_loss,
    stored,
)
from afec.learner.trained import Known, Trained
from afec.learner.transfer import Transferred, transfer
from afec.methods import AFEC
from afec.randomness import forked, seed_from
from afec.streams import Task

__all__ = ["Learned", "Learner", "Phase"]


@dataclass(frozen=True)
class Phase:
    """Where a learner is: shown as progress, written as an event."""

    task: int
    """Counted from 0."""
    name: str
    phase: str
    """`theta_e` (the expansion), `train`, `joint`, or `transfer`."""
    epoch: Epoch


@dataclass(frozen=True)
class Learned:
    """What learning one task took."""

    name: str
    epochs: int
    best_epoch: int
    epochs_theta_e: int
    """Of the expansion: AFEC's additional compute. Zero where AFEC has an `expand=` of its own: nobody can count it."""
    samples: int
    """How many samples went forward with gradients, in training, for θ_e and in Fisher and importance passes: the cost. (The
    `exact` Fisher takes a backward pass for each output; that is not in it.)"""
    seconds: dict[str, float]
    """Wall time of `train`, `expand` (θ_e) and `fisher` (importance passes on entry and exit)."""
    cpu_seconds: dict[str, float]
    """The same phases in CPU time."""


class Learner(Trained):
    """Learns task after task with one net and one guard.

        learner = afec.Learner(backbone, afec.EWC(300) + afec.AFEC(0.1))
        for task in stream.tasks:
            learner.learn(task)
        learner.evaluate(stream.tasks)

    Args:
        net: a `MultiHead`, or a backbone with the attribute `out_features`, which then gets a head for each task.
        guard: the method; None is fine-tuning. AFEC needs no `epochs`: θ_e is trained by the same schedule.
        schedule: how each task is trained.
        seed: of batches, heads and everything else that is drawn here.
        machine: device, precision, memory format.
        progress: a progress bar; by default when standard error is a terminal.
        on_phase: called after every epoch.
        memo: where outcomes of trainings that no guard touches are kept and found.
    """

    def __init__(
        self,
        net: nn.Module,
        guard: Guard | None = None,
        *,
        schedule: Schedule | None = None,
        seed: int = 0,
        machine: Machine | None = None,
        progress: bool | None = None,
        on_phase: Callable[[Phase], None] | None = None,
        memo: Memo | None = None,
    ) -> None:
        for name, value, kind in (
            ("guard", guard, Guard),
            ("schedule", schedule, Schedule),
            ("machine", machine, Machine),
        ):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"Learner's {name} must be a {kind.__name__}; got {value!r}")
        super().__init__(net, machine or Machine())
        self.schedule = schedule or Schedule()
        self.guard, self.seed, self.progress, self.on_phase, self.memo = guard, seed, progress, on_phase, memo
        self._fit: Fit | None = None  # the training that is running
        self._phase = self._name = ""
        self._epochs_theta_e = self._measured = 0  # of the present task: θ_e's epochs, samples in importance passes
        self._guarded: GuardedTask | None = None
        self._entry: dict[str, Tensor] | None = None  # the weights at the entry of the task, while θ_e is trained
        self._unfinished: dict[str, Any] | None = None  # a training that was loaded in its middle

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(self, task: Task) -> Learned:
        """Learn one more task; a task that was loaded in its middle goes on."""
        self._check_unfinished(task)  # before anything is touched: what was loaded stays, for the right task
        try:
            with forked(
                seed_from("learner", self.seed), self.machine.torch_device
            ):  # a new guard takes its seed from here
                return self._learn(task)
        finally:
            self._entry = self._unfinished = self._guarded = None
            self._epochs_theta_e = self._measured = 0

    def _learn(self, task: Task) -> Learned:
        number, loss = self._enter(task)
        train = stored(task.train, self.machine)
        validation = None if task.validation is None else Batches(stored(task.validation, self.machine), task.chunk)
        watch = Stopwatch()

        def new_fit(purpose: str) -> Fit:
            seed = seed_from("learner", self.seed, number, purpose)
            return Fit(self.net, Batches(train, task.chunk), validation, loss, self.schedule, seed, self.machine)

        def expand() -> None:  # θ_e: the new task alone, by the same rule as everything else
            with watch.phase("expand"):
                fit = new_fit("theta_e")
                self._take_up(fit, "theta_e")
                self._epochs_theta_e = self._train(fit, number, task.name, "theta_e").epochs

        fit = new_fit("train")
        self._take_up(fit, "train")
        if self.guard is None:
            with watch.phase("train"):
                self._train(fit, number, task.name, "train")
        else:
            self._entry = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
            with (
                watch.phase("fisher"),
                self.guard.learning(
                    self.net,
                    fit.optimizer,
                    train,
                    loss,
                    predict=loss.outputs,
                    likelihood=LIKELIHOOD.get(task.loss),
                    batch_size=self.schedule.batch_size,
                    train=expand,
                    progress=self.progress,
                ) as guarded,
            ):
                self._entry, self._guarded = None, guarded
                with watch.phase("train"):
                    self._train(fit, number, task.name, "train", guarded)
                self._epochs_theta_e += _own_epochs(guarded)
        self._known.append(Known(task.name, task.outputs, task.loss))
        measured = self._measured + (self._guarded.samples_measured if self._guarded is not None else 0)
        samples = (fit.epochs + self._epochs_theta_e) * train.size + measured
        cost = (fit.epochs, fit.best_epoch, self._epochs_theta_e, samples, dict(watch.wall), dict(watch.cpu))
        return Learned(task.name, *cost)

    def learn_jointly(self, tasks: Sequence[Task]) -> Learned:
        """Learn all `tasks` at once, from the present weights: the upper bound that keeps all old data. No guard acts."""
        for task in tasks[len(self._known) :]:
            self._enter(task)
            self._known.append(Known(task.name, task.outputs, task.loss))
        losses = [HeadLoss.of(number, task, self.machine) for number, task in enumerate(tasks)]
        chunk = min(task.chunk for task in tasks)
        train = Mixture([stored(task.train, self.machine) for task in tasks], chunk)
        splits = [stored(task.validation, self.machine) for task in tasks if task.validation is not None]
        validation = Mixture(splits, chunk) if len(splits) == len(tasks) else None
        seed = seed_from("learner", self.seed, len(tasks) - 1, "train")
        loss = partial(mixture_loss, losses)
        fit = Fit(self.net, train, validation, loss, self.schedule, seed, self.machine)
        watch = Stopwatch()
        with watch.phase("train"):
            self._train(fit, len(tasks) - 1, tasks[-1].name, "joint")
        cost = (fit.epochs, fit.best_epoch, 0, fit.epochs * train.size, dict(watch.wall), dict(watch.cpu))
        return Learned(tasks[-1].name, *cost)

    def transfer(self, task: Task) -> Transferred:
        """How well a new head alone learns `task` on the present features; neither they nor anything else here changes."""
        if not self._known:
            raise ValueError(
                f"nothing was learned yet that '{task.name}' could be transferred from; call learn() first"
            )
        number = len(self._known) - 1
        with shown(self.progress, number, task.name, "transfer") as show:

            def on_epoch(epoch: Epoch) -> None:
                show(epoch)
                if self.on_phase:
                    self.on_phase(Phase(number, task.name, "transfer", epoch))

            return transfer(self.net, number, task, self.schedule, self.machine, self.seed, on_epoch)

    def _enter(self, task: Task) -> tuple[int, HeadLoss]:
        """The task's number and its loss; its head is there afterwards."""
        self._prepare[task.name] = task.prepare
        number, heads = len(self._known), self.net.heads
        if task.name in self.tasks_learned:
            raise ValueError(
                f"a task called '{task.name}' was learned already, and tasks are told apart by their names; "
                "give this one another name: dataclasses.replace(task, name=…)"
            )
        if number == len(heads):
            with forked(seed_from("learner", self.seed, "head", number), self.machine.torch_device):
                self.net.add_head(task.outputs)
            self.machine.placed(self.net)
        size = heads[number].out_features
        if size != task.outputs:
            raise ValueError(
                f"task {number + 1}, '{task.name}', has {task.outputs} outputs, but head {number + 1} of the net has {size}; "
                "make the net for this stream: MultiHead(backbone, stream.outputs), or give the backbone alone"
            )
        return number, HeadLoss.of(number, task, self.machine)

    def _check_unfinished(self, task: Task) -> None:
        begun = None if self._unfinished is None else self._unfinished["task"]
        if begun not in (None, task.name):
            raise ValueError(
                f"this learner was loaded in the middle of the task '{begun}', so that is to be learned next; got '{task.name}'"
            )

    def _take_up(self, fit: Fit, phase: str) -> None:
        """Go on with the training that an earlier process left in its middle."""
        if self._unfinished is not None and self._unfinished["phase"] == phase:
            fit.load_state_dict(self._unfinished["fit"])
            self._epochs_theta_e, self._measured = self._unfinished["epochs_theta_e"], self._unfinished["measured"]
            if phase == "theta_e":
                self.net.load_state_dict(self._unfinished["theta_e"])
            self._unfinished = None

    def _train(self, fit: Fit, number: int, name: str, phase: str, guarded: GuardedTask | None = None) -> Fit:
        """Run one training, with what the guard adds."""
        known = None
        alone = phase == "theta_e" or (phase == "train" and number == 0 and (guarded is None or guarded.idle))
        if self.memo is not None and fit.epochs == 0 and alone:
            known = self.memo.path(fit)
            if known is not None and self.memo.recall(known, fit):
                return fit
        self._fit, self._phase, self._name = fit, phase, name
        try:
            with shown(self.progress, number, name, phase) as show:

                def on_epoch(epoch: Epoch) -> None:
                    show(epoch)
                    if self.on_phase:
                        self.on_phase(Phase(number, name, phase, epoch))

                if guarded is None:
                    fit.run(on_epoch=on_epoch)
                else:
                    fit.run(
                        extra_loss=_penalty(guarded, self.schedule),
                        before_epoch=lambda: guarded.epoch(fit.optimizer),
                        on_best=guarded.bookmark,
                        on_epoch=on_epoch,
                    )
                    if self.schedule.best_weights:
                        guarded.return_to_bookmark()
        finally:
            self._fit = None
        if self.memo is not None and known is not None:
            self.memo.keep(known, fit)
        return fit

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, between tasks and after any epoch inside one: plain dictionaries of tensors and numbers."""
        inside: dict[str, Any] | None = None
        if self._fit is not None:
            inside = {
                "task": self._name,
                "phase": self._phase,
                "fit": self._fit.state_dict(),
                "theta_e": self.net.state_dict() if self._phase == "theta_e" else None,
                "epochs_theta_e": self._epochs_theta_e,
                "measured": self._measured + (self._guarded.samples_measured if self._guarded is not None else 0),
            }
        elif self._unfinished is not None:
            inside = self._unfinished
        expanding = inside is not None and inside["phase"] == "theta_e" and self._entry is not None
        return {
            "format": FORMAT,
            "seed": self.seed,
            "tasks": [asdict(known) for known in self._known],
            "net": self._entry if expanding else self.net.state_dict(),
            "heads": [head.out_features for head in self.net.heads],
            "guard": None if self.guard is None else self.guard.state_dict(),
            "inside": inside,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict()`; net, guard and schedule are those of this learner."""
        check_state(state, self.guard)
        check_net(state, self.net)
        while len(self.net.heads) < len(state["heads"]):
            self.net.add_head(state["heads"][len(self.net.heads)])
        self.machine.placed(self.net)
        self.net.load_state_dict(state["net"])
        if self.guard is not None:
            self.guard.load_state_dict(state["guard"])
        self.seed = state["seed"]
        self._known = [Known(**known) for known in state["tasks"]]
        self._unfinished = state["inside"]

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to one safetensors file, whole or not at all."""
        save_tree(path, {"afec": "learner", **self.state_dict()})

    def load(self, path: str | PathLike[str]) -> Learner:
        """Read what `save` wrote into this learner, made with the same net and guard. Nothing in the file is executed."""
        tree = load_tree(path, device=self.machine.device)
        if not isinstance(tree, dict) or tree.get("afec") != "learner":
            raise FileError(f"{path} is no file of Learner.save(); expected its mark afec='learner'")
        try:
            self.load_state_dict({key: value for key, value in tree.items() if key != "afec"})
        except Exception as error:  # whatever it was, it came from the file
            raise FileError(f"{path}: {error or type(error).__name__}") from error
        return self


def _penalty(guarded: GuardedTask, schedule: Schedule) -> Callable[[], float] | None:
    if schedule.select == "loss":
        return None
    if schedule.select == "old-penalised":
        return lambda: float(guarded.penalties().get("old", torch.zeros(())))
    return lambda: float(guarded.penalty())


def _own_epochs(guarded: GuardedTask) -> int:
    """How long AFEC has trained θ_e by itself: `epochs=`, or an epoch beside each of ours under its interleaved schedule."""
    for term in guarded.terms:
        flight = guarded.flights[term.name]
        if isinstance(term, AFEC) and "mean" in flight:
            return int(flight.get("epochs", term.epochs or 0))
    return 0
