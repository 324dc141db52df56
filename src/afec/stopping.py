"""How a long work is asked to stop: by a token that it looks at, never by an exception thrown into it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NEVER", "Stop", "StoppedError"]


class StoppedError(Exception):
    """A training was asked to stop, and did after an epoch."""


class Stop(Protocol):
    """A token that the loop looks at after every epoch."""

    @property
    def asked(self) -> bool:
        """Whether to stop now."""
        ...


class _Never:
    asked = False


NEVER: Stop = _Never()
"""The token of whoever never stops."""
