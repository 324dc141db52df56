"""What a step did, for methods that look at every step: the gradient that it was taken from, and the change that it made.

Nothing is observed unless a method asks for it. The task's gradient is `.grad` as it stands before the pull is added. Where
`task.pull()` has added the pull p already and the sum was clipped, `.grad` is s·(g + p) and the task's part of it s·g: p is
known, and s is the norm of `.grad` now over the one it had. A step that was skipped, raised or is not finite counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from afec.guard.marks import GuardedWeight

__all__ = ["Observer", "Step", "at_bookmark", "observer_of", "with_bookmark"]

OBSERVABLE = frozenset({"gradient", "total"})


@dataclass(frozen=True)
class Step:
    """One outermost optimiser step, by the names of the weights that had a gradient; float32 at least."""

    gradient: dict[str, Tensor]
    """The task's gradient g, before the pull; empty if nobody asked."""

    total: dict[str, Tensor]
    """With the pull; empty if nobody asked."""

    change: dict[str, Tensor]
    """δ = θ after the step less θ before it."""

    def only(self, names: Container[str]) -> Step:
        """The part of these weights."""
        kept = ({n: t for n, t in part.items() if n in names} for part in (self.gradient, self.total, self.change))
        return Step(*kept)


class _Observes(Protocol):
    @property
    def observes(self) -> frozenset[str]: ...


def observer_of(terms: Sequence[_Observes], tell: Callable[[Step], None], *, reduces: bool = False) -> Observer | None:
    """An observer of what the terms ask for, or None if they ask for nothing."""
    wanted = frozenset[str]().union(*(term.observes for term in terms))
    if not wanted <= OBSERVABLE:
        raise ValueError(f"a method can observe {sorted(OBSERVABLE)}; got {sorted(wanted)}")
    return Observer(wanted, tell, reduces) if wanted else None


class Observer:
    """Collects one step at a time; the puller calls it. Of several gradients of one step (LBFGS) the first one counts."""

    def __init__(self, wanted: frozenset[str], tell: Callable[[Step], None], reduces: bool) -> None:
        self.tell, self.wants_gradient, self.wants_total = tell, "gradient" in wanted, "total" in wanted
        self.reduces = reduces  # after each backward `.grad` becomes the mean over processes (DDP): that is no clipping
        self._held: dict[GuardedWeight, _Held] = {}
        self.start()

    # -- the step -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new outermost step; one that has not come to its end is forgotten."""
        self._before: dict[GuardedWeight, Tensor] = {}
        self._gradient: dict[GuardedWeight, Tensor] = {}
        self._total: dict[GuardedWeight, Tensor] = {}

    @torch.no_grad()
    def before(self, entries: Iterable[GuardedWeight]) -> None:
        """The weights as the step finds them."""
        for entry in entries:
            if entry not in self._before:
                self._before[entry] = entry.weight.detach().clone()

    @torch.no_grad()
    def without_pull(self, entries: Iterable[GuardedWeight], scale: Tensor | None) -> None:
        """The gradients just before the pull is added."""
        if self.wants_gradient:
            for entry, grad in _with_gradients(entries, self._gradient):
                own = _unscaled(grad, scale)
                if entry.grad is not None and entry.holds_pull(grad):
                    own -= self._share(entry, grad) * _pull_of(entry).to(own)
                else:
                    self._held.pop(entry, None)
                self._gradient[entry] = own

    @torch.no_grad()
    def with_pull(self, entries: Iterable[GuardedWeight], scale: Tensor | None) -> None:
        """The gradients just after it was added."""
        if self.wants_total:
            for entry, grad in _with_gradients(entries, self._total):
                self._total[entry] = _unscaled(grad, scale)

    @torch.no_grad()
    def finish(self, *, skipped: bool) -> None:
        """The step is over: tell what it did, if it did anything."""
        seen = [entry for entry in (self._gradient or self._total) if entry in self._before]
        if seen and not skipped:
            after = [entry.weight.detach() for entry in seen]
            before = [self._before[entry] for entry in seen]
            if any(one.dtype in (torch.float16, torch.bfloat16) for one in after):
                after, before = ([_wide(one) for one in tensors] for tensors in (after, before))
            change = torch._foreach_sub(after, before)
            if _finite([*self._gradient.values(), *self._total.values(), *change]):
                names = [entry.name for entry in seen]
                gradient, total = (
                    {entry.name: grad for entry, grad in found.items()} for found in (self._gradient, self._total)
                )
                self.tell(Step(gradient, total, dict(zip(names, change, strict=True))))
        self.start()

    # -- gradients that hold the pull already ---------------------------------------------------------------------

    def pulled(self, added: Iterable[tuple[GuardedWeight, Tensor]]) -> None:
        """`task.pull()` has just added the pull to these; the others hold it already."""
        if not self.wants_gradient:
            return
        if self.reduces:
            for entry, held in self._held.items():
                grad = entry.weight.grad
                if held.accumulated and grad is not None and entry.holds_pull(grad):
                    held.take(grad)
        for entry, grad in added:
            self._held[entry] = _Held(1.0, _norm(grad), grad._version)

    def rescaled(self, entry: GuardedWeight) -> None:
        """A backward is about to add to `.grad`: by how much was it scaled until now?"""
        grad, held = entry.weight.grad, self._held.get(entry)
        if grad is not None and held is not None and entry.holds_pull(grad):
            held.see(grad)

    def accumulated(self, entry: GuardedWeight) -> None:
        """A backward has added to a `.grad` that holds the pull."""
        grad, held = entry.weight.grad, self._held.get(entry)
        if grad is not None and held is not None:
            held.take(grad, accumulated=True)

    def _share(self, entry: GuardedWeight, grad: Tensor) -> float:
        held = self._held.get(entry)
        if held is None:  # added by a step that raised
            return 1.0
        held.see(grad)
        return held.share


@dataclass
class _Held:
    """How much of the pull a gradient holds, s·p, and what the norm was when that was true."""

    share: float
    norm: float
    version: int
    accumulated: bool = False  # since the last `task.pull()`

    def see(self, grad: Tensor) -> None:
        """Notice a clipping since."""
        if grad._version != self.version:
            before = self.norm
            self.take(grad, self.accumulated)
            self.share *= self.norm / before if before > 0 else 1.0

    def take(self, grad: Tensor, accumulated: bool = False) -> None:
        """The share is right for the gradient as it is now."""
        self.norm, self.version, self.accumulated = _norm(grad), grad._version, accumulated


def with_bookmark(task_state: dict[str, Any]) -> dict[str, Any]:
    """The task state with itself as its bookmark. Its tensors are never written to, so nothing is copied."""
    own = {key: value for key, value in task_state.items() if key != "bookmark"}
    return {**own, "bookmark": own}


def at_bookmark(task_state: dict[str, Any]) -> dict[str, Any]:
    """The task state as it was at its bookmark."""
    if "bookmark" not in task_state:
        raise RuntimeError(
            "task.return_to_bookmark() without a task.bookmark() in this task: "
            "call bookmark() whenever you copy the best weights"
        )
    return with_bookmark(task_state["bookmark"])


def _with_gradients(
    entries: Iterable[GuardedWeight], known: dict[GuardedWeight, Tensor]
) -> Iterable[tuple[GuardedWeight, Tensor]]:
    for entry in entries:
        grad = entry.weight.grad
        if entry in known or grad is None or not entry.weight.requires_grad:
            continue
        if grad.layout is not torch.strided:
            raise TypeError(
                f"weight {entry.name!r} has a sparse gradient, whose steps cannot be observed. "
                "Use sparse=False, or leave the weight out with params="
            )
        yield entry, grad


def _unscaled(grad: Tensor, scale: Tensor | None) -> Tensor:
    """A copy, wide enough, without GradScaler's factor."""
    own = _wide(grad) if grad.dtype in (torch.float16, torch.bfloat16) else grad.clone()
    return own if scale is None else own.div_(scale.to(own))


def _pull_of(entry: GuardedWeight) -> Tensor:
    extra = None if entry.extra is None else entry.extra()
    if entry.center is None:
        assert extra is not None, "a gradient that holds the pull has one"
        return extra
    center, curvature, slope = entry.follow()
    pull = curvature * (entry.weight.detach().to(center) - center)
    pull = pull if slope is None else pull + slope
    return pull if extra is None else pull + extra.to(pull)


def _finite(tensors: list[Tensor]) -> bool:
    # A norm is quicker than a look at each; it may overflow where nothing else did, so look then.
    norms = torch._foreach_norm(tensors)
    if bool(torch.stack([norm.to(norms[0]) for norm in norms]).isfinite().all()):
        return True
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _norm(grad: Tensor) -> float:
    return float(torch.linalg.vector_norm(grad.detach(), dtype=torch.promote_types(grad.dtype, torch.float32)))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32)
