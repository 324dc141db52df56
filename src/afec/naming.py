"""Things that have a name in configs and on the command line, and what is said when a name is not known."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "Record",
    "Registry",
    "check_section",
    "did_you_mean",
    "fault",
    "load_object",
    "unknown",
    "with_defaults",
]

NO_OPTIONS = {"self", "params", "seed", "root"}
"""Arguments that no config sets: objects of Python, and what the caller gives itself."""


@dataclass(frozen=True)
class Record:
    """One thing that can be named: what makes it, and what it is in a sentence."""

    name: str
    make: Any
    description: str

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that a config can set."""
        declared = getattr(self.make, "options", None)  # a method's fields
        if declared:
            return tuple(name for name, one in declared.items() if one.from_config)
        return tuple(name for name in inspect.signature(self.make).parameters if name not in NO_OPTIONS)


class Registry(dict[str, Record]):
    """Things of one kind by their names, also as `module:Name` and `path/to/file.py:Name`.

    Args:
        kind: what they are, in messages: "method", "net", "stream".
        records: those that have a name.
        base: what a class from elsewhere must derive from; by default anything that can be called is taken.
    """

    def __init__(self, kind: str, records: Iterable[Record], base: tuple[type, ...] = ()) -> None:
        super().__init__((record.name, record) for record in records)
        self.kind, self.base = kind, base

    def __contains__(self, name: object) -> bool:
        try:
            return super().__contains__(name) or self.__missing__(str(name)) is not None
        except (KeyError, ValueError):
            return False

    def __missing__(self, name: str) -> Record:
        """What `module:Name` stands for; a ValueError says why it stands for nothing."""
        if ":" not in str(name):
            raise KeyError(name)
        made = load_object(name)
        classes = " or ".join(one.__name__ for one in self.base)
        if self.base and not (isinstance(made, type) and issubclass(made, self.base)):
            raise ValueError(f"'{name}' is no {self.kind}: expected a subclass of {classes}; got {made!r}")
        if not callable(made):
            raise ValueError(f"'{name}' is no {self.kind}: expected a class or a function; got {made!r}")
        own = getattr(made, "name", name) if self.base else name
        if super().__contains__(own):
            raise ValueError(f"'{name}' calls itself '{own}', which is a {self.kind} of afec: give it another name")
        return Record(own, made, (inspect.getdoc(made) or "").partition("\n")[0])


def did_you_mean(given: str, valid: Iterable[str]) -> str:
    """`; did you mean 'patience'?`, or nothing where no name comes near."""
    near = get_close_matches(str(given), sorted(valid), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def unknown(what: str, given: str, valid: Iterable[str]) -> str:
    """The message for a name that is none of `valid`."""
    valid = sorted(valid)
    return f"unknown {what} '{given}'{did_you_mean(given, valid) or '.'} Known: {', '.join(valid) or 'none'}"


def fault(kind: str, known: Mapping[str, Record], name: str, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """The key that is wrong and what is wrong with it, where `known` has no such name or it has no such option."""
    try:
        valid = known[name].options
    except KeyError:
        return "name", unknown(kind, name, known)
    except ValueError as error:
        return "name", str(error)
    for key in options:
        if key not in valid:
            near = did_you_mean(key, valid) or "."
            return key, f"the {kind} '{name}' has no option '{key}'{near} It has: {', '.join(valid) or 'none'}"
    return None


def with_defaults(known: Mapping[str, Record], section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the defaults of the named thing's options written out (those that are not None)."""
    parameters = inspect.signature(known[section["name"]].make).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default not in (p.empty, None)}
    return {"name": section["name"], **defaults, **section}


def check_section(kind: str, known: Mapping[str, Record], section: Mapping[str, Any]) -> None:
    """Raise for a section of a config (`name` and options) whose name or options do not exist."""
    if "name" not in section:
        raise ValueError(f"{kind}.name: it is missing; known: {', '.join(known)}")
    options = {key: value for key, value in section.items() if key != "name"}
    if found := fault(kind, known, section["name"], options):
        raise ValueError(f"{kind}.{found[0]}: {found[1]}")


def load_object(place: str) -> Any:
    """What `module:Name` or `path/to/file.py:Name` stands for; a ValueError says what was not found."""
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError(f"'{place}': expected module:Name or path/to/file.py:Name")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ImportError as error:
        raise ValueError(f"'{place}': there is no module {where} to import ({error})") from error
    try:
        return getattr(module, name)
    except AttributeError:
        known = [key for key in vars(module) if not key.startswith("_")]
        raise ValueError(f"'{place}': {where} has no {name}{did_you_mean(name, known) or '.'}") from None


def _module_of_file(path: Path) -> ModuleType:
    """A file as a module, executed once in a process; its name is the same in every process, so that it can be pickled."""
    if not path.is_file():
        raise ValueError(f"there is no file {path} (looked for in {Path.cwd()})")
    name = f"afec_file_{path.resolve().as_posix().strip('/').removesuffix('.py').replace('/', '_').replace('.', '_')}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
