"""iCaRL (Rebuffi et al. 2017): replay with distillation, and the class whose exemplars' mean is nearest.

    softmax    L(θ) = CE(new ∪ exemplars) + λ·T²·KL(softmax(old net/T) ‖ softmax(net/T)), over the outputs of old classes
    sigmoid    L(θ) = Σ_c BCE(σ(output_c), target_c), where target_c is what the old net says of an old class c, and 1 or 0
               for a new one (iCaRL's own paper)

    prediction    argmin_c ‖φ(x) − μ_c‖, φ the features at length 1, μ_c the mean of φ over the exemplars of c

`softmax` is how later papers compare with it, LUCIR's and those with the figures that the AFEC paper quotes; it is stable.

    learner = afec.Learner(backbone, afec.ICaRL(per_class=20))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.guard import State, option
from afec.methods.distillation import sigmoid_cross_entropy
from afec.methods.lwf import Distilled
from afec.methods.replay import Replay, old_net, old_outputs
from afec.nets import SingleHead
from afec.strategy import Exemplars, TaskContext, TaskLoss, Training

__all__ = ["ICaRL", "class_means"]


@dataclass(frozen=True)
class SigmoidLoss:
    """Every class by itself: new ones by their labels, old ones by what the old net says."""

    loss: TaskLoss
    old: SingleHead | None = None
    count: int = 0
    strength: float = 1.0

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        inputs = self.loss.inputs(model, batch)
        outputs = model(inputs)
        labels = F.one_hot(batch[1], outputs.shape[1]).to(outputs)
        if self.old is None:
            return sigmoid_cross_entropy(outputs, labels)
        with torch.no_grad():
            before = self.old(inputs)[:, : self.count].sigmoid()
        new = sigmoid_cross_entropy(outputs[:, self.count :], labels[:, self.count :])
        return new + self.strength * sigmoid_cross_entropy(outputs[:, : self.count], before)


def class_means(features: Tensor, targets: Tensor) -> Tensor:
    """The mean of the features at length 1 over each class, itself brought to length 1; one row a class."""
    units = F.normalize(features, dim=1)
    return F.normalize(torch.stack([units[targets == one].mean(0) for one in sorted(set(targets.tolist()))]), dim=1)


@final
class ICaRL(Replay):
    """Keep up what the old net says, and answer with the class of the nearest mean."""

    name = "icarl"

    strength: float = option(
        default=1.0, symbol="λ", at_least=0, doc="λ ≥ 0 of the distillation. Zero switches it off."
    )
    distillation: Literal["softmax", "sigmoid"] = option(
        default="softmax", paper="sigmoid", doc="`softmax` over all old classes, or each class's `sigmoid`."
    )
    temperature: float = option(default=2.0, symbol="T", above=0, doc="T > 0 of the `softmax` distillation.")
    prediction: Literal["nearest-mean", "classifier"] = option(
        default="nearest-mean", doc="By the `nearest-mean` of exemplars, or by the `classifier`'s largest output."
    )

    def training(self, context: TaskContext, memory: Exemplars) -> Training:
        """The first phase without distillation."""
        first = context.number == 0
        loss: object = context.loss
        if self.distillation == "sigmoid":
            more = () if first else (old_net(context), old_outputs(context), self.strength)
            loss = SigmoidLoss(context.loss, *more)
        elif not first:
            loss = Distilled(context.loss, old_net(context), old_outputs(context), self.strength, self.temperature)
        return self.on_all(context, memory, loss, pure=first)

    def kept(self, context: TaskContext, memory: Exemplars) -> State:
        """The means that predictions are made by."""
        inputs, targets = memory.split()
        return {"means": class_means(context.features(context.net, inputs), targets)}

    def outputs(self, net: nn.Module, loss: TaskLoss, batch: Any) -> Tensor:
        """Minus the distance of the features to each class's mean, or the classifier's outputs."""
        if self.prediction == "classifier" or "means" not in self.state:
            return super().outputs(net, loss, batch)
        assert isinstance(net, SingleHead), "needs_classes"
        units = F.normalize(net.features(loss.inputs(net, batch)), dim=1)
        return -torch.cdist(units, self.state["means"].to(units))

    def prediction_state(self) -> State:
        """The means alone: no image is in a file for prediction."""
        return {"means": self.state["means"]} if "means" in self.state else {}
