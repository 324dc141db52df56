"""How guards add, what they are called, what presets set, and that each part of AFEC can be switched off."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from afec import AFEC, EWC


def weights_after(setting, guard, tasks=2, **options):
    """The final weights of a copy of the setting after some tasks."""
    own = copy.deepcopy(setting)
    own.optimizer = torch.optim.Adam(own.model.parameters(), 1e-2)
    for data in own.tasks[:tasks]:
        with guard.learning(own.model, own.optimizer, data, own.loss, **options) as task:
            for _ in range(3):
                task.epoch()
                own.train(data, 1)
    return torch.nn.utils.parameters_to_vector(own.model.parameters()).detach()


def test_a_sum_is_one_method_whichever_way_it_is_written(setting):
    one, other = EWC(30.0) + AFEC(0.3, epochs=2), AFEC(0.3, epochs=2) + EWC(30.0)
    assert one.method == other.method == "ewc+afec"
    assert repr(one) == repr(other)
    assert torch.equal(weights_after(setting, one), weights_after(setting, other))


def test_the_expression_is_the_name():
    assert repr(EWC(500)) == "EWC(strength=500)"
    assert repr(EWC(500, preset="official")) == "EWC(strength=500, fisher='batched', fisher_dropout=True)"
    assert repr(AFEC(beta=0.5, epochs=3)) == "AFEC(beta=0.5, epochs=3)"
    assert repr(AFEC([0, 1, 3.5], expand=print)) == "AFEC(forgetting=[0, 1, 3.5], expand=…)"
    for term in (EWC(0.25, decay=0.5), AFEC(0.1, epochs=2, preset="paper")):
        assert repr(eval(repr(term))) == repr(term)


PRESETS = {
    "default": ("auto", 20, False, "init", "sequential"),
    "paper": ("empirical", 20, False, "init", "sequential"),
    "official": ("batched", 20, True, "carry", "interleaved"),
}


def test_presets_set_what_the_table_says_and_what_is_given_wins():
    for name, (fisher, batch, dropout, start, schedule) in PRESETS.items():
        how = {} if schedule == "interleaved" else {"epochs": 2}
        for term in (AFEC(0.1, preset=name, **how), EWC(1.0, preset=name)):
            assert (term.fisher, term.fisher_batch, term.fisher_dropout) == (fisher, batch, dropout)
        assert AFEC(0.1, preset=name, **how).expand_from == start
        assert AFEC(0.1, preset=name, **how).schedule == schedule
    assert EWC(1.0, preset="official", fisher="exact").fisher == "exact"
    assert not EWC(1.0, preset="official", fisher="exact").fisher_dropout
    assert EWC(1.0, preset="official", fisher_dropout=False).fisher == "batched"
    assert EWC(1.0, preset="official", fisher="batched").fisher_dropout
    assert AFEC(0.1, preset="official", schedule="sequential", epochs=1).expand_from == "carry"


def test_zero_forgetting_is_ewc_bit_for_bit_and_runs_no_expansion(setting):
    def never():
        raise AssertionError("an expansion of weight zero ran")

    plain = weights_after(setting, EWC(30.0), tasks=3)
    for off in (AFEC(0.0, expand=never), AFEC(beta=0, expand=never), AFEC([0, 0, 0], expand=never), AFEC(0.0)):
        assert torch.equal(weights_after(setting, EWC(30.0) + off, tasks=3), plain)


def test_zero_strength_is_fine_tuning_bit_for_bit(setting):
    own = copy.deepcopy(setting)
    own.optimizer = torch.optim.Adam(own.model.parameters(), 1e-2)
    for data in own.tasks:
        own.train(data, 3)
    plain = torch.nn.utils.parameters_to_vector(own.model.parameters()).detach()
    assert torch.equal(weights_after(setting, EWC(0.0), tasks=3), plain)
    assert not torch.equal(weights_after(setting, EWC(30.0), tasks=3), plain)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"forgetting": 0.3}, {"forgetting": 3.0}),
        ({}, {"expand_from": "main"}),
        ({}, {"fisher": "empirical"}),
        ({"fisher": "empirical"}, {"fisher": "batched"}),
        ({"fisher": "exact"}, {"fisher": "sample"}),
        ({}, {"epochs": 9}),
        ({}, {"optimizer": lambda params: torch.optim.SGD(params, 0.1)}),
        ({}, {"schedule": "interleaved", "epochs": None}),
    ],
)
def test_every_option_of_afec_changes_the_result(setting, one, other):
    base = {"forgetting": 1.0, "epochs": 3}
    results = [weights_after(setting, EWC(30.0) + AFEC(**{**base, **options})) for options in (one, other)]
    assert not torch.equal(*results)
    again = weights_after(setting, EWC(30.0) + AFEC(**{**base, **other}))
    assert torch.equal(results[1], again)  # and nothing else does


def test_carry_starts_from_the_theta_e_before(setting):
    # In the second task `carry` is `init`; it differs from the third on.
    carry, init = (EWC(30.0) + AFEC(1.0, epochs=3, expand_from=where) for where in ("carry", "init"))
    assert torch.equal(weights_after(setting, carry), weights_after(setting, init))
    carry, init = (EWC(30.0) + AFEC(1.0, epochs=3, expand_from=where) for where in ("carry", "init"))
    assert not torch.equal(weights_after(setting, carry, 3), weights_after(setting, init, 3))


def test_afec_alone_pulls_to_theta_e_only(setting):
    guard = AFEC(5.0, epochs=3)
    for number, data in enumerate(setting.tasks[:2]):
        with guard.learning(setting.model, setting.optimizer, data, setting.loss) as task:
            assert float(task.penalty()) == 0 if number == 0 else float(task.penalty()) > 0
            task_state = guard.state_dict()["task_states"]["afec"]
            setting.train(data, 1)
            if number == 1:
                expected = sum(
                    0.5 * 5.0 * (task_state["precision"][n] * (p.detach() - task_state["mean"][n]) ** 2).sum()
                    for n, p in setting.model.named_parameters()
                )
                assert float(task.penalty()) == pytest.approx(float(expected), rel=1e-5)


def test_theta_e_is_where_plain_training_from_init_ends(setting):
    """θ_e under `init`: the same optimiser, the same passes, from the first weights, without any pull."""
    start = copy.deepcopy(setting.model)
    guard = EWC(1e6) + AFEC(0.1, epochs=4)
    with guard.learning(setting.model, setting.optimizer, setting.tasks[0], setting.loss):
        setting.train(setting.tasks[0])
    task = guard.begin(setting.model, setting.optimizer, setting.tasks[1], setting.loss)
    theta_e = guard.state_dict()["task_states"]["afec"]["mean"]
    optimizer = torch.optim.Adam(start.parameters(), 1e-2)
    for epoch in range(4):
        for inputs, targets in task.batches("expand", epoch, training=True):
            optimizer.zero_grad()
            setting.loss(start(inputs), targets).backward()
            optimizer.step()
    task.abort()
    for name, weight in start.named_parameters():
        assert torch.equal(theta_e[name], weight.detach())


def stored_bytes(state):
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(stored_bytes, state.values())) if isinstance(state, dict) else 0


@pytest.mark.parametrize(("where", "extra_sets"), [("main", 0), ("init", 1), ("carry", 1)])
def test_what_remains_after_a_task(setting, where, extra_sets):
    setting.model.append(nn.BatchNorm1d(3))
    setting.optimizer = torch.optim.Adam(setting.model.parameters(), 1e-2)
    guard = EWC(1.0) + AFEC(0.1, epochs=1, expand_from=where)
    sizes = []
    for data in setting.tasks:
        with guard.learning(setting.model, setting.optimizer, data, setting.loss):
            setting.train(data, 1)
        sizes.append(stored_bytes(guard.state_dict()))
    weights = sum(p.numel() * p.element_size() for p in setting.model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in setting.model.buffers())
    assert sizes == [2 * weights + extra_sets * (weights + buffers)] * 3  # and no growth with the number of tasks


def test_fisher_is_averaged_over_tasks_around_the_latest_weights(setting):
    guard = EWC(0.1, fisher="empirical")
    fishers = []
    for data in setting.tasks:
        with guard.learning(setting.model, setting.optimizer, data, setting.loss):
            setting.train(data, 1)
        squares = [torch.zeros_like(p) for p in setting.model.parameters()]
        for inputs, target in zip(*data, strict=True):
            loss = setting.loss(setting.model(inputs[None]), target[None])
            for total, grad in zip(squares, torch.autograd.grad(loss, list(setting.model.parameters())), strict=True):
                total += grad**2 / len(data[0])
        fishers.append(squares)
    state = guard.state_dict()["states"]["ewc"]
    for index, (name, weight) in enumerate(setting.model.named_parameters()):
        expected = (fishers[0][index] + fishers[1][index] + fishers[2][index]) / 3
        assert torch.allclose(state["precision"][name], expected, rtol=1e-4, atol=1e-9)
        assert torch.equal(state["mean"][name], weight.detach())


def test_a_pretrained_model_can_be_protected_without_training(setting):
    guard = EWC(10.0)
    with guard.learning(setting.model, None, setting.tasks[0], setting.loss):
        pass
    assert guard.tasks_done == 1
    with guard.learning(setting.model, setting.optimizer, setting.tasks[1], setting.loss) as task:
        setting.train(setting.tasks[1], 1)
        assert float(task.penalty()) > 0
