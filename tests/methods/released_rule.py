"""The update rule of the released code, written out as one plain loop: no guard, no method and no learner of ours.

Its details are fields, so that a test can change one and see that the result changes. The penalty is part of the loss and goes
through autograd; it covers every parameter, heads included, except where the released code leaves heads out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

Weights = dict[str, Tensor]


class Data(NamedTuple):
    """One task: images and labels to learn from, and others for validation."""

    x: Tensor
    y: Tensor
    validation_x: Tensor
    validation_y: Tensor


class Trace(NamedTuple):
    """One task as it was learned: the weights that stay, the epoch that they are from, and the epochs before a decay."""

    weights: Weights
    best_epoch: int
    decays: list[int]


@dataclass(frozen=True)
class Released:
    """EWC, MAS or SI; with `forgetting`, AFEC beside it. `model(x, task)` gives the logits of a task's head."""

    method: str
    strength: float
    order: Callable[[int], Tensor]
    """The order of n samples in an epoch."""
    forgetting: float = 0.0
    epochs: int = 14
    patience: int = 2
    lr: float = 5e-3
    batch: int = 16
    # Details of the importance.
    dropout: bool = True
    group: int = 20
    averaged: bool = True
    """F ← (F_t + t·F)/(t + 1), of EWC; else the sum, which MAS and SI have in any case."""
    squared_norm: bool = False
    damping: float = 0.01
    total_gradient: bool = True
    # Details of the penalty and of the schedule.
    half: bool = True
    """The ½ of the penalty, which SI does not have."""
    select_with_penalty: bool = True
    select_with_forgetting: bool = False
    new_adam_at_decay: bool = True
    best_weights: bool = True
    # Details of θ_e.
    carried: bool = True
    interleaved: bool = True
    pull_heads: bool = False

    def learn(self, model: nn.Module, tasks: list[Data]) -> list[Trace]:
        """Learn the tasks one after the other, in place."""
        importance = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        expanded, first = copy.deepcopy(model), copy.deepcopy(model)
        # In the first task θ_e's optimiser holds a net that was thrown away, until the first decay makes a new one.
        discarded = copy.deepcopy(model)
        traces = []
        for t, data in enumerate(tasks):
            anchor, lr = values(model), self.lr
            if not self.carried and t > 0:
                expanded = copy.deepcopy(first)
            optimizer = Adam(model.parameters(), lr)
            optimizer_e = Adam((expanded if t > 0 else discarded).parameters(), lr)
            path = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            best, best_epoch, left, kept, decays = math.inf, 0, self.patience, values(model), []
            fisher_e: Weights = {}
            if self.forgetting and not self.interleaved:
                for _ in range(self.epochs):
                    self.epoch(expanded, optimizer_e, data, t)
                fisher_e = self.fisher(expanded, data, t)
            for epoch in range(1, self.epochs + 1):
                if self.forgetting and self.interleaved:
                    self.epoch(expanded, optimizer_e, data, t)
                    fisher_e = self.fisher(expanded, data, t)
                old = partial(self.old_penalty, model, importance, anchor)
                new = partial(self.forgetting_penalty, model, fisher_e, values(expanded))
                self.epoch(model, optimizer, data, t, (old, new) if t > 0 else (), path)
                model.eval()
                with torch.no_grad():
                    loss = float(F.cross_entropy(model(data.validation_x, t), data.validation_y))
                    if t > 0:
                        loss += float(old()) * self.select_with_penalty + float(new()) * self.select_with_forgetting
                if loss < best:
                    best, best_epoch, left, kept = loss, epoch, self.patience, values(model)
                    continue
                left -= 1
                if left == 0:
                    lr, left = lr / 3, self.patience
                    decays.append(epoch)
                    if self.new_adam_at_decay:
                        optimizer = Adam(model.parameters(), lr)
                    optimizer.param_groups[0]["lr"] = lr
                    optimizer_e = Adam(expanded.parameters(), lr)
            if self.best_weights:
                model.load_state_dict(kept, strict=False)  # buffers stay
            importance = self.merged(importance, model, anchor, path, data, t)
            traces.append(Trace(values(model), best_epoch, decays))
        return traces

    def epoch(self, model, optimizer, data: Data, t: int, penalties=(), path: Weights | None = None) -> None:
        """One pass in mini-batches. `path` adds up −g·δ, with the gradient of the whole loss."""
        model.train()
        for rows in self.order(len(data.x)).split(self.batch):
            optimizer.zero_grad()
            losses = [F.cross_entropy(model(data.x[rows], t), data.y[rows]), *(penalty() for penalty in penalties)]
            sum(losses if self.total_gradient else losses[:1]).backward()
            seen = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            if penalties and not self.total_gradient:
                sum(losses[1:]).backward()
            before = values(model)
            optimizer.step()
            for name, p in model.named_parameters():
                if path is not None and name in seen:
                    path[name] -= seen[name] * (p.detach() - before[name])

    def old_penalty(self, model: nn.Module, importance: Weights, anchor: Weights) -> Tensor:
        """λ·½·Σ F(θ − θ*)²."""
        factor = 0.5 if self.half else 1.0
        return (
            self.strength
            * factor
            * sum((importance[n] * (p - anchor[n]) ** 2).sum() for n, p in model.named_parameters())
        )

    def forgetting_penalty(self, model: nn.Module, fisher_e: Weights, theta_e: Weights) -> Tensor:
        """λ_e·½·Σ F_e(θ − θ_e)², heads left out."""
        pulled = [(n, p) for n, p in model.named_parameters() if self.pull_heads or not n.startswith("heads")]
        terms = [(fisher_e[n] * (p - theta_e[n]) ** 2).sum() for n, p in pulled if n in fisher_e]
        return self.forgetting * 0.5 * sum(terms, torch.zeros((), dtype=torch.float64))

    def merged(self, old: Weights, model: nn.Module, start: Weights, path: Weights, data: Data, t: int) -> Weights:
        """The importance after task t, counted from 0."""
        if self.method == "ewc":
            new = self.fisher(model, data, t)
            return {n: (new[n] + t * old[n]) / (t + 1) if self.averaged else new[n] + old[n] for n in old}
        if self.method == "mas":
            new = self.sensitivity(model, data, t)
        else:
            end = values(model)  # a negative path counts as it is
            new = {n: w / ((end[n] - start[n]) ** 2 + self.damping) for n, w in path.items()}
        return {n: old[n] + new[n] for n in old}

    def fisher(self, model: nn.Module, data: Data, t: int) -> Weights:
        """(20/N)·Σ_b (gradient of the mean loss of 20 samples)², dropout on; a smaller last batch weighs as much."""
        sums = self.summed(model, data, lambda x, y: F.cross_entropy(model(x, t), y), torch.square)
        return {name: self.group * value / len(data.x) for name, value in sums.items()}

    def sensitivity(self, model: nn.Module, data: Data, t: int) -> Weights:
        """(1/N)·Σ_b |gradient of the sum of ‖logits‖ over 20 samples|, dropout on."""

        def norms(x: Tensor, y: Tensor) -> Tensor:
            norm = model(x, t).norm(dim=1)
            return (norm**2 if self.squared_norm else norm).sum()

        return {name: value / len(data.x) for name, value in self.summed(model, data, norms, torch.abs).items()}

    def summed(self, model: nn.Module, data: Data, loss, of: Callable[[Tensor], Tensor]) -> Weights:
        """Σ_b of(gradient), over mini-batches in the order of the data."""
        model.train(self.dropout)
        sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for x, y in zip(data.x.split(self.group), data.y.split(self.group), strict=True):
            model.zero_grad()
            loss(x, y).backward()
            for name, p in model.named_parameters():
                if p.grad is not None:
                    sums[name] += of(p.grad)
        return sums


def values(model: nn.Module) -> Weights:
    """Copies of all weights."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}
