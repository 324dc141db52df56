"""Every error of the contract says what was given, what was expected and what to do."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, TensorDataset

import afec
from afec import AFEC, EWC, MAS


def hooks_left(model: nn.Module) -> int:
    on_weights = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    on_modules = sum(len(m._load_state_dict_post_hooks) for m in model.modules())
    return len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks) + on_weights + on_modules


@pytest.fixture(autouse=True)
def _no_hook_survives(setting):
    yield
    assert hooks_left(setting.model) == 0


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", None, True])
def test_strength_must_be_finite_and_not_negative(value):
    with pytest.raises(
        ValueError, match=rf"EWC: strength \(λ\) must be a finite number ≥ 0, or 'auto'; got {re.escape(repr(value))}"
    ):
        EWC(strength=value)


@pytest.mark.parametrize("value", [-1, float("inf"), [0.1, -1]])
def test_forgetting_must_be_finite_and_not_negative(value):
    with pytest.raises(ValueError, match=r"AFEC: forgetting \(λ_e\) must be a finite number ≥ 0"):
        AFEC(forgetting=value, epochs=1)


@pytest.mark.parametrize("value", [1, 1.5, [0.5, 1.0]])
def test_beta_must_be_below_one(value):
    with pytest.raises(ValueError, match=r"β must be in \[0, 1\)"):
        AFEC(beta=value, epochs=1)


def test_afec_needs_one_weight_and_one_way_to_train():
    with pytest.raises(ValueError, match=r"either forgetting \(λ_e\) or beta \(β\); got forgetting=0.1, beta=0.2"):
        AFEC(forgetting=0.1, beta=0.2, epochs=1)
    with pytest.raises(ValueError, match="either forgetting"):
        AFEC(epochs=1)
    with pytest.raises(ValueError, match="either epochs= or expand=, not both"):
        AFEC(0.1, epochs=1, expand=lambda: None)
    with pytest.raises(ValueError, match="epochs must be an integer ≥ 1; got 0"):
        AFEC(0.1, epochs=0)
    with pytest.raises(TypeError, match=r"expand must be a function without arguments.*got 3"):
        AFEC(0.1, expand=3)
    with pytest.raises(ValueError, match=r"one epoch at each task.epoch\(\); leave epochs= out"):
        AFEC(0.1, epochs=3, schedule="interleaved")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fisher": "diagonal"},
            "fisher must be one of 'auto', 'exact', 'sample', 'empirical', 'batched', 'reversed'; got 'diagonal'",
        ),
        ({"preset": "papers"}, "preset must be one of 'default', 'paper', 'official'; got 'papers'"),
        ({"fisher": "batched", "fisher_batch": 0}, "fisher_batch must be an integer ≥ 1; got 0"),
        ({"fisher": "exact", "fisher_dropout": True}, "fisher_dropout=True goes with fisher='batched' only"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        EWC(1.0, **options)
    with pytest.raises(ValueError, match=re.escape(message)):
        AFEC(1.0, epochs=1, **options)


def test_where_theta_e_starts_and_when():
    with pytest.raises(ValueError, match="expand_from must be one of 'init', 'main', 'carry'; got 'scratch'"):
        AFEC(1.0, epochs=1, expand_from="scratch")
    with pytest.raises(ValueError, match="schedule must be one of 'sequential', 'interleaved'; got 'both'"):
        AFEC(1.0, epochs=1, schedule="both")


def test_sums():
    with pytest.raises(TypeError, match="unsupported operand"):
        EWC(1.0) + 3
    with pytest.raises(ValueError, match=r"ewc\+ewc has one method twice"):
        EWC(1.0) + EWC(2.0)
    total = EWC(1.0) + AFEC(1.0, epochs=1)
    total.params = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="params= belongs to a method: give it to each method that is added"):
        total + afec.SI(1.0)


def test_a_guard_that_has_learned_is_not_added(setting):
    guard = EWC(1.0)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        pass
    with pytest.raises(RuntimeError, match="added before they learn their first task"):
        guard + AFEC(0.1, epochs=1)


# -- data and loss ----------------------------------------------------------------------------------------------------


def enter(guard, setting, **changes):
    arguments = {
        "model": setting.model,
        "optimizer": setting.optimizer,
        "data": setting.tasks[0],
        "loss_fn": setting.loss,
        **changes,
    }
    with guard.learning(**arguments):
        pass


def test_no_guarded_weight_with_a_gradient(setting):
    with pytest.raises(
        ValueError, match=r"no guarded weight gets a gradient from loss_fn on the first batch \(4 are guarded"
    ):
        enter(EWC(1.0), setting, loss_fn=lambda model, batch: torch.ones((), requires_grad=True) * 2)
    with pytest.raises(ValueError, match="no guarded weight gets a gradient"):
        enter(EWC(1.0), setting, loss_fn=lambda model, batch: torch.ones(()))


def test_nothing_to_guard(setting):
    for parameter in setting.model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(
        ValueError, match="there is no weight to guard: 4 chosen of 4 in Sequential, none of which requires grad"
    ):
        enter(EWC(1.0), setting)


def test_params_of_another_model(setting):
    with pytest.raises(ValueError, match=r"params= names 2 parameter\(s\) that are not in the model Sequential"):
        enter(EWC(1.0, params=nn.Linear(2, 2)), setting)


def test_empty_loader(setting):
    inputs, targets = setting.tasks[0]
    empty = DataLoader(TensorDataset(inputs[:0], targets[:0]), batch_size=4)
    with pytest.raises(ValueError, match=r"the data are empty: a pass over DataLoader\(TensorDataset\) gave no batch"):
        enter(EWC(1.0), setting, data=empty)
    with pytest.raises(ValueError, match="the data are empty"):
        enter(EWC(1.0), setting, data=[])


def test_one_shot_iterator(setting):
    loader = DataLoader(TensorDataset(*setting.tasks[0]), batch_size=4)
    for data in (iter(loader), (batch for batch in loader), zip(*setting.tasks[0], strict=True)):
        with pytest.raises(
            TypeError, match=r"data is a one-shot iterator \(.*\): a second pass over it would find nothing"
        ):
            enter(EWC(1.0), setting, data=data)


def test_data_of_another_kind(setting):
    with pytest.raises(TypeError, match="data must be a DataLoader, a tuple of tensors.*got int"):
        enter(EWC(1.0), setting, data=5)
    with pytest.raises(ValueError, match=r"one first dimension for all, the samples; got shapes \[\(48, 6\), \(3,\)\]"):
        enter(EWC(1.0), setting, data=(setting.tasks[0][0], torch.zeros(3)))
    with pytest.raises(TypeError, match="the data function returned int; expected an iterable of batches"):
        enter(EWC(1.0, fisher="empirical"), setting, data=lambda: 5)


def test_a_loss_that_is_no_mean_of_its_samples(setting):
    def total(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    with pytest.raises(ValueError, match=r'not the mean of its samples.*Use fisher="batched"'):
        enter(EWC(1.0, fisher="empirical"), setting, loss_fn=total)
    with pytest.raises(ValueError, match="reduction='sum'; the guard needs the mean over the batch"):
        enter(EWC(1.0), setting, loss_fn=nn.CrossEntropyLoss(reduction="sum"))


def test_a_loss_of_neither_kind(setting):
    with pytest.raises(TypeError, match="loss_fn must be a criterion .* got int"):
        enter(EWC(1.0), setting, loss_fn=3)
    with pytest.raises(TypeError, match=r"neither as loss_fn\(model, batch\) \(KeyError: 'x'\) nor as a criterion"):
        enter(EWC(1.0), setting, loss_fn=lambda model, batch: {}["x"])
    with pytest.raises(
        TypeError, match=r"must return one number, the mean over the batch, as a tensor; got shape \(48,\)"
    ):
        enter(EWC(1.0), setting, loss_fn=lambda model, batch: model(batch[0])[:, 0])


class TaskAware(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x, task):
        return self.heads[task](x)


def test_a_forward_that_needs_more_than_a_criterion_gives(setting):
    model, (x, y) = TaskAware(), setting.tasks[0]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = r"TaskAware.forward\(x, task\) cannot be called as model\(batch\[0\]\): missing a required argument: 'task'. Give "
    said += r"loss_fn=lambda model, batch: …"
    for criterion in (nn.CrossEntropyLoss(), nn.functional.cross_entropy, lambda o, t: nn.CrossEntropyLoss()(o, t)):
        with pytest.raises(TypeError, match=said):
            EWC(1.0).begin(model, optimizer, (x, y), criterion)
    with pytest.raises(TypeError, match=said):
        MAS(1.0).check(model, optimizer, (x, y), nn.CrossEntropyLoss())
    with EWC(1.0).learning(
        model,
        optimizer,
        (x, y),
        lambda model, batch: nn.functional.cross_entropy(model(batch[0], 0), batch[1]),
        predict=lambda model, batch: model(batch[0], 0),
        likelihood="categorical",
    ):
        pass


def test_a_type_error_inside_forward_stays_as_it_is(setting):
    class Faulty(nn.Linear):
        def forward(self, x):
            return super().forward(x) + {}

    model = Faulty(6, 3)
    with pytest.raises(TypeError, match=r"^unsupported operand"):
        EWC(1.0).begin(model, torch.optim.SGD(model.parameters(), 0.1), setting.tasks[0], setting.loss)


def test_an_output_that_a_criterion_does_not_take(setting):
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    model = Pair(6, 3)
    with pytest.raises(
        TypeError,
        match=r"output is a tuple, which the criterion CrossEntropyLoss does not take.*loss_fn=lambda model, batch",
    ):
        EWC(1.0).begin(model, torch.optim.SGD(model.parameters(), 0.1), setting.tasks[0], setting.loss)


def test_unknown_likelihood(setting):
    with pytest.raises(ValueError, match="likelihood must be 'categorical', 'gaussian' or None; got 'poisson'"):
        enter(EWC(1.0), setting, likelihood="poisson")
    with pytest.raises(ValueError, match=r"'exact' Fisher needs the problem's likelihood"):
        enter(EWC(1.0, fisher="exact"), setting, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))


def test_the_fallback_to_the_empirical_fisher_is_said_once(setting):
    guard = EWC(1.0)
    loss_fn = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    with pytest.warns(UserWarning, match="no known likelihood, so the Fisher is the `empirical` one"):
        enter(guard, setting, loss_fn=loss_fn)
    enter(guard, setting, loss_fn=loss_fn)  # warnings are errors here


def test_a_wrong_optimizer(setting):
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer, several, or None; got str"):
        enter(EWC(1.0), setting, optimizer=["adam"])


# -- numbers that are none --------------------------------------------------------------------------------------------


def test_nan_loss_at_entry(setting):
    with pytest.raises(FloatingPointError, match="the loss of the first batch is nan"):
        enter(EWC(1.0), setting, loss_fn=lambda model, batch: model(batch[0]).mean() * float("nan"))


def test_nan_fisher_names_the_tensor_and_leaves_the_guard_as_it_was(setting):
    guard = EWC(1.0)
    enter(guard, setting)
    before = guard.state_dict()
    with (
        pytest.raises(FloatingPointError, match=r"NaN or infinite at .*'2.bias'"),
        guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss),
    ):
        with torch.no_grad():
            setting.model[2].bias.fill_(float("nan"))
        guard.task.accept()
    assert guard.tasks_done == 1
    assert not guard.in_task
    assert guard.state_dict()["states"] is not before["states"]
    assert all(
        torch.equal(guard.state_dict()["states"]["ewc"]["mean"][k], v)
        for k, v in before["states"]["ewc"]["mean"].items()
    )


def test_nan_in_the_expansion(setting):
    guard = EWC(1.0) + AFEC(0.1, epochs=2, optimizer=lambda params: torch.optim.SGD(params, 1e30))
    enter(guard, setting)
    with pytest.raises(FloatingPointError, match=r"the loss of θ_e became (nan|inf) in epoch \d of the expansion"):
        enter(guard, setting)
    assert guard.tasks_done == 1


# -- expansion --------------------------------------------------------------------------------------------------------


def test_an_expansion_that_learned_nothing(setting):
    for options in (
        {"epochs": 1, "optimizer": lambda params: torch.optim.SGD(params, 0.0)},
        {"expand": lambda: None},
        {"epochs": 1, "optimizer": lambda params: torch.optim.SGD(params, 0.3, maximize=True)},
    ):
        guard = EWC(1.0) + AFEC(0.1, **options)
        enter(guard, setting)
        before = {k: v.clone() for k, v in setting.model.state_dict().items()}
        with pytest.raises(RuntimeError, match="the expansion learned nothing"):
            enter(guard, setting)
        assert all(torch.equal(v, before[k]) for k, v in setting.model.state_dict().items())
        assert guard.tasks_done == 1


def test_a_learners_own_expansion_that_got_no_better_is_said_and_goes_on(setting):
    def worse():
        optimizer = torch.optim.SGD(setting.model.parameters(), 0.3, maximize=True)
        setting.loss(setting.model(setting.tasks[0][0]), setting.tasks[0][1]).backward()
        optimizer.step()

    guard = EWC(1.0) + AFEC(0.1)
    enter(guard, setting, train=worse)
    with pytest.warns(RuntimeWarning, match="the expansion learned nothing: the loss of θ_e was .* too hard"):
        enter(guard, setting, train=worse)
    assert guard.tasks_done == 2
    with pytest.raises(RuntimeError, match="it changed no guarded weight"):  # that is a mistake, whoever makes it
        enter(guard, setting, train=lambda: None)


def test_an_expansion_without_an_optimizer(setting):
    """It is said at the first entry, not after the whole first task."""
    guard = EWC(1.0) + AFEC(0.1, epochs=1)
    with pytest.raises(ValueError, match=r"the expansion has no optimiser: learning\(\) was given optimizer=None"):
        enter(guard, setting, optimizer=None)
    assert guard.tasks_done == 0
    for told in (
        AFEC(0.1, epochs=1, optimizer=lambda params: torch.optim.SGD(params, 0.1)),
        AFEC(0.1, expand=lambda: None),
        AFEC(0.1, schedule="interleaved"),  # task.epoch() may give one
        AFEC(0.0, epochs=1),
    ):
        enter(EWC(1.0) + told, setting, optimizer=None)


def test_too_few_forgetting_factors(setting):
    guard = EWC(1.0) + AFEC([0.0, 0.1], epochs=1)
    for _ in range(2):
        enter(guard, setting)
    with pytest.raises(ValueError, match="forgetting factors for 2 tasks and this is task 3"):
        enter(guard, setting)


def test_interleaved_without_epoch(setting):
    guard = EWC(1.0) + AFEC(0.1, schedule="interleaved")
    enter(guard, setting)
    with (
        pytest.raises(RuntimeError, match=r"learns θ_e in task.epoch\(\), which was never called"),
        guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss),
    ):
        setting.train(setting.tasks[1], 1)
    assert guard.tasks_done == 1


# -- inside the block -------------------------------------------------------------------------------------------------


def test_nested_blocks(setting):
    guard = EWC(1.0)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        with pytest.raises(
            RuntimeError, match=r"already learning task 1: blocks of one guard do not nest.*guard.task.end\(\)"
        ):
            enter(guard, setting)
        with pytest.raises(
            RuntimeError, match=r"weight '0.weight' is in a block of EWC\(.*add them: guard = one \+ other"
        ):
            enter(EWC(2.0), setting)
        with pytest.raises(RuntimeError, match="call it before the block"):
            guard.check(setting.model, setting.optimizer, setting.tasks[0], setting.loss)
        with pytest.raises(RuntimeError, match="cannot load a state inside a block"):
            guard.load_state_dict(guard.state_dict())
    assert guard.tasks_done == 1


def test_a_weight_that_moved_without_its_pull_raises_at_the_next_backward(setting):
    message = r"guarded weight '0.weight' was changed, but not inside an optimiser's step.*call task.accept\(\)"
    with (
        pytest.raises(afec.WeightMovedError, match=message),
        EWC(1.0).learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss),
    ):
        with torch.no_grad():
            setting.model[0].weight.mul_(0.9)
        setting.loss(setting.model(setting.tasks[0][0]), setting.tasks[0][1]).backward()
        pytest.fail("the backward should have raised")


def test_a_weight_that_moved_without_its_pull_raises_at_the_end(setting):
    for move in (lambda w: w.mul_(0.9), lambda w: w.data.mul_(0.9)):
        guard = EWC(1.0)
        with (
            pytest.raises(afec.WeightMovedError, match="guarded weight '2.weight' was changed"),
            guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss),
            torch.no_grad(),
        ):
            move(setting.model[2].weight)
        assert guard.tasks_done == 0


def test_a_weight_moved_on_purpose(setting):
    with EWC(1.0).learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss) as task:
        with torch.no_grad():
            setting.model[0].weight.clamp_(-0.1, 0.1)
        task.accept()
        setting.train(setting.tasks[0], 1)


def test_a_replaced_weight(setting):
    with (
        pytest.raises(afec.WeightMovedError, match="'0.weight' was replaced by another tensor inside the block"),
        EWC(1.0).learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss),
    ):
        saved = {k: v.clone() for k, v in setting.model.state_dict().items()}
        setting.model.load_state_dict(saved, assign=True)


def test_two_optimizers_on_one_gradient(setting):
    guard = EWC(1.0)
    enter(guard, setting)
    second = torch.optim.SGD(setting.model.parameters(), 0.1)
    inputs, targets = setting.tasks[1]
    with (
        pytest.raises(
            afec.GradientUsedTwiceError, match="'0.weight' is stepped by Adam and SGD from the same gradient"
        ),
        guard.learning(setting.model, [setting.optimizer, second], setting.tasks[1], setting.loss),
    ):
        setting.loss(setting.model(inputs), targets).backward()
        setting.optimizer.step()
        second.step()


def test_two_steps_from_one_gradient(setting):
    guard = EWC(1.0)
    enter(guard, setting)
    inputs, targets = setting.tasks[1]
    with (
        pytest.raises(afec.GradientUsedTwiceError, match="'0.weight' is stepped twice by Adam from the same gradient"),
        guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss),
    ):
        setting.loss(setting.model(inputs), targets).backward()
        setting.optimizer.step()
        setting.optimizer.step()


def test_sparse_gradients():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
    data = (torch.randint(0, 5, (8, 2)), torch.randint(0, 2, (8,)))
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss()
    guard = EWC(1.0)
    with guard.learning(model, optimizer, data, loss):
        pass
    with (
        pytest.raises(TypeError, match=r"'0.weight' has a sparse gradient.*params="),
        guard.learning(model, optimizer, data, loss),
    ):
        loss(model(data[0]), data[1]).backward()
        optimizer.step()


def test_changed_shapes(setting):
    guard = EWC(1.0)
    enter(guard, setting)
    setting.model[2] = nn.Linear(12, 2)
    with pytest.raises(ValueError, match=r"'2.weight' changed its shape from \(3, 12\) to \(2, 12\); only growth"):
        enter(guard, setting, data=(setting.tasks[0][0], setting.tasks[0][1] % 2))
    assert guard.tasks_done == 1


def test_an_ended_task_is_over(setting):
    guard = EWC(1.0)
    task = guard.begin(setting.model, setting.optimizer, setting.tasks[0], setting.loss)
    task.end()
    for again in (task.end, task.epoch):
        with pytest.raises(RuntimeError, match="this task has ended already"):
            again()


# -- state ------------------------------------------------------------------------------------------------------------


def test_foreign_states(setting):
    guard = EWC(1.0)
    for state in ({}, {"format": 0}, 3, {**guard.state_dict(), "format": 99}):
        with pytest.raises(ValueError, match="this is no state_dict of a guard"):
            guard.load_state_dict(state)
    with pytest.raises(ValueError, match=r"the state is of 'ewc', this guard is 'ewc\+afec'"):
        (EWC(1.0) + AFEC(0.1, epochs=1)).load_state_dict(guard.state_dict())
