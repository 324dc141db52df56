"""One call of a trainer's `train()` or `fit()` as one task of a guard: what both callbacks do at the trainer's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from afec.guard import Guard, GuardedTask

__all__ = ["GuardedFit"]


class GuardedFit:
    """Begins, continues, ends or drops the guard's task, and keeps what a checkpoint of the trainer must hold."""

    def __init__(self, guard: Guard, options: Mapping[str, Any]) -> None:
        if not isinstance(guard, Guard):
            raise TypeError(
                f"GuardCallback needs a guard, such as afec.EWC(strength=100); got {type(guard).__name__}. Strategies "
                "(iCaRL, PODNet, …) train by themselves: give them to afec.Learner"
            )
        self.guard, self.options = guard, dict(options)
        self.task: GuardedTask | None = None
        self._epochs_begun = 0  # of this fit; a resumed one knows which it had begun
        self._interrupted: dict[str, Any] | None = None  # what was known when the fit broke off

    @property
    def open_task(self) -> GuardedTask | None:
        """The task, while the trainer is training."""
        return self.task if self.task is not None and self.task.is_open else None

    def begin(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None, data: Any, **options: Any
    ) -> None:
        """Expansion, or the rest of the task that a checkpoint was saved in."""
        if self.open_task is not None:  # of an earlier fit that ended without a word
            self.abort()
        self._interrupted = None
        self.task = self.guard.begin(model, optimizer, data, **{**options, **self.options})

    def begin_epoch(self, number: int, loss: float | None = None) -> None:
        """Epoch `number` (from 0) begins; one that a resumed fit had begun before it was saved is not begun twice."""
        task = self.open_task
        if task is not None and number >= self._epochs_begun:
            self._epochs_begun = number + 1
            task.epoch(loss=loss)

    def penalties(self) -> dict[str, float]:
        """What to log: each kind of pull by its name, and nothing where nothing pulls yet."""
        task = self.open_task
        found = {} if task is None else {name: float(value) for name, value in task.penalties().items()}
        return {f"penalty_{name}": value for name, value in found.items()}

    def end(self) -> None:
        """Consolidation."""
        task = self.open_task
        if task is not None:
            task.end()
        self.task, self._epochs_begun = None, 0

    def abort(self) -> None:
        """Training raised: the guard is as it was before, and a checkpoint saved from now on still holds the task."""
        task = self.open_task
        if task is not None:
            self._interrupted = self.state() if task.started else None
            task.abort()
        self.task, self._epochs_begun = None, 0

    def state(self) -> dict[str, Any]:
        """All that a checkpoint needs."""
        if self._interrupted is not None:
            return self._interrupted
        return {"guard": self.guard.state_dict(), "epochs_begun": self._epochs_begun}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take over what `state()` gave; before `begin`."""
        self.abort()
        self.guard.load_state_dict(state["guard"])
        self._epochs_begun = int(state["epochs_begun"])
