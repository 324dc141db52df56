"""A diagonal Gaussian over named weights: the one object everything here rests on.

The paper's Laplace approximation of a posterior is such a Gaussian, with mean θ* and precision F (App. B.1). Its negative
log-density, less a constant, is the quadratic penalty ½·Σ F·(θ−θ*)², and the gradient of that is the pull F·(θ−θ*).
Every ½ of the paper is inside `penalty`; λ and λ_e multiply the whole term.

Precisions may be zero (a third of a trained net's Fisher is), so nothing here divides by one, except where a normalised
density is asked for (`weighted_product`, `log_evidence`): these want a proper Gaussian and say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Derived",
    "Gaussian",
    "Part",
    "Quadratic",
    "beta_from_forgetting",
    "forgetting_from_beta",
    "grown",
    "log_evidence",
    "merge",
    "merged_parts",
    "running_average",
    "running_sum",
    "weighted_product",
    "widened",
]

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Gaussian:
    """A mean and a precision for each named weight, elementwise independent."""

    mean: dict[str, Tensor]
    precision: dict[str, Tensor]

    def __post_init__(self) -> None:
        if self.mean.keys() != self.precision.keys():
            odd = sorted(self.mean.keys() ^ self.precision.keys())
            raise ValueError(f"a Gaussian needs a mean and a precision for each weight; only one is given for {odd}")
        for name, mean in self.mean.items():
            if mean.shape != self.precision[name].shape:
                raise ValueError(
                    f"weight {name!r}: the mean has shape {tuple(mean.shape)}, "
                    f"the precision {tuple(self.precision[name].shape)}; they must be the same"
                )

    @classmethod
    def isotropic(cls, mean: Weights, precision: float) -> Gaussian:
        """The Gaussian around `mean` with one precision for all: the usual prior p(θ)."""
        return cls(dict(mean), {name: torch.full_like(m, precision) for name, m in mean.items()})

    def penalty(self, weights: Weights) -> Tensor:
        """½·Σ F·(θ−θ*)², the negative log-density without its constant; differentiable."""
        terms = [(widened(f) * (weights[name] - self.mean[name]) ** 2).sum() for name, f in self.precision.items()]
        return 0.5 * _total(terms)

    def pull(self, weights: Weights) -> dict[str, Tensor]:
        """F·(θ−θ*), the gradient of `penalty`."""
        return {name: widened(f) * (weights[name] - self.mean[name]) for name, f in self.precision.items()}

    def only(self, names: Iterable[str]) -> Gaussian:
        """The part over `names`, where it is known."""
        kept = [name for name in names if name in self.mean]
        return Gaussian({n: self.mean[n] for n in kept}, {n: self.precision[n] for n in kept})

    def grown_to(self, weights: Weights) -> Gaussian:
        """The same Gaussian for weights that may have grown along their first dimension since.

        New rows get precision 0 and their own value as mean. A weight that is not yet known is left out (it has
        precision 0); one that is gone, or whose shape changed in any other way, raises.
        """
        mean, precision = dict(self.mean), dict(self.precision)
        for name in mean:
            if name not in weights:
                raise ValueError(
                    f"weight {name!r} was guarded in an earlier task and is no longer in the model; "
                    f"the model has {_some(weights)}. Keep the names, or start a new guard"
                )
            now = weights[name].detach()
            if now.shape != mean[name].shape:
                mean[name] = grown(name, mean[name], now)
                precision[name] = grown(name, precision[name], torch.zeros_like(now))
        return Gaussian(mean, precision)


@dataclass(frozen=True)
class Quadratic:
    """Σᵢ λᵢ·½·Fᵢ(θ−mᵢ)² as one function of θ, expanded around `center` = θ*.

    pull = D·(θ−θ*) + c with D = Σ λᵢFᵢ and c = Σ λᵢFᵢ(θ*−mᵢ). No division, and exactly zero at θ* when c is absent
    (one term only). `constant` is the value at θ*, so that `penalty` is the sum of the terms' own penalties.
    """

    center: dict[str, Tensor]
    curvature: dict[str, Tensor]
    slope: dict[str, Tensor]
    constant: Tensor

    def pull(self, weights: Weights) -> dict[str, Tensor]:
        """The gradient of `penalty`, D·(θ−θ*) + c."""
        pulls = {}
        for name, curvature in self.curvature.items():
            pull = curvature * (weights[name] - self.center[name])
            pulls[name] = pull + self.slope[name] if name in self.slope else pull
        return pulls

    def penalty(self, weights: Weights) -> Tensor:
        """½·Σ D(θ−θ*)² + Σ c(θ−θ*) + constant; differentiable."""
        terms = []
        for name, curvature in self.curvature.items():
            away = weights[name] - self.center[name]
            terms.append((0.5 * curvature * away**2).sum())
            if name in self.slope:
                terms.append((self.slope[name] * away).sum())
        return _total(terms) + self.constant.to(terms[0] if terms else self.constant)

    def mode(self, weights: Weights) -> dict[str, Tensor]:
        """Where `penalty` is lowest, the mode of the product of the Gaussians: Σ λᵢFᵢmᵢ / Σ λᵢFᵢ.

        A weight that nothing pulls (D = 0) stays as it is in `weights`.
        """
        found = {}
        for name, curvature in self.curvature.items():
            center, held = self.center[name], curvature > 0
            if name in self.slope:
                center = center - self.slope[name] / torch.where(held, curvature, torch.ones_like(curvature))
            found[name] = torch.where(held, center, weights[name].to(center))
        return found


class Part(NamedTuple):
    """One weighted Gaussian's part in one weight."""

    number: int
    """Of the term, for the order in which terms are added up."""

    weight: float
    """λ"""

    mean: Tensor
    precision: Tensor

    def rows(self, some: slice) -> Part:
        """The part of some rows, as views."""
        return self._replace(mean=self.mean[some], precision=self.precision[some])


@dataclass(frozen=True)
class Derived:
    """The function that `merge` gives, to the bit, with nothing kept beside the Gaussians: D and c are derived when asked for.

    `merge` takes two more copies of the weights; this takes more operations at every use.
    """

    parts: dict[str, list[Part]]
    """For each weight the terms that know it."""

    @classmethod
    def of(cls, terms: Sequence[tuple[float, Gaussian]]) -> Derived:
        """Of weighted Gaussians (λᵢ, pᵢ). Terms of weight zero are dropped."""
        parts: dict[str, list[Part]] = {}
        for number, (weight, gaussian) in enumerate(terms):
            if weight != 0:
                for name, mean in gaussian.mean.items():
                    parts.setdefault(name, []).append(Part(number, weight, mean, gaussian.precision[name]))
        return cls(parts)

    @property
    def center(self) -> dict[str, Tensor]:
        """θ*, the mean of the first term that knows a weight; no copies."""
        return {name: own[0].mean for name, own in self.parts.items()}

    def at(self, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """θ*, D and c of one weight."""
        center, curvature, slope, _ = merged_parts(self.parts[name])
        return center, curvature, slope

    def pull(self, weights: Weights) -> dict[str, Tensor]:
        """The gradient of `penalty`, D·(θ−θ*) + c."""
        pulls = {}
        for name in self.parts:
            center, curvature, slope = self.at(name)
            pull = curvature * (weights[name] - center)
            pulls[name] = pull if slope is None else pull + slope
        return pulls

    def penalty(self, weights: Weights) -> Tensor:
        """½·Σ D(θ−θ*)² + Σ c(θ−θ*) + constant."""
        terms, constants = [], []
        for place, (name, own) in enumerate(self.parts.items()):
            center, curvature, slope, apart = merged_parts(own)
            away = weights[name] - center
            terms.append((0.5 * curvature * away**2).sum())
            if slope is not None:
                terms.append((slope * away).sum())
            constants += [(number, place, constant) for number, constant in apart]
        constant = _constant(constants)
        return _total(terms) + constant.to(terms[0] if terms else constant)

    def mode(self, weights: Weights) -> dict[str, Tensor]:
        """Where `penalty` is lowest, as `Quadratic.mode` has it."""
        return self.kept().mode(weights)

    def kept(self) -> Quadratic:
        """The same with D and c kept."""
        center, curvature, slope, constants = {}, {}, {}, []
        for place, (name, own) in enumerate(self.parts.items()):
            center[name], curvature[name], tilt, apart = merged_parts(own)
            if tilt is not None:
                slope[name] = tilt
            constants += [(number, place, constant) for number, constant in apart]
        return Quadratic(center, curvature, slope, _constant(constants))


def merge(terms: Sequence[tuple[float, Gaussian]]) -> Quadratic:
    """One quadratic for any number of weighted Gaussians (λᵢ, pᵢ), around the first one's mean.

    Terms of weight zero are dropped first, so that β = 0 changes no bit of what the others give.
    """
    return Derived.of(terms).kept()


def merged_parts(
    own: Sequence[Part],
) -> tuple[Tensor, Tensor, Tensor | None, list[tuple[int, Tensor]]]:
    """θ*, D and c of one weight, and what each later term has as its value at θ*."""
    first, *others = own
    center, curvature = first.mean, first.weight * widened(first.precision)
    slope: Tensor | None = None
    constants = []
    for number, weight, mean, precision in others:
        away = center - mean.to(center)
        scaled = (weight * widened(precision)).to(away)
        pull = scaled * away
        curvature = curvature + scaled
        slope = pull if slope is None else slope + pull
        constants.append((number, (0.5 * pull * away).sum()))
    return center, curvature, slope, constants


def _constant(constants: list[tuple[int, int, Tensor]]) -> Tensor:
    """The sum term by term, as one would write it down: an order of its own would round otherwise."""
    return _total([constant for *_, constant in sorted(constants, key=lambda one: one[:2])])


def widened(precision: Tensor) -> Tensor:
    """A precision that is stored in 16 bits, in 32: λF would overflow or be rounded once more."""
    return precision.float() if precision.dtype in (torch.float16, torch.bfloat16) else precision


def grown(name: str, was: Tensor, now: Tensor) -> Tensor:
    """`was`, and below it the rows that `now` has more; any other difference of their shapes raises."""
    if now.shape == was.shape:
        return was
    if now.dim() == 0 or now.shape[1:] != was.shape[1:] or now.shape[0] < was.shape[0]:
        raise ValueError(
            f"weight {name!r} changed its shape from {tuple(was.shape)} to {tuple(now.shape)}; only growth along "
            "the first dimension is allowed (a head that gets new classes). Start a new guard for a new shape"
        )
    return torch.cat([was, now[len(was) :].to(was)])


def running_average(old: Gaussian | None, new: Gaussian, task: int) -> Gaussian:
    """The Gaussian of tasks 1…t: F_{1:t} = ((t−1)·F_{1:t−1} + F_t)/t around the newest mean (paper, App. B.1).

    `task` is t, counted from 1. A weight that only one of the two knows counts as precision 0 in the other.
    """
    if task < 1:
        raise ValueError(f"tasks are counted from 1; got task {task}")
    mean, precision = dict(new.mean), dict[str, Tensor]()
    known = {} if old is None else old.precision
    for name, f_new in new.precision.items():
        precision[name] = (((task - 1) * known[name].to(f_new) + f_new) if name in known else f_new) / task
    for name, f_old in known.items():
        assert old is not None
        if name in precision:
            continue
        mean[name], precision[name] = old.mean[name], widened(f_old) * ((task - 1) / task)
    return Gaussian(mean, precision)


def running_sum(old: Gaussian | None, new: Gaussian) -> Gaussian:
    """The precisions of all tasks added up, around the newest mean: what MAS and SI remember."""
    mean, precision = dict(new.mean), dict(new.precision)
    for name, f_old in (old.precision if old is not None else {}).items():
        assert old is not None
        if name in precision:
            precision[name] = f_old.to(precision[name]) + precision[name]
        else:
            mean[name], precision[name] = old.mean[name], f_old
    return Gaussian(mean, precision)


def weighted_product(p1: Gaussian, p2: Gaussian, beta: float) -> tuple[Gaussian, float]:
    """The Gaussian p₁^(1−β)·p₂^β / Z and log Z, for a forgetting factor β in [0, 1] (paper, App. B.2).

    In precisions P = 1/σ²: P = (1−β)P₁ + βP₂, m = ((1−β)P₁μ₁ + βP₂μ₂)/P, which are the paper's v² and m; and
    log Z = ½·Σ[(1−β)·log P₁ + β·log P₂ − log P] − ½·Σ (1−β)β·P₁P₂/P·(μ₁−μ₂)², the paper's Z with its k−m² written
    without the cancellation.
    """
    _check_beta(beta, closed=True)
    _check_same_names(p1, p2)
    _check_proper(p1, "p1")
    _check_proper(p2, "p2")
    mean, precision, log_z = {}, {}, 0.0
    for name, m1 in p1.mean.items():
        a, b = (1 - beta) * p1.precision[name], beta * p2.precision[name]
        p = a + b
        apart = m1 - p2.mean[name]
        precision[name] = p
        mean[name] = m1 - b / p * apart
        logs = (1 - beta) * p1.precision[name].log() + beta * p2.precision[name].log() - p.log()
        log_z += 0.5 * float((logs - a * b / p * apart**2).double().sum())
    return Gaussian(mean, precision), log_z


def log_evidence(old: Gaussian, prior: Gaussian, likelihood: Gaussian, beta: float) -> float:
    """log ∫ p(D_B|θ)·p_m(θ|D_A, β) dθ up to a constant that does not depend on β, for choosing β (paper, Sec. 3.2).

    - `old` is p(θ|D_A), proper: mean θ*_A, precision N_A·F_A + the prior's (N_A samples, F_A the mean Fisher).
    - `prior` is p(θ), proper, given explicitly: usually `Gaussian.isotropic(init, precision)`, the weights' distribution
      before anything was learned. Its precision is an assumption, and the best β depends on it.
    - `likelihood` is the Laplace approximation of p(D_B|θ) around θ_e*, which was learned without a prior: mean θ_e*,
      precision N_B·F_e; it may be zero where the new task does not care.

    p_m is `weighted_product(old, prior, beta)`, N(m, 1/P). With h the likelihood's precision, each weight gives
    −½·log(1 + h/P) − ½·h·P/(P + h)·(θ_e−m)². The constant left out is log p(D_B|θ_e*).
    """
    mixed, _ = weighted_product(old, prior, beta)
    _check_same_names(old, likelihood)
    total = 0.0
    for name, p in mixed.precision.items():
        h = likelihood.precision[name]
        apart = likelihood.mean[name] - mixed.mean[name]
        total -= 0.5 * float((torch.log1p(h / p) + h * p / (p + h) * apart**2).double().sum())
    return total


def forgetting_from_beta(beta: float) -> float:
    """λ_e = β/(1−β): what the log posterior of App. B.3 gives when it is divided by 1−β.

    The factor of proportionality is 1 for a mean loss and a mean Fisher of the same samples, as everywhere here.
    """
    _check_beta(beta, closed=False)
    return beta / (1 - beta)


def beta_from_forgetting(forgetting: float) -> float:
    """β = λ_e/(1+λ_e), the inverse of `forgetting_from_beta`."""
    if not (math.isfinite(forgetting) and forgetting >= 0):
        raise ValueError(f"forgetting (λ_e) must be a finite number ≥ 0; got {forgetting!r}")
    return forgetting / (1 + forgetting)


def _total(terms: Sequence[Tensor]) -> Tensor:
    if not terms:
        return torch.zeros(())
    total = terms[0]
    for term in terms[1:]:
        total = total + term.to(total)
    return total


def _check_beta(beta: float, *, closed: bool) -> None:
    if not (0 <= beta < 1 or (closed and beta == 1)):
        raise ValueError(f"the forgetting factor β must be in [0, 1{']' if closed else ')'}; got {beta!r}")


def _check_same_names(p1: Gaussian, p2: Gaussian) -> None:
    if p1.mean.keys() != p2.mean.keys():
        raise ValueError(f"the Gaussians are over different weights: {sorted(p1.mean.keys() ^ p2.mean.keys())}")


def _check_proper(gaussian: Gaussian, what: str) -> None:
    for name, precision in gaussian.precision.items():
        if not bool((precision > 0).all()):
            raise ValueError(
                f"{what} has no proper density: the precision of {name!r} is not positive everywhere. A Fisher alone has "
                "zeros; add the precision of a prior p(θ), which has to be chosen and given"
            )


def _some(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f", … ({len(listed)} in all)" if len(listed) > most else "")
