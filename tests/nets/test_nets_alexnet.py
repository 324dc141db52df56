"""AlexNet at other sizes, and weight files: what loads, what is said of it, and what is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from afec.data import DataError
from afec.methods.ags_cl import refresh
from afec.nets import Chain, MultiHead, make_backbone, renew
from afec.nets.alexnet import AlexNet
from afec.nets.column import Column

REAL = Path(os.environ.get("AFEC_DATA", "no data"))
CONVS = ["features.0", "features.3", "features.6", "features.8", "features.10"]


@pytest.fixture(scope="module")
def weights():
    """A torchvision file of a small AlexNet: all layers, and the head for 1,000 classes."""
    torch.manual_seed(1)
    return {
        **AlexNet(hidden=8, pool=1).state_dict(),
        "classifier.6.weight": torch.randn(1000, 8),
        "classifier.6.bias": torch.randn(1000),
    }


def saved(tmp_path, tensors, name="weights.pth"):
    torch.save(tensors, tmp_path / name)
    return str(tmp_path / name)


def small(path, which="all"):
    return make_backbone("alexnet", hidden=8, pool=1, pretrained=which, weights=path)


def test_a_whole_file_loads_whole(weights, tmp_path):
    net = small(saved(tmp_path, weights))
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    assert net.origin.startswith("from weights.pth (SHA-256 ")
    assert net.origin.endswith(f": {', '.join(CONVS)}, classifier.1, classifier.4; at random: the heads")


def test_only_the_convolutions_where_that_is_asked(weights, tmp_path):
    torch.manual_seed(0)
    plain = AlexNet(hidden=8, pool=1).state_dict()
    torch.manual_seed(0)
    net = small(saved(tmp_path, weights), "conv").state_dict()
    for name, value in net.items():
        assert torch.equal(value, weights[name] if name.startswith("features.") else plain[name])


def test_a_file_of_convolutions_in_half_precision(weights, tmp_path):
    halves = {name: value.half() for name, value in weights.items() if name.startswith("features.")}
    net = small(saved(tmp_path, halves), "conv")
    assert torch.equal(net.features[0].weight, halves["features.0.weight"].float())
    assert net.features[0].weight.dtype == torch.float32
    assert net.origin.endswith("features.10; at random: classifier.1, classifier.4 and the heads")
    with pytest.raises(DataError, match=r'lacks classifier.1.bias, .*use pretrained = "conv"'):
        small(saved(tmp_path, halves))


@pytest.mark.parametrize("which", ["conv", "all"])
def test_a_pretrained_net_begins_anew_where_it_began(weights, tmp_path, which):
    path = saved(tmp_path, weights)
    net = small(path, which)
    first = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(1.0)
    renew(net)
    for name, value in net.state_dict().items():
        assert torch.equal(value, first[name]) is (which == "all" or name.startswith("features."))
        assert value.abs().max() < 1  # drawn anew, not left as it was
    saved(tmp_path, {name: value + 1 for name, value in weights.items()})
    with pytest.raises(DataError, match="weights.pth has changed since the net was made"):
        renew(net)


def test_what_a_strategy_draws_anew_is_pretrained_too(weights, tmp_path):
    """The column of progress & compress, and nodes that AGS-CL refreshes: else their convolutions would be of noise."""
    base = small(saved(tmp_path, weights), "conv")
    with torch.no_grad():
        for weight in base.parameters():
            weight.add_(1.0)
    twin = Column(base).twin.state_dict()
    assert all(torch.equal(twin[name], value) for name, value in weights.items() if name.startswith("features."))
    chain = Chain(base)
    idle = {layer.name: torch.arange(layer.nodes) == 1 for layer in chain.layers}
    refresh(chain, base, idle, 1.0, seed=0)
    for name, value in base.state_dict().items():
        if name.startswith("features."):
            assert torch.equal(value[1], weights[name][1])
            assert torch.equal(value[2], weights[name][2] + 1)


def test_safetensors_load_as_well(weights, tmp_path):
    save_file(weights, tmp_path / "w.safetensors")
    assert torch.equal(small(str(tmp_path / "w.safetensors")).features[3].bias, weights["features.3.bias"])


def without(weights, name):
    return {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: without(w, "features.6.bias"), "lacks features.6.bias; give .*afec data get alexnet"),
        (
            lambda w: without(w, "classifier.4.bias"),
            'lacks classifier.4.bias; .*pretrained = "conv", or give .*afec data',
        ),
        (
            lambda w: {**w, "features.12.weight": torch.ones(1)},
            "has features.12.weight, which AlexNet has not: .*afec data get alexnet",
        ),
        (
            lambda w: {**w, "features.0.weight": torch.ones(64, 3, 7, 7)},
            r"has the shape \(64, 3, 7, 7\), and this net's is .*afec data get alexnet",
        ),
        (lambda w: {**w, "classifier.1.weight": torch.ones(9, 256)}, r'use pretrained = "conv" with another width'),
        (lambda w: {**w, "features.0.bias": torch.full((64,), torch.nan)}, "no finite numbers"),
        (lambda w: {**w, "features.0.bias": torch.zeros(64, dtype=torch.long)}, "no finite numbers"),
        (lambda w: {"state_dict": w, "epoch": 3}, "'state_dict' in it is no tensor"),
        (lambda w: list(w.values()), "it is a list"),
    ],
)
def test_other_tensors_are_refused(weights, tmp_path, change, said):
    path = saved(tmp_path, change(weights))
    with pytest.raises(DataError, match=said) as caught:
        small(path)
    assert path in str(caught.value)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (Path.touch, (Path(self.marker),))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_file_with_code_in_it_is_not_run(tmp_path, how):
    file, marker = tmp_path / "evil.pth", tmp_path / "it was run"
    if how == "torch":
        torch.save({"features.0.weight": Evil(marker)}, file)
    else:
        file.write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(DataError, match="evil.pth has something else in it than tensors.*was not run") as caught:
        small(str(file))
    assert not marker.exists()
    assert "weights_only" not in str(caught.value)  # PyTorch's advice to run it all the same
    assert how == "pickle" or "(it asks for getattr)" in str(caught.value)
    torch.load(file, weights_only=False) if how == "torch" else pickle.loads(file.read_bytes())
    assert marker.exists()  # so it would have been


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x80\x02 cut", b"\x87" * 300])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "cut.pth").write_bytes(content)
    with pytest.raises(DataError, match="cut.pth"):
        small(str(tmp_path / "cut.pth"))


def test_a_file_that_is_cut_off(weights, tmp_path):
    path = Path(saved(tmp_path, weights))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="cannot be read as a weight file"):
        small(str(path))


def test_files_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("AFEC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="there is no weight file .*mine.pth"):
        small("mine.pth")
    with pytest.raises(DataError, match="put alexnet-owt-7be5be79.pth there; `afec data get alexnet`"):
        small("")


def test_the_data_directory_is_looked_through(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("AFEC_DATA", str(tmp_path))
    convs = {name: value for name, value in weights.items() if name.startswith("features.")}
    saved(tmp_path, convs, "alexnet_conv_imagenet_fp16.pth")
    assert "alexnet_conv_imagenet_fp16.pth" in small("", "conv").origin
    saved(tmp_path, weights, "alexnet-owt-7be5be79.pth")
    assert "alexnet-owt-7be5be79.pth" in small("", "conv").origin  # the whole file comes first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hidden": 0}, "hidden >= 1"),
        ({"pool": 0}, "pool >= 1"),
        ({"pretrained": "yes"}, "expected none, conv or all"),
        ({"weights": "file.pth"}, "pretrained='none'; say which"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        make_backbone("alexnet", **options)


def test_other_sizes_run_through_the_same_net():
    net = MultiHead(make_backbone("alexnet", hidden=8, pool=2), [3]).eval()
    for size in (63, 64, 80, 112):
        assert net(torch.rand(1, 3, size, size), task=0).shape == (1, 3)
    with pytest.raises(ValueError, match=r"from 63 pixels on; got the shape \(1, 3, 62, 62\)"):
        net(torch.rand(1, 3, 62, 62), task=0)
    with pytest.raises(ValueError, match="from 63 pixels on"):
        net(torch.rand(1, 1, 64, 64), task=0)


def test_the_whole_net_is_the_papers():
    net = make_backbone("alexnet")
    assert net.origin == "at random in all layers"
    assert sum(weight.numel() for weight in net.parameters()) == 57_003_840


# torchvision's `alexnet().state_dict()`: what its file has, and in which shapes.
TORCHVISION = {
    "features.0": (64, 3, 11, 11),
    "features.3": (192, 64, 5, 5),
    "features.6": (384, 192, 3, 3),
    "features.8": (256, 384, 3, 3),
    "features.10": (256, 256, 3, 3),
    "classifier.1": (4096, 9216),
    "classifier.4": (4096, 4096),
    "classifier.6": (1000, 4096),
}


def test_alexnet_has_the_names_and_shapes_of_torchvision():
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in AlexNet().named_parameters()}
    layers = {name: shape for name, shape in TORCHVISION.items() if name != "classifier.6"}  # the head
    expected = {f"{name}.weight": shape for name, shape in layers.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    assert shapes == expected


@pytest.mark.slow
def test_torchvisions_whole_file_loads_whole_at_224_pixels(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    file = {}
    for layer, shape in TORCHVISION.items():
        file[f"{layer}.weight"] = torch.randn(shape, generator=generator) * 0.01
        file[f"{layer}.bias"] = torch.randn(shape[0], generator=generator)
    assert sum(value.numel() for value in file.values()) == 61_100_840  # as torchvision says of it
    monkeypatch.setenv("AFEC_DATA", str(tmp_path))
    saved(tmp_path, file, "alexnet-owt-7be5be79.pth")
    net = MultiHead(make_backbone("alexnet", pretrained="all"), [20]).eval()
    own = net.backbone.state_dict()
    assert list(own) == [name for name in file if not name.startswith("classifier.6")]  # the head is a task's own
    assert all(torch.equal(value, file[name]) for name, value in own.items())
    assert net.backbone.origin.endswith("classifier.1, classifier.4; at random: the heads")
    with torch.no_grad():
        image = torch.rand(1, 3, 224, 224, generator=generator)
        assert net.backbone.features(image).shape == (1, 256, 6, 6)  # so the pooling to 6 × 6 changes nothing
        assert net(image, task=0).shape == (1, 20)


@pytest.mark.skipif(
    not (REAL / "alexnet_conv_imagenet_fp16.pth").is_file(), reason="no AlexNet weights under AFEC_DATA"
)
def test_the_real_convolutions_are_no_noise():
    """Trained filters are smooth: neighbouring pixels of one are alike; random ones are not."""

    def likeness(net):
        filters = net.features[0].weight.detach()
        left, right = filters[..., :-1].flatten(), filters[..., 1:].flatten()
        return torch.corrcoef(torch.stack((left, right)))[0, 1].item()

    assert likeness(make_backbone("alexnet", hidden=8, pool=1, pretrained="conv")) > 0.5
    assert abs(likeness(make_backbone("alexnet", hidden=8, pool=1))) < 0.1
