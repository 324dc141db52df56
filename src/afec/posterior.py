"""A posterior as a file: what one person has measured of a base model, for others to hold it by.

One safetensors file (see `files`): the precision of each named weight; its mean, or only the hash of the weights where these
are a public checkpoint that everybody has; and what it was measured by: method, Fisher kind, number of samples, loss.

    guard = afec.EWC(strength=100)
    with guard.learning(base_model, None, proxy_data, loss_fn):
        pass
    guard.save_posterior("base.safetensors", mean=False, checkpoint="all-MiniLM-L6-v2")

    guard = afec.EWC(strength=100)
    guard.load_posterior("base.safetensors", base_model)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from afec.files import FileError, load_tree, save_tree
from afec.gaussian import Gaussian

__all__ = ["VERSION", "Posterior", "hash_of"]

VERSION = 1
KIND = "posterior"


@dataclass(frozen=True)
class Posterior:
    """A Gaussian over the weights of a model, perhaps without its mean, and how it was measured."""

    method: str
    precision: dict[str, Tensor]
    mean: dict[str, Tensor] | None
    weights_hash: str
    """SHA-256 of the mean: names, types, shapes and bytes."""

    checkpoint: str = ""
    """What people call these weights."""

    fisher: str | None = None
    """The Fisher kind; None where it is not known, or no Fisher."""

    samples: int | None = None
    loss: float | None = None
    """The mean loss of some batches of the data with these weights."""

    tasks: int = 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it into one safetensors file."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        save_tree(path, {"kind": KIND, "version": VERSION, **content})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Posterior:
        """Read it; a file of another kind or version is refused by name."""
        tree = load_tree(path)
        if not isinstance(tree, dict) or tree.get("kind") != KIND:
            raise FileError(
                f"{path}: it was written by afec, but it is no posterior; make one with guard.save_posterior"
            )
        if tree.get("version") != VERSION:
            raise FileError(
                f"{path}: it is a posterior of version {tree.get('version')!r}, and this afec reads version {VERSION}; update "
                "afec, or make the file anew"
            )
        content = {field.name: tree[field.name] for field in fields(cls) if field.name in tree}
        missing = {field.name for field in fields(cls)} - content.keys()
        precision, mean = content.get("precision"), content.get("mean")
        if missing or not isinstance(precision, dict) or not all(isinstance(f, Tensor) for f in precision.values()):
            raise FileError(f"{path}: it calls itself a posterior and lacks {sorted(missing) or 'its precision'}")
        if mean is not None and {n: m.shape for n, m in mean.items()} != {n: f.shape for n, f in precision.items()}:
            raise FileError(f"{path}: its mean and its precision are of different weights")
        return cls(**content)

    def over(self, weights: Mapping[str, Tensor], where: str) -> Gaussian:
        """The Gaussian for these weights; refuses, by name, those that it is not of. `where` is the file, for messages."""
        for name, precision in self.precision.items():
            if name not in weights:
                raise ValueError(
                    f"{where} has a weight {name!r}, which this model has not; it has {_some(weights)}. It is the posterior "
                    f"of another model{self._called}"
                )
            if weights[name].shape != precision.shape:
                raise ValueError(
                    f"{where}: weight {name!r} has shape {tuple(precision.shape)} there and {tuple(weights[name].shape)} in "
                    f"this model. It is the posterior of another model{self._called}"
                )
        if self.mean is not None:
            return Gaussian(dict(self.mean), dict(self.precision))
        mean = {name: weights[name].detach().clone() for name in self.precision}
        if (found := hash_of(mean)) != self.weights_hash:
            raise ValueError(
                f"{where} was measured at other weights{self._called}: their hash is {self.weights_hash[:12]}…, that of this "
                f"model {found[:12]}…. Load the very checkpoint, in the same type (its precision is of "
                f"{next(iter(self.precision.values())).dtype}), before anything is trained"
            )
        return Gaussian(mean, dict(self.precision))

    @property
    def _called(self) -> str:
        return f" ({self.checkpoint})" if self.checkpoint else ""

    def facts(self) -> dict[str, Any]:
        """What there is to say of it, for a table."""
        weights = sum(f.numel() for f in self.precision.values())
        return {
            "method": self.method,
            "checkpoint": self.checkpoint or "not named",
            "mean": "in the file" if self.mean is not None else "that of the checkpoint",
            "hash of the weights": self.weights_hash,
            "Fisher": self.fisher or "unknown",
            "samples": "unknown" if self.samples is None else self.samples,
            "loss": "unknown" if self.loss is None else f"{self.loss:.4g}",
            "tasks": self.tasks,
            "weights": f"{weights:,} in {len(self.precision)} tensors",
            "version": VERSION,
        }


def hash_of(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of named weights: names, types, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name, value in sorted(weights.items()):
        total.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:4]) + (f", … ({len(listed)} in all)" if len(listed) > 4 else "")
