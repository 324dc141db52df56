"""A backbone as a chain of layers: their nodes, what comes in to each node, and where it goes on to.

Methods that speak of nodes (AGS-CL) or of layers beside layers (progress & compress) see a backbone in this way. A node is an
output channel of a convolution or a unit of a linear layer, together with its batch-norm where one follows. What stands
between two layers (norm, activation, pooling, dropout, flattening) keeps the order of the nodes, so that the inputs of the next
layer are the nodes of this one, each as many times as a flattened map has pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from afec.nets.norm import TaskBatchNorm2d, task_norms

__all__ = ["Chain", "Layer", "NoChainError", "renew"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, TaskBatchNorm2d)
_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_BETWEEN = (*_NORMS, *_ACTIVATIONS, *_POOLS, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Identity)


class NoChainError(TypeError):
    """A backbone whose layers do not follow one another."""


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer, and what follows it up to the next one."""

    name: str
    """The name of the layer in the backbone."""
    module: nn.Conv2d | nn.Linear
    after: tuple[nn.Module, ...]
    incoming: dict[str, nn.Parameter]
    """All weights that make its nodes, by their names in the backbone: a row for each node."""

    @property
    def nodes(self) -> int:
        """The number of nodes: output channels or units."""
        return self.module.weight.shape[0]

    def enter(self, x: Tensor) -> Tensor:
        """The outputs of the layer before, as this one takes them."""
        return x.flatten(1) if isinstance(self.module, nn.Linear) else x

    def leave(self, z: Tensor, watch: Callable[[Tensor], None] | None = None) -> Tensor:
        """What goes on to the next layer; `watch` is shown the nodes as they are active, before any pooling."""
        active = max(
            (place for place, one in enumerate(self.after) if isinstance(one, (*_NORMS, *_ACTIVATIONS))), default=-1
        )
        if watch and active < 0:
            watch(z)
        for place, one in enumerate(self.after):
            z = one(z)
            if watch and place == active:
                watch(z)
        return z


Watch = Callable[[Layer, Tensor], None]
Beside = Callable[[int, Tensor], Tensor]


class Chain:
    """The layers of a backbone, in order.

    Raises `NoChainError` where they do not follow one another. Of a net of your own only its modules are seen, not its
    `forward`: `check` compares the two.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone, self.layers = backbone, list[Layer]()
        self.before: tuple[nn.Module, ...] = ()
        leaves = list(_leaves(backbone))
        starts = [place for place, (_, leaf) in enumerate(leaves) if isinstance(leaf, nn.Conv2d | nn.Linear)]
        if not starts:
            raise NoChainError(f"{type(backbone).__name__} has neither a convolution nor a linear layer")
        self.before = tuple(leaf for _, leaf in leaves[: starts[0]])
        for start, end in zip(starts, [*starts[1:], len(leaves)], strict=True):
            self.layers.append(_layer(leaves[start:end]))
        for one, other in zip(self.layers, self.layers[1:], strict=False):
            if other.module.weight.shape[1] % one.nodes:
                raise NoChainError(
                    f"'{other.name}' of {type(backbone).__name__} takes {other.module.weight.shape[1]} inputs, which are no "
                    f"multiple of the {one.nodes} nodes of '{one.name}' before it"
                )

    def inputs(self, x: Tensor) -> Iterator[Tensor]:
        """What each layer is given, from the first to the last."""
        for one in self.before:
            x = one(x)
        for layer in self.layers[:-1]:
            x = layer.enter(x)
            yield x
            x = layer.leave(layer.module(x))
        yield self.layers[-1].enter(x)

    def __call__(self, x: Tensor, *, watch: Watch | None = None, beside: Beside | None = None) -> Tensor:
        """The features, as the backbone gives them.

        `watch` is shown the active nodes of each layer; `beside` may add to what layer number `place` makes of its inputs.
        """
        for one in self.before:
            x = one(x)
        for place, layer in enumerate(self.layers):
            z = layer.module(layer.enter(x))
            if beside is not None:
                z = beside(place, z)
            x = layer.leave(z, None if watch is None else partial(watch, layer))
        return x.flatten(1)

    def spread(self, place: int, nodes: Tensor, following: int) -> Tensor:
        """Values of the nodes of one layer, as values of the `following` inputs of what comes after it."""
        return nodes.repeat_interleave(following // self.layers[place].nodes)

    @torch.no_grad()
    def check(self, x: Tensor, task: int = 0) -> None:
        """Raise `NoChainError` where the backbone makes something else of a batch than its layers one after the other."""
        with self.evaluating(task):
            expected = self.backbone(x)
            try:
                same = torch.allclose(self(x), expected, rtol=1e-3, atol=1e-5)
            except RuntimeError:  # shapes that do not fit
                same = False
        if not same:
            raise NoChainError(
                f"{type(self.backbone).__name__} is no chain of layers: its modules one after the other, in the order in which "
                "they were made, give other features than its forward()"
            )

    @contextmanager
    def evaluating(self, task: int) -> Iterator[None]:
        """The backbone in eval mode, with the statistics of this task; the modes of its modules are put back."""
        modes = [(module, module.training) for module in self.backbone.modules()]
        self.backbone.eval()
        self.select(task)
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def select(self, task: int) -> None:
        """Use the statistics of this task, where batch-norm has some for each."""
        for _, norm in task_norms(self.backbone):
            norm.select(task)


def renew(backbone: nn.Module) -> None:
    """Initial weights anew, as the constructor made them: by the backbone's own `reset_parameters`, or by that of each layer.

    A pretrained backbone needs one of its own, which takes the pretrained weights again.
    """
    own = getattr(backbone, "reset_parameters", None)
    for module in [backbone] if callable(own) else list(backbone.modules()):
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


def _leaves(module: nn.Module, name: str = "", root: nn.Module | None = None) -> Iterator[tuple[str, nn.Module]]:
    root = module if root is None else root
    if isinstance(module, (nn.Conv2d, nn.Linear, *_BETWEEN)):
        yield name, module
        return
    if module is not root and not isinstance(module, nn.Sequential):
        raise NoChainError(
            f"{type(root).__name__} is no chain of layers: its '{name}' is a {type(module).__name__}. Expected convolutions, "
            "linear layers and what may stand between them, one after the other, as in digits, lenet, cnn6, vgg11, vgg11bn, "
            "omniglot and alexnet; give another net, or a method that does not look at nodes"
        )
    if own := list(module._parameters):
        raise NoChainError(f"{type(root).__name__} is no chain of layers: it has a weight '{own[0]}' beside its layers")
    for child_name, child in module.named_children():
        yield from _leaves(child, f"{name}.{child_name}".lstrip("."), root)


def _layer(leaves: list[tuple[str, nn.Module]]) -> Layer:
    (name, module), *others = leaves
    assert isinstance(module, nn.Conv2d | nn.Linear)
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        raise NoChainError(f"'{name}' is a convolution in {module.groups} groups: not every node goes on to every node")
    makers = [(name, module), *(leaf for leaf in others if isinstance(leaf[1], _NORMS))]
    incoming = {
        f"{prefix}.{key}".lstrip("."): weight
        for prefix, one in makers
        for key, weight in one.named_parameters(recurse=False)
    }
    return Layer(name, module, tuple(leaf for _, leaf in others), incoming)
