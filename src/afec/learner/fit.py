"""The one training loop of the house, from top to bottom: `Fit.run`.

The same loop trains θ, inside `guard.learning(...)`, and θ_e, inside the expansion; the guard's pull enters through the
optimiser's step, so nothing here knows about it. Every epoch draws from its own seed, so that the number of the epoch, the
weights and `state_dict()` are all that a fresh process needs to go on bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from afec.learner.machine import Machine
from afec.parallel import group_here
from afec.randomness import forked, reseed, seed_from
from afec.stopping import Stop, StoppedError
from afec.strategy import Plateau, Schedule

__all__ = ["Data", "Epoch", "Fit", "LossFn", "NotFiniteError", "OnEpoch"]

LossFn = Callable[[nn.Module, Any], Tensor]


class NotFiniteError(FloatingPointError):
    """Training diverged."""


class Data(Protocol):
    """Samples that can be taken by number."""

    @property
    def size(self) -> int:
        """The number of samples."""
        ...

    @property
    def chunk(self) -> int:
        """How many to take at once where nothing is learned."""
        ...

    def take(self, rows: Tensor) -> Any:
        """The batch of these samples."""
        ...


@dataclass(frozen=True)
class Epoch:
    """What one epoch was trained at and came to."""

    number: int
    """Counted from 1."""
    lr: float
    loss: float
    """On the validation data, with what the guard adds; without such data, of the batches as they were learned."""
    best: bool
    """Whether its weights are the best so far."""


OnEpoch = Callable[[Epoch], None]
After = Callable[[float], None]


class Fit:
    """One training of one model.

    Args:
        model: the net; every weight that gets a gradient from `loss_fn` is trained.
        train: what to learn from.
        validation: what decides on decay, end and best weights; None, with a schedule that has neither of them.
        loss_fn: the mean loss of a batch, `loss_fn(model, batch)`.
        schedule: batch size, optimiser, learning rates, patience.
        seed: of the shuffling and of anything random in the model. Nothing outside sees it.
        machine: device, precision, memory format.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Data,
        validation: Data | None,
        loss_fn: LossFn,
        schedule: Schedule,
        seed: int,
        machine: Machine | None = None,
    ) -> None:
        if validation is None:
            schedule.check_without_validation()
        self.model, self.train, self.validation = model, train, validation
        self.loss_fn, self.schedule, self.seed = loss_fn, schedule, seed
        self.machine = machine or Machine()
        self.scaler = self.machine.scaler()
        self._runner = self.machine.runner(model)
        self.plateau = Plateau(schedule)
        self.optimizer = schedule.new_optimizer(model, self.plateau.lr)
        self.history: list[float] = []
        """The loss of each epoch, see `Epoch.loss`."""
        self.loss: float | None = None
        """The loss of the latest epoch without what `extra_loss` adds."""
        self.best_epoch = 0
        """The epoch, counted from 1, whose weights the model has after `run`."""
        self._best: dict[str, Tensor] | None = None
        self._best_loss = math.inf  # of the best epoch, without what `extra_loss` adds
        self._better = False  # whether the latest epoch was the best so far

    @property
    def epochs(self) -> int:
        """How many epochs were run."""
        return len(self.history)

    @property
    def ended(self) -> bool:
        """Whether the schedule is at its end."""
        return self.plateau.ended or self.epochs >= self.schedule.max_epochs

    def run(
        self,
        *,
        extra_loss: Callable[[], float] | None = None,
        before_epoch: Callable[[], None] | None = None,
        after_step: After | None = None,
        after_epoch: After | None = None,
        on_best: Callable[[], None] | None = None,
        on_epoch: OnEpoch | None = None,
        stop: Stop | None = None,
    ) -> Fit:
        """Train to the end of the schedule; the weights that stay are in the model.

        Args:
            extra_loss: added to each validation loss, e.g. a guard's penalty for leaving the old weights.
            before_epoch: called before each epoch.
            after_step: called with the learning rate after each step; it may move the weights.
            after_epoch: the same, after each epoch and before its validation loss.
            on_best: called when the weights are the best so far.
            on_epoch: called after each epoch, e.g. for a progress bar or a checkpoint.
            stop: looked at after each epoch, after `on_epoch`: where it says so, `StoppedError` is raised.
        """
        with forked(self.seed, self.machine.torch_device) as generator:
            while not self.ended:
                seed = seed_from(self.seed, "epoch", self.epochs)
                reseed(seed)
                generator.manual_seed(seed)
                if before_epoch:
                    before_epoch()
                lr, total = self.plateau.lr, torch.zeros((), device=self.machine.torch_device)
                self.model.train()
                order = torch.randperm(self.train.size, generator=generator).to(self.machine.torch_device)
                for rows in _batches(order, self.schedule.batch_size):
                    self.optimizer.zero_grad()
                    loss = self._backward(rows)  # of several processes each has a share
                    if self.scaler is None:
                        self.optimizer.step()  # a guard's pull is in here
                    else:
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
                    if after_step:
                        after_step(lr)
                    if self.validation is None:
                        total += loss * len(rows)
                if after_epoch:
                    after_epoch(lr)
                self.loss = float(total) / self.train.size if self.validation is None else self.validation_loss()
                self._tell(self.loss, extra_loss() if extra_loss else 0.0, on_best)
                if on_epoch:
                    on_epoch(Epoch(self.epochs, lr, self.history[-1], self._better))
                if stop is not None and stop.asked:
                    raise StoppedError(f"stopped after epoch {self.epochs}, as was asked")
        if self._best is not None:
            self.model.load_state_dict(self._best)
        else:
            self.best_epoch = self.epochs
        return self

    def state_dict(self) -> dict[str, Any]:
        """All but the model's weights, as plain dictionaries; after an epoch, not inside one."""
        return {
            "plateau": self.plateau.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "history": list(self.history),
            "best_epoch": self.best_epoch,
            "best": self._best,
            "loss": self.loss,
            "best_loss": self._best_loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; the weights are loaded by the caller."""
        self.plateau.load_state_dict(state["plateau"])
        self.optimizer = self.schedule.new_optimizer(self.model, self.plateau.lr)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.history, self.best_epoch, self._best = list(state["history"]), state["best_epoch"], state["best"]
        self.loss, self._best_loss = state["loss"], state["best_loss"]

    @property
    def best(self) -> Mapping[str, Tensor] | None:
        """The weights of the best epoch so far, where they are kept."""
        return self._best

    def judge_best_again(self, extra: float) -> None:
        """What `extra_loss` adds has changed: at the best weights it would now be `extra`."""
        self.plateau.best = self._best_loss + extra

    def validation_loss(self) -> float:
        """The loss on the validation data with the present weights."""
        assert self.validation is not None, "there are validation data"
        return self._loss_on(self.validation)

    def _tell(self, plain: float, extra: float, on_best: Callable[[], None] | None) -> None:
        """The loss of an epoch decides on best weights, learning rate and optimiser."""
        loss = plain + extra
        if not math.isfinite(loss):
            kind = "training" if self.validation is None else "validation"
            raise NotFiniteError(
                f"the {kind} loss is {loss} after epoch {self.epochs + 1}: training diverged; "
                "lower the learning rate or the guard's strength"
            )
        self.history.append(loss)
        self._better, decayed = self.plateau.tell(loss)
        if self._better and self.schedule.best_weights:
            self.best_epoch, self._best, self._best_loss = self.epochs, _copy_of(self.model), plain
            if on_best:
                on_best()
        if decayed:
            self.optimizer = self.schedule.new_optimizer(self.model, self.plateau.lr)
        if (lr := self.schedule.lr_after(self.epochs, self.plateau.lr)) != self.plateau.lr:
            self.plateau.lr = lr
            for group in self.optimizer.param_groups:
                group["lr"] = self.plateau.lr

    def _backward(self, rows: Tensor) -> Tensor:
        """The loss of a batch, its gradients in `.grad`; in a group, of shares that are added up."""
        group = group_here()
        share = None if group is None else group.share(len(rows))
        whole = share is None or getattr(self.loss_fn, "augment", None) is not None  # all is augmented, then shared
        batch = self.train.take(rows if whole or share is None else share.of(rows))
        if group is None or share is None:
            with self.machine.precision():
                loss = self.loss_fn(self._runner, batch)
        else:
            with self.machine.precision(), group.sharing(share):
                shared = replace(self.loss_fn, share=share) if whole else self.loss_fn  # type: ignore[type-var]
                loss = shared(self._runner, batch) * share.part
        torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))
        found = loss.detach()
        if group is not None and share is not None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            found = found.clone()
            group.add_up([*gradients, found])
        return found

    def _loss_on(self, data: Data) -> float:
        self.model.eval()
        total, group = 0.0, group_here()
        everything = torch.arange(data.size, device=self.machine.torch_device)
        with torch.no_grad(), self.machine.precision():
            chunk = data.chunk if group is None else max(1, min(data.chunk, -(-data.size // group.size)))
            for number, rows in enumerate(torch.split(everything, chunk)):
                if group is None or group.mine(number):
                    total += self.loss_fn(self._runner, data.take(rows)).item() * len(rows)
        return (total if group is None else group.total(total)) / data.size


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """The rows in batches of `size`; a last batch of one sample, which batch-norm cannot normalise, joins the one before it."""
    batches = list(torch.split(order, size))
    if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
