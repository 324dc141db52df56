"""The pull inside the optimiser's step: every step that changes a guarded weight sees `.grad` + pull exactly once.

Global hooks on `Optimizer.step` add it, whichever optimiser steps, so the user's loop stays as it is. Two things make
"exactly once" true:

- Wrappers and `super().step()` fire the hooks twice. Only the outermost `step()` counts: a step is nested when the
  frame of the outer one is still on the stack, which stays right after a step that raised.
- A gradient that already holds the pull (after `task.pull()`, or when a step was skipped) carries a mark, bound to the
  gradient tensor. Accumulating onto it and clipping it keep the mark; a new, zeroed or already used gradient has none.

And EWC must never silently become fine-tuning: a weight whose version moved without our hooks raises at the next
backward, at the end of the block at the latest.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from afec.fisher.shards import local
from afec.gaussian import Derived, Quadratic
from afec.guard.gradients import add_pull, is_skipped, scale_of
from afec.guard.low_rank import LowRankPull
from afec.guard.marks import GuardedWeight, WeightMovedError, version_of
from afec.guard.steps import Observer

__all__ = ["Mover", "Puller"]

Mover = Callable[[Mapping[str, Tensor], float | None], None]
"""Moves weights after a step: those of one group of the optimiser that had a gradient, by name, and the group's lr."""


class Puller:
    """Adds the pull of a merged quadratic to the gradients of guarded weights, inside every optimiser's step."""

    def __init__(self, model: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
        self.model = model
        self.guarded = {id(weight): GuardedWeight(name, weight) for name, weight in weights.items()}
        self.quadratic: Quadratic | Derived | None = None
        self.low_rank: Sequence[LowRankPull] = ()
        self.observer: Observer | None = None  # of methods that look at every step (SI, RWALK)
        self.movers: Sequence[Mover] = ()
        self.steps = 0
        self.latest: weakref.ref[Optimizer] | None = None  # the last optimiser that stepped a guarded weight
        self._handles: list[Any] = []
        self._suspended = False
        self._excused = False  # weights were moved on purpose
        # Of the outermost step that is running:
        self._outer: FrameType | None = None
        self._pulled: set[GuardedWeight] = set()
        self._line_search = False
        self._in_closure = False
        self._refreshing: set[GuardedWeight] = set()

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def pulls(self) -> bool:
        """Whether there is anything to pull by."""
        return self.quadratic is not None or bool(self.low_rank)

    def set(self, quadratic: Quadratic | Derived, low_rank: Sequence[LowRankPull] = ()) -> None:
        """Pull by this quadratic from now on, and by those on products of two weights. Other weights are only watched."""
        self.quadratic, self.low_rank = quadratic if quadratic.center else None, low_rank
        for entry in self.guarded.values():
            entry.extra = None
        for one in low_rank:
            for weight in (one.weight.a, one.weight.b):
                if id(weight) in self.guarded:
                    self.guarded[id(weight)].extra = partial(one.pull, weight)
        for entry in self.guarded.values():
            entry.set(quadratic)

    def attach(self) -> None:
        """Install all hooks."""
        self._expect()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        for entry in self.guarded.values():
            hook = entry.weight.register_post_accumulate_grad_hook(self._watch(entry))  # type: ignore[no-untyped-call]
            self._handles.append(hook)
        for module in self.model.modules():
            if any(id(p) in self.guarded for p in module.parameters(recurse=False)):
                # Restoring weights (the best ones, a checkpoint) is no optimiser step that lost its pull.
                hook = module.register_load_state_dict_post_hook(_OnLoad(self))  # type: ignore[no-untyped-call]
                self._handles.append(hook)

    def detach(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._outer = [], None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """No pull and no watch while the module is borrowed; what moved meanwhile was put back."""
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before
            self._expect()

    # -- watching -------------------------------------------------------------------------------------------------

    def excuse(self, weights: Iterable[nn.Parameter] | None = None) -> None:
        """The weights (all of them by default) were moved on purpose."""
        self._excused = True
        self._expect(None if weights is None else [self.guarded[id(weight)] for weight in weights])

    def verify(self) -> None:
        """Raise if a weight moved without its pull."""
        now = dict(self.model.named_parameters())
        for entry in self.guarded.values():
            if now.get(entry.name) is not entry.weight:
                raise WeightMovedError(
                    f"guarded weight {entry.name!r} was replaced by another tensor inside the block, so it was not "
                    "pulled. Change the model between blocks, and load weights without assign=True"
                )
            entry.check_version()
            # Writes through `.data` leave no version; but a block without a step of ours has moved nothing.
            if self.steps == 0 and not self._excused and entry.sum != entry.checksum():
                raise entry.moved()

    def _expect(self, entries: Iterable[GuardedWeight] | None = None) -> None:
        """Take the present versions as right."""
        for entry in self.guarded.values() if entries is None else entries:
            entry.version = version_of(entry.weight)

    def _watch(self, entry: GuardedWeight) -> Callable[[Tensor], None]:
        def watch(weight: Tensor) -> None:
            if not self._suspended:
                if version_of(weight) != entry.version:
                    raise entry.moved()
                if entry.grad is not None:
                    entry.accumulated()
                    if self.observer is not None and entry.grad is not None:
                        self.observer.accumulated(entry)

        return watch

    # -- pulling --------------------------------------------------------------------------------------------------

    def pull(self) -> None:
        """Add the pull to every gradient that does not hold it yet."""
        for entry in self.guarded.values():
            if entry not in self._refreshing and entry.weight.requires_grad:
                # From now on a gradient that holds the pull may be clipped and then accumulated onto.
                hook = entry.weight.register_hook(self._refresher(entry))  # type: ignore[no-untyped-call]
                self._handles.append(hook)
                self._refreshing.add(entry)
        added = add_pull(self.guarded.values(), None)
        if self.observer is not None:
            self.observer.pulled(added)

    def _refresher(self, entry: GuardedWeight) -> Callable[[Tensor], None]:
        def refresh(grad: Tensor) -> None:
            entry.refresh()
            if self.observer is not None:
                self.observer.rescaled(entry)

        return refresh

    def penalty(self, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The merged penalty at the present weights, or at others."""
        if self.low_rank and weights is not None:
            raise ValueError('the penalty of EWC(on="delta") is known at the present weights only; call penalty()')
        extra = sum((one.penalty() for one in self.low_rank), torch.zeros(()))
        if self.quadratic is None:
            return extra
        center = self.quadratic.center
        here = {e.name: e.weight for e in self.guarded.values()} if weights is None else weights
        known = {name: local(here[name]) for name in center if name in here}
        found = self.quadratic.penalty({name: weight.to(center[name]) for name, weight in known.items()})
        return found + extra.to(found)

    def refuse_climbing(self, optimizer: Optimizer) -> None:
        """An optimiser that maximises would be pushed away from θ* by the pull."""
        for group in optimizer.param_groups:
            if group.get("maximize") and any(id(weight) in self.guarded for weight in group["params"]):
                raise ValueError(
                    f"{type(optimizer).__name__} has maximize=True, so the pull would push guarded weights away. "
                    "Minimise the negative loss instead"
                )

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self._suspended:
            return None
        frame = sys._getframe(1)
        if not _on_stack(self._outer, frame):  # this is the outermost step
            self._outer, self._pulled, self._line_search = frame, set(), False
            if self.observer is not None:
                self.observer.start()
        self._line_search |= isinstance(optimizer, LBFGS)
        positional = len(args) > 1 and callable(args[1])
        closure = args[1] if positional else kwargs.get("closure")
        if self.observer is not None:
            self.observer.before(self._entries(optimizer))
        if self.pulls:
            self.refuse_climbing(optimizer)
        if closure is None and (self.pulls or self.observer is not None):
            self._pull_step(optimizer)
        if closure is None:
            return None
        if getattr(closure, "pulls_for", None) is self:  # a wrapper hands our closure on
            return None
        wrapped = self._wrapped(closure, optimizer)
        return ((args[0], wrapped, *args[2:]), kwargs) if positional else (args, {**kwargs, "closure": wrapped})

    def _wrapped(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        """A closure computes new gradients, so the pull comes after it; a line search needs the penalty as well."""

        def closure_and_pull() -> Any:
            entries = self._entries(optimizer)
            self._expect(entries)  # LBFGS moves the weights between two calls
            outermost, self._in_closure = not self._in_closure, True
            try:
                loss = closure()
            finally:
                self._in_closure = not outermost
            self._add_pull(entries, optimizer)
            searches = self._line_search and outermost and self.pulls
            return loss + self.penalty() if searches and loss is not None else loss

        closure_and_pull.pulls_for = self  # type: ignore[attr-defined]
        return closure_and_pull

    def _pull_step(self, optimizer: Optimizer) -> None:
        entries = self._entries(optimizer)
        if self._pulled:  # a nested step: an outer one has pulled some of them
            entries = [entry for entry in entries if entry not in self._pulled]
        self._add_pull(entries, optimizer, optimizer)

    def _add_pull(self, entries: list[GuardedWeight], optimizer: Optimizer, by: Optimizer | None = None) -> None:
        scale = scale_of(optimizer)
        if self.observer is not None:
            self.observer.without_pull(entries, scale)
        add_pull(entries, scale, by)
        if self.observer is not None:
            self.observer.with_pull(entries, scale)
        self._pulled.update(entries)

    def _entries(self, optimizer: Optimizer) -> list[GuardedWeight]:
        known = self.guarded
        return [e for group in optimizer.param_groups for w in group["params"] if (e := known.get(id(w))) is not None]

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._suspended:
            return
        outermost = self._outer is sys._getframe(1)
        stepped, entries = weakref.ref(optimizer), self._entries(optimizer)
        if outermost and self.movers and not is_skipped(optimizer):
            self._move(optimizer)
        for entry in entries:
            entry.version = version_of(entry.weight)
            if entry.grad is not None:
                entry.used(stepped)
        if outermost:  # the step is over
            self._outer = None
            if self.observer is not None:
                self.observer.finish(skipped=is_skipped(optimizer))
            if entries:
                self.latest = stepped
                self.steps += 1

    @torch.no_grad()
    def _move(self, optimizer: Optimizer) -> None:
        known = self.guarded
        for group in optimizer.param_groups:
            held = [e for w in group["params"] if w.grad is not None and (e := known.get(id(w))) is not None]
            stepped = {entry.name: entry.weight for entry in held if entry.weight.requires_grad}
            if stepped:
                lr = group.get("lr")
                for mover in self.movers:
                    mover(stepped, None if lr is None else float(lr))


class _OnLoad:
    """Excuses the weights that a module has just loaded. It lives in the module, and a copy of that must not act."""

    def __init__(self, puller: Puller | None = None) -> None:
        self.puller = puller

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        if self.puller is not None:
            self.puller.excuse(p for p in module.parameters(recurse=False) if id(p) in self.puller.guarded)

    def __reduce__(self) -> tuple[type[_OnLoad], tuple[()]]:
        return _OnLoad, ()  # copied or pickled with the module: without the puller


def _on_stack(outer: FrameType | None, frame: FrameType | None) -> bool:
    while outer is not None and frame is not None:
        if frame is outer:
            return True
        frame = frame.f_back
    return False
