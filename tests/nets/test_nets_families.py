"""LeNet, VGG11, ResNet10 and Omniglot's net: layers, names and weights counted by hand."""

import pytest
import torch
from torch import nn

from afec.nets import NETS, make_backbone
from afec.nets.norm import SharedBatchNorm2d, TaskBatchNorm2d

DIGITS = {"channels": 1, "size": 8, "width": 3}


def weights(name, **options):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make_backbone(name, **options).parameters())


def conv(channels_in, channels_out, kernel=3, bias=True):
    return channels_in * channels_out * kernel**2 + bias * channels_out


def test_weights_of_lenet():
    hidden = (400 * 120 + 120) + (120 * 84 + 84)  # 16 maps of 5×5: 32 → 28 → 14 → 10 → 5
    assert weights("lenet") == conv(3, 6, 5) + conv(6, 16, 5) + hidden == 61_156
    hidden = (64 * 120 + 120) + (120 * 84 + 84)  # padded, 16 maps of 2×2: 8 → 4 → 2
    assert weights("lenet", channels=1, size=8) == conv(1, 6, 5) + conv(6, 16, 5) + hidden == 20_536


def test_weights_of_vgg11():
    pairs = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
    affine = 2 * (64 + 128 + 256 + 256 + 512 + 512 + 512 + 512)
    assert weights("vgg11") == sum(conv(*pair) for pair in pairs) == 9_220_480
    assert weights("vgg11bn") == 9_220_480 + affine == 9_225_984


def test_weights_of_resnet10():
    def block(channels_in, channels, resized=True):
        shortcut = conv(channels_in, channels, 1, bias=False) + 2 * channels if resized else 0
        inside = conv(channels_in, channels, bias=False) + conv(channels, channels, bias=False) + 2 * 2 * channels
        return inside + shortcut

    stem = conv(3, 64, bias=False) + 2 * 64
    stages = block(64, 64, resized=False) + block(64, 128) + block(128, 256) + block(256, 512)
    assert weights("resnet10") == stem + stages == 4_898_112


def test_weights_of_the_omniglot_net():
    assert weights("omniglot") == conv(1, 64) + 3 * conv(64, 64) == 111_424


@pytest.mark.parametrize("name", ["vgg11bn", "resnet10"])
def test_the_kind_of_batch_norm_changes_no_weight(name):
    torch.manual_seed(0)
    shared = make_backbone(name, **DIGITS)
    torch.manual_seed(0)
    own = make_backbone(name, **DIGITS, batch_norm="per-task")
    assert list(dict(shared.named_parameters())) == list(dict(own.named_parameters()))
    assert all(one.equal(other) for one, other in zip(shared.parameters(), own.parameters(), strict=True))
    kinds = [{type(m) for m in net.modules()} for net in (shared, own)]
    assert [SharedBatchNorm2d in kind for kind in kinds] == [True, False]
    assert [TaskBatchNorm2d in kind for kind in kinds] == [False, True]


def test_names_are_torchvisions():
    """The numbers that torchvision's `vgg11` and `vgg11_bn` have, poolings of small images included."""
    plain, normed = [0, 3, 6, 8, 11, 13, 16, 18], [0, 4, 8, 11, 15, 18, 22, 25]
    for size in (8, 32):
        names = list(make_backbone("vgg11", size=size, width=1).state_dict())
        assert names == [f"features.{n}.{key}" for n in plain for key in ("weight", "bias")]
        names = list(make_backbone("vgg11bn", size=size, width=1).state_dict())
        norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        layers = [(number, key) for n in normed for number, keys in ((n, norm[:2]), (n + 1, norm)) for key in keys]
        assert names == [f"features.{number}.{key}" for number, key in layers]
    names = list(dict(make_backbone("resnet10", width=1).named_parameters()))
    block = ["conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight", "bn2.weight", "bn2.bias"]
    shortcut = ["downsample.0.weight", "downsample.1.weight", "downsample.1.bias"]
    stages = [f"layer{n}.0.{key}" for n in range(1, 5) for key in block + (shortcut if n > 1 else [])]
    assert names == ["conv1.weight", "bn1.weight", "bn1.bias", *stages]


@pytest.mark.parametrize(("size", "poolings", "features"), [(1, 0, 8), (3, 1, 8), (8, 3, 8), (32, 5, 8), (96, 5, 72)])
def test_vgg_pools_while_the_image_is_larger_than_a_pixel(size, poolings, features):
    net = make_backbone("vgg11", size=size, width=1)
    layers = [layer for layer in net.features if isinstance(layer, nn.MaxPool2d | nn.Identity)]
    assert [isinstance(layer, nn.MaxPool2d) for layer in layers] == [True] * poolings + [False] * (5 - poolings)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, features) == (2, net.out_features)


def test_vgg_is_its_layers_in_their_order():
    torch.manual_seed(0)
    net, x = make_backbone("vgg11", **DIGITS), torch.randn(2, 1, 8, 8)
    expected = x
    for number, pooled in zip([0, 3, 6, 8, 11, 13, 16, 18], [1, 1, 0, 1, 0, 0, 0, 0], strict=True):
        layer = net.features[number]
        expected = nn.functional.conv2d(expected, layer.weight, layer.bias, padding=1).relu()
        expected = nn.functional.max_pool2d(expected, 2) if pooled else expected
    torch.testing.assert_close(net(x), expected[:, :, 0, 0])


def test_a_block_adds_its_input():
    """With the last batch-norm of each block silenced, only stem and shortcuts are left of the net."""
    torch.manual_seed(0)
    net, x = make_backbone("resnet10", **DIGITS).eval(), torch.randn(2, 1, 8, 8)
    stages = [net.layer1[0], net.layer2[0], net.layer3[0], net.layer4[0]]
    for block in stages:
        nn.init.zeros_(block.bn2.weight)
    expected = net.conv1(x).relu() / (1 + 1e-5) ** 0.5
    assert stages[0].downsample is None
    for block in stages[1:]:
        shortcut = block.downsample[0].weight[:, :, 0, 0]
        expected = torch.einsum("bchw,dc->bdhw", expected[:, :, ::2, ::2], shortcut).relu() / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(net(x), expected.mean((2, 3)))


@pytest.mark.parametrize("name", ["vgg11", "resnet10"])
def test_convolutions_start_as_kaiming_says(name):
    """A standard deviation of √(2 / (9 · channels out)); PyTorch's own is 1 / √(3 · 9 · channels in)."""
    torch.manual_seed(0)
    net = make_backbone(name, width=16)
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 9000):
        expected = (2 / (layer.kernel_size[0] ** 2 * layer.out_channels)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize("name", ["lenet", "vgg11", "vgg11bn", "resnet10"])
def test_small_grey_images(name):
    net = make_backbone(name, **DIGITS)
    assert net(torch.randn(2, 1, 8, 8)).shape == (2, net.out_features)
    with pytest.raises(ValueError, match=r"made for images of the shape \(batch, 1, 8, 8\); got \(2, 3, 32, 32\)"):
        net(torch.zeros(2, 3, 32, 32))


@pytest.mark.parametrize("size", [4, 8, 15, 16, 17, 28])
def test_lenet_fits_every_size(size):
    net = make_backbone("lenet", size=size)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, 84)
    assert net.features[0].padding == ((2, 2) if size < 16 else (0, 0))


@pytest.mark.parametrize("name", ["lenet", "vgg11", "vgg11bn", "resnet10"])
@pytest.mark.parametrize("wrong", [{"channels": 0}, {"size": 0}, {"width": 0}], ids=str)
def test_impossible_options_are_refused(name, wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"needs channels >= 1, size >= . and width >= 1; got .*{key}={value}"):
        make_backbone(name, **wrong)


def test_an_unknown_batch_norm_is_refused():
    with pytest.raises(ValueError, match="batch_norm must be 'shared' or 'per-task'; got 'own'"):
        make_backbone("resnet10", batch_norm="own")


def test_width_scales_every_layer():
    assert make_backbone("lenet", width=12).out_features == 168
    for name in ("vgg11", "vgg11bn", "resnet10"):
        assert make_backbone(name, width=5).out_features == 40
    assert [NETS[name].options for name in ("lenet", "vgg11")] == [("channels", "size", "width")] * 2
    for name in ("vgg11bn", "resnet10"):
        assert NETS[name].options == ("channels", "size", "width", "batch_norm")
