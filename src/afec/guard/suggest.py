"""A short sweep over λ on borrowed weights, for people who can score the old tasks as well as the new one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from afec.fisher.untouched import untouched
from afec.guard.borrow import borrowed
from afec.guard.options import checked_weight
from afec.guard.task import GuardedTask, TermFunctions
from afec.guard.verdict import judge

__all__ = ["Suggestion", "Trial", "searched_term", "suggest"]

AROUND = (0.01, 0.1, 1.0, 10.0, 100.0)
"""The grid, relative to the strength that is judged to be at work."""
MOST_LOOKS = 12  # decades that are looked at until a pull is at work
SECONDS = 2.0  # of one look

TaskOf = Callable[[TermFunctions], GuardedTask]
"""Makes a task of the guard with this term in the place of its own; it works on a copy of the guard's memory."""


@dataclass(frozen=True)
class Trial:
    """One strength that was tried, and the score after training with it."""

    strength: float
    score: float


@dataclass(frozen=True)
class Suggestion:
    """What a sweep over strengths found."""

    method: str
    """The name of the method whose strength was searched."""

    trials: tuple[Trial, ...]
    """Every strength that was tried, the smallest first."""

    @property
    def best(self) -> Trial:
        """The trial with the highest score; of equal ones the largest strength, because too weak a one forgets suddenly."""
        return max(self.trials, key=lambda trial: (trial.score, trial.strength))

    @property
    def strength(self) -> float:
        """The suggested strength."""
        return self.best.strength

    @property
    def at_an_end(self) -> bool:
        """Whether the suggested strength is the smallest or the largest of several that were tried."""
        return len(self.trials) > 1 and self.best in (self.trials[0], self.trials[-1])

    def __str__(self) -> str:
        lines = [f"strengths of {self.method}", f"  {'strength':>12}{'score':>12}"]
        for trial in self.trials:
            mark = "  suggested" if trial is self.best else ""
            lines.append(f"  {trial.strength:>12.4g}{trial.score:>12.4g}{mark}")
        if self.at_an_end:
            lines.append("  it lies at an end of the grid: try strengths beyond it as well")
        return "\n".join(lines)


def searched_term(terms: Sequence[TermFunctions], of: str | None) -> TermFunctions:
    """The term whose strength is searched: the one that is named, or the only one that has one."""
    found = {term.name: term for term in terms if term.with_strength(1.0) is not None}
    if of is None and len(found) == 1:
        return next(iter(found.values()))
    if of in found:
        return found[of]
    names = ", ".join(term.name for term in terms)
    if not found:
        raise ValueError(
            f"guard.suggest() searches the strength of a method that holds old tasks (EWC, MAS, SI, RWALK), and this guard "
            f"has none: {names}. Add one: EWC(strength=1) + …"
        )
    raise ValueError(
        f"guard.suggest() searches one strength at a time: say which by of=, one of {', '.join(map(repr, found))}; "
        f"got of={of!r}"
    )


def suggest(
    task_of: TaskOf,
    term: TermFunctions,
    strengths: Sequence[float] | None,
    train: Callable[[], object],
    score: Callable[[], float],
) -> Suggestion:
    """See `Guard.suggest`; `term` is the one whose strength is searched."""
    task = task_of(term)
    if task.processes.sharded:
        raise TypeError(
            "guard.suggest() does not work on a sharded model (FSDP2): call it on one that fully_shard has not split"
        )
    if not task.state_of(term):
        raise RuntimeError(
            f"{task.guard} has learned no task yet, so there is nothing to hold and no strength to choose. The first task "
            "needs none: learn it, and call guard.suggest() before the second"
        )
    if strengths is None:
        center = _at_work(task_of, term)
        strengths = [factor * center for factor in AROUND]
    wanted = sorted({checked_weight("guard.suggest(): each of strengths", one) for one in strengths})
    if not wanted:
        raise ValueError("guard.suggest() got no strengths to try: give strengths=[1, 10, 100], or leave it out")
    return Suggestion(term.name, tuple(Trial(one, _score(task_of, term, one, train, score)) for one in wanted))


def _with(term: TermFunctions, strength: float) -> TermFunctions:
    found = term.with_strength(strength)
    assert found is not None, "searched_term() has seen to it"
    return found


def _score(
    task_of: TaskOf, term: TermFunctions, strength: float, train: Callable[[], object], score: Callable[[], float]
) -> float:
    """The score after one training with this strength, from the present weights. Everything is put back."""
    task = task_of(_with(term, strength))
    with (
        torch.enable_grad(),
        _generators_kept(task.passes.data),
        _attributes_kept(task.optimizers),
        borrowed(task.model, task.optimizers),
    ):
        try:
            task._start()
            task.run(train, "suggest")
            if task.steps == 0:
                raise ValueError(
                    "train(model, optimizer) took no step on a guarded weight, so all strengths would score alike. It has to "
                    "train the very model and optimiser that it is given"
                )
            task.settle()
            with untouched(task.model, (), train=False, seed=task.seed("score")), torch.no_grad():
                found = task.processes.mean(_number(score(), strength))
        finally:
            task.abort()
    return found


def _at_work(task_of: TaskOf, term: TermFunctions) -> float:
    """A strength whose pull is neither inert nor too strong in the first steps, to a decade."""
    own = getattr(term, "strength", None)
    first = strength = own if isinstance(own, float) and own > 0 else 1.0
    seen: dict[str, float] = {}
    for _ in range(MOST_LOOKS):
        verdict = _judged(task_of(_with(term, strength)), term.name)
        if verdict == "at work":
            return strength
        seen[verdict] = strength
        if len(seen) == 2:  # from inert to too strong within a decade
            return math.sqrt(math.prod(seen.values()))
        strength = strength * 10 if verdict == "inert" else strength / 10
    raise ValueError(
        f"no strength of {term.name} between {first:g} and {strength:g} is at work in the first steps; say which ones to try: "
        "guard.suggest(…, strengths=[1, 10, 100])"
    )


def _judged(task: GuardedTask, name: str) -> str:
    """Whether the pull of a term is inert, at work, or too strong."""
    (term,) = (one for one in task.terms if one.name == name)
    with task.only(term), borrowed(task.model, task.optimizers):
        previewed = term.preview(task, task.state_of(term), SECONDS) if task.optimizers else None
    why = "there is no optimiser" if not task.optimizers else "its pull cannot be previewed"
    if previewed:
        verdict = judge(task, {name: previewed}, SECONDS)[0][name]
        if verdict.judgement != "not measured":
            return verdict.judgement
        why = verdict.why
    raise ValueError(
        f"guard.suggest() cannot tell which strengths of {name} are worth trying: {why}. Say which: strengths=[1, 10, 100]"
    )


def _number(score: object, strength: float) -> float:
    try:
        found = float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise TypeError(f"score(model) must return one number, higher is better; got {score!r}") from error
    if math.isnan(found):
        raise FloatingPointError(
            f"score(model) is nan after training with strength {strength:g}: training diverged, or there was nothing to score. "
            "Lower the learning rate or leave that strength out; a score of -inf says that a trial is worthless"
        )
    return found


@contextmanager
def _generators_kept(data: object) -> Iterator[None]:
    """A loader with a generator of its own draws from it whenever the user's training iterates it."""
    holders = [data, data.sampler, getattr(data.batch_sampler, "sampler", None)] if isinstance(data, DataLoader) else []
    found = [generator for one in holders if (generator := getattr(one, "generator", None)) is not None]
    states = [generator.get_state() for generator in found]
    try:
        yield
    finally:
        for generator, state in zip(found, states, strict=True):
            generator.set_state(state)


@contextmanager
def _attributes_kept(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """A scheduler that the user's training makes hangs a `step` of its own on the optimiser."""
    kept = [(optimizer, dict(vars(optimizer))) for optimizer in optimizers]
    try:
        yield
    finally:
        for optimizer, attributes in kept:
            vars(optimizer).clear()
            vars(optimizer).update(attributes)
