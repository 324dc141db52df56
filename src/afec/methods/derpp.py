"""DER++, dark experience replay (Buzzega et al. 2020): exemplars with the outputs that the net gave them at the time.

    L(θ) = CE(new images) + α·MSE(outputs, kept outputs)(exemplars) + β·CE(exemplars)

Its paper fills the memory by reservoir sampling, without ends of tasks; here tasks end, so exemplars are chosen, and their
outputs kept, when a phase is over. Outputs of classes that came later are not compared.

    learner = afec.Learner(backbone, afec.DERPP(alpha=0.5, beta=0.5))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.guard import State, option
from afec.methods.replay import Replay
from afec.strategy import Exemplars, TaskContext, TaskLoss, Training

__all__ = ["DERPP"]


@dataclass(frozen=True)
class DarkReplay:
    """The loss of a batch in which the k-th exemplar has the target −1 − k."""

    loss: TaskLoss
    targets: Tensor
    outputs: Tensor
    """Of the exemplars, NaN for classes of later phases."""
    alpha: float
    beta: float

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The three terms, each a mean over its own samples."""
        outputs, targets = self.loss.outputs(model, batch), batch[1]
        old = targets < 0
        total = self.loss.between(outputs[~old], targets[~old]) if bool((~old).any()) else outputs.sum() * 0
        if bool(old.any()):
            rows = -1 - targets[old]
            kept = self.outputs[rows]
            there = ~kept.isnan()
            total = total + self.beta * self.loss.between(outputs[old], self.targets[rows])
            total = total + self.alpha * F.mse_loss(outputs[old][:, : kept.shape[1]][there], kept[there])
        return total


@final
class DERPP(Replay):
    """Replay exemplars with their classes, and with the outputs of their time."""

    name = "derpp"

    alpha: float = option(
        default=0.5, symbol="α", at_least=0, doc="α ≥ 0 of the kept outputs. Zero: none are compared."
    )
    beta: float = option(default=0.5, symbol="β", at_least=0, doc="β ≥ 0 of the exemplars' classes. Zero: not learned.")

    def training(self, context: TaskContext, memory: Exemplars) -> Training:
        """The first phase by the task's own loss."""
        if memory.size == 0:
            return self.on_all(context, memory, context.loss, pure=True)
        inputs, targets = memory.split()
        loss = DarkReplay(context.loss, targets, context.state["outputs"], self.alpha, self.beta)
        marked = replace(memory, targets=-1 - torch.arange(len(inputs), device=targets.device))
        return replace(self.on_all(context, memory, loss), data=marked.with_data(*self.new_data(context)))

    def kept(self, context: TaskContext, memory: Exemplars) -> State:
        """The outputs of every exemplar from the phase in which it was chosen."""
        inputs, targets = memory.split()
        found = context.predict(context.net, inputs)
        if context.number > 0:
            first = sum(context.net.sizes[: context.number])
            before = context.state["outputs"][context.task_state["rows"]]
            found[targets < first] = torch.nan
            found[targets < first, : before.shape[1]] = before
        return {"outputs": found}
