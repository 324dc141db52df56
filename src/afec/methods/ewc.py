"""EWC, elastic weight consolidation (Kirkpatrick et al. 2017), as the AFEC paper uses it (Sec. 3.1, App. B.1).

    L(θ) = L_new(θ) + λ/2 · Σ_i F_{1:t−1,i} (θ_i − θ*_i)²

θ* are the weights at the end of the latest task (one anchor), F_{1:t} = ((t−1)·F_{1:t−1} + F_t)/t the running average of the
tasks' Fisher information; with a `decay` γ it is the online F ← γ·F + F_t instead. `strength` is λ; the ½ is not part of it.
With `anchors="each"` every task is held around its own θ*_τ: Σ_τ F_τ(θ−θ*_τ)² is, but for a constant, one quadratic, with the
precision ΣF_τ around ΣF_τθ*_τ/ΣF_τ, so no more is stored.
Which λ is right depends on the Fisher kind: `batched` with B samples is smaller than `empirical`, by a factor of up to
about B, so its λ are larger (docs/fisher.md has measured factors).

    guard = afec.EWC(strength=100)
    with guard.learning(model, optimizer, loader, loss_fn):
        train(model, optimizer, loader)
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from afec.gaussian import Gaussian
from afec.guard import GuardedTask, State, option
from afec.methods.delta import FisherRegulariser

__all__ = ["EWC"]


@final
class EWC(FisherRegulariser):
    """Pull each weight to where the old tasks left it, by how much it mattered to them."""

    name = "ewc"

    decay: float | Literal["mean"] = option(
        default="mean",
        symbol="γ",
        at_least=0,
        at_most=1,
        doc="γ in [0, 1] of the online Fisher, F ← γ·F + F_t, or `mean`, the running average over the tasks.",
    )
    anchors: Literal["latest", "each"] | None = option(
        default=None,  # not a word, so that configurations from before the option stay the same
        doc="Around which weights tasks are held: `latest` (if not given), where the last one ended, or `each` task's own end, "
        "by its own Fisher (Kirkpatrick et al.; with `decay=1` what the released code does for games).",
    )

    @property
    def over_tasks(self) -> float | Literal["mean"]:
        """The running average of the paper, or γ."""
        return self.decay

    def not_on_shards(self) -> str | None:
        """A strength of `auto`, which looks at whole weights, and products of two weights."""
        told = 'strength="auto"' if self.asks_alone else 'on="delta"' if self.on == "delta" else None
        return None if told is None else f"{self.name} with {told} does not work on the parts"

    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """The Fisher information of the task."""
        return self.fisher_of_task(task)

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F with this task's, around the weights as they are now, kept as `store` says."""
        return self.at_rest(**super().end_task(task, state, task_state))

    def mean_over_tasks(self, old: Gaussian | None, new: Gaussian, task: int) -> dict[str, Tensor]:
        """The latest weights; or where the quadratics of all tasks together are least."""
        if old is None or self.anchors != "each":
            return super().mean_over_tasks(old, new, task)
        counts = task - 1 if self.decay == "mean" else 1.0  # how the old precision counts beside the new one
        found = dict(new.mean)
        for name in new.mean.keys() & old.mean.keys():
            mean, fresh = new.mean[name], new.precision[name]
            known = counts * old.precision[name].to(fresh)
            share = torch.where(known > 0, known / (known + fresh), 0.0)
            found[name] = mean + share * (old.mean[name].to(mean) - mean)
        return found
