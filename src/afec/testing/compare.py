"""Comparing what must be the same bit for bit: states, random numbers, hooks."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as _modules
from torch.optim import Optimizer
from torch.optim import optimizer as _optimizers

__all__ = ["RandomState", "difference", "hooks", "not_plain", "remove_hooks_since", "shape_of", "total_numel"]

_PLAIN = (dict, list, tuple, Tensor, int, float, bool, str, type(None))


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first place where two trees differ in type, keys or a single bit, in words; None if nowhere."""
    at = where or "the whole"
    if type(one) is not type(other):
        return f"{at} is a {type(one).__name__} in one and a {type(other).__name__} in the other"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{at} has the keys {_keys(one)} in one and {_keys(other)} in the other"
        return _first((one[key], other[key], f"{where}[{key!r}]") for key in one)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{at} has {len(one)} entries in one and {len(other)} in the other"
        return _first((a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    if isinstance(one, Tensor):
        return _tensor_difference(one, other, at)
    same = one == other or (one != one and other != other)  # NaN is the same as NaN
    return None if same else f"{at} is {one!r} in one and {other!r} in the other"


def _first(parts: Iterable[tuple[Any, Any, str]]) -> str | None:
    return next((found for part in parts if (found := difference(*part)) is not None), None)


def _tensor_difference(one: Tensor, other: Tensor, at: str) -> str | None:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{at} has shape {tuple(one.shape)} of {one.dtype} in one and {tuple(other.shape)} of {other.dtype} in the other"
    if torch.equal(_bits(one), _bits(other)):
        return None
    apart = (one.detach().double() - other.detach().double()).abs().max()
    return f"{at} differs by up to {apart:.3g}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _keys(tree: dict[Any, Any]) -> str:
    return "{" + ", ".join(sorted(map(repr, tree))) + "}"


def not_plain(tree: Any, where: str = "") -> str | None:
    """The first thing in a state that is no plain dictionary, list, tensor, number or string; None if there is none."""
    if type(tree) not in _PLAIN:  # a subclass is not plain: np.float64 is a float, nn.Parameter a tensor
        return f"{where or 'the whole'} is a {type(tree).__module__}.{type(tree).__name__}"
    if isinstance(tree, Tensor) and tree.requires_grad:
        return f"{where} is a tensor that requires grad"
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, dict):
        odd = [key for key in tree if type(key) not in (str, int)]
        if odd:
            return f"{where or 'the whole'} has the key {odd[0]!r}, a {type(odd[0]).__name__}"
        parts = tree.items()
    elif isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
    return next((found for key, part in parts if (found := not_plain(part, f"{where}[{key!r}]")) is not None), None)


def shape_of(tree: Any) -> Any:
    """The nesting of a state without its values: keys, lengths and sizes of tensors."""
    if isinstance(tree, dict):
        return {key: shape_of(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [shape_of(part) for part in tree]
    return tree.numel() if isinstance(tree, Tensor) else "value"


def total_numel(tree: Any) -> int:
    """How many numbers the tensors in a state hold."""
    if isinstance(tree, Tensor):
        return tree.numel()
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return sum(total_numel(part) for part in parts)


@dataclass(frozen=True)
class RandomState:
    """The global random states of torch, numpy and `random`."""

    torch: Tensor
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> RandomState:
        """The random state of this moment."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())

    def put_back(self) -> None:
        """Make this the present random state."""
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def advanced(self, other: RandomState) -> list[str]:
        """Whose states are not the same in `other`."""
        same = {
            "torch": torch.equal(self.torch, other.torch),
            "numpy": pickle.dumps(self.numpy) == pickle.dumps(other.numpy),
            "random": self.python == other.python,
        }
        return [name for name, kept in same.items() if not kept]


def hooks(model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, list[int]]:
    """All hooks on torch, the model, its weights and the optimiser: where, and the identity of each."""
    places: dict[str, Any] = {"every module": _modules, "every optimizer": _optimizers}
    places.update({f"module {name!r}": module for name, module in model.named_modules()})
    if optimizer is not None:
        places["the optimizer"] = optimizer
    found = {
        f"{place}: {name}": [id(hook) for hook in value.values()]
        for place, owner in places.items()
        for name, value in vars(owner).items()
        if "_hooks" in name and isinstance(value, dict)
    }
    for name, weight in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[f"weight {name!r}: {kind}"] = [id(hook) for hook in (getattr(weight, kind, None) or {}).values()]
    if optimizer is not None and "step" in vars(optimizer):
        found["the optimizer: a step of its own"] = [id(vars(optimizer)["step"])]
    return {place: each for place, each in found.items() if each}


def global_hooks() -> list[dict[int, Any]]:
    """Torch's dictionaries of hooks that act on every module or every optimiser."""
    return [
        value
        for owner in (_modules, _optimizers)
        for name, value in vars(owner).items()
        if name.startswith("_global_") and "_hooks" in name and isinstance(value, dict)
    ]


def remove_hooks_since(before: list[set[int]]) -> None:
    """Drop the global hooks that a broken method has left behind, so that the user's process is as it was."""
    for place, known in zip(global_hooks(), before, strict=True):
        for key in place.keys() - known:
            del place[key]
