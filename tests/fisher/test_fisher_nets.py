"""The two networks that the Fisher is measured on."""

from __future__ import annotations

import torch

from afec.nets.alexnet import AlexNet
from afec.nets.cnn6 import CNN6


def count(net: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


def test_cnn6() -> None:
    net = CNN6()
    assert count(net) == 811_552
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, net.out_features) == (2, 256)


def test_alexnet() -> None:
    with torch.device("meta"):
        net = AlexNet()
        assert count(net) == 57_003_840
        assert net(torch.randn(2, 3, 224, 224)).shape == (2, net.out_features) == (2, 4096)
    assert count(net.features) == 2_469_696


def test_alexnet_has_the_names_and_shapes_of_torchvision() -> None:
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in AlexNet().named_parameters()}
    layers = {
        "features.0": (64, 3, 11, 11),
        "features.3": (192, 64, 5, 5),
        "features.6": (384, 192, 3, 3),
        "features.8": (256, 384, 3, 3),
        "features.10": (256, 256, 3, 3),
        "classifier.1": (4096, 9216),
        "classifier.4": (4096, 4096),
    }
    expected = {f"{name}.weight": shape for name, shape in layers.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    assert shapes == expected
