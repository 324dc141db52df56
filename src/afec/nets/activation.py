"""What bends between the layers of a net: ReLU, under which units can die, or two that let a gradient through everywhere."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from afec.naming import unknown

__all__ = ["Activation", "activation_of"]

Activation = Literal["relu", "gelu", "leaky"]


def activation_of(name: Activation) -> nn.Module:
    """The module called `name`; `leaky` has the slope 0.01 below zero."""
    if name not in get_args(Activation):
        raise ValueError(unknown("activation", str(name), get_args(Activation)))
    made: nn.Module = {"relu": nn.ReLU, "gelu": nn.GELU, "leaky": nn.LeakyReLU}[name]()
    return made
