"""The settings of a method under a preset, for code that knows a method by its name."""

from __future__ import annotations

from typing import Any

from afec.methods.expression import METHODS

__all__ = ["settings"]


def settings(method: str, preset: str, **given: Any) -> dict[str, Any]:
    """The settings of a method, with those that were given (not None) instead of the preset's."""
    chosen: dict[str, Any] = METHODS[method].make.settings(preset=preset, **given)
    return chosen
