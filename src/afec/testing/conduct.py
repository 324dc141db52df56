"""Contracts about conduct in the user's loop: nothing is touched, left behind or hoarded, and models may grow."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from afec.testing.compare import difference, hooks, shape_of, total_numel
from afec.testing.method import Method
from afec.testing.report import ViolationError
from afec.testing.run import EPOCHS, Place, Run, between

__all__ = ["abort", "bounded", "grows", "guards_only_params", "untouched"]


def bounded(method: Method) -> None:
    """The state is as large after the fourth task as after the second, also inside a task."""
    run = method.run(method.guard())
    first: dict[str, Any] = {}
    for done in (1, 2, 3):
        for where, place in {"in": (done, EPOCHS, 0), "after": between(done + 1)}.items():
            run.go_on(place)
            assert run.guard is not None
            states = {key: run.guard.state_dict()[key] for key in ("states", "task_states")}
            found = {"numbers": total_numel(states), "nesting": shape_of(states)}
            known = first.setdefault(where, found)
            if difference(known, found) is not None:
                grew = difference(known["nesting"], found["nesting"], "the state")
                raise ViolationError(
                    f"the state holds {known['numbers']} numbers {where} task 2 and {found['numbers']} {where} task {done + 1} "
                    f"({grew})",
                    "the same size and nesting however many tasks",
                )


class _LeftEarlyError(Exception):
    """What is raised inside the block."""


def abort(method: Method) -> None:
    """An exception inside the block leaves the state as on entry and no hook."""
    for place in ((0, 0, 1), (1, 0, 0), (1, 1, 1)):
        run = method.run(method.guard())
        run.go_on(between(place[0]))
        _leave_early(run, place, f"task {place[0] + 1}")
    # A task that was taken up in its middle can be left as well, and taken up again.
    run = method.run(method.guard())
    run.go_on((1, 0, 1))
    again = method.taken_up(run.checkpoint())
    run.close()
    _leave_early(again, (1, 1, 1), "a task that was taken up in its middle")


def _leave_early(run: Run, place: Place, where: str) -> None:
    assert run.guard is not None
    before, hooked = copy.deepcopy(run.guard.state_dict()), hooks(run.model, run.optimizer)
    run.random.put_back()
    with suppress(_LeftEarlyError), run.guard.learning(*run.arguments(), progress=False) as run.task:
        run.at = (place[0], max(run.at[1], 0), run.at[2])
        run.go_on(place)
        raise _LeftEarlyError
    run.task = None
    after = run.guard.state_dict()
    found = difference(before, after)
    if found is not None:
        raise ViolationError(
            f"an exception inside the block of {where} left another state_dict(): {found}",
            "the state as on entry: a term returns new states and changes none in place",
        )
    _no_hooks_beyond(hooked, run, f"an exception inside the block of {where}")
    pulled = [name for name, pull in run.pulls().items() if pull.any()]
    if pulled:
        raise ViolationError(
            f"after an exception inside the block of {where} a step still pulls {', '.join(pulled)}", "a plain step"
        )


def untouched(method: Method) -> None:
    """begin(), epoch() and end() change nothing of the user's: weights, buffers, modes, .grad, optimiser, data, hooks."""
    run = method.run(method.guard(), around=_touches_nothing)
    run.go_on(between(3))


@contextmanager
def _touches_nothing(run: Run, what: str) -> Iterator[None]:
    if what == "step()":
        yield
        return
    # Modes as users have them: batch-norm frozen during training, everything in eval mode before the end.
    run.model.train(what != "end()").get_submodule("body.1").eval()
    before, hooked = _belongings(run), hooks(run.model, run.optimizer)
    yield
    found = difference(before, _belongings(run))
    if found is not None:
        raise ViolationError(f"{what} of task {run.at[0] + 1} changed what is the user's: {found}", "no change")
    run.model.train()
    if what == "begin()":  # the hooks of a task live until its end
        run.hooked = hooked
    elif what == "end()":
        _no_hooks_beyond(run.hooked, run, f"end() of task {run.at[0] + 1}")


def _no_hooks_beyond(known: dict[str, list[int]], run: Run, what: str) -> None:
    left = [place for place, each in hooks(run.model, run.optimizer).items() if each != known.get(place)]
    if left:
        raise ViolationError(f"{what} left hooks: {', '.join(left)}", "no hook")


def _belongings(run: Run) -> dict[str, Any]:
    """Copies of all that is the user's, and which object is where."""
    named = [*run.model.named_parameters(), *run.model.named_buffers()]
    return {
        "value of": {name: tensor.detach().clone() for name, tensor in named},
        "identity of": {name: id(tensor) for name, tensor in named},
        "requires_grad of": {name: tensor.requires_grad for name, tensor in named},
        ".grad of": {name: None if tensor.grad is None else tensor.grad.clone() for name, tensor in named},
        "identity of .grad of": {name: id(tensor.grad) for name, tensor in named},
        "training mode of": {name: module.training for name, module in run.model.named_modules()},
        "optimizer": copy.deepcopy(run.optimizer.state_dict()),
        "data": [run.samples.x.clone(), run.samples.y.clone()],
    }


def grows(method: Method) -> None:
    """A head that gets new classes between tasks is accepted, twice, and the model stays finite."""
    run = method.run(method.guard())
    for task, classes in enumerate((3, 4, 4, 6)):
        if classes != run.classes:
            run.grow(classes)
        run.go_on((task, 1, 1))
        assert run.task is not None
        penalty = run.task.penalty()
        run.go_on(between(task + 1))
        values = {"the penalty": penalty, **dict(run.model.named_parameters())}
        odd = [name for name, value in values.items() if not bool(value.isfinite().all())]
        if odd:
            raise ViolationError(f"with a head of {classes} classes, {', '.join(odd)} is not finite", "finite numbers")


def guards_only_params(method: Method) -> None:
    """Weights outside `params=` are trained and never pulled, and the penalty does not see them."""
    run = method.run(None, torch.float64)
    run.guard = method.guard_of(list(run.model.get_submodule("body").parameters()))
    outside = {name: weight for name, weight in run.model.named_parameters() if name.startswith("head")}
    for task in (0, 1):
        run.go_on(between(task))
        before = {name: weight.detach().clone() for name, weight in outside.items()}
        run.go_on((task, 1, 1))
        still = [name for name, weight in outside.items() if torch.equal(weight, before[name])]
        if still:
            raise ViolationError(
                f"{', '.join(still)}, outside params=, did not change in task {task + 1}", "it is trained as ever"
            )
    pull = run.pulls()
    pulled = [name for name in outside if pull[name].any()]
    if pulled:
        raise ViolationError(f"a step pulls {', '.join(pulled)}, which is outside params=", "no pull, not a bit of one")
    assert run.task is not None
    value = float(run.task.penalty())
    for name, weight in outside.items():
        weight.data = weight.data + 1.0
        now = float(run.task.penalty())
        if now != value:
            raise ViolationError(
                f"task.penalty() went from {value:.6g} to {now:.6g} when {name!r} moved, which is outside params=",
                "a penalty of the guarded weights only",
            )
