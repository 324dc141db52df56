"""Damaged copies of a small file by the thousand: a reader of foreign bytes reads each, or raises its own error."""

from __future__ import annotations

import copy
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

COUNT = 1000
MEMORY = 2 << 30  # bytes that a reader may ask for beyond what the process has
SECONDS = 20.0  # of the processor, for one input; a thousandth of it is usual
NESTED = "[" * 200 + "]" * 200
VALUES = ("", "-1", "0", "-0.5", "nan", "1e999", "1" + 30 * "0", "9" * 5000, "true", '"x"', "[1, 2]", "{}", NESTED)


def damaged(whole: bytes, *, text: bool = False, count: int = COUNT, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`count` inputs, each with the words that name it: random bytes, and cuts, bit flips and other damage of `whole`.

    `text`: lines are also dropped and repeated, and numbers replaced by odd ones.
    """
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        kinds = KINDS + TEXT_KINDS * text
        kind = kinds[number % len(kinds)]
        yield f"input {number} of seed {seed} ({kind.__name__.strip('_')})", kind(whole, draw)


def _random(whole: bytes, draw: random.Random) -> bytes:
    """Nothing of the file, or its beginning, so that readers which look for a mark go on."""
    return whole[: draw.choice((0, 0, 1, 2, 4, 8, 16))] + draw.randbytes(draw.randrange(600))


def _cut(whole: bytes, draw: random.Random) -> bytes:
    return whole[: draw.randrange(len(whole))]


def _flipped(whole: bytes, draw: random.Random) -> bytes:
    content = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        # Half of the flips are where formats keep their structure: near the beginning and the end.
        edge = min(len(content), 256)
        place = draw.choice((draw.randrange(len(content)), draw.randrange(edge), -1 - draw.randrange(edge)))
        content[place] ^= 1 << draw.randrange(8)
    return bytes(content)


def _overwritten(whole: bytes, draw: random.Random) -> bytes:
    """A stretch of other bytes; all ones is where a size becomes 10^18."""
    length = draw.choice((1, 2, 4, 8, 16))
    place = draw.randrange(len(whole))
    stretch = draw.choice((draw.randbytes(length), b"\xff" * length, b"\0" * length, b"\x7f" + b"\xff" * (length - 1)))
    return whole[:place] + stretch + whole[place + length :]


def _reordered(whole: bytes, draw: random.Random) -> bytes:
    """Some line dropped or repeated somewhere else."""
    lines = whole.splitlines(keepends=True)
    line = lines.pop(draw.randrange(len(lines)))
    for _ in range(draw.randrange(3)):
        lines.insert(draw.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _odd_value(whole: bytes, draw: random.Random) -> bytes:
    """Another value in the place of a number or a word."""
    found = draw.choice(list(re.finditer(rb'-?\d+(?:\.\d+)?|"[^"\n]*"|\w+', whole)))
    return whole[: found.start()] + draw.choice(VALUES).encode() + whole[found.end() :]


KINDS = (_random, _cut, _flipped, _overwritten)
TEXT_KINDS = (_reordered, _odd_value)


def changed(tree: Any, *, count: int = COUNT, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Trees with one thing replaced, taken out or put in: what a file whose checksum is right can have in it."""
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        yield f"tree {number} of seed {seed}", _changed(copy.deepcopy(tree), draw)


def _changed(tree: Any, draw: random.Random) -> Any:
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.05:
        return _odd(tree, draw)
    key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
    kind = draw.random()
    if kind < 0.1:
        del tree[key]
    elif kind < 0.15 and isinstance(tree, dict):
        tree[draw.choice(("odd", 7))] = _odd(None, draw)
    else:
        tree[key] = _changed(tree[key], draw)
    return tree


def _odd(value: Any, draw: random.Random) -> Any:
    if isinstance(value, torch.Tensor) and draw.random() < 0.7:
        flat = value.flatten()
        return draw.choice((flat[:-1], value[None], value.to(torch.complex64), value + 1, flat[:0])).clone()
    odd = (None, True, -1, 0, 2**70, 0.5, float("nan"), "", "x", [], {}, (1,), [None], {"x": 1}, {3: "x"})
    return draw.choice((*odd, torch.zeros(2), torch.ones(1, dtype=torch.int64), torch.zeros(0)))


@contextmanager
def _watched() -> Iterator[None]:
    """No hang, and no more memory than is sensible: both are exceptions of nobody's reader."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"it took more than {SECONDS:.0f} seconds of the processor")

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    handler = signal.signal(signal.SIGVTALRM, too_long)
    try:
        if pages:
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, handler)


def reads_or_says(read: Callable[[], object], error: type[Exception], file: Path | str, words: str) -> bool:
    """Whether it could be read; else it must have raised that very error, with the name of the file."""
    try:
        with _watched():
            read()
    except Exception as found:
        if type(found) is not error or str(file) not in str(found):
            expected = f"expected {error.__name__} with the name {file}"
            raise AssertionError(f"{words}: {type(found).__name__}: {found}; {expected}") from found
        return False
    return True


def try_all(
    file: Path, read: Callable[[], object], error: type[Exception], name: Path | None = None, *, text: bool = False
) -> None:
    """Put every damaged copy of `file` in its place, and read it. `name`: what errors call it, if not by its path."""
    whole = file.read_bytes()
    assert reads_or_says(read, error, name or file, "the whole file")
    good = 0
    for words, content in damaged(whole, text=text):
        file.unlink()  # some file systems are slow to empty a file that is there
        file.write_bytes(content)
        good += reads_or_says(read, error, name or file, words)
    file.write_bytes(whole)
    assert good < COUNT, "no damage was noticed: is the file read at all?"
