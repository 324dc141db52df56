"""The norm of a network's output, in the place of a loss: what MAS takes the gradient of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from afec.fisher.estimate import taken_apart
from afec.fisher.positions import laid_out, settled
from afec.fisher.problem import Problem

__all__ = ["OutputNorm"]


class OutputNorm:
    """‖f(x)‖² or ‖f(x)‖, the sum or the mean over the samples of a batch; of each, the mean over positions that count."""

    def __init__(self, problem: Problem, norm: str, *, mean: bool) -> None:
        self.problem, self.norm, self.mean = problem, norm, mean
        self.settled = False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The norm of the output on a batch."""
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
