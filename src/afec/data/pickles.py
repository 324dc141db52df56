"""Pickles of plain data and byte arrays, read without running any of them.

A pickle may name any function and have it called. The official CIFAR files name three things of NumPy, all to say "an array
of bytes of this shape": each is given a stand-in that keeps what it is told and does nothing, and any other name is refused.
No class or function is within the reach of the file, so it can neither call nor change one.
"""

from __future__ import annotations

import pickle
from typing import IO, Any

import numpy as np

__all__ = ["NotPlainError", "load_plain"]

ADMITTED = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


class NotPlainError(ValueError):
    """A pickle with something else in it than plain data and byte arrays, or a damaged one."""


class _Inert:
    """Stands for one of the admitted names, and for what calling it gives."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...] = ()) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __call__(self, *arguments: object) -> _Inert:
        return _Inert(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


# The reader that is written in Python, and is as quick here. The one in C makes a table as long as the largest number that a
# pickle gives to one of its objects: six damaged bytes are enough to fill the memory.
class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> _Inert:
        if (module, name) not in ADMITTED:
            raise NotPlainError(f"it asks for {module}.{name}, and a file of data has no need of that")
        return _Inert(name)


def load_plain(stream: IO[bytes]) -> Any:
    """The content of a pickle: dicts, lists, numbers, byte strings; arrays of bytes as NumPy's, read-only.

    Strings are bytes, as Python 2 wrote them.

    Raises:
        NotPlainError: it names anything but an array of bytes, or is damaged.
    """
    try:
        return _with_arrays(_Reader(stream, encoding="bytes").load())
    except NotPlainError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise NotPlainError(f"it cannot be read as a pickle ({error or type(error).__name__})") from error


def _with_arrays(value: Any) -> Any:
    """The value, or the dict with its values, with arrays in place of stand-ins. Deeper down no CIFAR file has any."""
    if isinstance(value, dict):
        return {key: _array(item) if isinstance(item, _Inert) else item for key, item in value.items()}
    return _array(value) if isinstance(value, _Inert) else value


def _array(stand_in: _Inert) -> np.ndarray:
    match stand_in.name, stand_in.state:
        case "_reconstruct", (int(), tuple(shape), _Inert(name="dtype") as kind, False, bytes(content)):
            if kind.arguments[:1] == (b"u1",) and all(type(size) is int and size >= 0 for size in shape):
                return np.frombuffer(content, np.uint8).reshape(shape)
    raise NotPlainError("it has an array that is not one of bytes, row by row")
