"""Recycle: which units it renews, that the function stays to the last bit, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import afec
from afec import EWC, Learner, Recycle, Schedule
from afec.nets import MultiHead, SingleHead, TaskBatchNorm2d, make_backbone
from afec.streams import make_stream

X = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


class Net(nn.Module):
    """As many people write it: activations are functions, and one of them pools."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3)
        self.hidden, self.output = nn.Linear(8 * 4, 10), nn.Linear(10, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        return self.output(torch.relu(self.hidden(x.flatten(1))))


def with_dead_units(model=None, dead=None):
    """A net some of whose units never fire: by a bias that nothing can reach."""
    torch.manual_seed(1)
    model = model or Net()
    dead = dead or {"first": [1, 4], "second": [0], "hidden": [2, 3, 7]}
    with torch.no_grad():
        for name, units in dead.items():
            model.get_submodule(name).weight.abs_()  # all others fire
            model.get_submodule(name).bias[units] = -100.0
    return model, dead


def learn(model, guard, x=X, y=Y, steps=0, optimizer=None, loss=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 1e-2)
    loss = loss or nn.CrossEntropyLoss()
    with guard.learning(model, optimizer, (x, y), loss) as task:
        for _ in range(steps):
            optimizer.zero_grad()
            task.problem.loss(model, (x, y)).backward()
            optimizer.step()
    return optimizer


def first_fired(guard):
    return {name: found.tolist() for name, found in guard.state_dict()["states"]["recycle"]["first_fired"].items()}


@pytest.mark.parametrize("layers", ["last", "all"])
def test_dead_units_are_renewed_and_the_function_stays_to_the_last_bit(layers):
    model, dead = with_dead_units()
    before, weights = model(X), copy.deepcopy(model.state_dict())
    guard = EWC(10) + Recycle(layers)
    learn(model, guard)
    assert torch.equal(model(X), before)
    now = model.state_dict()
    renewed = dead if layers == "all" else {"hidden": dead["hidden"]}
    assert first_fired(guard) == {
        name: [-1 if unit in units else 0 for unit in range(len(weights[f"{name}.bias"]))]
        for name, units in renewed.items()
    }
    for name, units in renewed.items():
        changed = (now[f"{name}.bias"] != weights[f"{name}.bias"]).nonzero().flatten().tolist()
        assert changed == units
        assert (now[f"{name}.bias"][units].abs() < 1).all()  # as a layer begins, and no longer −100
    assert (now["output.weight"][:, dead["hidden"]] == 0).all()
    maps = now["hidden.weight"].view(10, 8, 4)
    old, new = [unit for unit in range(10) if unit not in dead["hidden"]], dead["hidden"]
    if layers == "all":  # a flattened map is four inputs; a new unit listens to a new one, an old unit does not
        assert (maps[old][:, dead["second"]] == 0).all()
        assert (maps[new][:, dead["second"]] != 0).all()
        assert (now["second.weight"][1:][:, dead["first"]] == 0).all()
    else:
        assert torch.equal(maps[old], weights["hidden.weight"].view(10, 8, 4)[old])


def test_importance_is_measured_after_the_renewal():
    """At its own entry the Fisher of what leaves a dead unit is 0; of a renewed one, which fires, it is not."""
    found = {}
    for name, guard in {"ewc": EWC(1), "recycled": EWC(1) + Recycle()}.items():
        model, dead = with_dead_units()
        learn(model, guard)
        precision = guard.state_dict()["states"]["ewc"]["precision"]
        found[name] = precision["output.weight"][:, dead["hidden"]]
        assert (precision["hidden.weight"][dead["hidden"]] == 0).all()  # nobody listens
        assert torch.equal(guard.state_dict()["states"]["ewc"]["mean"]["hidden.weight"], model.hidden.weight)
    assert (found["ewc"] == 0).all()
    assert (found["recycled"] > 0).any()


def test_a_unit_that_fired_in_an_earlier_task_is_never_renewed():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        model[0].bias.zero_()
    x, y = torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    guard = Recycle()
    learn(model, guard, x, y)  # the second unit is given 0, the third −1 and −2
    assert first_fired(guard) == {"0": [0, -1, -1]}
    with torch.no_grad():
        model[0].weight[1:] = torch.tensor([[0.0, 1.0], [-1.0, -1.0]])
        model[0].bias[1:] = 0.0
    kept = model[0].weight[:2].clone()
    learn(model, guard, x.flip(1), y)  # now the first one is silent, but was in use
    assert first_fired(guard) == {"0": [0, 1, -1]}
    assert torch.equal(model[0].weight[:2], kept)


def test_the_pass_ends_when_all_units_are_in_use():
    """A batch of the pass has 64 samples; a unit that an earlier task has made fire need not be seen again."""
    x, y = torch.ones(200, 2), torch.arange(200) % 2
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.copy_(torch.tensor([0.0, 0.0, -2.5]))
    x[199] = 2.0  # the only sample that makes the third unit fire is the last one
    guard = Recycle()

    def measured(x):
        with guard.learning(model, None, (x, y), nn.CrossEntropyLoss()) as task:
            pass
        return task.samples_measured

    before = copy.deepcopy(model.state_dict())
    assert measured(x) == 200
    assert measured(torch.ones(200, 2)) == 64
    assert measured(-x) == 64
    assert first_fired(guard) == {"0": [0, 0, 0]}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_threshold():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5], [2.0]]))
        model[0].bias.zero_()
    for threshold, expected in ((0.0, [0, 0]), (0.49, [0, 0]), (0.5, [-1, 0]), (2.0, [-1, -1])):
        guard = Recycle(threshold=threshold)
        learn(copy.deepcopy(model), guard, torch.ones(2, 1), torch.tensor([0, 1]))
        assert first_fired(guard) == {"0": expected}


@pytest.mark.parametrize("activation", [nn.LeakyReLU(), nn.GELU()])
def test_a_unit_without_a_flat_side_is_never_dead(activation):
    model = nn.Sequential(nn.Linear(64, 6), activation, nn.Linear(6, 3))
    with torch.no_grad():
        model[0].bias[2] = -3.0
    before = copy.deepcopy(model.state_dict())
    guard = Recycle()
    learn(model, guard, X.flatten(1), Y)
    assert first_fired(guard) == {"0": [0] * 6}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("hold", [True, False])
def test_what_is_held_at_zero(hold):
    model, dead = with_dead_units()
    guard = EWC(1e-6) + Recycle("all", hold=hold)
    optimizer = learn(model, guard)
    learn(model, guard, 1 - X, Y.flip(0), steps=4, optimizer=optimizer)
    second, hidden = model.second.weight[1:][:, dead["first"]], model.hidden.weight.view(10, 8, 4)[:, dead["second"]]
    old = [unit for unit in range(10) if unit not in dead["hidden"]]
    assert bool((second == 0).all()) is hold
    assert bool((hidden[old] == 0).all()) is hold
    assert (model.output.weight[:, dead["hidden"]] != 0).any()  # one output layer for all tasks has to listen


@pytest.mark.parametrize("hold", [True, False])
def test_what_becomes_of_new_units_reaches_old_outputs_only_where_nothing_is_held(hold):
    """The leak: new units are free to grow, and what they send on reached the old head through units that it uses."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU())
    backbone.out_features = 5
    net, _ = with_dead_units(MultiHead(backbone, [3, 3]), {"backbone.1": [0, 4], "backbone.3": [2]})
    guard = EWC(1.0, fisher="empirical") + Recycle("all", hold=hold)
    loss = lambda model, batch: F.cross_entropy(model(batch[0], 0), batch[1])  # noqa: E731
    before = net(X, 0)
    learn(net, guard, loss=loss)
    assert torch.equal(net(X, 0), before)
    new = lambda model, batch: F.cross_entropy(model(batch[0], 1), batch[1])  # noqa: E731
    learn(net, guard, steps=5, loss=new)
    old, other = net(X, 0), net(X, 1)
    with torch.no_grad():
        net.backbone[1].weight[[0, 4]] *= 10
        net.backbone[3].weight[2] *= 10
    assert torch.equal(net(X, 0), old) is hold
    assert not torch.equal(net(X, 1), other)


def test_held_weights_change_what_real_digits_learn():
    def learned(hold):
        stream = make_stream("digits-regression", seed=0, train=120, validation=60)
        net, _ = with_dead_units(
            MultiHead(make_backbone("digits"), zero=True), {"backbone.layers.0": [0, 1], "backbone.layers.5": [3]}
        )
        learner = Learner(net, EWC(10) + Recycle("all", hold=hold), schedule=Schedule(max_epochs=2))
        for task in stream.tasks:
            learner.learn(task)
        return learner.net.state_dict()["backbone.layers.2.weight"]

    held, free = learned(True), learned(False)
    assert (held[:, [0, 1]] == 0).any()
    assert not torch.equal(held, free)


def test_moments_of_what_was_rewritten_are_forgotten():
    model, dead = with_dead_units()
    optimizer = learn(model, Recycle(), steps=2)
    state = optimizer.state[model.output.weight]
    assert (state["exp_avg"][:, dead["hidden"]] == 0).all()
    assert (state["exp_avg_sq"][:, [0, 1]] > 0).any()
    for value in optimizer.state[model.hidden.weight].values():
        assert value.dim() == 0 or (value[dead["hidden"]] == 0).all()


def test_batch_norm_belongs_to_its_unit():
    torch.manual_seed(0)
    for norm in (nn.BatchNorm2d(4), TaskBatchNorm2d(4)):
        backbone = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten())
        backbone.out_features = 4 * 36
        net = MultiHead(backbone, [3, 3])
        with torch.no_grad():
            norm.bias.copy_(torch.tensor([5.0, -50.0, 5.0, 5.0]))
            norm.running_mean.fill_(0.5)
        net.eval()
        before = net(X, 0)
        learn(net, Recycle(), loss=lambda model, batch: F.cross_entropy(model(batch[0], 0), batch[1]))
        assert torch.equal(net(X, 0), before)
        assert norm.bias.tolist() == [5.0, 0.0, 5.0, 5.0]
        assert norm.running_mean.tolist() == [0.5, 0.0, 0.5, 0.5]
        assert (net.heads[0].weight.view(3, 4, 36)[:, 1] == 0).all()
        assert (net.heads[1].weight.view(3, 4, 36)[:, 1] != 0).all()  # this head has learned nothing yet


def test_old_heads_and_rows_stop_listening():
    for kind, names in ((MultiHead, ("heads.0", "heads.1")), (SingleHead, ("blocks.0", "blocks.1"))):
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU())
        backbone.out_features = 5
        net = kind(backbone)
        net.begin_task([0, 1, 2])
        net, _ = with_dead_units(net, {"backbone.1": [0, 4]})
        guard = EWC(1.0, fisher="empirical") + Recycle()
        loss = lambda model, batch: F.cross_entropy(model(batch[0], 0), batch[1])  # noqa: E731
        learn(net, guard, loss=loss)
        net.begin_task([3, 4, 5])
        with torch.no_grad():
            net.backbone[1].bias[4] = -100.0  # dead once more
        before = [net.get_submodule(name).weight.clone() for name in names]
        last = lambda model, batch: F.cross_entropy(model(batch[0], 1)[:, -3:], batch[1])  # noqa: E731
        learn(net, guard, loss=last, steps=1)
        outputs = guard.state_dict()["states"]["recycle"]["outputs"]
        assert outputs == {names[0]: 0, names[1]: 1}
        assert (net.get_submodule(names[0]).weight[:, [0, 4]] == 0).all()
        assert (net.get_submodule(names[1]).weight[:, 4] == 0).all()
        assert (before[1] != 0).all()


class Residual(Net):
    def forward(self, x):
        x = F.relu(self.hidden(F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2).flatten(1)))
        return self.output(x) + x[:, :3]


class Twice(Net):
    def forward(self, x):
        return super().forward(x) + super().forward(x.flip(3))


class Unused(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(10, 3)


class Normed(Net):
    def forward(self, x):
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.output(F.layer_norm(F.relu(self.hidden(F.max_pool2d(x, 2).flatten(1))), (10,)))


class Grouped(Net):
    def __init__(self):
        super().__init__()
        self.second = nn.Conv2d(6, 8, 3, groups=2)


class Computed(Net):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.hidden)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Residual, "they still change the loss"),
        (Normed, "they still change the loss"),
        (Twice, "'first' is used 2 times"),
        (Unused, "'other' of Unused takes no part"),
        (Grouped, "'second' is a convolution in groups"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "no hidden layer"),
        (Computed, "weight of 'hidden' is computed"),
    ],
)
def test_what_is_no_chain_is_refused_before_anything_is_learned(make, words):
    model = make()
    before, guard = copy.deepcopy(model.state_dict()), EWC(1) + Recycle("all")
    with pytest.raises(ValueError, match=words):
        learn(model, guard)
    assert guard.tasks_done == 0
    assert not guard.in_task
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_cosine_sees_the_size_of_all_units_together():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU())
    net = SingleHead(backbone, "cosine", features=5)
    net.begin_task([0, 1, 2])
    with pytest.raises(ValueError, match="a cosine"):
        learn(net, Recycle(), loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def test_data_made_on_demand_are_looked_at_when_the_task_ends():
    model, dead = with_dead_units()
    guard, before = Recycle(), model(X)
    with guard.learning(model, None, lambda: [(X, Y)], nn.CrossEntropyLoss()):
        pass
    assert torch.equal(model(X), before)
    assert first_fired(guard)["hidden"].count(-1) == len(dead["hidden"])
    guard = Recycle()
    with (
        pytest.raises(afec.nets.NoChainError),
        guard.learning(Residual(), None, lambda: [(X, Y)], nn.CrossEntropyLoss()),
    ):
        pass
    assert guard.tasks_done == 0


def test_params_choose_the_layers_and_frozen_ones_stay():
    model, dead = with_dead_units()
    before = copy.deepcopy(model.state_dict())
    model.first.requires_grad_(False)
    guard = Recycle("all", params=[*model.first.parameters(), *model.hidden.parameters()])
    learn(model, guard)
    assert list(first_fired(guard)) == ["hidden"]
    assert torch.equal(model.first.bias, before["first.bias"])
    assert torch.equal(model.second.bias, before["second.bias"])


def test_the_learner_on_real_digits_keeps_its_outputs_and_resumes():
    stream = make_stream("digits", seed=3)
    schedule = Schedule(batch_size=32, lr=1e-2, max_epochs=3, patience=None, best_weights=False)

    def fresh():
        torch.manual_seed(0)
        return Learner(make_backbone("digits"), EWC(100) + Recycle("all"), schedule=schedule, seed=1)

    learner = fresh()
    seen = []
    learner.on_progress = lambda progress: seen.append(copy.deepcopy(learner.state_dict()))
    for task in stream.tasks[:2]:
        learner.learn(task)
    again = fresh()
    again.load_state_dict(seen[4])  # after the second epoch of the second task
    again.learn(stream.tasks[1])
    one, other = learner.state_dict(), again.state_dict()
    assert all(torch.equal(one["net"][name], other["net"][name]) for name in one["net"])
    states = [state["method"]["states"]["recycle"]["first_fired"] for state in (one, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
