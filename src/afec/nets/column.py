"""A second column beside a backbone: the same layers, each of which may also listen to the layer below it in the backbone.

    h_i = f_i( W_i·h_{i−1} + b_i + α_i ⊙ U_i·relu(V_i·h^base_{i−1} + c_i) ),     i > 1

f_i is what follows the layer (norm, activation, pooling). V_i has the kernel, stride and padding of the layer, U_i is a 1×1
convolution; in a linear layer both are matrices. The first layer sees the input itself, so it has no adapter.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.nets.chain import Chain, Layer, renew

__all__ = ["Adapter", "Column"]

START = 0.1
"""Of α: small, so that a column starts as one without adapters."""


class Adapter(nn.Module):
    """α ⊙ U·relu(V·h + c), from the base's layer below into a layer of the column; `width` nodes inside."""

    def __init__(self, layer: Layer, width: int) -> None:
        super().__init__()
        module = layer.module
        self.down: nn.Module
        self.up: nn.Module
        if isinstance(module, nn.Conv2d):
            shape = (module.kernel_size, module.stride, module.padding, module.dilation)
            self.down = nn.Conv2d(module.in_channels, width, *shape, padding_mode=module.padding_mode)  # type: ignore[arg-type]
            self.up = nn.Conv2d(width, layer.nodes, 1, bias=False)
            self.alpha = nn.Parameter(torch.full((layer.nodes, 1, 1), START))
        else:
            self.down = nn.Linear(module.in_features, width)
            self.up = nn.Linear(width, layer.nodes, bias=False)
            self.alpha = nn.Parameter(torch.full((layer.nodes,), START))

    def forward(self, h: Tensor) -> Tensor:
        """What is added before the layer's activation."""
        added: Tensor = self.alpha * self.up(F.relu(self.down(h)))
        return added


class Column(nn.Module):
    """A backbone's twin with fresh weights, and adapters from the backbone into it.

    The backbone is no part of the module: its weights are neither trained nor saved here, and it is read in eval mode.

    Args:
        base: a backbone that is a chain of layers.
        width: nodes of an adapter, as a share of the nodes of its layer; 0: no adapters.
        lateral: whether the adapters are used.
        task: whose statistics the base is read with, where batch-norm has some for each task.
    """

    def __init__(self, base: nn.Module, width: float = 0.25, lateral: bool = True, task: int = 0) -> None:
        super().__init__()
        self.twin = copy.deepcopy(base)
        renew(self.twin)
        self._chain, self._base, self._task = Chain(self.twin), Chain(base), task
        self.lateral = lateral and width > 0
        later = self._chain.layers[1:] if width > 0 else []
        self.adapters = nn.ModuleList(Adapter(layer, max(1, round(width * layer.nodes))) for layer in later)

    def forward(self, x: Tensor) -> Tensor:
        """The features of the column for these images."""
        if not self.lateral:
            return self._chain(x)
        below = self._base_inputs(x)

        def beside(place: int, z: Tensor) -> Tensor:
            added: Tensor = z + self.adapters[place - 1](below[place]) if place > 0 else z
            return added

        return self._chain(x, beside=beside)

    @torch.no_grad()
    def _base_inputs(self, x: Tensor) -> list[Tensor]:
        if self._base.backbone.training:
            self._base.backbone.eval()
        self._base.select(self._task)
        return list(self._base.inputs(x))

    def extra_repr(self) -> str:
        """Say in `repr` whether the column listens to the net."""
        return f"lateral={self.lateral}"
