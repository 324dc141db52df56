"""MAS, memory aware synapses (Aljundi et al. 2018), with the AFEC paper's λ/2.

    L(θ) = L_new(θ) + λ/2 · Σ_i Ω_{1:t−1,i} (θ_i − θ*_i)²,     Ω_{t,i} = 1/N · Σ_n |∂‖f(x_n)‖²/∂θ_i|

Ω is how much the squared norm of the output (of the logits, in classification) depends on a weight; labels play no part. Of an
output with positions (tokens, pixels) ‖f‖² is the mean over those that count of ‖f_t‖², as the loss is a mean over them.
θ* are the weights at the end of the latest task, Ω_{1:t} = Ω_{1:t−1} + Ω_t the sum over the tasks. `strength` is λ; the ½ is
not part of it.

    guard = afec.MAS(strength=1)
    with guard.learning(model, optimizer, loader, loss_fn):  # predict= where the output is not model(batch[0])
        train(model, optimizer, loader)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from afec.fisher import Problem
from afec.fisher.estimate import taken_apart
from afec.fisher.positions import laid_out, settled
from afec.gaussian import Gaussian, running_average, running_sum
from afec.guard import GuardedTask, Params, State, Term, checked_flag, checked_weight, one_of
from afec.methods.presets import Preset, settings

__all__ = ["MAS"]


@final
class MAS(Term):
    """Pull each weight to where the old tasks left it, by how much the output depends on it.

    Args:
        strength: λ ≥ 0. Zero switches the method off (fine-tuning, bit for bit).
        norm: of the output: `squared`, ‖f‖² (MAS's paper), or `l2`, ‖f‖ (the released code).
        batch: B samples whose gradients are added up before the absolute value is taken, 1/N·Σ_b |∂Σ_{x∈b}‖f(x)‖/∂θ|, as in the
            released code with 20. 1 is MAS's paper: each sample by itself.
        dropout: leave dropout on while Ω is measured.
        merge: over the tasks, `sum` (MAS's paper and the released code) or `mean` (as EWC does).
        preset: `default`, `paper` or `official`; what is given beside it wins.
        params: what is guarded, a module or parameters; default all that require grad (multi-head nets: the backbone).
    """

    name = "mas"

    def __init__(
        self,
        strength: float,
        *,
        norm: Literal["squared", "l2"] | None = None,
        batch: int | None = None,
        dropout: bool | None = None,
        merge: Literal["sum", "mean"] | None = None,
        preset: Preset = "default",
        params: Params = None,
    ) -> None:
        super().__init__(params)
        self.strength = checked_weight("MAS: strength (λ)", strength)
        chosen = settings(self.name, preset, norm=norm, batch=batch, dropout=dropout, merge=merge)
        self.norm, self.batch, self.dropout, self.merge = (chosen[key] for key in ("norm", "batch", "dropout", "merge"))
        checked_flag("MAS: dropout", self.dropout)
        one_of("MAS: norm", self.norm, ("squared", "l2"))
        one_of("MAS: merge", self.merge, ("sum", "mean"))
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"MAS: batch must be an integer ≥ 1 (1: each sample by itself); got {self.batch!r}")

    def described(self) -> str:
        """`MAS(strength=…)`."""
        return f"MAS(strength={self.strength:g}, norm={self.norm!r}, batch={self.batch})"

    @property
    def is_off(self) -> bool:
        """λ = 0."""
        return self.strength == 0

    def lacks(self, task: GuardedTask) -> str | None:
        """The class axis, for an output with positions whose axis nothing tells."""
        return task.cannot_read_output()

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Ω of all tasks so far around the latest weights, times λ; nothing in the first task."""
        if not state:
            return []
        return [(self.strength, task.remembered(Gaussian(state["mean"], state["precision"])))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]]:
        """Before the first task: as if the present weights had just learned these data."""
        if state:
            return self.quadratics(task, state, {})
        return [(self.strength, Gaussian(task.values(), self._sensitivity(task, "rehearse", most_batches=4)))]

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Ω_{1:t} around the weights as they are now."""
        old = Gaussian(state["mean"], state["precision"]) if state else None
        if old is not None:
            old = old.grown_to(dict(task.model.named_parameters()))
        new = Gaussian(task.values(), self._sensitivity(task, "mas"))
        total = running_sum(old, new) if self.merge == "sum" else running_average(old, new, task.number + 1)
        return {"mean": total.mean, "precision": total.precision}

    def _sensitivity(self, task: GuardedTask, *purpose: object, most_batches: int | None = None) -> dict[str, Tensor]:
        alone = self.batch == 1 and not self.dropout
        size = None if alone or not task.passes.rebatches else self.batch
        return task.moment(
            replace(task.problem, loss=_OutputNorm(task.problem, self.norm, mean=alone)),
            *purpose,
            kind="empirical" if alone else "batched",
            pass_size=size,
            batch_size=1,  # sums over batches are divided by N
            train=self.dropout,
            power=1,
            most_batches=most_batches,
        )


class _OutputNorm:
    """‖f(x)‖² or ‖f(x)‖, the sum or the mean over the samples of a batch; of each, the mean over positions that count."""

    def __init__(self, problem: Problem, norm: str, *, mean: bool) -> None:
        self.problem, self.norm, self.mean = problem, norm, mean
        self.settled = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        assert self.problem.predict is not None, "read_problem() has seen to it"
        output = self.problem.predict(model, batch)
        if not self.settled:  # the first batch tells, as it does for a Fisher
            self.problem, self.settled = self._settled(model, output, batch), True
        places, share = laid_out(self.problem, output, batch)
        norms = places.square().sum(2) if self.norm == "squared" else torch.linalg.vector_norm(places, dim=2)
        of_samples = (share * norms).sum(1)
        return of_samples.mean() if self.mean else of_samples.sum()

    def _settled(self, model: nn.Module, output: Tensor, batch: Any) -> Problem:
        """With its class axis known. Batch-norm cannot take the single sample that tells, so the net is in eval mode."""
        if isinstance(output, Tensor) and output.dim() == 2:
            return replace(self.problem, class_axis=1)
        mode = model.training
        model.eval()
        try:
            return settled(self.problem, next(taken_apart(self.problem, batch)))
        finally:
            model.train(mode)
