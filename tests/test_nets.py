"""Backbone and heads, apart."""

import pytest
import torch
from torch import nn

from afec.nets import DigitsBackbone, MultiHead


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


@pytest.mark.parametrize("sizes", [[], [2, 0]])
def test_empty_heads_are_refused(sizes):
    with pytest.raises(ValueError, match="one output size of at least 1 per task; got sizes="):
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
