"""The method that is being checked: how its guards are made, and the runs that a check has opened with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from afec.guard import Guard
from afec.testing.run import Around, Run

__all__ = ["Make", "Method"]

Make = Callable[..., Guard]


class Method:
    """Makes guards of one method, each of them fresh."""

    def __init__(self, make: Make, strength: float) -> None:
        if isinstance(make, Guard) or not callable(make):
            raise TypeError(
                f"make must build a fresh guard each time it is called, make(strength=…): a Term class, or a function; "
                f"got {make!r}. For example check_method(EWC) or check_method(lambda strength: EWC(strength) + …)"
            )
        if not strength > 0:
            raise ValueError(f"strength must be > 0, a strength at which the method pulls; got {strength!r}")
        self.make, self.strength = make, strength
        self._runs: list[Run] = []
        guard = self.guard()
        self.name = f"{guard.method} ({guard!r})"
        if guard is self.guard():
            raise TypeError(
                f"make(strength=…) must build a new guard at every call; it returned the same {guard!r} twice"
            )

    def guard(self, strength: float | None = None) -> Guard:
        """A fresh guard, of the positive strength by default."""
        guard = self.make(strength=self.strength if strength is None else strength)
        if not isinstance(guard, Guard):
            raise TypeError(f"make(strength=…) must return a Guard (a Term, or a sum of them); got {guard!r}")
        return guard

    def guard_of(self, params: list[torch.nn.Parameter]) -> Guard:
        """A fresh guard of these weights only: by `params=` where `make` takes it, else set on the guard."""
        takes = False
        with suppress(ValueError, TypeError):  # a callable without a signature
            takes = "params" in inspect.signature(self.make).parameters
        if takes:
            return self.make(strength=self.strength, params=params)
        guard = self.guard()
        guard.params = params
        return guard

    def run(self, guard: Guard | None, dtype: torch.dtype = torch.float32, around: Around | None = None) -> Run:
        """A run from the start under this guard; None is fine-tuning."""
        return self._keep(Run(guard, dtype, around))

    def taken_up(self, checkpoint: dict[str, Any]) -> Run:
        """A run of fresh objects from a checkpoint."""
        return self._keep(Run.taken_up(self.guard(), checkpoint))

    def _keep(self, run: Run) -> Run:
        self._runs.append(run)
        return run

    def close(self) -> None:
        """Abort what a check has left open."""
        for run in self._runs:
            run.close()
        self._runs.clear()

    def declared(self) -> dict[str, str]:
        """The exemptions that the terms themselves declare in `exempt_contracts`, an attribute of class or instance."""
        found: dict[str, str] = {}
        for term in self.guard().terms:
            own: Mapping[str, str] = getattr(term, "exempt_contracts", {})
            found.update(own)
        return found
