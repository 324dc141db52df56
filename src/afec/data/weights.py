"""Weight files of nets, read without running anything in them: PyTorch's own (`.pth`, `.pt`) and safetensors."""

from __future__ import annotations

import hashlib
import pickle
import re
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from afec.data.root import DataError

__all__ = ["load_weights", "sha256"]


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a weight file, by name.

    Raises:
        DataError: it is missing, damaged, or has something else in it than named tensors. A pickle that asks for any function
            or class beyond PyTorch's tensors is refused, and nothing of it is called.
    """
    try:
        if path.suffix == ".safetensors":
            found: object = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it thinks of an odd file, before it refuses it
                found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"there is no weight file {path}; check the path") from None
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path} has something else in it than tensors, or is damaged{_asks(error)}; it was not run. Give a file of "
            "named tensors, as torch.save(net.state_dict(), …) writes them"
        ) from error
    except Exception as error:  # a damaged file makes PyTorch raise nearly anything
        raise DataError(f"{path} cannot be read as a weight file ({_first(error)}); fetch it again") from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        odd = (
            next((k for k, v in found.items() if not isinstance(v, Tensor)), None) if isinstance(found, dict) else None
        )
        what = f"{odd!r} in it is no tensor" if odd is not None else f"it is a {type(found).__name__}"
        raise DataError(
            f"{path} has no named tensors ({what}); if it is a checkpoint of a training, save its weights alone, "
            "torch.save(net.state_dict(), …)"
        )
    return {name: value.detach() for name, value in found.items()}


def _asks(error: Exception) -> str:
    """Which function or class a pickle asks for, where PyTorch says so among much else."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f" (it asks for {found[1]})" if found else ""


def _first(error: Exception) -> str:
    """The first sentence of a long message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
