"""The `with` block of one task, and what happens to a block that nobody enters.

`guard.learning(…)` begins when its block is entered. Without `with` nothing would begin, and training would be plain
fine-tuning. So a block that waits looks out for optimisers: the first step on its model, outside any guard's block, raises. It
does so whether or not Python has collected the block meanwhile; one that is collected without having been entered also warns.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from afec.guard.task import GuardedTask, is_guarded

__all__ = ["Block", "Lookout"]

NOT_ENTERED = (
    "guard.learning(…) was called without `with`, so nothing is guarded: this would be fine-tuning. "
    "Write `with guard.learning(…):` around the loop, or call task = guard.begin(…) before it and task.end() after it"
)


class Lookout:
    """Raises once at an optimiser's step on a model whose block was not entered; `end()` when it is."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._handle: Any = register_optimizer_step_pre_hook(self._before_step)

    def end(self) -> None:
        """Stop watching the block."""
        self._handle.remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        model = self._model()
        if model is None:
            self.end()
            return
        own = {id(weight) for weight in model.parameters()}
        stepped = [weight for group in optimizer.param_groups for weight in group["params"]]
        # Several blocks may be made before the first of them is entered.
        if any(id(weight) in own for weight in stepped) and not any(map(is_guarded, stepped)):
            self.end()
            raise RuntimeError(NOT_ENTERED)


class Block(AbstractContextManager[GuardedTask]):
    """What `guard.learning(…)` returns: begins the task on entry, ends it on exit, aborts it on an exception."""

    _begin: Callable[[], GuardedTask] | None = None

    def __init__(self, begin: Callable[[], GuardedTask], lookout: Lookout) -> None:
        self._begin, self._lookout = begin, lookout
        self._task: GuardedTask | None = None

    def __enter__(self) -> GuardedTask:
        if self._begin is None:
            raise RuntimeError("this block was entered before; call guard.learning(…) anew for each task")
        begin, self._begin = self._begin, None
        self._task = begin()
        return self._task

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        if kind is not None:
            self._task.abort()
        elif self._task.is_open:  # not ended or aborted by hand
            self._task.end()

    def __iter__(self) -> NoReturn:
        self._misused()
        raise TypeError("guard.learning(…) is no loop but a block: write `with guard.learning(…):` around your loop")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # notebooks and debuggers look for these
            raise AttributeError(name, name=name)
        self._misused()
        raise AttributeError(
            f"guard.learning(…) returns a block and has no {name!r}: write `with guard.learning(…) as task:` and use the "
            "task, your model and your optimiser inside; or task = guard.begin(…)",
            name=name,
        )

    def _misused(self) -> None:
        """An error says what is wrong; another one would be too many."""
        self._begin = None
        self._lookout.end()

    def __del__(self) -> None:
        if self._begin is not None and not sys.is_finalizing():
            warnings.warn(NOT_ENTERED, RuntimeWarning, stacklevel=2)
