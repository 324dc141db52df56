"""A backbone as a chain of layers, and the column beside it."""

import pytest
import torch
from torch import nn

from afec.nets import Chain, NoChainError, make_backbone, renew
from afec.nets.column import START, Adapter, Column
from afec.randomness import forked

CHAINS = {
    "digits": ({}, (1, 8), [16, 16, 32]),
    "lenet": ({}, (3, 32), [6, 16, 120, 84]),
    "cnn6": ({}, (3, 32), [32, 32, 64, 64, 128, 128, 256]),
    "omniglot": ({}, (1, 28), [64] * 4),
    "vgg11": ({"width": 4}, (3, 32), [4, 8, 16, 16, 32, 32, 32, 32]),
    "vgg11bn": ({"width": 4}, (3, 32), [4, 8, 16, 16, 32, 32, 32, 32]),
    "alexnet": ({}, (3, 224), [64, 192, 384, 256, 256, 4096, 4096]),
}


def made(name):
    options, (channels, size), nodes = CHAINS[name]
    with forked(0):
        return make_backbone(name, **options), torch.randn(2, channels, size, size), nodes


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "alexnet" else ()) for n in CHAINS])
def test_our_backbones_but_resnet_are_chains(name):
    backbone, images, nodes = made(name)
    chain = Chain(backbone)
    chain.check(images)
    assert [layer.nodes for layer in chain.layers] == nodes
    every = {key for layer in chain.layers for key in layer.incoming}
    assert every == {key for key, _ in backbone.named_parameters()}  # each weight belongs to one layer's nodes
    assert all(len(w) == layer.nodes for layer in chain.layers for w in layer.incoming.values())
    given = list(chain.inputs(images))
    assert [x.shape[1] for x in given] == [layer.module.weight.shape[1] for layer in chain.layers]


def test_a_residual_net_is_none_and_says_where():
    with pytest.raises(NoChainError, match=r"ResNet10 is no chain of layers: its 'layer1\.0' is a BasicBlock"):
        Chain(make_backbone("resnet10", width=2))


class Skips(nn.Module):
    """Its modules look like a chain; what it does with them is something else."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.two(self.one(x)) + x


def test_a_forward_of_its_own_is_found_out():
    chain = Chain(Skips())
    with pytest.raises(NoChainError, match="give other features than its forward"):
        chain.check(torch.ones(2, 3))


def test_what_cannot_be_a_chain():
    with pytest.raises(NoChainError, match="groups"):
        Chain(nn.Sequential(nn.Conv2d(4, 4, 1, groups=2)))
    with pytest.raises(NoChainError, match="no multiple of the 2 nodes"):
        Chain(nn.Sequential(nn.Linear(3, 2), nn.Linear(5, 2)))
    with pytest.raises(NoChainError, match="neither a convolution nor"):
        Chain(nn.Sequential(nn.ReLU()))
    own = nn.Sequential(nn.Linear(1, 1))
    own.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(NoChainError, match="a weight 'scale' beside"):
        Chain(own)


def test_nodes_of_a_map_go_on_as_all_its_pixels():
    """Two channels of 2×2 pixels are flattened to the inputs 0-3 and 4-7 of the next layer."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1, bias=False))
    chain = Chain(net)
    spread = chain.spread(0, torch.tensor([True, False]), 8)
    assert spread.tolist() == [True] * 4 + [False] * 4
    images = torch.rand(3, 1, 2, 2)
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(1.0)
        before = net(images)
        net[0].weight[1] += 7.0  # a node whose outgoing weights are 0 does not matter, whatever it does
        net[0].bias[1] += 7.0
        net[3].weight[:, ~spread] = 0
        once = net(images)
        net[0].bias[1] -= 3.0
    assert torch.equal(net(images), once)
    assert not torch.equal(before, once)


def test_active_nodes_are_seen_after_the_activation_and_before_the_pooling():
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
    seen = {}
    Chain(net)(torch.tensor([[[[1.0, -2.0], [3.0, 4.0]]]]), watch=lambda layer, z: seen.update({layer.name: z}))
    assert seen["0"].tolist() == [[[[1.0, 0.0], [3.0, 4.0]]]]
    assert seen["4"].shape == (1, 1)


@pytest.mark.parametrize("name", ["digits", "vgg11bn"])
def test_renewed_weights_are_drawn_as_the_first_ones_were(name):
    backbone, _, _ = made(name)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with forked(1):
        renew(backbone)
    after = backbone.state_dict()
    for key, old in before.items():
        assert old.dim() < 2 or not torch.equal(after[key], old)
        if old.dim() > 2:
            assert 0.7 < float(after[key].std() / old.std()) < 1.4


# -- the column ---------------------------------------------------------------------------------------------------------


def test_an_adapter_by_hand():
    """α ⊙ U·relu(V·h + c) = ½·(2·relu(3·1 − 1) + 1·relu(−1·1 + 0)) = ½·4 = 2."""
    layer = Chain(nn.Sequential(nn.Linear(1, 1))).layers[0]
    adapter = Adapter(layer, 2)
    assert adapter.alpha.tolist() == pytest.approx([START])
    with torch.no_grad():
        adapter.alpha.fill_(0.5)
        adapter.down.weight.copy_(torch.tensor([[3.0], [-1.0]]))
        adapter.down.bias.copy_(torch.tensor([-1.0, 0.0]))
        adapter.up.weight.copy_(torch.tensor([[2.0, 1.0]]))
    assert adapter(torch.tensor([[1.0]])).tolist() == [[2.0]]


def test_an_adapter_of_a_convolution_by_hand():
    """V takes the four pixels of a patch, as the layer does, U one: ½·2·relu(1 + 2 + 3 + 4 − 4) = 6, elsewhere 0 − 4 < 0."""
    layer = Chain(nn.Sequential(nn.Conv2d(1, 1, 2, stride=2, padding=1))).layers[0]
    adapter = Adapter(layer, 1)
    with torch.no_grad():
        adapter.alpha.fill_(0.5)
        adapter.down.weight.fill_(1.0)
        adapter.down.bias.fill_(-4.0)
        adapter.up.weight.fill_(2.0)
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 1:3, 1:3] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    added = adapter(image)
    assert added.shape == layer.module(image).shape
    assert added.tolist() == [[[[0.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 0.0]]]]


def test_a_column_by_hand():
    """Base: h = relu(1·x). Column: first layer 2·x without an adapter, second 1·(2·x) + ¼·relu(4·h) = 3 at x = 1."""
    base = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    column = Column(base, width=1.0)
    assert len(column.adapters) == 1
    with torch.no_grad():
        base[0].weight.fill_(1.0)
        column.twin[0].weight.fill_(2.0)
        column.twin[2].weight.fill_(1.0)
        column.adapters[0].alpha.fill_(0.25)
        column.adapters[0].down.weight.fill_(4.0)
        column.adapters[0].down.bias.zero_()
        column.adapters[0].up.weight.fill_(1.0)
    x = torch.tensor([[1.0]])
    assert column(x).tolist() == [[3.0]]
    column.lateral = False
    assert column(x).tolist() == [[2.0]]
    assert Column(base, width=0.0)(x).shape == (1, 1)


@pytest.mark.parametrize("name", ["digits", "lenet", "cnn6", "vgg11bn"])
def test_a_column_trains_itself_and_leaves_its_base_alone(name):
    backbone, images, _ = made(name)
    backbone.train()
    column = Column(backbone)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    column.train()(images).square().sum().backward()
    assert all(weight.grad is not None for weight in column.parameters())
    assert all(weight.grad is None for weight in backbone.parameters())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    assert not any(key.startswith("_base") for key in column.state_dict())
