"""Things that have a name in configs and on the command line, and what is said when a name is not known."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Protocol

__all__ = ["HasOptions", "check_section", "did_you_mean", "fault", "unknown", "with_defaults"]


class HasOptions(Protocol):
    """A record of something that can be named and set up."""

    @property
    def function(self) -> Callable[..., Any]:
        """What makes it."""
        ...

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        ...


def did_you_mean(given: str, valid: Iterable[str]) -> str:
    """`; did you mean 'patience'?`, or nothing where no name comes near."""
    near = get_close_matches(str(given), sorted(valid), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def unknown(what: str, given: str, valid: Iterable[str]) -> str:
    """The message for a name that is none of `valid`."""
    valid = sorted(valid)
    return f"unknown {what} '{given}'{did_you_mean(given, valid) or '.'} There is: {', '.join(valid) or 'none'}"


def fault(kind: str, known: Mapping[str, HasOptions], name: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """The key that is wrong and what is wrong with it, where `known` has no such name or it has no such option."""
    if name not in known:
        return "name", unknown(kind, name, known)
    valid = known[name].options
    for key in options:
        if key not in valid:
            near = did_you_mean(key, valid) or "."
            return key, f"the {kind} '{name}' has no option '{key}'{near} It has: {', '.join(valid) or 'none'}"
    return None


def with_defaults(known: Mapping[str, HasOptions], section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the defaults of the named thing's options written out (those that are not None)."""
    parameters = inspect.signature(known[section["name"]].function).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default not in (p.empty, None)}
    return {"name": section["name"], **defaults, **section}


def check_section(kind: str, known: Mapping[str, HasOptions], section: Mapping[str, Any]) -> None:
    """Raise for a section of a config (`name` and options) whose name or options do not exist."""
    if "name" not in section:
        raise ValueError(f"{kind}.name: it is missing; there is: {', '.join(known)}")
    options = {key: value for key, value in section.items() if key != "name"}
    if found := fault(kind, known, section["name"], options):
        raise ValueError(f"{kind}.{found[0]}: {found[1]}")
