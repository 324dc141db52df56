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
