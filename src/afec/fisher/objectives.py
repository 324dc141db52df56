"""The scalars whose squared per-sample gradients add up to a Fisher.

Each kind is J objectives, and each objective is a sum over the samples of a scalar of that sample alone. So its
gradient at a layer's output holds each sample's own gradient in that sample's row, one backward pass serves the
whole batch, and F = (1/N) Σ_i Σ_j (∂ objective_j(i) / ∂θ)².
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from afec.fisher.batches import Samples
from afec.fisher.positions import laid_out, output_of, scalar_loss
from afec.fisher.problem import Kind, Power, Problem

__all__ = ["Objective", "categorical_factor"]


@dataclass(frozen=True)
class Objective:
    """One per-sample kind of one problem, as a deterministic function of samples and their noise."""

    problem: Problem
    kind: Kind
    power: Power = 2

    def __call__(self, samples: Samples) -> Tensor:
        """The J objectives, each summed over the samples: a vector."""
        return self.of(samples.batch, samples.size, samples.noise)

    def of(self, batch: Any, size: int, noise: Tensor | None) -> Tensor:
        """The same, for a batch of `size` samples and its noise."""
        if self.kind == "empirical":
            return (scalar_loss(self.problem, batch) * size).reshape(1)
        problem, output = self.problem, self.output(batch, size)
        places, share = laid_out(problem, output, batch)
        if problem.mean_squares:  # the mean of squares, where −log p has half their sum
            share = share * (2 / places.shape[2])
        gaussian = problem.likelihood == "gaussian"
        if self.kind == "exact":
            if gaussian:
                return (share[:, :, None] * places).reshape(size, -1).sum(0)
            # Labels at different positions are independent given the input, so their scores do not mix.
            factors = [
                share[:, t, None, None] * categorical_factor(places[:, t].detach()) for t in range(places.shape[1])
            ]
            parts = [torch.einsum("bjk,bk->j", factor, places[:, t].to(factor)) for t, factor in enumerate(factors)]
            return torch.cat(parts)
        assert noise is not None, "`sample` draws noise for every sample"
        noise = laid_out(replace(problem, mask=None), noise, batch)[0]
        if gaussian:
            return (share[:, :, None] * noise * places).sum().reshape(1)
        # Gumbel's trick: the argmax is a draw from the softmax.
        drawn = (places.detach() + noise).argmax(dim=2, keepdim=True)
        log_p = F.log_softmax(places, dim=2).gather(2, drawn).squeeze(2)
        return (share * log_p).sum().reshape(1)

    def output(self, batch: Any, size: int) -> Tensor:
        """The output for a batch of `size` samples, checked."""
        return output_of(self.problem, batch, size)

    def example(self, samples: Samples) -> Tensor | None:
        """One sample's output, where the kind draws noise of that shape."""
        return self.output(samples.take(0, 1).batch, 1).detach() if self.kind == "sample" else None

    def draw(self, samples: Samples, example: Tensor | None, generator: torch.Generator) -> Samples:
        """The samples with their noise, shaped like `example`.

        It is made from float64 uniforms, which torch draws one after the other: a sample's noise is a function
        of the seed and of its place in the data, however the data are batched and chunked.
        """
        if example is None:
            return samples
        shape = (samples.size, *example.shape[1:])
        uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
        uniform = uniform.clamp_min(torch.finfo(torch.float64).tiny)
        gaussian = self.problem.likelihood == "gaussian"
        noise = torch.special.ndtri(uniform) if gaussian else -torch.log(-torch.log(uniform))
        return replace(samples, noise=noise.to(device=example.device, dtype=example.dtype))

    def probe(self) -> Objective:
        """The objective that routes are verified with.

        A route is right or wrong by the network it goes through, not by what is asked of the output. A random
        projection of the output never vanishes; the likelihood's gradient on a well-fitted sample does, and then
        zero equals zero, or rounding noise differs, and neither proves anything.
        """
        if self.kind == "empirical":
            return self  # a loss is all there is
        plain = replace(self.problem, likelihood="gaussian", mean_squares=False, mask=None)
        return Objective(plain, "sample")


def categorical_factor(logits: Tensor) -> Tensor:
    """S of shape (batch, K−1, K) with SᵀS = diag(p) − ppᵀ, a categorical variable's Fisher in its logits.

    Row j asks "class j, or one after it?": √(p_j q_{j+1} / q_j) (e_j − p_{>j} / q_{j+1}), q_j = Σ_{i≥j} p_i.
    Against the K rows √p_c (e_c − p) of the definition: one backward pass less, and no 1 − p to cancel.
    """
    p = logits.softmax(1)
    q = p.flip(1).cumsum(1).flip(1).clamp_min(torch.finfo(p.dtype).tiny)
    scale = (p[:, :-1] * q[:, 1:] / q[:, :-1]).sqrt()
    rest = (p[:, None, :] / q[:, 1:, None]).triu(1)
    identity = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)[:-1]
    return scale[:, :, None] * (identity - rest)
