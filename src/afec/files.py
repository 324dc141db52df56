"""Trees of tensors in one safetensors file.

A tree is what a state is made of: dicts (with string or int keys), lists and tuples, nested, with tensors, numbers, bools,
strings and None in them. `save_tree` puts its tensors into a `.safetensors` file under their place in the tree
(`model.heads.0.weight`), which any other reader of such files can open, and the rest as JSON into the file's metadata:

    afec.format     the number of this format
    afec.tree       the structure: scalars as they are, everything else as an object with one key, e.g. {"tuple": [0.9, 0.999]}
    afec.checksum   CRC-32 of the structure and of every tensor's name, dtype, shape and bytes

`load_tree` gives the tree back bit for bit, or raises `FileError`. No pickle anywhere: a file is read, never run.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from afec.whole_files import FileError, replacing

__all__ = ["FileError", "Tree", "load_tree", "save_tree"]

Tree = Any
"""Dicts, lists, tuples, tensors, numbers, bools, strings and None; mypy has no finite name for it that callers could use."""

FORMAT = 1
MAX_DEPTH = 100
_TYPES = "dicts with string or int keys, lists, tuples, tensors, int, float, bool, str and None"
_DTYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.bool, torch.complex64),
}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class _DamageError(Exception):
    """What is wrong inside a file, on its way to becoming a FileError."""


def save_tree(path: str | os.PathLike[str], tree: Tree) -> None:
    """Write `tree` into one safetensors file; `path` has its old content or all of the new one, never a part.

    Dtypes, shapes and the channels-last memory format are kept. What is not: other strides, the device, `requires_grad`, a dict
    being an OrderedDict, and two places sharing one memory (each comes back with its own).
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(tree, (), tensors), separators=(",", ":"))
    tensors = _apart(tensors)
    metadata = {
        "afec.format": str(FORMAT),
        "afec.tree": structure,
        "afec.checksum": _checksum(structure, tensors),
    }
    path = Path(path)
    with replacing(path) as temporary:
        # safetensors makes files that only their owner may read; ours are like any other file.
        mode = stat.S_IMODE(temporary.stat().st_mode)
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            if "header too large" in str(error):
                raise ValueError(
                    f"{path}: the tree has {len(structure):,} characters of structure, more than fits into a safetensors "
                    "header (100 MB); put long lists of numbers into tensors"
                ) from None
            raise OSError(f"could not write {path}: {error}") from error
        temporary.chmod(mode)


def load_tree(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Tree:
    """The tree that `save_tree` wrote, its tensors on `device`.

    Raises:
        FileError: the file is missing, unreadable, damaged, of a newer format or not written by `save_tree`.
    """
    path, device = Path(path), torch.device(device)
    try:
        structure, tensors = _read(path)
        tree = _decode(structure, tensors, device)
        if tensors:
            raise _DamageError(f"its structure does not say where the tensor {_short(next(iter(tensors)))} belongs")
    except FileNotFoundError:
        raise FileError(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise FileError(
            f"{path}: it cannot be read ({error}); check that it is a file and that you may read it"
        ) from error
    except _DamageError as damage:
        raise FileError(f"{path}: {damage}; give a file written by afec, or make it anew") from damage.__cause__
    return tree


def _encode(value: Tree, place: tuple[str | int, ...], tensors: dict[str, Tensor]) -> Any:
    """The JSON of `value`; its tensors go into `tensors`, ready to be written.

    Types are compared exactly: a NumPy float is a float and a bool an int, but they would come back as something else.
    """
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if value.bit_length() < 64 else {"int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        return _encode_tensor(value, place, tensors)
    if len(place) >= MAX_DEPTH:
        raise ValueError(
            f"the tree is nested deeper than {MAX_DEPTH} levels at {_name(place[:4])}…: does it contain itself?"
        )
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(item, (*place, i), tensors) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{_name(place)} has the key {key!r} of type {_type(key)}; keys are strings or ints")
        return {"dict": [[_encode(k, place, tensors), _encode(v, (*place, k), tensors)] for k, v in value.items()]}
    hint = "; use .item() or torch.from_numpy" if type(value).__module__ == "numpy" else ""
    raise TypeError(f"{_name(place)} is of type {_type(value)}, which no file can hold; a tree has {_TYPES}{hint}")


def _encode_tensor(value: Tensor, place: tuple[str | int, ...], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if value.layout != torch.strided or value.is_meta or value.is_nested or value.dtype not in _DTYPES:
        raise TypeError(
            f"{_name(place)} is a {value.layout} tensor of {value.dtype} on '{value.device}', which a safetensors file cannot "
            "hold; give a dense one with values, of an ordinary dtype"
        )
    name = wanted = ".".join(map(str, place)).encode(errors="backslashreplace").decode() or "tensor"
    number = 1
    while name in tensors or name == "__metadata__":  # "a.b" is one key or two; 1 and "1" are two keys
        number += 1
        name = f"{wanted}#{number}"
    tensors[name] = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    last = _CHANNELS_LAST.get(value.dim())
    if last and value.is_contiguous(memory_format=last) and value.stride() != _plain_stride(value.shape):
        return {"tensor": name, "channels_last": True}
    return {"tensor": name}


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of those that share memory with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return result


def _plain_stride(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _read(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """The structure and the tensors of a file, checked to be what was written."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if "afec.format" not in metadata:
                raise _DamageError("it is a safetensors file, but not a tree that afec wrote")
            if metadata["afec.format"] != str(FORMAT):
                raise _DamageError(
                    f"it has the format {metadata['afec.format'][:20]!r}, and this afec reads {FORMAT} only"
                )
            # Copies: what safetensors gives is a window on the file, and would change with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (OSError, _DamageError):
        raise
    except Exception as error:
        raise _DamageError(f"it is damaged or no safetensors file ({error})") from error
    if odd := {str(tensor.dtype) for tensor in tensors.values()} - {str(dtype) for dtype in _DTYPES}:
        raise _DamageError(f"it has tensors of {sorted(odd)}, which afec never writes")
    text = metadata.get("afec.tree", "")
    if metadata.get("afec.checksum") != _checksum(text, tensors):
        raise _DamageError("its checksum does not fit its content, so something in it was changed")
    try:
        return json.loads(text, parse_constant=_no_constant), tensors
    except (ValueError, RecursionError) as error:
        raise _DamageError(f"its structure is not JSON ({error})") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _decode(value: Any, tensors: dict[str, Tensor], device: torch.device, depth: int = 0) -> Tree:
    """The inverse of `_encode`; takes what it uses out of `tensors`."""
    if value is None or type(value) in (bool, str, int, float):
        return value
    if depth > MAX_DEPTH:
        raise _DamageError(f"its structure is nested deeper than {MAX_DEPTH} levels")
    match value:
        case {"list": list(items)} if len(value) == 1:
            return [_decode(item, tensors, device, depth + 1) for item in items]
        case {"tuple": list(items)} if len(value) == 1:
            return tuple(_decode(item, tensors, device, depth + 1) for item in items)
        case {"dict": list(items)} if len(value) == 1:
            return dict(_decode_item(item, tensors, device, depth + 1) for item in items)
        case {"tensor": str(name), **rest} if name in tensors and rest in ({}, {"channels_last": True}):
            return _decode_tensor(tensors.pop(name), bool(rest), device)
        case {"int": str(digits)} if len(value) == 1:
            return _decode_number(digits, lambda: int(digits, 16))
        case {"float": str(digits)} if len(value) == 1:
            return _decode_number(digits, lambda: float(struct.unpack(">d", bytes.fromhex(digits))[0]))
    raise _DamageError(f"its structure has {_short(value)}, which is nothing that a tree has")


def _decode_item(item: Any, tensors: dict[str, Tensor], device: torch.device, depth: int) -> tuple[str | int, Tree]:
    if not isinstance(item, list) or len(item) != 2:
        raise _DamageError(f"its structure has {_short(item)} where a key and a value belong")
    key = _decode(item[0], {}, device, depth)
    if type(key) not in (str, int):
        raise _DamageError(f"its structure has the key {_short(item[0])}; keys are strings or ints")
    return key, _decode(item[1], tensors, device, depth)


def _decode_tensor(value: Tensor, channels_last: bool, device: torch.device) -> Tensor:
    if not channels_last:
        return value.to(device)
    if value.dim() not in _CHANNELS_LAST:
        raise _DamageError(f"it calls a tensor of {value.dim()} dimensions channels-last")
    # Not `.contiguous(memory_format=...)`: it leaves a 1×1 kernel as it is, whose strides decide on the format of what follows.
    last = _CHANNELS_LAST[value.dim()]
    return torch.empty(value.shape, dtype=value.dtype, device=device, memory_format=last).copy_(value)


def _decode_number(digits: str, read: Callable[[], float]) -> float:
    try:
        return read()
    except (ValueError, struct.error) as error:
        raise _DamageError(f"its structure has the number {_short(digits)}") from error


def _checksum(structure: str, tensors: Mapping[str, Tensor]) -> str:
    total = zlib.crc32(structure.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _name(place: Iterable[str | int]) -> str:
    return "tree" + "".join(f"[{key!r}]" for key in place)


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
