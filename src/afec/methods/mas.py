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
from typing import Literal, final

from torch import Tensor

from afec.fisher import OutputNorm
from afec.guard import GuardedTask, State, option
from afec.methods.regulariser import Regulariser

__all__ = ["MAS"]


@final
class MAS(Regulariser):
    """Pull each weight to where the old tasks left it, by how much the output depends on it."""

    name = "mas"

    norm: Literal["squared", "l2"] = option(
        default="squared",
        official="l2",
        doc="The norm of the output: `squared`, ‖f‖² (MAS's paper), or `l2`, ‖f‖ (the released code).",
    )
    batch: int = option(
        default=1,
        official=20,
        at_least=1,
        doc="How many samples' gradients are added up before the absolute value is taken; 1 is each sample by itself.",
    )
    dropout: bool = option(default=False, official=True, doc="Whether dropout is on while Ω is measured.")
    merge: Literal["sum", "mean"] = option(
        default="sum", doc="Over the tasks, `sum` (MAS's paper and the released code) or `mean` (as EWC does)."
    )

    @property
    def over_tasks(self) -> float | Literal["mean"]:
        """The sum, or the running average."""
        return 1.0 if self.merge == "sum" else "mean"

    def cannot_measure(self, task: GuardedTask) -> str | None:
        """The class axis, for an output with positions whose axis nothing tells; or an output that has a norm."""
        return task.cannot_read_output() or task.cannot_measure(lambda: self.importance(task, {}))

    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """1/N·Σ_b |∂Σ_{x∈b}‖f(x)‖/∂θ| over batches b of `batch` samples."""
        alone = self.batch == 1 and not self.dropout
        return task.moment(
            replace(task.problem, loss=OutputNorm(task.problem, self.norm, mean=alone)),
            "mas",
            kind="empirical" if alone else "batched",
            pass_size=None if alone or not task.passes.rebatches else self.batch,
            batch_size=1,  # sums over batches are divided by N
            train=self.dropout,
            power=1,
        )
