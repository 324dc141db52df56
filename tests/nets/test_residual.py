"""ResNet-32 and ResNet-18 for replay: layers counted by hand, feature maps, and what their families differ in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from afec.nets import HasMaps, make_backbone
from afec.randomness import forked


def made(name, **options):
    with forked(0):
        return make_backbone(name, **options)


def weights_of(net):
    return sum(weight.numel() for weight in net.parameters())


def test_resnet32_has_31_convolutions_and_four_maps():
    net = made("resnet32")
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 2 * 15  # the classifier is the 32nd layer
    with torch.no_grad():
        maps = net.eval().maps(torch.zeros(2, 3, 32, 32))
    assert [tuple(one.shape[1:]) for one in maps] == [(16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 8, 8)]
    # 3·16·9 + 10·16²·9 + (16·32 + 9·32²)·9 + (32·64 + 9·64²)·9, and two for each channel of 31 batch-norms
    norms = 2 * (16 * 11 + 32 * 10 + 64 * 10)
    assert weights_of(net) == 432 + 23_040 + 87_552 + 350_208 + norms
    assert net.out_features == 64


def test_a_stem_of_stride_two_halves_all_maps_and_no_weight():
    plain, net = made("resnet32", width=4), made("resnet32", width=4, stem_stride=2)
    assert {name: value.shape for name, value in net.state_dict().items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }
    with torch.no_grad():
        maps = net.eval().maps(torch.zeros(2, 3, 32, 32))
    assert [tuple(one.shape[1:]) for one in maps] == [(4, 16, 16), (8, 8, 8), (16, 4, 4), (16, 4, 4)]
    with pytest.raises(ValueError, match=r"resnet32 got stem_stride=3; it is 1, or 2 for maps of half"):
        made("resnet32", stem_stride=3)
    with pytest.raises(ValueError, match="resnet32 needs channels >= 1, size >= 8"):
        made("resnet32", size=7, stem_stride=2)


def test_the_kind_of_lucir_has_convolutions_beside_its_strides_and_three_maps():
    net, plain = made("resnet32", kind="lucir"), made("resnet32")
    assert weights_of(net) - weights_of(plain) == 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    with torch.no_grad():
        maps = net.eval().maps(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert len(maps) == 3
    assert all((one >= 0).all() for one in maps[:2])  # a ReLU behind every block
    assert (maps[2] < 0).any()  # but the last


@pytest.mark.parametrize(("kind", "first"), [("lucir", 56), ("rebuffi", 112)])
def test_resnet18(kind, first):
    net = made("resnet18", kind=kind)
    with torch.no_grad():
        maps = net.eval().maps(torch.zeros(1, 3, 224, 224))
    assert [one.shape[1] for one in maps] == [64, 128, 256, 512]
    assert [one.shape[2] for one in maps] == [first, first // 2, first // 4, first // 8]
    assert len([module for module in net.modules() if isinstance(module, nn.Conv2d)]) == 1 + 16 + 3


@pytest.mark.parametrize("name", ["resnet32", "resnet18", "digits"])
def test_features_are_those_of_the_last_map(name):
    net = made(name) if name == "digits" else made(name, size=32, width=4)
    assert isinstance(net, HasMaps)
    images = torch.rand(
        2, *((1, 8, 8) if name == "digits" else (3, 32, 32)), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        assert torch.equal(net.eval()(images), net.after_maps(net.maps(images)[-1]))


def test_a_block_of_rebuffi_begins_by_adding_nothing():
    net = made("resnet32", width=4)
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net.stages[0][0](x), x)
    smaller = net.stages[1][0](x)  # every second pixel, and channels of zeros
    assert torch.equal(smaller[:, :4], x[:, :, ::2, ::2])
    assert not smaller[:, 4:].any()


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="resnet32: unknown kind 'lucr'; did you mean 'lucir'"):
        make_backbone("resnet32", kind="lucr")
