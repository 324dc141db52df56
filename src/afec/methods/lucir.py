"""LUCIR, a unified classifier by rebalancing (Hou et al. 2019): replay with a cosine classifier.

    L(θ) = CE(σ·cos) + λ_base·√(n_old/n_new)·(1 − cos(φ(x), φ_old(x)))
           + the mean over old exemplars x and its K nearest new classes c of (m − cos_y(x) + cos_c(x))₊

φ are the features, n_old and n_new how many classes there are. Rows of old classes stay as they are; those of new classes
begin as the mean direction of their images' features (imprinting), at the mean length of the old rows.

    learner = afec.Learner(backbone, afec.LUCIR(per_class=20))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.guard import option
from afec.methods.replay import Replay, class_features, old_net, old_outputs, single_head
from afec.nets import SingleHead
from afec.strategy import Exemplars, TaskContext, TaskLoss, Training

__all__ = ["LUCIR", "imprint_cosine", "less_forget", "margin_ranking"]


def less_forget(features: Tensor, before: Tensor) -> Tensor:
    """1 − the cosine between the features now and before, a mean over the batch."""
    return (1 - F.cosine_similarity(features, before, dim=1)).mean()


def margin_ranking(cosines: Tensor, targets: Tensor, old: int, margin: float, nearest: int) -> Tensor:
    """How far the highest new classes come up to the true one, for samples of the first `old` classes; 0 without such."""
    of_old = targets < old
    if not bool(of_old.any()) or cosines.shape[1] == old:
        return cosines.new_zeros(())
    true = cosines[of_old].gather(1, targets[of_old, None])
    highest = cosines[of_old][:, old:].topk(min(nearest, cosines.shape[1] - old), dim=1).values
    return (margin - true + highest).clamp(min=0).mean()


@dataclass(frozen=True)
class UnifiedLoss:
    """The three terms of a phase with old classes."""

    loss: TaskLoss
    old: SingleHead
    count: int
    """How many outputs belong to old classes."""
    frozen: int
    """The rows of so many tasks stay as they are."""
    strength: float
    ranking: float
    margin: float
    nearest: int

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        inputs, net = self.loss.inputs(model, batch), model
        features = net.features(inputs)  # type: ignore[operator]
        cosines = net.classify(features, frozen=self.frozen, scaled=False)  # type: ignore[operator]
        total = self.loss.between(net.scale * cosines, batch[1])
        if self.strength > 0:
            with torch.no_grad():
                before = self.old.features(inputs)
            total = total + self.strength * less_forget(features, before)
        if self.ranking > 0:
            ranked = margin_ranking(cosines, batch[1], self.count, self.margin, self.nearest)
            total = total + self.ranking * ranked
        return total


@torch.no_grad()
def imprint_cosine(context: TaskContext) -> None:
    """The new rows: the mean direction of each class's features, as long as the old rows are on average."""
    net = single_head(context)
    length = torch.cat([block.weight.norm(dim=1) for block in net.blocks[:-1]]).mean()  # type: ignore[operator]
    rows = [F.normalize(F.normalize(one, dim=1).mean(0), dim=0) for one in class_features(context).values()]
    net.blocks[-1].weight.copy_(length * torch.stack(rows))  # type: ignore[operator]


@final
class LUCIR(Replay):
    """Keep the direction of the features, and old classes apart from new ones."""

    name = "lucir"
    classifier = "cosine"

    strength: float = option(
        default=5.0,
        symbol="λ_base",
        at_least=0,
        doc="λ_base ≥ 0 of the less-forget term: 5 for CIFAR, 10 for ImageNet. Zero: off.",
    )
    adaptive: bool = option(default=True, doc="Whether λ_base is multiplied by √(n_old/n_new).")
    ranking: float = option(default=1.0, at_least=0, doc="The weight of the margin ranking. Zero: off.")
    margin: float = option(default=0.5, symbol="m", at_least=0, doc="m ≥ 0, by which an old class should be ahead.")
    nearest: int = option(
        default=2, symbol="K", at_least=1, doc="K, how many new classes an old one is kept apart from."
    )
    imprint: bool = option(default=True, doc="Whether new rows begin as the mean features of their classes.")
    freeze: bool = option(default=True, doc="Whether the rows of old classes stay as they are.")
    finetune_epochs: int = option(
        default=0,
        at_least=0,
        doc="Epochs of balanced fine-tuning on exemplars of all classes: 20 for ImageNet. Zero: none.",
    )
    finetune_lr: float = option(
        default=0.1, above=0, doc="The learning rate of the fine-tuning, as a part of the schedule's."
    )

    def prepare(self, context: TaskContext) -> None:
        """Imprinting."""
        if self.imprint:
            imprint_cosine(context)

    def training(self, context: TaskContext, memory: Exemplars) -> Training:
        """The first phase by the task's own loss."""
        if context.number == 0:
            return self.on_all(context, memory, context.loss, pure=True)
        old, new = old_outputs(context), len(context.classes)
        strength = self.strength * ((old / new) ** 0.5 if self.adaptive else 1.0)
        frozen = context.number if self.freeze else 0
        weights = (strength, self.ranking, self.margin, self.nearest)
        return self.on_all(context, memory, UnifiedLoss(context.loss, old_net(context), old, frozen, *weights))

    @property
    def epochs_after(self) -> int:
        """Those of the fine-tuning."""
        return self.finetune_epochs

    def after(self, context: TaskContext, memory: Exemplars) -> Iterator[Training]:
        """Balanced fine-tuning of the whole net, where it is asked for."""
        if self.finetune_epochs and context.number > 0:
            schedule = context.schedule.constant(self.finetune_epochs, self.finetune_lr)
            data = memory.split()
            yield Training("finetune", context.net, context.loss, data=data, schedule=schedule, guarded=False)
