"""Stopping from outside: whoever runs a learner holds a token, and the loop looks at it after every epoch."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NEVER", "Stop", "StoppedError"]


class Stop(Protocol):
    """Says whether a stop has been asked for."""

    @property
    def asked(self) -> bool:
        """Whether to stop at the end of the present epoch."""
        ...


class StoppedError(Exception):
    """A stop was asked for; what was learned so far is in `state_dict()`, which `on_progress` has just been able to save."""


class _Never:
    asked = False


NEVER: Stop = _Never()
