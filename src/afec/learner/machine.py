"""On which device, in which precision and memory format a net runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["Machine", "check_device"]


def check_device(device: str) -> str:
    """The kind of a device, such as `cpu`; raise for one that torch does not know or does not have here."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"device must be what torch.device takes, 'cpu' or 'cuda:0'; got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA here; use device='cpu'")
    return kind


@dataclass(frozen=True)
class Machine:
    """Where and how a net is run; none of it changes what is computed, except for rounding.

    CUDA, AMP on CUDA and `compile` are written for and unproven here: there was no GPU.
    """

    device: str = "cpu"
    amp: Literal["off", "bfloat16", "float16"] = "off"
    """Autocast; `float16` scales the loss as well, and needs CUDA."""
    compile: bool | str = False
    """`torch.compile`, or the name of its backend."""
    channels_last: bool = False
    """Images as NHWC in memory: 1.7 times as fast for the CIFAR CNN on a CPU."""

    def __post_init__(self) -> None:
        if self.amp not in ("off", "bfloat16", "float16"):
            raise ValueError(f"amp must be 'off', 'bfloat16' or 'float16'; got {self.amp!r}")
        kind = check_device(self.device)
        if self.amp == "float16" and kind != "cuda":
            raise ValueError("amp='float16' needs CUDA (its loss is scaled); use amp='bfloat16' on a CPU")

    @property
    def torch_device(self) -> torch.device:
        """The device itself."""
        return torch.device(self.device)

    def placed(self, net: nn.Module) -> nn.Module:
        """The net on the device, in the memory format; in place."""
        net.to(self.torch_device)
        if self.channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net

    def runner(self, net: nn.Module) -> Any:
        """What is called in training: the net itself, or the compiled one, which shares its weights."""
        if self.compile is False:
            return net
        return torch.compile(net) if self.compile is True else torch.compile(net, backend=self.compile)

    def stored(self, inputs: Tensor) -> Tensor:
        """All inputs of a task where batches are taken from: a row of channels_last images is a copy without a shuffle."""
        inputs = inputs.to(self.torch_device)
        return inputs.contiguous(memory_format=torch.channels_last) if self._images(inputs) else inputs

    def batch(self, inputs: Tensor) -> Tensor:
        """A batch in the right memory format; what indexing has kept costs nothing."""
        return inputs.contiguous(memory_format=torch.channels_last) if self._images(inputs) else inputs

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The block in which losses are computed."""
        if self.amp == "off":
            yield
            return
        with torch.autocast(self.torch_device.type, getattr(torch, self.amp)):
            yield

    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales a float16 loss."""
        return torch.amp.GradScaler(self.torch_device.type) if self.amp == "float16" else None

    def _images(self, inputs: Tensor) -> bool:
        return self.channels_last and inputs.dim() == 4
