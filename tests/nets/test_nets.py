"""Backbone and heads, apart."""

import pytest
import torch
from torch import nn

from afec.nets import NETS, DigitsBackbone, MultiHead, check_backbone, make_backbone


def make(sizes=(2, 3)):
    torch.manual_seed(0)
    return MultiHead(DigitsBackbone(), sizes)


def test_each_head_is_a_linear_layer_on_the_shared_features():
    net, x = make(), torch.randn(4, 1, 8, 8)
    features = net.backbone(x)
    assert features.shape == (4, 32)
    assert net(x, task=0).shape == (4, 2)
    torch.testing.assert_close(net(x, task=1), features @ net.heads[1].weight.T + net.heads[1].bias)


def test_only_the_asked_head_is_trained():
    net, x = make(), torch.randn(4, 1, 8, 8)
    before = {name: p.clone() for name, p in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    net(x, task=1).square().mean().backward()
    optimizer.step()
    moved = {name for name, p in net.named_parameters() if not p.equal(before[name])}
    assert moved == {name for name in before if not name.startswith("heads.0")}


def test_the_guard_is_given_the_backbone_alone():
    net = make()
    guarded = {id(p) for p in net.guarded_parameters()}
    assert guarded == {id(p) for p in net.backbone.parameters()}
    assert sum(p.numel() for p in net.guarded_parameters()) == 10_704  # 160 + 2,320 + 8,224


def test_the_width_may_be_passed_for_a_foreign_backbone():
    net = MultiHead(nn.Sequential(nn.Linear(5, 7)), sizes=[1], features=7)
    assert net(torch.zeros(2, 5), task=0).shape == (2, 1)


def test_a_backbone_of_unknown_width_is_refused():
    with pytest.raises(TypeError, match="Flatten has no integer attribute 'out_features': set one, or pass features="):
        MultiHead(nn.Flatten(), sizes=[1])


@pytest.mark.parametrize("sizes", [[0], [2, 0]])
def test_empty_heads_are_refused(sizes):
    with pytest.raises(ValueError, match="a task needs at least 1 output; got 0"):
        make(sizes)


@pytest.mark.parametrize("task", [-1, 2])
def test_a_task_without_a_head_is_refused(task):
    with pytest.raises(IndexError, match=f"task must be 0 to 1: this net has 2 heads; got {task}"):
        make()(torch.zeros(1, 1, 8, 8), task=task)


def test_zero_heads_start_silent_and_learn_from_the_first_step():
    net = MultiHead(DigitsBackbone(), sizes=[2, 3], zero=True)
    x = torch.rand(5, 1, 8, 8)
    assert all(not parameter.any() for parameter in net.heads.parameters())
    assert not net(x, task=1).any()
    (net(x, task=1) - 1).square().mean().backward()
    assert net.heads[1].weight.grad.abs().max() > 0
    assert net.heads[0].weight.grad is None


def test_heads_of_different_sizes_are_their_own_layers():
    net, x = make([2, 5, 1]), torch.randn(3, 1, 8, 8)
    features = net.backbone(x)
    for task, size in enumerate([2, 5, 1]):
        assert net(x, task).shape == (3, size)
        torch.testing.assert_close(net(x, task), nn.functional.linear(features, *net.heads[task].parameters()))


def test_a_head_added_later_is_the_head_that_would_have_been_there():
    torch.manual_seed(0)
    whole = MultiHead(DigitsBackbone(), [2, 3])
    torch.manual_seed(0)
    grown = MultiHead(DigitsBackbone(), [2])
    old = grown.heads[0].weight
    assert grown.begin_task(range(3)) == 1
    assert grown.heads[0].weight is old
    assert list(grown.state_dict()) == list(whole.state_dict())
    assert all(a.equal(b) for a, b in zip(grown.parameters(), whole.parameters(), strict=True))
    assert {id(p) for p in grown.guarded_parameters()} == {id(p) for p in grown.backbone.parameters()}


def test_a_net_of_zero_heads_grows_by_zero_heads():
    silent, loud = MultiHead(DigitsBackbone(), [2], zero=True), make([2])
    for net in (silent, loud):
        net.begin_task(range(4))
    assert silent.zero
    assert not loud.zero
    assert not silent.heads[1].weight.any()
    assert loud.heads[1].weight.any()


def test_a_new_head_is_where_the_backbone_is_and_in_its_precision():
    for net in (make([2]).double(), MultiHead(DigitsBackbone().double(), [2])):
        net.begin_task(range(3))
        assert {p.dtype for p in net.parameters()} == {torch.float64}
        assert net(torch.zeros(1, 1, 8, 8, dtype=torch.float64), task=1).shape == (1, 3)
    away = make([2]).to("meta")
    away.begin_task(range(3))
    assert all(p.is_meta for p in away.parameters())


def test_a_backbone_without_weights_gets_plain_heads():
    net = MultiHead(nn.Flatten(), [1], features=6)
    net.begin_task(range(2))
    assert net(torch.zeros(4, 2, 3), task=1).dtype == torch.float32


def test_an_empty_new_head_is_refused():
    net = make([2])
    with pytest.raises(ValueError, match="a task needs at least 1 output; got 0"):
        net.begin_task([])
    assert len(net.heads) == 1


# Backbones by name.


SHAPES = {
    "digits": (1, 8, 8),
    "lenet": (3, 32, 32),
    "vgg11": (3, 32, 32),
    "vgg11bn": (3, 32, 32),
    "resnet10": (3, 32, 32),
    "resnet32": (3, 32, 32),
    "resnet18": (3, 224, 224),
    "cnn6": (3, 32, 32),
    "omniglot": (1, 28, 28),
    "alexnet": (3, 224, 224),
    "mlp": (6,),
    "minatar": (10, 10, 10),
    "atari": (4, 84, 84),
}
ALL = ", ".join(sorted(SHAPES))


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_named_backbones_say_their_own_width(name, shape):
    with torch.device("meta"):  # AlexNet has 57 million weights, and only the shapes are asked for
        backbone = make_backbone(name, **({"inputs": 6} if name == "mlp" else {}))
        assert backbone(torch.zeros(2, *shape)).shape == (2, backbone.out_features)
    assert NETS[name].name == name
    assert NETS[name].description


def test_the_list_of_backbones():
    assert list(NETS) == list(SHAPES)
    assert NETS["digits"].options == ("channels", "features", "activation")
    assert NETS["cnn6"].options == ("activation",)


def test_options_reach_the_backbone():
    assert make_backbone("digits", features=7)(torch.zeros(1, 1, 8, 8)).shape == (1, 7)


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({"name": "cnn"}, "name", f"unknown net 'cnn'; did you mean 'cnn6'? Known: {ALL}"),
        ({"name": "qqq"}, "name", f"unknown net 'qqq'. Known: {ALL}"),
        (
            {"name": "digits", "feature": 3},
            "feature",
            "the net 'digits' has no option 'feature'; did you mean 'features'? It has: channels, features, activation",
        ),
        ({"name": "cnn6", "width": 3}, "width", "the net 'cnn6' has no option 'width'. It has: activation"),
    ],
)
def test_unknown_names_say_what_is_near_and_what_there_is(section, key, message):
    options = {k: v for k, v in section.items() if k != "name"}
    with pytest.raises(ValueError) as caught:
        make_backbone(section["name"], **options)
    assert str(caught.value) == message
    with pytest.raises(ValueError) as caught:
        check_backbone(section)
    assert str(caught.value) == f"net.{key}: {message}"


def test_sections_are_checked_without_making_the_net():
    check_backbone({"name": "digits", "features": 3})
    with pytest.raises(ValueError, match=f"net.name: it is missing; known: {', '.join(SHAPES)}"):
        check_backbone({"features": 3})
