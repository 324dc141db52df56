"""Which trial of a tuning is taken: the best mean, or the larger λ where noise cannot tell them apart.

The mean of a trial has two errors, and both are measured:

- over the seeds: the standard deviation over √(seeds). Trials have the same seeds, so it is that of the differences seed by
  seed. The spread of the best trial itself is the most that counts: an unstable trial gains nothing by its own spread.
- over the validation images: binomial, √(p(1−p)/n). Every seed draws its own validation images, so those of all seeds count.
  One right and one wrong answer are added (Laplace): ten right answers out of ten do not make an accuracy certain.

A trial is within noise of the best one if its mean is lower by at most the larger of the two errors: one standard error. Of
these trials the one with the largest λ is taken: too weak a λ loses the old tasks suddenly, too strong a one costs the new task
slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from afec.experiments import ACCURACY, ScoreKind

__all__ = ["Choice", "Trial", "choose", "effective_images"]

UNCERTAIN = 0.02
"""A standard error of the validation images above which a choice is not to be trusted: about 500 images at 70 %."""


@dataclass(frozen=True)
class Trial:
    """One point that was tried."""

    stage: str
    values: dict[str, float]
    """Of all settings, searched and kept."""
    scores: tuple[float, ...]
    """The mean validation score over the tasks, seed by seed; empty where a run failed."""
    images: float = math.inf
    """How many validation images the mean over the seeds rests on, see `effective_images`; infinite: it is not known."""
    kind: ScoreKind = ACCURACY
    """The kind of score: accuracy, or a return."""

    @property
    def label(self) -> str:
        """The settings in words, `ewc.strength=10, afec.forgetting=0.1`."""
        return ", ".join(f"{key}={value:g}" for key, value in self.values.items())

    @property
    def score(self) -> float:
        """The mean over the seeds; below everything where a run failed."""
        return fmean(self.scores) if self.scores else -math.inf

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds; 0 for a single one."""
        return stdev(self.scores) if len(self.scores) > 1 else 0.0

    @property
    def image_error(self) -> float:
        """The binomial standard error of the mean, by the number of validation images; 0 where it is not known."""
        if math.isinf(self.images):
            return 0.0
        p = (self.score + 1 / self.images) / (1 + 2 / self.images)
        return math.sqrt(p * (1 - p) / (self.images + 3))

    @property
    def error(self) -> float:
        """The standard error of the mean: by seeds or by images, whichever is larger."""
        return max(self.spread / math.sqrt(len(self.scores)), self.image_error)

    @property
    def numbers(self) -> str:
        """Mean, spread and standard error as they are shown."""
        if not self.scores:
            return "failed"
        shown = self.kind.shown
        spread = f" ± {shown(self.spread)}" if len(self.scores) > 1 else ""
        return f"{shown(self.score)}{spread} (standard error {shown(self.error)})"


def effective_images(sizes: Sequence[int], seeds: int) -> float:
    """How many validation images an averaged accuracy rests on: the variance of a mean over tasks is Σ p(1−p)/n / tasks².

    Infinite where `sizes` is empty: the experiment does not know them.
    """
    return seeds * len(sizes) ** 2 / sum(1 / size for size in sizes) if sizes else math.inf


@dataclass(frozen=True)
class Choice:
    """What was taken, and what noise leaves open."""

    trial: Trial
    """The trial that is taken."""
    best: Trial
    """The one with the highest mean."""
    alike: tuple[Trial, ...]
    """The others whose mean is within one standard error of the best."""
    others: int
    """How many trials are clearly worse, or failed."""

    def __str__(self) -> str:
        kind = self.best.kind
        mean = kind.shown(self.best.score) + kind.in_unit
        best = f"{self.best.stage}: {self.best.label} has the highest mean, {mean}"
        if not self.alike:
            ahead = ", ahead of every other trial by more than one standard error"
            return f"{best}{ahead if self.others else '; there is no other trial'}"
        others = "; ".join(
            f"{one.label} (lower by {kind.shown(self.best.score - one.score)}, one standard error is "
            f"{kind.shown(_noise(self.best, one))}{kind.in_difference})"
            for one in self.alike
        )
        larger = _strength(self.trial) > _strength(self.best)
        taken = "the largest λ of these" if larger else "the highest mean"
        return f"{best}. It cannot be told apart from {others}. Taken: {taken}, {self.trial.label}"

    @property
    def warning(self) -> str:
        """Said where there are too few validation images to trust the choice; else empty."""
        if self.best.image_error <= UNCERTAIN:
            return ""
        return (
            f"{self.best.stage}: too few validation images to be sure: about {self.best.images:.0f} over all seeds and tasks "
            f"have a standard error of {self.best.kind.shown(self.best.image_error)}{self.best.kind.in_difference}. "
            "Use more seeds (--seeds), or more images for validation"
        )


def choose(trials: Sequence[Trial]) -> Choice:
    """The choice among the trials of one stage; of equal ones the first. At least one must have scores."""
    best = max(trials, key=lambda trial: trial.score)
    alike = [one for one in trials if one.scores and best.score - one.score <= _noise(best, one)]
    taken = max(alike, key=lambda trial: (_strength(trial), trial.score))
    others = tuple(one for one in alike if one is not best)
    return Choice(taken, best, others, len(trials) - len(alike))


def _noise(best: Trial, other: Trial) -> float:
    """One standard error of the difference between the best trial and another one."""
    seeds = 0.0
    if len(best.scores) > 1:
        differences = [one - two for one, two in zip(best.scores, other.scores, strict=True)]
        seeds = min(stdev(differences), best.spread) / math.sqrt(len(best.scores))
    return max(seeds, best.image_error)


def _strength(trial: Trial) -> float:
    """How strongly a trial holds the old weights: the sum of the logarithms of its λ."""
    found = [value for key, value in trial.values.items() if key.endswith(".strength")]
    return sum(math.log(value) if value > 0 else -math.inf for value in found)
