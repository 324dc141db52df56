"""PODNet (Douillard et al. 2020): replay with several proxies a class, and pooled feature maps that stay as they were.

    ŷ_c = Σ_k s_{c,k}·cos(θ_{c,k}, φ(x)),  s = softmax over the proxies k of a class
    NCA        [log Σ_{i≠y} exp(η·ŷ_i) − η·(ŷ_y − δ)]₊
    POD-flat   λ_f·√(n_seen/n_new)·(1 − cos(φ(x), φ_old(x)))
    POD-spatial  λ_s·√(n_seen/n_new)·the mean over maps h of ‖n(p(h)) − n(p(h_old))‖,
                 p: squares, summed over the width and over the height, one behind the other; n: brought to length 1

Proxies of old classes stay; those of new classes begin as k-means of their images' features (imprinting). After each later
phase the classifier alone is fine-tuned on the exemplars of all classes.

    learner = afec.Learner(backbone, afec.PODNet(per_class=20))     # a backbone with feature maps: resnet32, resnet18, digits
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.guard import option
from afec.methods.lucir import less_forget
from afec.methods.replay import Replay, class_features, old_net, single_head
from afec.nets import HasMaps, Readout, SingleHead
from afec.randomness import forked
from afec.strategy import Exemplars, TaskContext, TaskLoss, Training

__all__ = ["NCA", "PODNet", "k_means", "nca", "pod_spatial", "pooled"]


def nca(similarities: Tensor, targets: Tensor, scale: Tensor | float, margin: float, *, hinge: bool = True) -> Tensor:
    """[log Σ_{i≠y} exp(η·ŷ_i) − η·(ŷ_y − δ)]₊, a mean over the batch; the margin is the true class's alone.

    A learned η learns from the similarities, not from η·δ. That would push it below zero, where the loss is 0 for any network.
    """
    true = similarities.gather(1, targets[:, None]).squeeze(1)
    others = (scale * similarities).scatter(
        1, targets[:, None], -torch.inf
    )  # behind the scale: −∞ has no gradient there
    width = (scale.detach() if isinstance(scale, Tensor) else scale) * margin
    missed = torch.logsumexp(others, dim=1) - scale * true + width
    return missed.clamp(min=0).mean() if hinge else missed.mean()


def pooled(maps: Tensor) -> Tensor:
    """Squares of (batch, channels, height, width), summed over the width and over the height, in one vector of length 1."""
    squares = maps.square()
    return F.normalize(torch.cat([squares.sum(3).flatten(1), squares.sum(2).flatten(1)], dim=1), dim=1)


def pod_spatial(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """How far the pooled maps have gone, a mean over the maps and the batch."""
    return torch.stack([(pooled(a) - pooled(b)).norm(dim=1).mean() for a, b in zip(maps, before, strict=True)]).mean()


@dataclass(frozen=True)
class NCA:
    """The loss of the proxies alone: of the first phase, and of the fine-tuning, which trains the classifier only."""

    loss: TaskLoss
    margin: float
    hinge: bool
    classifier_only: bool = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        net, inputs = model, self.loss.inputs(model, batch)
        if self.classifier_only:
            with torch.no_grad():
                features = _in_eval(net.backbone, inputs)  # type: ignore[arg-type]
        else:
            features = net.features(inputs)  # type: ignore[operator]
        similarities = net.classify(features, scaled=False)  # type: ignore[operator]
        return nca(similarities, batch[1], net.scale, self.margin, hinge=self.hinge)  # type: ignore[arg-type]


def _in_eval(backbone: nn.Module, inputs: Tensor) -> Tensor:
    """The features, without a statistic that moves."""
    mode = backbone.training
    features: Tensor = backbone.eval()(inputs)
    backbone.train(mode)
    return features


@dataclass(frozen=True)
class PooledLoss:
    """The terms of a phase with old classes."""

    loss: TaskLoss
    old: SingleHead
    frozen: int
    margin: float
    hinge: bool
    spatial: float
    flat: float

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        inputs, net, backbone = self.loss.inputs(model, batch), model, model.backbone
        maps = backbone.maps(inputs)  # type: ignore[operator, union-attr]
        features = backbone.after_maps(maps[-1])  # type: ignore[operator, union-attr]
        similarities = net.classify(features, frozen=self.frozen, scaled=False)  # type: ignore[operator]
        total = nca(similarities, batch[1], net.scale, self.margin, hinge=self.hinge)  # type: ignore[arg-type]
        if self.spatial > 0 or self.flat > 0:
            with torch.no_grad():
                before = self.old.backbone.maps(inputs)  # type: ignore[operator]
                old_features = self.old.backbone.after_maps(before[-1])  # type: ignore[operator]
            total = total + self.spatial * pod_spatial(maps, before) + self.flat * less_forget(features, old_features)
        return total


@torch.no_grad()
def k_means(points: Tensor, count: int, seed: int, rounds: int = 50) -> Tensor:
    """The centers of `count` clusters, from random points on; an empty cluster keeps its center."""
    with forked(seed, points.device):
        start = torch.randperm(len(points))[:count].to(points.device)
    if len(points) < count:
        start = torch.arange(count, device=points.device) % len(points)
    centers = points[start].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, centers).argmin(1)
        new = torch.stack(
            [points[nearest == k].mean(0) if bool((nearest == k).any()) else centers[k] for k in range(count)]
        )
        if torch.equal(new, centers):
            break
        centers = new
    return centers


@final
class PODNet(Replay):
    """Keep pooled feature maps and features as they were, and tell classes by proxies."""

    name = "podnet"
    classifier = "proxies"

    spatial: float = option(
        default=3.0, symbol="λ_s", at_least=0, doc="λ_s ≥ 0 of POD-spatial: 3 for CIFAR, 8 for ImageNet. Zero: off."
    )
    flat: float = option(
        default=1.0, symbol="λ_f", at_least=0, doc="λ_f ≥ 0 of POD-flat: 1 for CIFAR, 10 for ImageNet. Zero: off."
    )
    adaptive: bool = option(default=True, doc="Whether both are multiplied by √(n_seen/n_new).")
    margin: float = option(default=0.6, symbol="δ", at_least=0, doc="δ ≥ 0, the margin of the true class.")
    hinge: bool = option(
        default=True, doc="Whether a sample that is right by the margin is left alone, as in the paper."
    )
    imprint: bool = option(default=True, doc="Whether new proxies begin as k-means of their classes' features.")
    freeze: bool = option(
        default=True, doc="Whether the proxies of old classes stay as they are until the fine-tuning."
    )
    finetune_epochs: int = option(
        default=20, at_least=0, doc="Epochs of fine-tuning the classifier on exemplars of all classes. Zero: none."
    )
    finetune_lr: float = option(
        default=0.5, above=0, doc="The learning rate of the fine-tuning, as a part of the schedule's."
    )

    def check(self, net: Readout) -> None:
        """Raise for a backbone without feature maps too."""
        super().check(net)
        if not isinstance(net.backbone, HasMaps):
            raise ValueError(
                f"{self.method} compares feature maps, and {type(net.backbone).__name__} does not give any: use resnet32, "
                "resnet18 or digits, or give your backbone the methods maps(x), its maps, and after_maps(last), its features"
            )

    def prepare(self, context: TaskContext) -> None:
        """Imprinting."""
        if not self.imprint:
            return
        net = single_head(context)
        lengths = [block.weight.norm(dim=2).flatten() for block in net.blocks[:-1]]  # type: ignore[operator]
        for row, (one, features) in enumerate(class_features(context).items()):
            centers = k_means(F.normalize(features, dim=1), net.proxies, context.seed("proxies", one))
            with torch.no_grad():
                weight = net.blocks[-1].weight
                weight[row] = torch.cat(lengths).mean() * F.normalize(centers, dim=1)  # type: ignore[operator]

    def training(self, context: TaskContext, memory: Exemplars) -> Training:
        """The first phase by the proxies' loss alone."""
        if context.number == 0:
            return self.on_all(context, memory, NCA(context.loss, self.margin, self.hinge), pure=True)
        factor = (sum(context.net.sizes) / len(context.classes)) ** 0.5 if self.adaptive else 1.0
        frozen = context.number if self.freeze else 0
        old, weights = old_net(context), (factor * self.spatial, factor * self.flat)
        return self.on_all(context, memory, PooledLoss(context.loss, old, frozen, self.margin, self.hinge, *weights))

    @property
    def epochs_after(self) -> int:
        """Those of the fine-tuning."""
        return self.finetune_epochs

    def after(self, context: TaskContext, memory: Exemplars) -> Iterator[Training]:
        """Fine-tuning of the classifier on the exemplars of all classes."""
        if self.finetune_epochs and context.number > 0:
            loss = NCA(context.loss, self.margin, self.hinge, classifier_only=True)
            schedule = context.schedule.constant(self.finetune_epochs, self.finetune_lr)
            data = memory.split()
            yield Training("finetune", context.net, loss, data=data, schedule=schedule, guarded=False)
