"""The digest of the source code: what other code has trained is not the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

__all__ = ["source_digest", "training_source"]

PACKAGE = Path(__file__).parent
CANNOT_TRAIN = ("cli", "lab", "metrics.py", "report", "testing")
"""Rooms that the learner never imports. Any other file of the package counts as one that can change a training."""


def source_digest(files: Iterable[Path], base: Path) -> str:
    """The digest of these files, by their names under `base` and their bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(repr((file.relative_to(base).as_posix(), len(content))).encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def training_source() -> str:
    """The digest of the source code of this package that can change a training."""
    files = [file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in CANNOT_TRAIN]
    return source_digest(files, PACKAGE)
