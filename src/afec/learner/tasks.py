"""A task as the loop sees it: batches by row number, and the loss of a batch through the right head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Likelihood
from afec.learner.machine import Machine
from afec.nets import MultiHead
from afec.streams import Split, Task

__all__ = [
    "LIKELIHOOD",
    "Batches",
    "HeadLoss",
    "Mixture",
    "accuracy",
    "mixture_loss",
    "predict_in_chunks",
    "represent_in_chunks",
    "stored",
]


def _cosine(outputs: Tensor, targets: Tensor) -> Tensor:
    # Near the origin a direction means nothing, and its gradient grows without bound: there the loss is linear.
    return 1 - F.cosine_similarity(outputs, targets, eps=ORIGIN).mean()


def _angular(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - (outputs - targets).cos().mean()


ORIGIN = 0.1
CRITERIA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "cosine": _cosine,
    "angular": _angular,
}
LIKELIHOOD: dict[str, Likelihood] = {"cross_entropy": "categorical", "mse": "gaussian"}
"""What a loss is the negative log of, where that is known. The mean square of two coordinates is ½‖·‖², a Gaussian's of unit
variance."""


def stored(split: Split, machine: Machine) -> Split:
    """The whole split on the device: small data need no loader."""
    return Split(machine.stored(split.inputs), split.targets.to(machine.torch_device))


@dataclass(frozen=True)
class Batches:
    """The samples of one split."""

    split: Split
    chunk: int = 1024
    """How many at once where nothing is learned."""

    @property
    def size(self) -> int:
        """How many samples."""
        return self.split.size

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these rows."""
        return self.split.inputs[rows], self.split.targets[rows]


@dataclass(frozen=True)
class HeadLoss:
    """The mean loss of a batch of one task, and its outputs: both through the task's own head."""

    number: int
    kind: str
    machine: Machine
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    chunk: int = 1024

    @classmethod
    def of(cls, number: int, task: Task, machine: Machine) -> HeadLoss:
        """The loss of `task`, which has head number `number`."""
        return cls(number, task.loss, machine, task.prepare, task.augment, task.chunk)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss."""
        return self.between(self.outputs(model, batch), batch[1])

    def between(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of outputs that are there already."""
        return CRITERIA[self.kind](outputs, targets)

    def through(self, head: int) -> HeadLoss:
        """The same loss through another head."""
        return replace(self, number=head)

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """What the head says; of augmented inputs where the model is in training mode."""
        inputs: Tensor = batch[0]
        if self.augment is not None and model.training:
            inputs = self.augment(inputs)
        outputs: Tensor = model(self.prepared(inputs), task=self.number)
        return outputs

    def prepared(self, inputs: Tensor) -> Tensor:
        """A batch as the net takes it."""
        return self.machine.batch(inputs if self.prepare is None else self.prepare(inputs))


Says = Callable[[HeadLoss, Any], Tensor]
"""How a batch's outputs are made, where that is not what the head says."""


class Mixture:
    """The samples of several tasks in one: a batch is a list of (task's number, inputs, targets)."""

    def __init__(self, splits: Sequence[Split], chunk: int = 1024) -> None:
        self.splits, self.chunk = splits, chunk
        sizes = torch.tensor([split.size for split in splits])
        self.ends = sizes.cumsum(0)
        self.starts = self.ends - sizes

    @property
    def size(self) -> int:
        """How many samples in all."""
        return int(self.ends[-1])

    def take(self, rows: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """These rows, task by task."""
        parts = []
        for number, split in enumerate(self.splits):
            inside = rows[(rows >= self.starts[number]) & (rows < self.ends[number])] - self.starts[number]
            if len(inside):
                parts.append((number, split.inputs[inside], split.targets[inside]))
        return parts


def mixture_loss(losses: Sequence[HeadLoss], model: nn.Module, batch: list[tuple[int, Tensor, Tensor]]) -> Tensor:
    """The mean over all samples of a mixed batch."""
    size = sum(len(inputs) for _, inputs, _ in batch)
    parts = [losses[number](model, (inputs, targets)) * (len(inputs) / size) for number, inputs, targets in batch]
    return torch.stack(parts).sum()


def predict_in_chunks(model: nn.Module, loss: HeadLoss, inputs: Tensor, says: Says | None = None) -> Tensor:
    """The outputs for all `inputs`, in eval mode and without gradients; the mode is put back."""

    def ask(part: Tensor) -> Tensor:
        return loss.outputs(model, (part,)) if says is None else says(loss, (part,))

    return _in_chunks(model, ask, inputs, loss).cpu()


def represent_in_chunks(net: MultiHead, number: int, task: Task, inputs: Tensor, machine: Machine) -> Tensor:
    """The features of all `inputs` of `task`, by the net as it is for its task `number`; on the device."""
    loss = HeadLoss.of(number, task, machine)
    return _in_chunks(net, lambda part: net.represent(loss.prepared(part), number), inputs, loss)


def _in_chunks(model: nn.Module, ask: Callable[[Tensor], Tensor], inputs: Tensor, loss: HeadLoss) -> Tensor:
    mode, device = model.training, loss.machine.torch_device
    model.eval()
    try:
        with torch.no_grad(), loss.machine.precision():
            return torch.cat([ask(part.to(device)).float() for part in torch.split(inputs, loss.chunk)])
    finally:
        model.train(mode)


def accuracy(model: nn.Module, loss: HeadLoss, task: Task, split: Split, says: Says | None = None) -> float:
    """The fraction of the split whose class is read off rightly."""
    outputs = predict_in_chunks(model, loss, split.inputs, says=says)
    return task.accuracy(outputs, Split(split.inputs, split.targets.cpu()))
