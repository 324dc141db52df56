"""Adapters of low rank (LoRA): a frozen matrix W and a trained change of it, ΔW = s·B·A.

A quadratic on ΔW is no diagonal quadratic on A and B, so it has a pull of its own. With G = λF⊙(ΔW − ΔW*), the gradient of
λ/2·ΣF(ΔW − ΔW*)² is s·Bᵀ·G for A and s·G·Aᵀ for B. The gradient of the loss by ΔW is that by W, so F is measured on the frozen
matrix itself. ΔW* is kept as its factors; nothing of W is copied.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Factors", "LowRankPull", "LowRankWeight", "low_rank_weights", "plain_name"]

Factors = tuple[Tensor, Tensor]
"""A and s·B: their product is the change of a matrix."""

PROBES = 4


@dataclass(frozen=True)
class LowRankWeight:
    """One adapted matrix: its name, the frozen weight, and the factors of its change."""

    name: str
    base: nn.Parameter
    a: nn.Parameter
    b: nn.Parameter
    scale: float
    transposed: bool  # the frozen weight is (inputs, outputs), as in transformers' Conv1D
    merged: bool  # the change is added to the frozen weight at present

    def factors(self) -> Factors:
        """Copies of A and s·B."""
        return self.a.detach().clone(), self.scale * self.b.detach()

    def probe(self) -> Tensor:
        """A few random projections of the frozen weight without its change: enough to see by what it was changed."""
        value = self.base.detach()
        value = (value.T if self.transposed else value).to(_wide(value.dtype))
        found = value @ self._directions(value)
        return found - change(self.factors(), value) @ self._directions(value) if self.merged else found

    def probe_of(self, factors: Factors) -> Tensor:
        """The same projections of a change."""
        like = torch.empty(0, dtype=_wide(self.base.dtype), device=self.base.device)
        b = factors[1].to(like)
        return b @ (factors[0].to(like) @ self._directions(like))

    def _directions(self, like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return torch.randn(self.a.shape[1], PROBES, generator=generator, dtype=torch.float64).to(like)


@dataclass(frozen=True)
class LowRankPull:
    """λ/2·ΣF(ΔW − ΔW*)² of one matrix; `mean` are the factors of ΔW*, None for zero. F is as ΔW, (outputs, inputs)."""

    weight: LowRankWeight
    strength: float
    precision: Tensor
    mean: Factors | None

    @torch.no_grad()
    def away(self) -> Tensor:
        """ΔW − ΔW*."""
        weight, like = self.weight, self.precision
        now = weight.scale * weight.b.to(like) @ weight.a.to(like)
        return now if self.mean is None else now - change(self.mean, like)

    def penalty(self) -> Tensor:
        """Its value now."""
        return 0.5 * self.strength * (self.precision * self.away() ** 2).sum()

    @torch.no_grad()
    def pull(self, parameter: nn.Parameter) -> Tensor:
        """Its gradient by A or by B."""
        weight = self.weight
        by_change = self.strength * weight.scale * self.precision * self.away()
        if parameter is weight.a:
            return weight.b.to(by_change).T @ by_change
        return by_change @ weight.a.to(by_change).T


def change(factors: Factors, like: Tensor) -> Tensor:
    """The matrix that the factors make."""
    return factors[1].to(like) @ factors[0].to(like)


def low_rank_weights(model: nn.Module, guarded: Iterable[nn.Parameter]) -> list[LowRankWeight]:
    """The matrices of a PEFT model whose adapter is guarded; what is no plain LoRA of a linear layer is refused by name."""
    wanted = {id(parameter) for parameter in guarded}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    modules: Any = model.named_modules()
    for place, layer in modules:
        adapters: Any = getattr(layer, "lora_A", None)
        if not isinstance(adapters, nn.ModuleDict) or not hasattr(layer, "base_layer"):
            continue
        active = [key for key in layer.active_adapters if key in adapters and id(adapters[key].weight) in wanted]
        if not active:
            continue
        if len(active) > 1:
            raise ValueError(
                f'on="delta" holds one adapter, and {place} has {active} in training; activate one of them'
            )
        (key,) = active
        one, other = adapters[key], layer.lora_B[key]
        base = layer.base_layer.weight
        plain = isinstance(one, nn.Linear) and isinstance(other, nn.Linear) and base.dim() == 2
        if not plain or key in getattr(layer, "lora_magnitude_vector", ()) or not base.is_floating_point():
            raise ValueError(
                f'on="delta" needs plain LoRA of linear layers, and {place} is another kind (DoRA, a convolution, an '
                'embedding, or a quantised weight). Use on="weights", which holds A and B apart'
            )
        found.append(
            LowRankWeight(
                names[id(base)],
                base,
                layer.lora_A[key].weight,
                layer.lora_B[key].weight,
                float(layer.scaling[key]),
                bool(getattr(layer, "fan_in_fan_out", False)),
                key in getattr(layer, "merged_adapters", ()),
            )
        )
    return found


def plain_name(name: str) -> str:
    """The name that a weight of a PEFT model has without PEFT."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def newly_merged(weight: LowRankWeight, probe: Tensor, factors: Factors) -> bool:
    """Whether the change that was kept has become part of the frozen weight since; any other change of that is refused."""
    now, was = weight.probe(), probe.to(weight.base.device, _wide(weight.base.dtype))
    added = weight.probe_of(factors)
    still, merged = float((now - was).norm()), float((now - was - added).norm())
    tolerance = 2e-2 if weight.base.dtype in (torch.float16, torch.bfloat16) else 1e-4
    if min(still, merged) > tolerance * max(float(was.norm()), 1e-12):
        raise ValueError(
            f"the frozen weight {weight.name!r} is neither what it was in the leg before nor that plus its adapter. "
            "Load the same base model, or merge the whole adapter (merge_and_unload) before the next one is made"
        )
    return merged < still


def concatenated(one: Factors | None, other: Factors) -> Factors:
    """The factors of the sum of two changes."""
    if one is None:
        return other
    return torch.cat([one[0].to(other[0]), other[0]]), torch.cat([one[1].to(other[1]), other[1]], 1)


def negated(factors: Factors | None) -> Factors | None:
    """The factors of the change back."""
    return None if factors is None else (factors[0], -factors[1])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def by_name(weights: Iterable[LowRankWeight]) -> Mapping[str, LowRankWeight]:
    """The same by the names of their frozen weights."""
    return {weight.name: weight for weight in weights}
