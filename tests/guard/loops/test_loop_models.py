"""All kinds of models: normalised, tied, growing, frozen, compiled, of another type than before."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import parametrizations

import afec
from two_tasks import (
    Penalty,
    Run,
    apart,
    build,
    data,
    learned_one_task,
    loader,
    plain_loop,
    plain_loss,
    same_as_penalty,
    sgd,
)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.head(torch.tanh(self.other(torch.tanh(self.one(x)))))


def layers(*between):
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Tanh(), nn.Linear(6, 3)).double()


def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)).double()


def spectral_norm():
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)).double()


MODELS = {
    "tied": lambda: Tied().double(),
    "layer-norm": lambda: layers(nn.LayerNorm(6)),
    "dropout": lambda: layers(nn.Dropout(0.3)),
    "weight-norm": weight_norm,
    "spectral-norm": spectral_norm,
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name, kind):
    same_as_penalty(plain_loop, kind=kind, model=MODELS[name](), tol=1e-8)


def test_batch_norm(kind):
    model, _ = same_as_penalty(plain_loop, kind=kind, model=layers(nn.BatchNorm1d(6)))
    assert model[1].num_batches_tracked == 8 * 3 + 3 * 3  # both loops of the user's, nothing of ours


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_old_style_norms_whose_modules_cannot_be_copied(norm, kind):
    """After a forward pass such a module holds a tensor with a graph: deepcopy fails, borrowing does not."""

    def make():
        torch.manual_seed(0)
        layer = getattr(nn.utils, norm)(nn.Linear(4, 6).double())
        return nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 3).double())

    guard, batches, second = build(kind), list(loader(data(2))), data(2)
    model, twin = make(), make()
    for number, tensors in ((1, data(1)), (2, second)):
        with guard.learning(model, sgd(model), tensors, nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            if number == 2:
                start = {name: value.clone() for name, value in model.state_dict().items()}
            plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(tensors))))
    twin.load_state_dict(start)
    plain_loop(Run(twin, sgd(twin), lambda m, batch: plain_loss(m, batch) + penalty(m), batches=batches))
    assert apart(model, twin) < 1e-9


def test_compiled_model(kind):
    """The names are those of the module inside, and the loop runs the compiled one."""
    model = layers()
    compiled = torch.compile(model, backend="eager")
    guard, second = build(kind), data(2)
    for tensors in (data(1), second):
        model.zero_grad()
        twin = copy.deepcopy(model)
        with guard.learning(compiled, sgd(compiled), tensors, nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            plain_loop(Run(compiled, sgd(compiled), plain_loss, batches=list(loader(tensors))))
    assert guard.state_dict()["states"]["ewc"]["mean"].keys() == dict(model.named_parameters()).keys()
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=list(loader(second))))
    assert apart(model, twin) < 1e-9


def test_channels_last_convolutions(kind):
    class Convolutional(nn.Sequential):
        def forward(self, x):
            return super().forward(x.repeat(1, 16).view(-1, 4, 4, 4).to(memory_format=torch.channels_last))

    model = Convolutional(nn.Conv2d(4, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)).double()
    same_as_penalty(plain_loop, kind=kind, model=model.to(memory_format=torch.channels_last))


# -- what is guarded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["module", "list", "generator", "one"])
def test_params_says_what_is_guarded(form):
    """Weights outside are trained in θ_e and never pulled."""
    model = layers()
    forms = {
        "module": model[0],
        "list": list(model[0].parameters()),
        "generator": (p for p in model[0].parameters()),
        "one": [model[0].weight],
    }
    names = {"0.weight"} if form == "one" else {"0.weight", "0.bias"}
    theta_e = {"epochs": 5, "optimizer": lambda params: optim.SGD(params, 0.5)}
    same = forms["list"][: len(names)]
    guard = afec.EWC(30.0, params=forms[form]) + afec.AFEC(4.0, params=same, **theta_e)
    for number in (1, 2):
        model.zero_grad()
        twin, batches = copy.deepcopy(model), list(loader(data(number)))
        with guard.learning(model, sgd(model), data(number), nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            plain_loop(Run(model, sgd(model), plain_loss, batches=batches))
    assert [set(mean) for _, mean, _ in penalty.terms] == [names, names]
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=batches))
    assert apart(model, twin) < 1e-9


@pytest.mark.parametrize("other", ["none", "head"])
def test_each_method_of_a_sum_guards_its_own_params(other):
    """`params=` of one method neither narrows nor widens another one."""
    model = layers()
    every, body, head = (set(dict(part.named_parameters())) for part in (model, model[0], model[2]))
    theta_e = {"epochs": 5, "optimizer": lambda params: optim.SGD(params, 0.5)}
    guard = afec.EWC(30.0, params=model[2] if other == "head" else None) + afec.AFEC(4.0, params=model[0], **theta_e)
    for number in (1, 2):
        model.zero_grad()
        twin, batches = copy.deepcopy(model), list(loader(data(number)))
        with guard.learning(model, sgd(model), data(number), nn.CrossEntropyLoss()) as task:
            penalty = Penalty(guard)
            plain_loop(Run(model, sgd(model), plain_loss, batches=batches))
            with torch.no_grad():
                expected_penalty = torch.as_tensor(penalty(model))
            for value in (task.penalty(), sum(task.penalties().values())):
                torch.testing.assert_close(value.double(), expected_penalty.double())
    expected = {f"2.{name}" for name in head} if other == "head" else every
    assert [set(mean) for _, mean, _ in penalty.terms] == [expected, {f"0.{name}" for name in body}]
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=batches))
    assert apart(model, twin) < 1e-9


@pytest.mark.parametrize("make", [afec.SI, afec.RWALK], ids=["si", "rwalk"])
def test_a_method_that_watches_steps_sees_its_own_params_only(make):
    """Beside a method of all weights, too weak to change a bit, it remembers what it remembers alone."""
    start, states = layers(), []
    for others in ([], [afec.MAS(1e-30)]):
        model = copy.deepcopy(start)
        guard = sum(others, start=make(1.0, params=model[0]))
        for number in (1, 2):
            with guard.learning(model, sgd(model), data(number), nn.CrossEntropyLoss()):
                plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(data(number)))))
        states.append(guard.state_dict()["states"])
    name = make.name
    assert set(states[0][name]["precision"]) == {"0.weight", "0.bias"}
    assert set(states[1]["mas"]["precision"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for key, known in states[0][name]["precision"].items():
        torch.testing.assert_close(states[1][name]["precision"][key], known, rtol=0, atol=0)


def test_the_loss_must_reach_the_weights_of_each_method():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    model.register_module("unused", nn.Linear(2, 2).double())
    model.forward = lambda x: model[2](model[1](model[0](x)))
    guard = afec.EWC(1.0, params=model.unused) + afec.SI(1.0, params=model[0])
    with pytest.raises(ValueError, match="no guarded weight gets a gradient.*'unused.weight' first"):
        guard.begin(model, sgd(model), data(1), nn.CrossEntropyLoss())


def test_frozen_weights_are_not_guarded_and_not_moved(kind):
    model = layers()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    _, penalty = same_as_penalty(plain_loop, kind=kind, model=model)
    assert all(set(mean) == {"2.weight", "2.bias"} for _, mean, _ in penalty.terms)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("to_none", [True, False])
def test_weights_frozen_in_mid_task_stay_where_they_are(to_none, by_hand, kind):
    """Also where zero_grad leaves zeros behind: the optimiser steps them, and nothing may pull them."""
    model, guard = learned_one_task(kind)
    optimizer, second = sgd(model), data(2)
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()) as task:
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(second))), epochs=1)
        model[0].requires_grad_(False)
        before = model[0].weight.clone()
        for batch in loader(second):
            optimizer.zero_grad(set_to_none=to_none)
            plain_loss(model, batch).backward()
            if by_hand:
                task.pull()
            optimizer.step()
        assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("when", ["between-tasks", "in-mid-task"])
def test_weights_frozen_later(when, kind):
    model, guard = learned_one_task(kind)
    second, frozen = data(2), copy.deepcopy(model[0])
    twin, batches = copy.deepcopy(model), list(loader(data(2)))
    if when == "between-tasks":
        model[0].requires_grad_(False)
        twin[0].requires_grad_(False)

    def loop(run):
        plain_loop(run, epochs=1)
        run.model[0].requires_grad_(False)
        plain_loop(run, epochs=1)

    with guard.learning(model, sgd(model), second, nn.CrossEntropyLoss()):
        penalty = Penalty(guard)
        loop(Run(model, sgd(model), plain_loss, batches=batches))
    loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=batches))
    assert apart(model, twin) < 1e-9
    assert torch.equal(model[0].weight, frozen.weight) == (when == "between-tasks")
    state = guard.state_dict()["states"]["ewc"]  # what is frozen is not forgotten
    assert state["mean"].keys() == dict(model.named_parameters()).keys()
    # and thawed again, it is pulled to where it is
    model.requires_grad_(True)
    model.zero_grad()
    twin = copy.deepcopy(model)
    third = data(3)
    with guard.learning(model, sgd(model), third, nn.CrossEntropyLoss()):
        penalty = Penalty(guard)
        plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(third))))
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=list(loader(third))))
    assert apart(model, twin) < 1e-9


def test_weights_thawed_in_a_later_task(kind):
    """Frozen in the first task, guarded from the second one's end on; in θ_e at once."""
    model = layers()
    model[0].requires_grad_(False)
    model, guard = learned_one_task(kind, model)
    model.requires_grad_(True)
    twin, second = copy.deepcopy(model), data(2)
    with guard.learning(model, sgd(model), second, nn.CrossEntropyLoss()):
        penalty = Penalty(guard)
        plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(second))))
    assert set(penalty.terms[0][1]) == {"2.weight", "2.bias"}
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=list(loader(second))))
    assert apart(model, twin) < 1e-9
    assert set(guard.state_dict()["states"]["ewc"]["mean"]) == dict(model.named_parameters()).keys()


# -- what changes between tasks -------------------------------------------------------------------------------------


def grown(head, rows):
    """A head with more classes: the old rows as they were."""
    new = nn.Linear(head.in_features, head.out_features + rows).to(head.weight)
    with torch.no_grad():
        new.weight[: head.out_features] = head.weight
        new.bias[: head.out_features] = head.bias
    return new


@pytest.mark.parametrize("expand_from", ["init", "main", "carry"])
def test_a_growing_head(expand_from, kind):
    model, guard = learned_one_task(kind, expand_from=expand_from)
    for number, classes in ((2, 5), (3, 6)):
        model[2] = grown(model[2], classes - model[2].out_features)
        model.zero_grad()
        x, y = data(number)
        tensors = x, (y + classes - 3)
        twin, batches = copy.deepcopy(model), list(loader(tensors))
        with guard.learning(model, sgd(model), tensors, nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            old = penalty.terms[0]
            plain_loop(Run(model, sgd(model), plain_loss, batches=batches))

        def reference(m, batch, penalty=penalty, twin=twin):
            total = plain_loss(m, batch)
            weights = dict(m.named_parameters())
            for weight, mean, precision in penalty.terms:
                for name, f in precision.items():
                    now = weights[name][: len(f)]  # new rows have precision 0
                    total = total + weight / 2 * (f * (now - mean[name]) ** 2).sum()
            return total

        assert old[1]["2.weight"].shape == ((3, 6) if number == 2 else (5, 6))
        plain_loop(Run(twin, sgd(twin), reference, batches=batches))
        assert apart(model, twin) < 1e-9
    precision = guard.state_dict()["states"]["ewc"]["precision"]["2.weight"]
    assert precision.shape == (6, 6)
    assert (precision[5] > 0).any()


def test_a_model_that_became_double_between_tasks(kind):
    model, guard = learned_one_task(kind, dtype=torch.float32)
    model.double()
    twin, second = copy.deepcopy(model), data(2)
    with guard.learning(model, sgd(model), second, nn.CrossEntropyLoss()):
        penalty = Penalty(guard)
        plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(second))))
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=list(loader(second))))
    assert apart(model, twin) < 1e-6
    state = guard.state_dict()["states"]["ewc"]
    assert {value.dtype for part in state.values() for value in part.values()} == {torch.float64}


def test_a_model_that_became_half_between_tasks_is_still_pulled():
    """λF overflows in 16 bits, so the pull is computed in 32 and rounded when it is added."""
    model, guard = learned_one_task("ewc", dtype=torch.float32)
    model.bfloat16()
    x, y = data(2, dtype=torch.bfloat16)
    with guard.learning(model, sgd(model), (x, y), nn.CrossEntropyLoss()):
        penalty = Penalty(guard)
        with torch.no_grad():
            state = {name: value + 0.5 for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        plain_loss(model, (x, y)).backward()
        expected = {
            name: p.grad.float() + 30.0 * penalty.terms[0][2][name] * (p.detach().float() - penalty.terms[0][1][name])
            for name, p in model.named_parameters()
        }
        optimizer = optim.SGD(model.parameters(), 0.0)
        optimizer.step()
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad.float(), expected[name], rtol=1e-2, atol=1e-3)
