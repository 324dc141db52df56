"""Dead and saturated units, counted by hand, in the record of a task, and in nets where no unit can die."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import afec
from afec.learner import Learner, Machine, UnitCount, count_units
from afec.learner.tasks import BatchLoss
from afec.nets import DigitsBackbone, MultiHead, NoChainError, make_backbone
from afec.nets.cnn6 import CNN6
from afec.streams import Split
from small_learning import SHORT, few_tasks, small_net


def four_units() -> MultiHead:
    """Of x in {1, 2, 3}: always 0, always above 0, 0 or more, and x - 1, which is 0 once; then two units that read them."""
    backbone = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU())
    with torch.no_grad():
        backbone[0].weight.copy_(torch.tensor([[-1.0], [1.0], [1.0], [1.0]]))
        backbone[0].bias.copy_(torch.tensor([0.0, 0.5, -2.0, -1.0]))
        backbone[2].weight.copy_(torch.tensor([[0.0, 1.0, 0.0, 0.0], [-1.0, -1.0, -1.0, -1.0]]))
        backbone[2].bias.zero_()
    backbone.out_features = 2
    return MultiHead(backbone, [2])


def test_units_are_counted_as_worked_by_hand():
    net, data = four_units(), Split(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0]))
    before, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.random.get_rng_state()
    net.train()
    found = count_units(net, BatchLoss(0, "cross_entropy", Machine(), chunk=2), data, seed=0)
    assert found == [UnitCount("backbone.0", 4, dead=1, saturated=1), UnitCount("backbone.2", 2, dead=1, saturated=1)]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert net.training


def test_a_map_is_dead_or_saturated_only_if_it_is_so_everywhere():
    backbone = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        backbone[0].weight.copy_(torch.tensor([1.0, 1.0, -1.0]).reshape(3, 1, 1, 1))
        backbone[0].bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    backbone.out_features = 6
    images = torch.tensor([[[[0.0, 1.0]]], [[[2.0, 3.0]]]])
    loss = BatchLoss(0, "cross_entropy", Machine())
    (found,) = count_units(MultiHead(backbone, [2]), loss, Split(images, torch.tensor([0, 1])), seed=0)
    assert (found.units, found.dead, found.saturated) == (3, 1, 1)


def test_a_learner_counts_where_it_is_asked_to_and_learns_the_same():
    tasks = few_tasks(2)
    plain, counting = (
        Learner(small_net(tasks), afec.EWC(10) + afec.Recycle(), schedule=SHORT, counts_units=counts, progress=False)
        for counts in (False, True)
    )
    records = [(plain.learn(task), counting.learn(task)) for task in tasks]
    for without, with_units in records:
        assert (without.units, without.no_units) == ([], "")
        assert [(one.layer, one.units) for one in with_units.units] == [
            ("backbone.layers.1", 16),
            ("backbone.layers.5", 12),
        ]
        assert all(0 <= one.dead + one.saturated <= one.units for one in with_units.units)
        assert with_units.samples == without.samples
        assert "units" in with_units.seconds
    ours, theirs = counting.net.state_dict(), plain.net.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class Skip(nn.Module):
    """A net that looks like a chain, and is none."""

    out_features = 64

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.first(x.flatten(1)).relu()
        return x + self.second(x).relu()


@pytest.mark.parametrize("kind", ["residual", "skip"])
def test_what_is_no_chain_is_said_and_learned_all_the_same(kind):
    (task,) = few_tasks(1)
    backbone = Skip() if kind == "skip" else make_backbone("resnet10", channels=1, size=8, width=2)
    net = MultiHead(backbone, [task.outputs])
    record = Learner(net, schedule=SHORT, counts_units=True, progress=False).learn(task)
    assert record.units == []
    expected = {
        "skip": "units of 'backbone.first' of MultiHead are not",
        "residual": "'backbone.layer2.0.downsample.0'",
    }
    assert record.no_units.startswith(expected[kind])
    assert record.epochs == 2
    with pytest.raises(NoChainError):
        count_units(net, BatchLoss.of(0, task, Machine()), task.train, seed=0)


def test_activations_without_a_flat_side_have_no_dead_units():
    (task,) = few_tasks(1)
    dead = {}
    for name in ("relu", "gelu", "leaky"):
        torch.manual_seed(0)
        net = MultiHead(DigitsBackbone(activation=name), [task.outputs])
        with torch.no_grad():
            net.backbone.layers[5].bias[:5] = -2.0  # below zero for all images, and not so far that GELU is 0
        dead[name] = sum(one.dead for one in count_units(net, BatchLoss.of(0, task, Machine()), task.train, seed=0))
    assert dead["relu"] >= 5
    assert dead["gelu"] == dead["leaky"] == 0


@pytest.mark.parametrize("make", [DigitsBackbone, CNN6])
def test_the_activation_is_an_option_and_relu_the_default(make):
    def net(**options):
        torch.manual_seed(0)
        return make(**options).eval()

    torch.manual_seed(1)
    images = torch.randn(2, *((1, 8, 8) if make is DigitsBackbone else (3, 32, 32)))
    plain, relu, gelu = net(), net(activation="relu"), net(activation="gelu")
    assert torch.equal(plain(images), relu(images))
    assert not torch.equal(plain(images), gelu(images))
    assert sum(isinstance(one, nn.GELU) for one in gelu.modules()) == sum(
        isinstance(one, nn.ReLU) for one in plain.modules()
    )
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), gelu.parameters(), strict=True))
    with pytest.raises(ValueError, match="unknown activation 'relo'; did you mean 'relu'"):
        make(activation="relo")
