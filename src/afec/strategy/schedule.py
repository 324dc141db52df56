"""How long to train, at which learning rate, and which weights stay: the options of the training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

__all__ = ["Plateau", "Schedule", "Select"]

Select = Literal["penalised", "old-penalised", "loss"]


@dataclass(frozen=True)
class Schedule:
    """The plateau rule of the paper's code, each part of which can be switched off.

    After `patience` epochs without a better validation loss the learning rate falls to a third and the optimiser starts
    anew; training ends when the learning rate falls below `lr_min`, or after `max_epochs`; the weights of the best
    validation loss come back. The paper's code always trains 100 epochs: `max_epochs=100, patience=5, lr_min=0`.
    """

    batch_size: int = 64
    lr: float = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9
    """The momentum of `sgd`."""
    weight_decay: float = 0.0
    max_epochs: int = 10_000
    """The end in any case."""
    patience: int | None = 10
    """Epochs without a better validation loss before the learning rate falls. None: it never falls."""
    lr_steps: tuple[float, ...] | Literal["cosine"] = ()
    """After these parts of `max_epochs` the learning rate falls as well, whatever the loss; the optimiser goes on with it. The
    paper's code for large images: `max_epochs=40, lr_steps=(0.75,), decay=10`, from the 31st epoch on. `cosine`: it
    falls after every epoch, along half a cosine from `lr` to 0 at `max_epochs`; with `patience=None` and `lr_min=0`."""
    decay: float = 3.0
    """What the learning rate is divided by."""
    lr_min: float = 1e-5
    """Training ends when the learning rate falls below it. 0: it goes on to `max_epochs`."""
    best_weights: bool = True
    """Whether the weights of the best validation loss come back at the end; otherwise the last ones stay."""
    select: Select = "penalised"
    """What decides on decay and best weights: the validation loss with the guard's whole penalty (what is minimised), with the
    pull to the old tasks only (the released code), or alone. The weights of the lowest loss alone would be those of an early
    epoch that has left the old weights and not yet come back."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_epochs", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Schedule's {name} must be at least 1; got {value}")
        if not 0 <= self.lr_min <= self.lr < math.inf or self.lr == 0 or not 1 < self.decay < math.inf:
            raise ValueError(
                "Schedule needs 0 <= lr_min <= lr, lr > 0 and decay > 1; "
                f"got lr_min={self.lr_min}, lr={self.lr}, decay={self.decay}"
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise ValueError(
                "Schedule needs 0 <= momentum < 1 and weight_decay >= 0; "
                f"got momentum={self.momentum}, weight_decay={self.weight_decay}"
            )
        if self.lr_steps == "cosine":
            if self.patience is not None or self.lr_min > 0:
                raise ValueError(
                    "Schedule's lr_steps='cosine' is the whole course of the rate, so it goes with patience=None ('off' "
                    f"in a benchmark) and lr_min=0; got patience={self.patience}, lr_min={self.lr_min}"
                )
        elif list(self.lr_steps) != sorted(set(self.lr_steps)) or not all(0 < part < 1 for part in self.lr_steps):
            raise ValueError(
                "Schedule's lr_steps are parts of max_epochs, each above 0 and below 1, in order, such as (0.5, 0.75); "
                f"got {self.lr_steps}"
            )
        if self.optimizer not in ("adam", "sgd"):
            raise ValueError(f"Schedule's optimizer must be 'adam' or 'sgd'; got {self.optimizer!r}")
        if self.select not in ("penalised", "old-penalised", "loss"):
            raise ValueError(f"Schedule's select must be 'penalised', 'old-penalised' or 'loss'; got {self.select!r}")

    def lr_after(self, epochs: int, lr: float) -> float:
        """The learning rate after so many epochs, whatever the loss; so far it is `lr`."""
        if self.lr_steps == "cosine":
            return 0.5 * self.lr * (1 + math.cos(math.pi * epochs / self.max_epochs))
        return lr / self.decay if epochs in [round(part * self.max_epochs) for part in self.lr_steps] else lr

    def constant(self, epochs: int, part: float) -> Schedule:
        """The same with so many epochs at one learning rate, a part of the first one's, and the last weights."""
        lr = part * self.lr
        return replace(self, max_epochs=epochs, lr=lr, lr_steps=(), patience=None, lr_min=0, best_weights=False)

    def check_without_validation(self) -> None:
        """Raise where this cannot be done without validation data."""
        if self.patience is not None or self.best_weights:
            raise ValueError(
                f"there are no validation data, and this schedule needs some: patience={self.patience}, "
                f"best_weights={self.best_weights}. Use patience=None ('off' in a benchmark) and best_weights=False, with "
                "max_epochs as the end and lr_steps for the learning rate, or give the tasks a validation split"
            )

    def new_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """A fresh optimiser over all weights that train. Fused: one call for all tensors, a tenth off a small net's step."""
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        fused = all(weight.is_floating_point() for weight in weights)
        if self.optimizer == "sgd":
            return torch.optim.SGD(weights, lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=fused)
        return torch.optim.Adam(weights, lr, weight_decay=self.weight_decay, fused=fused)


class Plateau:
    """The plateau rule alone: told each epoch's validation loss, it says what to do."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.lr = schedule.lr
        self.best = math.inf
        self.left = schedule.patience

    def tell(self, loss: float) -> tuple[bool, bool]:
        """Whether `loss` is the best so far (strictly), and whether the learning rate fell because of it."""
        if loss < self.best:
            self.best, self.left = loss, self.schedule.patience
            return True, False
        if self.left is None:
            return False, False
        self.left -= 1
        if self.left > 0:
            return False, False
        # The best loss is not forgotten and the weights are not rolled back: only the step gets smaller.
        self.lr, self.left = self.lr / self.schedule.decay, self.schedule.patience
        return False, True

    @property
    def ended(self) -> bool:
        """Whether the learning rate has fallen below its minimum."""
        return self.lr < self.schedule.lr_min

    def state_dict(self) -> dict[str, Any]:
        """Where the rule stands."""
        return {"lr": self.lr, "best": self.best, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict()` was taken."""
        self.lr, self.best, self.left = state["lr"], state["best"], state["left"]
