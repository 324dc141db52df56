"""A task as the loop sees it: batches by row number, and the loss of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Likelihood
from afec.learner.machine import Machine
from afec.nets import Readout
from afec.parallel import Share
from afec.streams import Split, Task

__all__ = [
    "LIKELIHOOD",
    "BatchLoss",
    "Batches",
    "Mixture",
    "features_of",
    "in_chunks",
    "mixture_loss",
    "outputs_of",
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


def stored(split: Split, machine: Machine, net: Readout | None = None, number: int = 0) -> Split:
    """The whole split on the device, with the targets of the net's outputs: small data need no loader."""
    targets = split.targets if net is None else net.output_targets(number, split.targets)
    return Split(machine.stored(split.inputs), targets.to(machine.torch_device))


@dataclass(frozen=True)
class Batches:
    """The samples of one split."""

    split: Split
    chunk: int = 1024
    """How many at once where nothing is learned."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return self.split.size

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these rows."""
        return self.split.inputs[rows], self.split.targets[rows]


@dataclass(frozen=True)
class BatchLoss:
    """The mean loss of a batch of one task: of a model's outputs for the task, and of the targets."""

    number: int
    kind: str
    machine: Machine
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    chunk: int = 1024
    share: Share | None = field(default=None, repr=False)
    """The part of each batch that is this process's, where the batch itself is whole."""

    @classmethod
    def of(cls, number: int, task: Task, machine: Machine) -> BatchLoss:
        """The loss of `task`, whose number is `number`."""
        return cls(number, task.loss, machine, task.prepare, task.augment, task.chunk)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.between(self.outputs(model, batch), batch[1] if self.share is None else self.share.of(batch[1]))

    def between(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of outputs that are there already."""
        return CRITERIA[self.kind](outputs, targets)

    def of_task(self, number: int) -> BatchLoss:
        """The same loss, where the model is asked for its outputs of another task."""
        return replace(self, number=number)

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """The model's outputs; of augmented inputs where the model is in training mode."""
        outputs: Tensor = model(self.inputs(model, batch), task=self.number)
        return outputs

    def inputs(self, model: nn.Module, batch: Any) -> Tensor:
        """The inputs of a batch, augmented where the model is in training mode, and prepared."""
        inputs = batch[0] if self.augment is None or not model.training else self.augment(batch[0])
        return self.prepared(inputs if self.share is None else self.share.of(inputs))

    def prepared(self, inputs: Tensor) -> Tensor:
        """A batch as the net takes it."""
        return self.machine.batch(inputs if self.prepare is None else self.prepare(inputs))


class Mixture:
    """The samples of several tasks in one: a batch is a list of (task's number, inputs, targets)."""

    def __init__(self, splits: Sequence[Split], chunk: int = 1024) -> None:
        self.splits, self.chunk = splits, chunk
        sizes = torch.tensor([split.size for split in splits])
        self.ends = sizes.cumsum(0)
        self.starts = self.ends - sizes

    @property
    def size(self) -> int:
        """How many samples there are in all."""
        return int(self.ends[-1])

    def take(self, rows: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """These rows, task by task."""
        parts = []
        for number, split in enumerate(self.splits):
            inside = rows[(rows >= self.starts[number]) & (rows < self.ends[number])] - self.starts[number]
            if len(inside):
                parts.append((number, split.inputs[inside], split.targets[inside]))
        return parts


def mixture_loss(losses: Sequence[BatchLoss], net: Readout, batch: list[tuple[int, Tensor, Tensor]]) -> Tensor:
    """The mean over all samples of a mixed batch; where the tasks share their outputs, in one pass."""
    if net.scenario == "class":
        inputs = torch.cat([losses[number].inputs(net, (part,)) for number, part, _ in batch])
        return losses[0].between(net(inputs, task=0), torch.cat([targets for _, _, targets in batch]))
    size = sum(len(inputs) for _, inputs, _ in batch)
    parts = [losses[number](net, (inputs, targets)) * (len(inputs) / size) for number, inputs, targets in batch]
    return torch.stack(parts).sum()


def in_chunks(model: nn.Module, ask: Callable[[Tensor], Tensor], inputs: Tensor, loss: BatchLoss) -> Tensor:
    """What `ask` makes of all inputs, with the model in eval mode and without gradients; the mode is put back."""
    mode, device = model.training, loss.machine.torch_device
    model.eval()
    try:
        with torch.no_grad(), loss.machine.precision():
            return torch.cat([ask(part.to(device)).float() for part in torch.split(inputs, loss.chunk)])
    finally:
        model.train(mode)


def outputs_of(model: nn.Module, loss: BatchLoss, inputs: Tensor) -> Tensor:
    """A model's outputs for all inputs, in eval mode."""
    return in_chunks(model, lambda part: loss.outputs(model, (part,)), inputs, loss)


def features_of(net: Readout, loss: BatchLoss, inputs: Tensor) -> Tensor:
    """A net's features of all inputs, in eval mode."""
    return in_chunks(net, lambda part: net.features(loss.prepared(part), loss.number), inputs, loss)
