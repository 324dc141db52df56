"""The backbones that have a name, for configs and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from afec.naming import Record, Registry, check_section, fault
from afec.nets.alexnet import AlexNet
from afec.nets.cnn6 import CNN6
from afec.nets.games import MLP, AtariNet, MinAtarNet
from afec.nets.lenet import LeNet
from afec.nets.omniglot import OmniglotNet
from afec.nets.residual import ResNet18, ResNet32
from afec.nets.resnet import ResNet10
from afec.nets.small import DigitsBackbone
from afec.nets.vgg import vgg11, vgg11bn

__all__ = ["NETS", "check_backbone", "make_backbone"]

NETS = Registry(
    "net",
    (
        Record("digits", DigitsBackbone, "two convolutions and a hidden layer, for grey images of 8×8 pixels"),
        Record("lenet", LeNet, "two convolutions and two hidden layers, for colour images of 32×32 pixels"),
        Record("vgg11", vgg11, "VGG11's eight convolutions, for colour images of 32×32 pixels"),
        Record("vgg11bn", vgg11bn, "VGG11 with batch-norm, its statistics shared by all tasks or each task's own"),
        Record("resnet10", ResNet10, "a residual net of four blocks with batch-norm, like vgg11bn"),
        Record("resnet32", ResNet32, "ResNet-32 for replay, for colour images of 32×32 pixels"),
        Record("resnet18", ResNet18, "ResNet-18 for replay, for colour images of 224×224 pixels"),
        Record("cnn6", CNN6, "the paper's six convolutions and a hidden layer, for colour images of 32×32 pixels"),
        Record("omniglot", OmniglotNet, "four convolutions, for grey images of 28×28 pixels"),
        Record("alexnet", AlexNet, "AlexNet without its head, for colour images of 224×224 pixels"),
        Record("mlp", MLP, "fully connected hidden layers, for flat observations of games"),
        Record("minatar", MinAtarNet, "a convolution and a hidden layer, for MinAtar's pictures of 10×10 cells"),
        Record("atari", AtariNet, "three convolutions and a hidden layer, for four Atari frames of 84×84 pixels"),
    ),
)
"""The backbones; each takes its options and gives a module with an attribute `out_features`."""


def make_backbone(name: str, **options: Any) -> nn.Module:
    """The backbone called `name`, with its options; `NETS` lists them."""
    if found := fault("net", NETS, name, options):
        raise ValueError(found[1])
    net: nn.Module = NETS[name].make(**options)
    return net


def check_backbone(section: Mapping[str, Any]) -> None:
    """Raise for a [net] section (`name` and options) whose name or options do not exist. Makes no net."""
    check_section("net", NETS, section)
