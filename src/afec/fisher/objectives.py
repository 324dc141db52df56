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

LARGE = 2**12
"""Outputs of a sample beyond which noise for each of them costs more than it should."""


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
        if noise.shape != output.shape:  # one uniform for each position
            drawn = _drawn(places.detach(), noise.reshape(places.shape[:2]))
        else:
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
        """The samples with their noise: for each of them in the shape of `example`; in a large output of logits one number
        for each position; where a sample has many outputs that are no logits, in float32.

        It is made from float64 uniforms, which torch draws one after the other: a sample's noise is a function
        of the seed and of its place in the data, however the data are batched and chunked.
        """
        if example is None:
            return samples
        one, gaussian = example.shape[1:], self.problem.likelihood == "gaussian"
        if one.numel() <= LARGE:
            uniform = _uniform((samples.size, *one), generator)
            noise = torch.special.ndtri(uniform) if gaussian else -torch.log(-torch.log(uniform))
        elif gaussian:
            noise = torch.stack([torch.randn(one, generator=generator) for _ in range(samples.size)])
        else:
            classes = one[(self.problem.class_axis or 1) % example.dim() - 1]
            return replace(
                samples, noise=_uniform((samples.size, one.numel() // classes), generator).to(example.device)
            )
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


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers in (0, 1)."""
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
    return uniform.clamp_min(torch.finfo(torch.float64).tiny)


def _drawn(logits: Tensor, uniform: Tensor) -> Tensor:
    """A class of each position of (batch, positions, classes): where the cumulated probability first exceeds `uniform`.

    One sample at a time: the probabilities of a vocabulary are as large as its logits.
    """
    found = []
    for sample, at in zip(logits, uniform, strict=True):
        cumulated = sample.to(torch.promote_types(sample.dtype, torch.float32)).softmax(1).cumsum(1)
        # Below the total also after rounding, so that no class of probability 0 can be drawn.
        below = at.to(cumulated).clamp_max(1 - torch.finfo(cumulated.dtype).eps / 2)
        found.append(torch.searchsorted(cumulated, below[:, None] * cumulated[:, -1:], right=True))
    return torch.stack(found)


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
