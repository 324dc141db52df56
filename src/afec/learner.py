"""The one training loop of the house: one task, trained to the end.

The plateau rule of the paper's code: after `patience` epochs without a better validation loss the learning
rate falls to a third and Adam starts anew; training ends when the learning rate falls below `lr_min`, and the
weights of the best validation loss come back. The same loop trains θ, inside `guard.learning(...)`, and θ_e, as
`AFEC(expand=...)`; the guard's pull enters through the optimiser's step, so nothing here knows about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from afec.randomness import forked
from afec.streams.task import Split

__all__ = ["Epoch", "LossFn", "OnEpoch", "Plateau", "Schedule", "Training", "predict", "train_to_end"]

LossFn = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


@dataclass(frozen=True)
class Schedule:
    """When to decay, when to stop."""

    batch_size: int = 64
    lr: float = 1e-3
    decay: float = 3.0
    """What the learning rate is divided by."""
    lr_min: float = 1e-5
    """Training ends when the learning rate falls below it."""
    patience: int = 10
    """Epochs without a better validation loss before the learning rate falls."""
    max_epochs: int = 10_000
    """A limit in any case."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "patience", "max_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"Schedule's {name} must be at least 1; got {getattr(self, name)}")
        if not 0 < self.lr_min <= self.lr < math.inf or self.decay <= 1:
            raise ValueError(
                "Schedule needs 0 < lr_min <= lr and decay > 1; "
                f"got lr_min={self.lr_min}, lr={self.lr}, decay={self.decay}"
            )


@dataclass(frozen=True)
class Epoch:
    """What one epoch was trained at and came to."""

    lr: float
    validation_loss: float


OnEpoch = Callable[[Epoch], None]


@dataclass(frozen=True)
class Training:
    """What a training took."""

    history: tuple[Epoch, ...]
    best_epoch: int
    """The epoch, counted from 1, whose weights the model has now."""

    @property
    def epochs(self) -> int:
        """How many epochs were run."""
        return len(self.history)


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


def train_to_end(
    model: nn.Module,
    train: Split,
    validation: Split,
    loss_fn: LossFn,
    schedule: Schedule,
    seed: int,
    *,
    extra_loss: Callable[[], float] | None = None,
    on_epoch: OnEpoch | None = None,
) -> Training:
    """Train `model` in place until more epochs no longer lower the validation loss; its best weights stay.

    Args:
        model: the net; every weight that gets a gradient from `loss_fn` is trained.
        train: what to learn from.
        validation: what decides on decay, end and best weights.
        loss_fn: the mean loss of a batch, `loss_fn(model, (inputs, targets))`.
        schedule: batch size, learning rates, patience.
        seed: of the shuffling and of anything random in the model. Nothing outside sees it.
        extra_loss: added to each validation loss, e.g. a guard's penalty for leaving the old weights.
        on_epoch: called after each epoch, e.g. for a progress bar.
    """
    plateau = Plateau(schedule)
    history: list[Epoch] = []
    best_epoch, best_weights = 0, _copy_of(model)
    optimizer = _adam(model, plateau.lr)
    with forked(seed) as generator:
        while not plateau.ended and len(history) < schedule.max_epochs:
            _one_epoch(model, optimizer, train, loss_fn, schedule.batch_size, generator)
            loss = _mean_loss(model, validation, loss_fn) + (extra_loss() if extra_loss else 0.0)
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the validation loss is {loss} after epoch {len(history) + 1}: training diverged; "
                    "lower the learning rate or the guard's strength"
                )
            history.append(Epoch(plateau.lr, loss))
            better, decayed = plateau.tell(loss)
            if better:
                best_epoch, best_weights = len(history), _copy_of(model)
            if decayed:
                optimizer = _adam(model, plateau.lr)
            if on_epoch:
                on_epoch(history[-1])
    model.load_state_dict(best_weights)
    return Training(tuple(history), best_epoch)


def predict(model: Callable[[Tensor], Tensor], inputs: Tensor, chunk: int = 1024) -> Tensor:
    """The outputs of `model` for all `inputs`, without gradients. The caller sets the mode."""
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(inputs, chunk)])


def _adam(model: nn.Module, lr: float) -> torch.optim.Adam:
    # Fused: one call for all tensors, a tenth off the step of a small net.
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr, fused=True)


def _one_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Split,
    loss_fn: LossFn,
    batch_size: int,
    generator: torch.Generator,
) -> None:
    model.train()
    order = torch.randperm(data.size, generator=generator)
    for rows in torch.split(order, batch_size):
        optimizer.zero_grad()
        torch.autograd.backward(loss_fn(model, (data.inputs[rows], data.targets[rows])))
        optimizer.step()


def _mean_loss(model: nn.Module, data: Split, loss_fn: LossFn, chunk: int = 1024) -> float:
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in zip(torch.split(data.inputs, chunk), torch.split(data.targets, chunk), strict=True):
            total += loss_fn(model, (inputs, targets)).item() * len(inputs)
    return total / data.size


def _copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
