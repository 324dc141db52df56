"""LwF, learning without forgetting (Li & Hoiem 2016), in the scenario `class`: distillation without a memory.

    L(θ) = CE(new images, among the new classes) + λ·T²·KL(softmax(old net/T) ‖ softmax(net/T)), over old classes' outputs

No image is kept. It shows what distillation does by itself.

    learner = afec.Learner(backbone, afec.LwF(strength=1))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from afec.guard import OptionFields, option
from afec.methods.distillation import softened_divergence
from afec.methods.replay import old_net, old_outputs, remember
from afec.nets import SingleHead
from afec.strategy import Strategy, TaskContext, TaskLoss, Training

__all__ = ["Distilled", "LwF"]


@dataclass(frozen=True)
class Distilled:
    """The task's own loss, and how far the outputs of old classes have gone from the old net's."""

    loss: TaskLoss
    old: SingleHead
    count: int
    """How many outputs belong to old classes."""
    strength: float
    temperature: float
    first: int = 0
    """The task's own loss is over the outputs from this one on."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        inputs = self.loss.inputs(model, batch)
        outputs = model(inputs)
        with torch.no_grad():
            before = self.old(inputs)[:, : self.count]
        far = softened_divergence(outputs[:, : self.count], before, self.temperature)
        return self.loss.between(outputs[:, self.first :], batch[1] - self.first) + self.strength * far


@final
class LwF(OptionFields, Strategy):
    """Learn the new classes, and say of their images what the old net says, among the old classes."""

    name = "lwf"
    needs_classes = True
    guards_rows = False

    strength: float = option(
        default=1.0, kw_only=False, symbol="λ", at_least=0, doc="λ ≥ 0 of the distillation. Zero switches it off."
    )
    temperature: float = option(default=2.0, symbol="T", above=0, doc="T > 0 of the distillation.")
    among: Literal["new", "all"] = option(
        default="new", doc="Whether new images are told among the `new` classes, or among `all` so far."
    )

    def trainings(self, context: TaskContext) -> Iterator[Training]:
        """One training; in the first phase by the task's own loss."""
        if context.number == 0:
            yield Training("train", context.net, context.loss, pure=True)
            return
        remember(context)
        count = old_outputs(context)
        first = count if self.among == "new" else 0
        loss = Distilled(context.loss, old_net(context), count, self.strength, self.temperature, first)
        yield Training("train", context.net, loss)
