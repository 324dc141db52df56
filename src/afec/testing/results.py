"""Contracts about what a run comes to: it is determined, can be switched off, saved and taken up, and pulls as it says."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from afec.guard import Guard, Term
from afec.methods import AFEC, EWC
from afec.testing.compare import RandomState, difference, not_plain
from afec.testing.method import Method
from afec.testing.report import ViolationError
from afec.testing.run import BATCH, EPOCHS, SAMPLES, Place, Run, between

__all__ = ["SAVED_AT", "commutes", "deterministic", "nonnegative", "pulls", "resume", "state", "zero"]

# Where a run is saved and taken up again.
SAVED_AT: dict[str, Place] = {
    "in the middle of the first task": (0, 1, 1),
    "before the second task": between(1),
    "right after the second task began": (1, 0, 0),
    "after its first step": (1, 0, 1),
    "between two epochs": (1, 1, 0),
    "in the middle of an epoch": (1, 1, 1),
    "after its last step": (1, EPOCHS, 0),
    "after the second task": between(2),
}


def deterministic(method: Method) -> None:
    """The seed determines the result, and the guard draws nothing from the user's random numbers."""
    ends = []
    for _ in range(2):
        run = method.run(method.guard(), around=_draws_nothing)
        run.go_on(between(3))
        ends.append(_everything(run))
    _same(ends[0], ends[1], "two runs from the same seed", "the same weights and states, bit for bit")


@contextmanager
def _draws_nothing(run: Run, what: str) -> Iterator[None]:
    before = RandomState.now()
    yield
    advanced = before.advanced(RandomState.now())
    if advanced:
        raise ViolationError(
            f"{what} of task {run.at[0] + 1} advanced the user's random numbers of {', '.join(advanced)}",
            "draws only from generators of the method's own, or inside afec.randomness.forked(task.seed(…))",
        )


def state(method: Method) -> None:
    """A state is plain data, survives a file, and loaded into a fresh guard goes on as the guard that was saved."""
    guard = method.guard()
    run, kept = method.run(guard), []
    for where, place in {"before the first task": between(0), **SAVED_AT}.items():
        run.go_on(place)
        _survives(method, guard, where)
        kept.append((where, guard.state_dict(), copy.deepcopy(guard.state_dict())))
    checkpoint = run.checkpoint()
    loaded = method.taken_up({**checkpoint, "guard": _through_a_file(checkpoint["guard"])})
    for each in (run, loaded):
        each.go_on(between(3))
    _same(
        _everything(run),
        _everything(loaded),
        "the task after state_dict() → load_state_dict() into a fresh guard",
        "the same as without it, bit for bit: all that a method remembers is in its state, not on the instance",
    )
    for where, saved, copied in kept:
        expected = "no change: a term returns a new state and writes to no tensor of the old one"
        _same(saved, copied, f"the state {where} before and after the guard learned on", expected)


def _survives(method: Method, guard: Guard, where: str) -> None:
    saved = guard.state_dict()
    odd = not_plain(saved)
    if odd is not None:
        raise ViolationError(
            f"in the state {where}, {odd}", "plain dictionaries, lists, tensors, numbers and strings only"
        )
    expected = "the state that was saved, bit for bit"
    loaded = _through_a_file(saved)
    _same(saved, loaded, f"the state {where}, after torch.save and torch.load(weights_only=True)", expected)
    fresh = method.guard()
    fresh.load_state_dict(loaded)
    _same(saved, fresh.state_dict(), f"the state {where}, loaded into a fresh guard", expected)


def _through_a_file(saved: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def zero(method: Method) -> None:
    """Strength zero is fine-tuning: the same weights and random numbers, and no pass over the data."""
    off, plain = method.run(method.guard(0.0)), method.run(None)
    for task in range(1, 4):
        for run in (off, plain):
            run.go_on(between(task))
        expected = "fine-tuning bit for bit: is_off is True at strength 0"
        _same(off.trained(), plain.trained(), f"task {task} at strength 0 and in fine-tuning", expected)
        advanced = off.random.advanced(plain.random)
        if advanced:
            raise ViolationError(f"task {task} at strength 0 drew random numbers of {', '.join(advanced)}", expected)
    if max(off.reads) > BATCH:
        raise ViolationError(
            f"at strength 0 the guard read {max(off.reads)} samples of a task",
            f"at most its first batch ({BATCH} samples, the check on entry): no pass over the data for a pull of zero",
        )


def commutes(method: Method) -> None:
    """The order of + has no effect: one name and the same weights, with AFEC added (to AFEC itself: EWC)."""
    sums: list[Guard] = []
    for reverse in (False, True):
        terms: list[Term] = list(method.guard().terms)
        if not any(term.name == AFEC.name for term in terms):
            terms.append(AFEC(forgetting=1.0, epochs=3))
        elif len(terms) == 1:
            terms.append(EWC(strength=10.0))
        summands: list[Guard] = list(reversed(terms)) if reverse else list(terms)
        sums.append(functools.reduce(operator.add, summands))
    one, other = sums
    expected = "the same whichever way it is written"
    if one.method != other.method:
        raise ViolationError(f"a + b is {one.method!r} and b + a is {other.method!r}", expected)
    ends = []
    for guard in sums:
        run = method.run(guard)
        run.go_on(between(2))
        ends.append(_everything(run))
    _same(ends[0], ends[1], f"{one.method} as a + b and as b + a", expected)


def resume(method: Method) -> None:
    """Saved after any number of steps and taken up in fresh objects, a run ends as the uninterrupted one."""
    run, checkpoints, ends = method.run(method.guard()), {}, {}
    for where, place in {**SAVED_AT, "after the third task": between(3)}.items():
        run.go_on(place)
        checkpoints[where] = run.checkpoint()
        if place[1] < 0:
            ends[place] = copy.deepcopy(_everything(run))
    for where, checkpoint in checkpoints.items():
        again = method.taken_up(checkpoint)
        for place in (place for place in ends if place > again.at):
            again.go_on(place)
            _same(
                _everything(again),
                ends[place],
                f"after task {place[0]}, a run that was saved {where} and taken up in fresh objects and the uninterrupted one",
                "the same, bit for bit: what a method learns during a task is in its task_state, not on the instance",
            )


def pulls(method: Method) -> None:
    """A positive strength changes the second task, and what a step adds to the gradients is the gradient of the penalty."""
    guarded, plain = method.run(method.guard(), torch.float64), method.run(None, torch.float64)
    guarded.go_on((1, 1, 1))
    _is_gradient_of_penalty(guarded)
    for run in (guarded, plain):
        run.go_on((1, EPOCHS, 0))
    if difference(guarded.trained()["model"], plain.trained()["model"]) is None:
        raise ViolationError(
            f"with strength {method.strength:g} the second task ended with the weights of fine-tuning, bit for bit",
            "other weights; if only this strength is too small, give check_method a larger strength=",
        )


def _is_gradient_of_penalty(run: Run) -> None:
    """By central differences, which are exact for a quadratic, along one random direction for each weight."""
    assert run.task is not None
    value, pull = run.task.penalty(), run.pulls()
    generator = torch.Generator().manual_seed(3)
    for name, weight in run.model.named_parameters():
        direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        there, ends = weight.detach().clone(), []
        for sign in (0.05, -0.05):
            weight.data = there + sign * direction
            ends.append(float(run.task.penalty()))
        weight.data = there
        slope, along = (ends[0] - ends[1]) / 0.1, float((pull[name] * direction).sum())
        size = float(pull[name].norm() * direction.norm()) + abs(float(value))
        if not abs(slope - along) <= 10 * math.sqrt(torch.finfo(value.dtype).eps) * size:
            raise ViolationError(
                f"along a random direction of {name!r}, task.penalty() has the slope {slope:.6g} (central differences) and "
                f"what a step adds to the gradient has {along:.6g}",
                "the same: the pull is the gradient of the penalty",
            )


def nonnegative(method: Method) -> None:
    """The penalty is a finite number ≥ 0: before every step, and wherever a single number of a weight may go."""
    run = method.run(method.guard(), torch.float64)
    for task in range(3):
        for epoch, batch in itertools.product(range(EPOCHS), range(SAMPLES // BATCH)):
            run.go_on((task, epoch, batch))
            _is_not_negative(run, f"before batch {batch + 1} of epoch {epoch + 1}")
        for name, weight in run.model.named_parameters():
            there, numbers = weight.data, weight.data.clone().reshape(-1)
            for index in range(len(numbers)):
                moved = numbers.clone()
                moved[index] += 100.0  # so far away that nothing else matters
                weight.data = moved.reshape(there.shape)
                _is_not_negative(run, f"where number {index} of {name!r} is moved by 100")
            weight.data = there


def _is_not_negative(run: Run, where: str) -> None:
    assert run.task is not None
    value = float(run.task.penalty())
    if not value >= -1e-9 or math.isinf(value):  # a sum of quadratics is merged into one, and rounded
        raise ViolationError(
            f"in task {run.at[0] + 1}, {where}, task.penalty() is {value:.6g}",
            "a finite number ≥ 0: no precision is negative",
        )


def _everything(run: Run) -> dict[str, Any]:
    """What two runs that are the same have in common."""
    assert run.guard is not None
    return {**run.trained(), "guard": run.guard.state_dict(), "torch's random state": run.random.torch}


def _same(one: Any, other: Any, what: str, expected: str) -> None:
    found = difference(one, other)
    if found is not None:
        raise ViolationError(f"{what} differ: {found}", expected)
