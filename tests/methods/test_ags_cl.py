"""AGS-CL: its equations by hand, and each of its parts on real digits."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import afec
from afec.learner import Learner, Schedule
from afec.methods.ags_cl import cut, measured, proximal, refresh
from afec.nets import Chain, MultiHead, make_backbone
from afec.randomness import forked
from small_learning import few_tasks, same, small_learner


def group(weight, bias):
    return [nn.Parameter(torch.tensor([[weight]])), nn.Parameter(torch.tensor([bias]))]


def values(parts):
    return [part.item() for part in parts]


def test_an_important_node_is_held_by_hand():
    """v* = (1, 2), v = (4, 6): ‖v − v*‖ = 5, λ·Ω·lr = 100·0.5·0.02 = 1, so ⅘ of the way stays: (3.4, 5.2)."""
    parts = group(4.0, 6.0)
    proximal(parts, [torch.tensor([[1.0]]), torch.tensor([2.0])], torch.tensor([100 * 0.5 * 0.02]))
    assert values(parts) == pytest.approx([3.4, 5.2])


def test_an_unimportant_node_is_shrunk_by_hand():
    """v = (3, 4): ‖v‖ = 5, μ·lr = 10·0.1 = 1, so ⅘ of it stay; with μ·lr = 6 nothing does."""
    parts = group(3.0, 4.0)
    proximal(parts, [None, None], torch.tensor([1.0]))
    assert values(parts) == pytest.approx([2.4, 3.2])
    proximal(parts, [None, None], torch.tensor([6.0]))
    assert values(parts) == [0.0, 0.0]
    proximal(parts, [None, None], torch.tensor([0.0]))  # 0/0
    assert values(parts) == [0.0, 0.0]


@given(st.floats(0, 5), st.floats(0, 5), st.floats(-3, 3), st.floats(-3, 3))
def test_the_step_is_the_one_of_the_released_code(threshold, center, weight, bias):
    """a = max(d − t, 0), α = a/(t + a), 0/0 → 1, v ← α·v + (1 − α)·v*."""
    parts = [nn.Parameter(torch.tensor(one, dtype=torch.float64)) for one in ([[weight]], [bias])]
    distance = ((weight - center) ** 2 + bias**2) ** 0.5
    left = max(distance - threshold, 0.0)
    alpha = left / (threshold + left) if threshold + left > 0 else 1.0
    centers = [torch.tensor([[center]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    proximal(parts, centers, torch.tensor([threshold], dtype=torch.float64))
    assert values(parts) == pytest.approx([alpha * weight + (1 - alpha) * center, alpha * bias], abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.floats(0.1, 3))
def test_the_step_minimises_what_it_should(vector, threshold):
    """The proximal point of t·‖v‖ is the minimum of ½‖u − v‖² + t·‖u‖: no point near it is better."""
    v = torch.tensor([vector], dtype=torch.float64)
    part = nn.Parameter(v.clone())
    proximal([part], [None], torch.tensor([threshold], dtype=torch.float64))

    def cost(u):
        return float(0.5 * (u - v).square().sum() + threshold * u.norm())

    best, generator = cost(part.detach()), torch.Generator().manual_seed(0)
    for _ in range(20):
        assert cost(part.detach() + 0.05 * torch.randn(1, 3, generator=generator, dtype=torch.float64)) >= best - 1e-12


def two_layers():
    """Two channels, flattened as two pixels each into two units, and a head."""
    backbone = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2), nn.ReLU())
    net = MultiHead(backbone, [1, 1], features=2)
    return net, Chain(net.backbone)


def test_what_goes_out_of_idle_nodes_is_cut_by_hand():
    net, chain = two_layers()
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(1.0)
    cut(chain, net.heads[0], {"0": torch.tensor([True, False]), "3": torch.tensor([False, True])})
    assert net.backbone[3].weight.tolist() == [[0.0, 0.0, 1.0, 1.0]] * 2
    assert net.heads[0].weight.tolist() == [[1.0, 0.0]]
    assert net.heads[1].weight.tolist() == [[1.0, 1.0]]  # another task's
    assert net.backbone[0].weight.flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("rho", "renewed"), [(0.0, 0), (0.5, 8), (1.0, 16)])
def test_a_share_of_the_idle_nodes_gets_fresh_incoming_weights(rho, renewed):
    with forked(0):
        net = MultiHead(make_backbone("digits"), [2])
    chain = Chain(net.backbone)
    before = {key: value.clone() for key, value in net.backbone.state_dict().items()}
    idle = {layer.name: torch.zeros(layer.nodes, dtype=torch.bool) for layer in chain.layers}
    idle["layers.2"][:] = True
    refresh(chain, net, idle, rho, seed=1)
    after = net.backbone.state_dict()
    changed = [int((after[key] != old).flatten(1).any(1).sum()) for key, old in before.items() if old.dim() > 1]
    assert changed == [0, renewed, 0]
    new = (after["layers.2.weight"] != before["layers.2.weight"]).flatten(1).any(1)
    assert torch.equal(after["layers.2.bias"] != before["layers.2.bias"], new)
    assert float(after["layers.2.weight"].abs().max()) <= 1 / 12  # as PyTorch draws them: 1/√(16·9)


SCHEDULE = Schedule(batch_size=16, lr=1e-2, max_epochs=3, patience=None, best_weights=False)


def learner_of(tasks, method, schedule=SCHEDULE):
    with forked(1):
        net = MultiHead(make_backbone("digits"), [task.outputs for task in tasks])
    return Learner(net, method, schedule=schedule, seed=3)


def half_idle(learner):
    """As if every second node had never been active; the tests below then know which."""
    omega = {name: one.clone() for name, one in learner.strategy.state["omega"].items()}
    for one in omega.values():
        one[::2], one[1::2] = 0.0, 0.5
    learner.strategy.state = {**learner.strategy.state, "omega": omega}


def test_importance_by_hand():
    """Inputs 1, -2 and 3, as batches of two and of one. Nodes with the weights 1, -1, 0: (1+0+3)/3, (0+2+0)/3, 0."""
    backbone = nn.Sequential(nn.Linear(1, 3, bias=False), nn.ReLU())
    with torch.no_grad():
        backbone[0].weight.copy_(torch.tensor([[1.0], [-1.0], [0.0]]))
    batches = [torch.tensor([[1.0], [-2.0]]), torch.tensor([[3.0]])]
    work = SimpleNamespace(number=0, inputs=lambda: iter(batches))
    assert measured(Chain(backbone), work)["0"].tolist() == pytest.approx([4 / 3, 2 / 3, 0.0])


def test_importance_of_a_map_is_the_mean_of_its_pixels():
    """A channel that copies the pixels 1, -2, 3, 6: relu and mean give (1 + 0 + 3 + 6)/4, before the pooling takes 6."""
    backbone = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    with torch.no_grad():
        backbone[0].weight.fill_(1.0)
    image = torch.tensor([[[[1.0, -2.0], [3.0, 6.0]]]])
    work = SimpleNamespace(number=0, inputs=lambda: iter([image]))
    assert measured(Chain(backbone), work)["0"].tolist() == [2.5]


def test_importance_is_the_mean_activation_and_decays():
    """Ω_1 = the mean activation; Ω_2 = η·Ω_1 + the new one, both over all images of the task and all pixels of a map."""
    tasks = few_tasks(2)
    learner, found = learner_of(tasks, afec.AGSCL(10.0, mu=0, rho=0, eta=0.25, cut=False)), []
    for task in tasks:
        learner.learn(task)
        x = task.train.inputs
        with torch.no_grad():
            maps = torch.relu(learner.net.backbone.layers[0](x))
            features = learner.net.backbone(x)
        found.append((maps.mean((0, 2, 3)), features.mean(0)))
        if len(found) == 1:
            first = {name: one.clone() for name, one in learner.strategy.state["omega"].items()}
    omega = learner.strategy.state["omega"]
    assert torch.allclose(first["layers.0"], found[0][0], atol=1e-6)
    assert torch.allclose(first["layers.5"], found[0][1], atol=1e-6)
    assert torch.allclose(omega["layers.0"], 0.25 * found[0][0] + found[1][0], atol=1e-6)
    assert torch.allclose(omega["layers.5"], 0.25 * found[0][1] + found[1][1], atol=1e-6)
    assert torch.equal(learner.strategy.state["old"]["layers.0.weight"], learner.net.backbone.layers[0].weight)


def test_nothing_flows_from_unimportant_to_important_nodes():
    tasks = few_tasks(2)
    ends = {}
    for freeze in (True, False):
        learner = learner_of(tasks, afec.AGSCL(10.0, mu=1, rho=0, cut=False, freeze=freeze))
        learner.learn(tasks[0])
        half_idle(learner)
        learner.learn(tasks[1])
        ends[freeze] = learner.net.backbone.layers
    for layers, frozen in ((ends[True], True), (ends[False], False)):
        assert bool((layers[2].weight[1::2, ::2] == 0).all()) is frozen
        to_hidden = layers[5].weight.reshape(32, 16, 16)
        assert bool((to_hidden[1::2, ::2] == 0).all()) is frozen
        assert not bool((layers[2].weight[::2] == 0).any())  # into unimportant nodes everything may flow
        assert not bool((to_hidden[1::2, 1::2] == 0).any())
        assert not bool((layers[0].weight == 0).any())  # inputs are no nodes


def test_a_strong_pull_keeps_important_nodes_and_leaves_the_others_free():
    tasks = few_tasks(2)
    learner = learner_of(tasks, afec.AGSCL(1e6, mu=0, rho=0, cut=False, freeze=False))
    learner.learn(tasks[0])
    half_idle(learner)
    old = {key: value.clone() for key, value in learner.net.backbone.state_dict().items()}
    learner.learn(tasks[1])
    for key, now in learner.net.backbone.state_dict().items():
        assert torch.equal(now[1::2], old[key][1::2])
        assert not torch.equal(now[::2], old[key][::2])


def test_a_node_that_only_older_tasks_need_is_neither_cut_nor_renewed():
    tasks = few_tasks(2)
    learner = learner_of(tasks, afec.AGSCL(1e6, mu=0, rho=1.0, eta=0.5))
    learner.learn(tasks[0])
    learner.strategy.state["omega"] = {k: torch.full_like(v, 0.5) for k, v in learner.strategy.state["omega"].items()}
    old = {key: value.clone() for key, value in learner.net.backbone.state_dict().items()}
    learner.learn(tasks[1])
    silent = {name: one == 0.25 for name, one in learner.strategy.state["omega"].items()}  # η·0.5 + 0
    assert any(one.any() for one in silent.values())
    assert same(dict(learner.net.backbone.state_dict()), old)
    last = silent["layers.5"]
    assert last.any()
    assert (learner.net.heads[1].weight[:, last] != 0).all()


def test_a_strong_sparsity_empties_nodes():
    tasks = few_tasks(1)
    learner = learner_of(tasks, afec.AGSCL(0.0, mu=1e6, rho=0))
    learner.learn(tasks[0])
    assert all(not bool(weight.any()) for weight in learner.net.backbone.parameters())
    assert all(not bool(one.any()) for one in learner.strategy.state["omega"].values())
    assert not bool(learner.net.heads[0].weight.any())  # nothing comes out of them any more


def test_all_switched_off_is_finetuning_bit_for_bit():
    tasks = few_tasks(2)
    off = afec.AGSCL(0.0, mu=0, rho=0, freeze=False, cut=False)
    nets = []
    for method in (off, None):
        learner = learner_of(tasks, method)
        for task in tasks:
            learner.learn(task)
        nets.append(learner.net.state_dict())
    assert same(dict(nets[0]), dict(nets[1]))


BASE = {"strength": 20.0, "mu": 2.0, "rho": 0.5, "eta": 0.5}
SWITCHES = {
    "strength": {"strength": 0.0},
    "mu": {"mu": 0.0},
    "rho": {"rho": 0.0},
    "eta": {"eta": 0.0},
    "proximal": {"proximal": "step"},
    "freeze": {"freeze": False},
    "cut": {"cut": False},
}


def after_three(options, tasks):
    """The weights after three tasks."""
    learner = learner_of(tasks, afec.AGSCL(**{**BASE, **options}))
    for task in tasks:
        learner.learn(task)
        idle = [int((one == 0).sum()) for one in learner.strategy.state["omega"].values()]
        assert sum(idle) > 0  # there are nodes of both kinds
        assert all(count < len(one) for count, one in zip(idle, learner.strategy.state["omega"].values(), strict=True))
    return learner.net.state_dict()


@pytest.fixture(scope="module")
def base():
    tasks = few_tasks(3)
    return tasks, after_three({}, tasks)


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_changes_what_is_learned_from_digits(switch, base):
    tasks, whole = base
    assert not same(dict(after_three(SWITCHES[switch], tasks)), dict(whole))


def test_a_guard_added_changes_what_is_learned_and_is_not_taken_for_a_lost_pull(base):
    tasks, _ = base
    nets = []
    for method in (afec.AGSCL(**BASE), afec.AGSCL(**BASE) + afec.EWC(100.0), afec.AGSCL(**BASE) + afec.SI(10.0)):
        learner = small_learner(tasks, method)
        for task in tasks[:2]:
            learner.learn(task)
        nets.append(dict(learner.net.state_dict()))
    assert not same(nets[0], nets[1])
    assert not same(nets[0], nets[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1}, "strength .* must be a finite number ≥ 0; got -1"),
        ({"mu": float("nan")}, "mu must be a finite number ≥ 0"),
        ({"rho": 1.5}, r"rho must be in \[0, 1\]; got 1.5"),
        ({"eta": 2}, r"eta must be in \[0, 1\]; got 2"),
        ({"proximal": "batch"}, "proximal must be one of 'epoch', 'step'; got 'batch'"),
        ({"freeze": "no"}, "freeze must be True or False; got 'no'"),
        ({"preset": "mine"}, "preset must be one of"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(ValueError, match=message):
        afec.AGSCL(**{"strength": 1.0, **options})
