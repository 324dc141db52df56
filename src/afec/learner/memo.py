"""Trainings that no guard touches are pure functions, and need not be repeated.

The first task, and every expansion, is the same for all methods and strengths of a seed: it depends on the initial weights, the
data, the loss, the schedule and the seed alone. A memo keeps the outcome under the hash of exactly these. What it gives back is
bit for bit what a training would have given: the processor, the build of torch and the source code that trains are part of the
hash, so that other code never recalls. Each outcome says by whom it was made. Of the net a memo sees weights, which of them
train, types, the source files of your own types, and `repr`: a net of your own that behaves differently by an attribute that
its `repr` does not show must not share a memo.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import astuple
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from afec.files import FileError, load_tree, save_tree
from afec.learner.fit import Fit
from afec.learner.tasks import Batches
from afec.randomness import processor
from afec.source import source_digest, training_source

__all__ = ["Memo"]


class Memo:
    """Outcomes of trainings, in a directory; any number of processes may use it at once.

    Args:
        directory: where the outcomes are.
        made_by: what to write beside an outcome that is made here, such as the commit and the run.
    """

    def __init__(self, directory: Path, made_by: Mapping[str, str] | None = None) -> None:
        self.directory, self.made_by = directory, dict(made_by or {})

    def path(self, fit: Fit) -> Path | None:
        """Where the outcome of this training is, or will be; to be asked before the training begins.

        None where the loss contains something that is known by its address only, a plain function: two could be one.
        """
        if " at 0x" in repr(fit.loss_fn):
            return None
        assert isinstance(fit.train, Batches), "a mixture is trained once"
        assert fit.validation is None or isinstance(fit.validation, Batches), "a mixture is trained once"
        digest = hashlib.blake2b(digest_size=16)
        where = (metadata.version("afec"), training_source(), torch.__version__, processor(), torch.get_num_threads())
        digest.update(repr((where, fit.loss_fn, astuple(fit.schedule), astuple(fit.machine), fit.seed)).encode())
        types = [type(module) for module in fit.model.modules()]
        modules = [(one.__module__, one.__qualname__, _source_of(one)) for one in types]
        trains = [weight.requires_grad for weight in fit.model.parameters()]
        digest.update(repr((fit.model, modules, trains)).encode())  # also layers without weights, like a dropout's rate
        for name, value in fit.model.state_dict().items():
            digest.update(name.encode())
            digest.update(_bytes(value))
        for tensor in (*fit.train.split, *(fit.validation.split if fit.validation else ())):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(_bytes(tensor))
        return self.directory / f"{digest.hexdigest()}.safetensors"

    @staticmethod
    def recall(path: Path, fit: Fit) -> dict[str, str] | None:
        """Give the fit its outcome, where it is known, and say where it is from: its key, and by whom it was made."""
        if not path.exists():
            return None
        try:
            known = load_tree(path, device=fit.machine.device)
        except FileError:  # damaged: it is simply done again
            return None
        if not _fits(known, fit):
            return None
        fit.model.load_state_dict(known["weights"])
        fit.history, fit.best_epoch = known["history"], known["best_epoch"]
        return {"key": path.stem, **known["made_by"]}

    def keep(self, path: Path, fit: Fit) -> None:
        """Remember the outcome of a training that has just ended."""
        weights = dict(fit.model.state_dict())
        made_by = {"source": training_source(), **self.made_by}
        save_tree(path, {"weights": weights, "history": fit.history, "best_epoch": fit.best_epoch, "made_by": made_by})


def _fits(known: Any, fit: Fit) -> bool:
    """Whether a file has an outcome of this training; anybody can put files into a directory."""
    if not isinstance(known, dict) or set(known) != {"weights", "history", "best_epoch", "made_by"}:
        return False
    weights, own, made_by = known["weights"], fit.model.state_dict(), known["made_by"]
    return (
        isinstance(made_by, dict)
        and all(isinstance(text, str) for pair in made_by.items() for text in pair)
        and isinstance(weights, dict)
        and set(weights) == set(own)
        and all(isinstance(weights[key], Tensor) for key in own)
        and all((weights[key].shape, weights[key].dtype) == (own[key].shape, own[key].dtype) for key in own)
        and isinstance(known["history"], list)
        and all(isinstance(loss, float) for loss in known["history"])
        and isinstance(known["best_epoch"], int)
    )


def _source_of(kind: type) -> str:
    """The digest of the file that a type is written in; empty for ours and torch's, and for those of no file."""
    if kind.__module__.partition(".")[0] in ("afec", "torch"):  # in the hash already
        return ""
    try:
        file = Path(inspect.getfile(kind))
        return source_digest([file], file.parent)
    except (TypeError, OSError):  # typed in by hand
        return ""


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return np.ascontiguousarray(flat.view(torch.uint8).numpy()).tobytes() if flat.numel() else b""
