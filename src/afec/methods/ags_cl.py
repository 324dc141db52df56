"""AGS-CL, adaptive group sparsity (Jung et al. 2020), as the AFEC paper compares with it (Sec. 4.2).

A node j has all its incoming weights and its bias in one vector v_j, and an importance Ω_j ≥ 0 for the tasks so far.

    Ω_j > 0, important     v_j ← v_j* + (1 − λ·Ω_j·lr / ‖v_j − v_j*‖)₊ · (v_j − v_j*)      held where the old tasks left it
    Ω_j = 0, unimportant   v_j ← (1 − μ·lr / ‖v_j‖)₊ · v_j                                  sparse: kept small, or free

These are the proximal steps of λ·Σ Ω_j‖v_j − v_j*‖ and of μ·Σ ‖v_j‖ (norms, not squares: a group is held or left, not
stretched), taken after each epoch or each step at the present learning rate. While a later task is learned, no weight leads
from an unimportant node to an important one. After a task

    Ω_j ← η·Ω_j + the mean activation of node j over the task's data
    what goes out of unimportant nodes is set to 0, and a share ρ of them gets fresh incoming weights.

    learner = afec.Learner(backbone, afec.AGSCL(strength=1000, mu=10))
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal, final

import torch
from torch import Tensor, nn

from afec.guard import OptionFields, State, option
from afec.nets import Chain, Layer, MultiHead, renew
from afec.randomness import forked
from afec.strategy import LearningContext, Strategy, Training

__all__ = ["AGSCL", "proximal"]


@final
class AGSCL(OptionFields, Strategy):
    """Hold the nodes that mattered, keep the others sparse, and let nothing flow from these to those.

    Works over backbones that are a chain of layers (`afec.nets.Chain`).
    """

    name = "ags-cl"
    needs_chain = needs_heads = learns_games = True

    strength: float = option(
        kw_only=False, symbol="λ", at_least=0, doc="λ ≥ 0, how hard important nodes are held. Zero: not at all."
    )
    mu: float = option(
        default=10.0,
        kw_only=False,
        at_least=0,
        doc="μ ≥ 0, how sparse unimportant nodes are kept. Zero: not at all.",
    )
    rho: float = option(
        default=0.3,
        at_least=0,
        at_most=1,
        doc="ρ in [0, 1], the share of the unimportant nodes that gets fresh incoming weights after each task. Zero: none.",
    )
    eta: float = option(
        default=0.9,
        at_least=0,
        at_most=1,
        doc="η in [0, 1], what is left of the old importance after a task.",
    )
    proximal: Literal["epoch", "step"] = option(
        default="epoch",
        doc="After each `epoch` (the released code, and what the paper's λ and μ belong to), or after each `step`, which holds "
        "and shrinks as many times as strongly as an epoch has steps.",
    )
    freeze: bool = option(
        default=True, doc="Keep the weights from unimportant to important nodes at 0 while later tasks are learned."
    )
    cut: bool = option(
        default=True, doc="Set what goes out of unimportant nodes to 0 after a task, the task's head included."
    )

    def trainings(self, context: LearningContext) -> Iterator[Training]:
        """One training, with the proximal steps and the frozen weights in it; then what is kept of the task."""
        chain, omega, old = Chain(context.net.backbone), context.state.get("omega", {}), context.state.get("old", {})
        chain.check(context.example(), context.number)
        frozen = _Frozen(chain, omega) if self.freeze else None

        def after(lr: float, *, shrinks: bool) -> None:
            if shrinks:
                for layer in chain.layers:
                    self._shrink(layer, omega, old, lr)
            if frozen is not None:  # last: the pull to v* may not bring back what is frozen
                frozen.put_back()

        each_step = self.proximal == "step"
        after_step, after_epoch = partial(after, shrinks=each_step), partial(after, shrinks=not each_step)
        yield Training("train", context.net, context.loss, after_step=after_step, after_epoch=after_epoch)
        context.state = self._kept(context, chain, omega)

    def _shrink(self, layer: Layer, omega: State, old: State, lr: float) -> None:
        important = omega.get(layer.name, torch.zeros(layer.nodes, device=layer.module.weight.device))
        threshold = lr * torch.where(important > 0, self.strength * important, self.mu)
        centers = [old[name] * _rows(important > 0, old[name]) if name in old else None for name in layer.incoming]
        proximal(list(layer.incoming.values()), centers, threshold)

    @torch.no_grad()
    def _kept(self, context: LearningContext, chain: Chain, omega: State) -> State:
        """The new importance, and the weights that the next task is held to."""
        new = measured(chain, context)
        merged = {name: self.eta * omega[name] + one if name in omega else one for name, one in new.items()}
        idle = {name: one == 0 for name, one in merged.items()}
        if self.cut:
            assert isinstance(context.net, MultiHead)  # needs_heads
            cut(chain, context.net.heads[context.number], idle)
        if self.rho > 0:
            refresh(chain, context.net.backbone, idle, self.rho, context.seed("ags-cl", "fresh"))
        weights = {name: weight.detach().clone() for layer in chain.layers for name, weight in layer.incoming.items()}
        return {"omega": merged, "old": weights}


@torch.no_grad()
def proximal(parts: list[nn.Parameter], centers: list[Tensor | None], threshold: Tensor) -> None:
    """Move each group towards its center by its threshold, and not beyond it; row j of all `parts` together is group j.

    A center of None is 0. A group whose threshold is 0 stays as it is, bit for bit.
    """
    away = [part.detach() if center is None else part - center for part, center in zip(parts, centers, strict=True)]
    norm = (
        torch.stack([one.flatten(1).square().sum(1) if one.dim() > 1 else one.square() for one in away]).sum(0).sqrt()
    )
    share = (1 - threshold / norm).clamp(min=0).nan_to_num(nan=1.0)  # a group at its center with no threshold: 0/0
    for part, center, one in zip(parts, centers, away, strict=True):
        moved = one * _rows(share, one)
        part.copy_(torch.where(_rows(threshold > 0, part), moved if center is None else center + moved, part))


@torch.no_grad()
def measured(chain: Chain, context: LearningContext) -> dict[str, Tensor]:
    """The mean absolute activation of each node over the task's data (and over a map's pixels), in eval mode."""
    total, count = dict[str, Tensor](), 0

    def watch(layer: Layer, active: Tensor) -> None:
        found = active.abs().flatten(2).mean(2).sum(0) if active.dim() > 2 else active.abs().sum(0)
        total[layer.name] = total[layer.name] + found if layer.name in total else found

    with chain.evaluating(context.number):
        for inputs in context.inputs():
            chain(inputs, watch=watch)
            count += len(inputs)
    return {name: found / count for name, found in total.items()}


@torch.no_grad()
def cut(chain: Chain, head: nn.Module, idle: dict[str, Tensor]) -> None:
    """Nothing goes out of idle nodes any more, to the next layer or to the head."""
    followers = [*(layer.module for layer in chain.layers[1:]), head]
    for place, (layer, follower) in enumerate(zip(chain.layers, followers, strict=True)):
        weight = follower.weight
        assert isinstance(weight, Tensor)
        out = chain.spread(place, idle[layer.name], weight.shape[1])
        weight.mul_(_columns(~out, weight))


@torch.no_grad()
def refresh(chain: Chain, backbone: nn.Module, idle: dict[str, Tensor], rho: float, seed: int) -> None:
    """A share ρ of the idle nodes of each layer, chosen at random, gets fresh incoming weights, as at the start."""
    kept = {name: value.detach().clone() for name, value in backbone.state_dict().items()}
    with forked(seed, next(backbone.parameters()).device):
        chosen = {}
        for layer in chain.layers:
            nodes = idle[layer.name].nonzero().flatten()
            order = torch.randperm(len(nodes), device="cpu")[: round(rho * len(nodes))]
            chosen[layer.name] = nodes[order.to(nodes.device)]
        renew(backbone)
        fresh = {layer.name: [weight.detach().clone() for weight in layer.incoming.values()] for layer in chain.layers}
    backbone.load_state_dict(kept)
    for layer in chain.layers:
        rows = chosen[layer.name]
        for weight, new in zip(layer.incoming.values(), fresh[layer.name], strict=True):
            weight[rows] = new[rows]


class _Frozen:
    """The weights from unimportant to important nodes, which stay at 0."""

    def __init__(self, chain: Chain, omega: State) -> None:
        self.weights, self.free = list[Tensor](), list[Tensor]()
        for place, layer in enumerate(chain.layers[1:] if omega else ()):
            weight = layer.module.weight
            idle = chain.spread(place, omega[chain.layers[place].name] == 0, weight.shape[1])
            free = ~(_rows(omega[layer.name] > 0, weight) & _columns(idle, weight))
            if not bool(free.all()):
                self.weights.append(weight)
                self.free.append(free.to(weight.dtype))

    @torch.no_grad()
    def put_back(self) -> None:
        """Set the weights that are not free back to 0 after a step."""
        if self.weights:
            torch._foreach_mul_(self.weights, self.free)


def _rows(values: Tensor, like: Tensor) -> Tensor:
    """Values of the nodes, as they stand beside their incoming weights."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _columns(values: Tensor, like: Tensor) -> Tensor:
    """Values of the inputs, as they stand beside the weights that they go through."""
    return values.view(1, -1, *[1] * (like.dim() - 2))
