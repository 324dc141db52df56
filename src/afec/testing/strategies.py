"""The contracts of a strategy: those of a guard that mean something in our learner, under the same names."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afec.files import load_tree, save_tree
from afec.guard import Guard
from afec.learner import Learner, Progress, Schedule
from afec.methods import AFEC
from afec.nets import MultiHead, Readout
from afec.randomness import forked
from afec.strategy import Strategy
from afec.streams import Split, Task
from afec.testing.compare import RandomState, difference, hooks, not_plain, total_numel
from afec.testing.report import ViolationError

__all__ = ["STRATEGY_CONTRACTS", "StrategyMethod"]

TASKS, SAMPLES, FEATURES, UNITS, CLASSES = 3, 24, 4, 8, 3
SCHEDULE = Schedule(batch_size=8, lr=0.02, max_epochs=2, patience=1, lr_min=1e-4)


class StrategyMethod:
    """Makes strategies of one method, each of them fresh, and learners with them."""

    def __init__(self, make: Callable[..., Any], strength: float) -> None:
        self.make, self.strength = make, strength
        strategy = self.strategy()
        self.name = f"{strategy.method} ({strategy!r})"
        if strategy is self.strategy():
            raise TypeError(f"make(strength=…) must build a new strategy at every call; it returned {strategy!r} twice")

    def strategy(self, strength: float | None = None) -> Strategy:
        """A fresh one, of the positive strength by default."""
        made = self.make(strength=self.strength if strength is None else strength)
        assert isinstance(made, Strategy)
        return made

    def learner(
        self, method: Strategy | Guard | None, on_progress: Callable[[Progress], None] | None = None
    ) -> Learner:
        """A small net and a quick schedule, the same every time."""
        with forked(1):
            if isinstance(method, Strategy) and method.needs_classes:
                readout: Readout = method.readout(_Body())
                return Learner(readout, method, schedule=SCHEDULE, seed=3, progress=False, on_progress=on_progress)
            body = nn.Sequential(
                nn.Linear(FEATURES, UNITS),
                nn.BatchNorm1d(UNITS),
                nn.ReLU(),
                nn.Dropout(0.2),
                nn.Linear(UNITS, UNITS),
                nn.ReLU(),
            )
            net = MultiHead(body, [CLASSES] * TASKS, UNITS)
        return Learner(net, method, schedule=SCHEDULE, seed=3, progress=False, on_progress=on_progress)

    def close(self) -> None:
        """Nothing stays open: a learner closes what it opens."""

    def declared(self) -> dict[str, str]:
        """The exemptions that the strategy itself declares in `exempt_contracts`."""
        return dict(getattr(self.strategy(), "exempt_contracts", {}))


class _Body(nn.Module):
    """A small net with feature maps."""

    out_features = UNITS

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(FEATURES, UNITS), nn.BatchNorm1d(UNITS), nn.ReLU(), nn.Unflatten(1, (2, 2, 2))
        )
        self.second = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(UNITS, UNITS), nn.ReLU())

    def maps(self, x: Tensor) -> list[Tensor]:
        return [self.first(x)]

    def after_maps(self, last: Tensor) -> Tensor:
        features: Tensor = self.second(last)
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.after_maps(self.maps(x)[-1])


def tasks() -> list[Task]:
    """Three small classifications, each by a random linear teacher."""
    found = []
    for number in range(TASKS):
        generator = torch.Generator().manual_seed(1000 + number)
        teacher = torch.randn(FEATURES, CLASSES, generator=generator)
        inputs = (torch.randn(SAMPLES, FEATURES, generator=generator) for _ in range(3))
        train, validation, test = (Split(x, (x @ teacher).argmax(1)) for x in inputs)
        classes = tuple(range(CLASSES * number, CLASSES * (number + 1)))
        found.append(Task(f"task {number + 1}", train, validation, test, CLASSES, "cross_entropy", classes=classes))
    return found


def deterministic(method: StrategyMethod) -> None:
    """The seed determines the result, and nothing is drawn from the user's random numbers."""
    ends = []
    for _ in range(2):
        learner = method.learner(method.strategy())
        for task in tasks():
            before = RandomState.now()
            learner.learn(task)
            if advanced := before.advanced(RandomState.now()):
                raise ViolationError(
                    f"learning {task.name} advanced the user's random numbers of {', '.join(advanced)}",
                    "draws only inside afec.randomness.forked(context.seed(…))",
                )
        ends.append(learner.state_dict())
    _same(ends[0], ends[1], "two learners of the same seed", "the same weights and states, bit for bit")


class _LeftEarlyError(Exception):
    """What is raised in the middle of a task."""


def abort(method: StrategyMethod) -> None:
    """An exception in the middle of a task leaves the method's state as on entry and no hook."""
    for stop in (0, 1):
        phases: set[str] = set()
        while True:  # in each phase of the task

            def leave(at: Progress, stop: int = stop, known: set[str] = phases) -> None:
                if at.task == stop and at.phase not in known:
                    known.add(at.phase)
                    raise _LeftEarlyError

            learner = method.learner(method.strategy(), leave)
            for task in tasks()[:stop]:
                learner.learn(task)
            before, hooked = copy.deepcopy(learner.strategy.state_dict()), hooks(learner.net)
            try:
                learner.learn(tasks()[stop])
                break
            except _LeftEarlyError:
                where = f"an exception in task {stop + 1}"
                _same(
                    before,
                    learner.strategy.state_dict(),
                    f"the state before and after {where}",
                    "the state as on entry",
                )
                if hooks(learner.net) != hooked:
                    raise ViolationError(f"{where} left hooks on the net", "none") from None


def state(method: StrategyMethod) -> None:
    """A state is plain data, and learning on changes nothing of one that was taken before."""
    kept: list[tuple[str, Any, Any]] = []

    def keep(where: str) -> None:
        saved = learner.state_dict()["method"], learner.state_dict()["inside"]
        if odd := not_plain(list(saved)):
            raise ViolationError(
                f"in the state {where}, {odd}", "plain dictionaries, lists, tensors, numbers and strings only"
            )
        # What is being trained is shared with the model, so of a task only its state must not move.
        task_state = {} if saved[1] is None else saved[1]["task_state"]
        kept.append((where, (saved[0], task_state), copy.deepcopy((saved[0], task_state))))

    learner = method.learner(
        method.strategy(), lambda at: keep(f"in {at.phase} of task {at.task + 1}, epoch {at.epoch.number}")
    )
    for number, task in enumerate(tasks(), start=1):
        learner.learn(task)
        keep(f"after task {number}")
    for where, saved, copied in kept:
        _same(
            saved,
            copied,
            f"the state {where} before and after the method learned on",
            "no change: new states, new tensors",
        )


def resume(method: StrategyMethod) -> None:
    """Saved after any epoch and taken up in fresh objects, a learner ends as the one that was never stopped."""
    with tempfile.TemporaryDirectory() as folder:
        files: list[tuple[str, Path]] = []

        def save(where: str) -> None:
            files.append((where, Path(folder) / f"{len(files)}.safetensors"))
            save_tree(files[-1][1], learner.state_dict())

        learner = method.learner(
            method.strategy(), lambda at: save(f"{at.phase} of task {at.task + 1}, epoch {at.epoch.number}")
        )
        for number, task in enumerate(tasks(), start=1):
            learner.learn(task)
            save(f"after task {number}")
        for where, file in files:
            again = method.learner(method.strategy())
            again.load_state_dict(load_tree(file))
            for task in tasks()[len(again.tasks_learned) :]:
                again.learn(task)
            _same(
                learner.state_dict(),
                again.state_dict(),
                f"the uninterrupted run and one that was saved in {where}",
                "the same, bit for bit: what a method learns during a task is in context.task_state, not on the instance",
            )


def bounded(method: StrategyMethod) -> None:
    """The state is as large after the third task as after the second."""
    learner, sizes = method.learner(method.strategy()), []
    for task in tasks():
        learner.learn(task)
        sizes.append(total_numel(learner.strategy.state_dict()))
    if sizes[2] != sizes[1]:
        raise ViolationError(
            f"the state holds {sizes[1]} numbers after task 2 and {sizes[2]} after task 3",
            "the same size however many tasks",
        )


def pulls(method: StrategyMethod) -> None:
    """A positive strength changes the second task."""
    ends = []
    for strength in (method.strength, 0.0):
        learner = method.learner(method.strategy(strength))
        for task in tasks()[:2]:
            learner.learn(task)
        ends.append(dict(learner.net.state_dict()))
    if difference(ends[0], ends[1]) is None:
        raise ViolationError(
            f"with strength {method.strength:g} the second task ended with the weights of strength 0, bit for bit",
            "other weights; if only this strength is too small, give check_method a larger strength=",
        )


def commutes(method: StrategyMethod) -> None:
    """The order of + has no effect: one name and the same weights, with AFEC added."""
    guard = method.strategy().guard
    if guard is not None and any(term.name == AFEC.name for term in guard.terms):
        return  # both orders cannot be made from the sum that is there
    sums = method.strategy() + AFEC(forgetting=1.0), AFEC(forgetting=1.0) + method.strategy()
    expected = "the same whichever way it is written"
    if sums[0].method != sums[1].method:
        raise ViolationError(f"a + b is {sums[0].method!r} and b + a is {sums[1].method!r}", expected)
    ends = []
    for one in sums:
        learner = method.learner(one)
        for task in tasks()[:2]:
            learner.learn(task)
        ends.append(learner.state_dict())
    _same(ends[0], ends[1], f"{sums[0].method} as a + b and as b + a", expected)


# In the order of a guard's; what is missing means nothing here: the loop is ours, and so are the weights.
STRATEGY_CONTRACTS: dict[str, Callable[[StrategyMethod], None]] = {
    "deterministic": deterministic,
    "abort": abort,
    "state": state,
    "resume": resume,
    "bounded": bounded,
    "pulls": pulls,
    "commutes": commutes,
}


def _same(one: Any, other: Any, what: str, expected: str) -> None:
    found = difference(_plain(one), _plain(other))
    if found is not None:
        raise ViolationError(f"{what} differ: {found}", expected)


def _plain(tree: Any) -> Any:
    """A net's state is an ordered dictionary; a file gives plain ones back."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
