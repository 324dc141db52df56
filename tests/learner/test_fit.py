"""The training loop: the plateau rule by hand, the best weights back, nothing random from outside."""

import copy
import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from afec.learner import Fit, NotFiniteError, Plateau, Schedule
from afec.learner.tasks import Batches
from afec.streams import Split


def mse(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def line(samples=40):
    x = torch.linspace(-1, 1, samples).unsqueeze(1)
    return Batches(Split(x, 3 * x + 1))


def fit(model, schedule, *, train=None, validation=None, loss=mse, seed=0):
    return Fit(model, train or line(), validation or line(), loss, schedule, seed)


def scripted(losses, **schedule):
    """What the rule does when told `losses` one by one: (learning rate used, better, fell) for each."""
    plateau, said = Plateau(Schedule(**schedule)), []
    for loss in losses:
        lr = plateau.lr
        said.append((round(lr, 6), *plateau.tell(loss)))
    return said, plateau


def test_plateau_rule_on_a_scripted_sequence():
    said, plateau = scripted([5.0, 4.0, 4.0, 4.5, 3.0, 3.5, 3.2, 3.1], patience=2, lr=0.9, lr_min=0.2)
    assert said == [
        (0.9, True, False),
        (0.9, True, False),
        (0.9, False, False),  # as good is not better
        (0.9, False, True),  # the second in a row: 0.9 / 3
        (0.3, True, False),
        (0.3, False, False),
        (0.3, False, True),  # the count began anew after the better epoch
        (0.1, False, False),  # better than the last one, but the best of all is never forgotten
    ]
    assert plateau.ended
    assert plateau.best == 3.0


def test_without_patience_the_rate_never_falls():
    said, plateau = scripted([1.0] + [2.0] * 30, patience=None, lr=0.9, lr_min=0.2)
    assert {lr for lr, _, _ in said} == {0.9}
    assert not any(fell for _, _, fell in said)
    assert not plateau.ended


def test_another_decay():
    said, plateau = scripted([1.0, 2.0, 2.0], patience=1, lr=1.0, lr_min=0.0, decay=10.0)
    assert [lr for lr, _, _ in said] == [1.0, 1.0, 0.1]
    assert not plateau.ended  # no rate is below zero


def test_the_plateau_rule_goes_on_where_it_was():
    losses = [5.0, 6.0, 4.0, 4.5, 4.2, 4.1, 3.0]
    whole, _ = scripted(losses, patience=2, lr=0.9)
    _, first = scripted(losses[:4], patience=2, lr=0.9)
    second = Plateau(Schedule(patience=2, lr=0.9))
    second.load_state_dict(first.state_dict())
    assert [(round(second.lr, 6), *second.tell(loss)) for loss in losses[4:]] == whole[4:]


class Scripted(nn.Module):
    """One weight, and validation losses as written: shows which weights come back."""

    def __init__(self, losses):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("epoch", torch.zeros(()))
        self.losses = losses

    def forward(self, x):
        if self.training:
            self.epoch += 1
            return x * self.weight
        return torch.full_like(x, math.sqrt(self.losses[int(self.epoch) - 1]))


def run_scripted(losses, **schedule):
    """The training, and (epoch, weight) after each epoch."""
    model, seen = Scripted(losses), []
    data = Batches(Split(torch.ones(4, 1), torch.zeros(4, 1)))

    def loss(model, batch):
        return (
            (model(batch[0]) - float(model.training)).square().mean()
        )  # a target of 1 to train on, of 0 to validate on

    done = fit(model, Schedule(batch_size=4, **schedule), train=data, validation=data, loss=loss)
    done.run(on_epoch=lambda epoch: seen.append((epoch, model.weight.item())))
    return model, done, seen


LOSSES = [5.0, 2.0, 3.0, 3.0, 1.0, 4.0, 4.0, 4.0, 4.0]
RULE = {"patience": 2, "lr": 0.9, "lr_min": 0.2}


def test_best_validation_weights_come_back_and_training_ends_below_the_smallest_rate():
    model, done, seen = run_scripted(LOSSES, **RULE)
    assert done.epochs == 7  # 0.9 falls after epoch 4, 0.3 after epoch 7: 0.1 is below the minimum
    assert [round(epoch.lr, 6) for epoch, _ in seen] == [0.9] * 4 + [0.3] * 3
    assert [epoch.number for epoch, _ in seen] == list(range(1, 8))
    assert [epoch.best for epoch, _ in seen] == [True, True, False, False, True, False, False]
    assert done.history == pytest.approx(LOSSES[:7])
    assert done.best_epoch == 5
    assert model.epoch.item() == 5
    assert model.weight.item() == seen[4][1] != seen[6][1]


def test_without_best_weights_the_last_ones_stay():
    model, done, seen = run_scripted(LOSSES, best_weights=False, **RULE)
    assert (done.epochs, done.best_epoch) == (7, 7)
    assert model.weight.item() == seen[6][1]


def test_without_a_smallest_rate_training_goes_on_to_max_epochs():
    _, done, seen = run_scripted(LOSSES, **{**RULE, "lr_min": 0.0}, max_epochs=9)
    assert done.epochs == 9
    assert [round(epoch.lr, 6) for epoch, _ in seen] == [0.9] * 4 + [0.3] * 3 + [0.1] * 2


def test_without_patience_training_goes_on_to_max_epochs_at_one_rate():
    _, done, seen = run_scripted(LOSSES, **{**RULE, "patience": None}, max_epochs=9)
    assert done.epochs == 9
    assert {epoch.lr for epoch, _ in seen} == {0.9}


def test_a_decay_starts_the_optimiser_anew():
    """Adam's first step is lr, whatever the gradient; its second moment of the rate before would make it shorter."""
    _, _, seen = run_scripted([1.0, 2.0, 2.0], patience=1, lr=0.3, lr_min=0.0, max_epochs=3)
    weights = [weight for _, weight in seen]
    assert weights[0] == pytest.approx(0.3, rel=1e-4)
    assert weights[2] - weights[1] == pytest.approx(0.1, rel=1e-4)


def test_sgd_takes_the_steps_of_sgd():
    """Two steps at w=0 on (w−1)²: −2·lr each time, with momentum 0.5 and weight decay by hand."""
    _, _, seen = run_scripted([1.0, 0.5], optimizer="sgd", lr=0.1, momentum=0.5, weight_decay=0.0, max_epochs=2)
    first = 0.1 * 2
    second = first + 0.1 * (2 * (1 - first) + 0.5 * 2)
    assert [weight for _, weight in seen] == pytest.approx([first, second])
    _, _, seen = run_scripted([1.0, 0.5], optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=1.0, max_epochs=2)
    assert [weight for _, weight in seen] == pytest.approx([first, first + 0.1 * (2 * (1 - first) - first)])


def test_it_fits_a_line():
    model = nn.Linear(1, 1)
    fit(model, Schedule(batch_size=8, lr=0.1, patience=5), validation=line(20)).run()
    assert model.weight.item() == pytest.approx(3, abs=1e-3)
    assert model.bias.item() == pytest.approx(1, abs=1e-3)


def test_the_extra_loss_takes_part_in_the_choice_of_the_best_weights():
    model = nn.Linear(1, 1)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    distance = lambda: 1e6 * sum((p - start[n]).abs().sum().item() for n, p in model.named_parameters())  # noqa: E731
    done = fit(model, Schedule(batch_size=8, max_epochs=30)).run(extra_loss=distance)
    assert done.best_epoch == 1  # every later epoch fits better and lies further off


OUTSIDE = itertools.count(1)


def dropout_run(seed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    torch.manual_seed(next(OUTSIDE))  # whatever the generator outside holds
    fit(model, Schedule(batch_size=8, max_epochs=3), seed=seed).run()
    return model[2].weight.detach().clone()


def test_same_seed_same_weights_and_the_outer_generator_is_left_alone():
    assert dropout_run(1).equal(dropout_run(1))
    assert not dropout_run(1).equal(dropout_run(2))
    model = nn.Linear(1, 1)
    before = torch.get_rng_state()
    fit(model, Schedule(max_epochs=2)).run()
    assert torch.get_rng_state().equal(before)


def test_every_row_is_seen_once_an_epoch_and_the_last_short_batch_is_kept():
    seen, sizes = [], []

    def recording(model, batch):
        if model.training:
            seen.extend(batch[0][:, 0].tolist())
            sizes.append(len(batch[0]))
        return mse(model, batch)

    data = line(10)
    fit(nn.Linear(1, 1), Schedule(batch_size=4, max_epochs=2), train=data, loss=recording).run()
    assert sizes == [4, 4, 2] * 2
    first, second, inputs = seen[:10], seen[10:], data.split.inputs[:, 0].tolist()
    assert sorted(first) == sorted(second) == inputs
    assert first != inputs
    assert first != second


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"),
    [
        (9, 4, [4, 5]),
        (5, 4, [5]),
        (3, 2, [3]),
        (10, 4, [4, 4, 2]),
        (8, 4, [4, 4]),
        (1, 4, [1]),  # there is none before it
        (3, 1, [1, 1, 1]),  # asked for
    ],
)
def test_a_last_batch_of_one_sample_joins_the_one_before_it(samples, batch_size, sizes):
    seen = []

    def recording(model, batch):
        if model.training:
            seen.append(batch[0][:, 0].tolist())
        return mse(model, batch)

    data = line(samples)
    fit(nn.Linear(1, 1), Schedule(batch_size=batch_size, max_epochs=1), train=data, loss=recording).run()
    assert [len(batch) for batch in seen] == sizes
    assert sorted(sum(seen, [])) == data.split.inputs[:, 0].tolist()  # noqa: RUF017


def test_anybodys_batch_norm_trains_where_one_sample_is_left_over():
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    fit(model, Schedule(batch_size=8, max_epochs=2), train=line(17)).run()
    assert model[1].num_batches_tracked.item() == 2 * 2


def test_validation_loss_is_the_mean_over_samples_in_any_chunks():
    model, data = nn.Linear(1, 1), line(2500)  # two full chunks and a short one
    done = fit(model, Schedule(max_epochs=1), validation=data).run()
    assert done.history[0] == pytest.approx(mse(model, data.split).item(), rel=1e-5)


def test_divergence_is_an_error():
    with pytest.raises(
        NotFiniteError, match="validation loss is nan after epoch 1: training diverged; lower the learning"
    ):
        fit(nn.Linear(1, 1), Schedule(), loss=lambda model, batch: mse(model, batch) * float("nan")).run()


class Noise(nn.Module):
    """Draws from all three generators in every training step."""

    def forward(self, x):
        return x * (0.5 + random.random()) * (0.5 + np.random.rand()) * (0.5 + torch.rand(())) if self.training else x


@pytest.mark.parametrize("noise", [lambda: nn.Dropout(0.5), Noise], ids=["dropout", "random and numpy"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_fit_goes_on_after_any_epoch_bit_for_bit(optimizer, noise):
    schedule = Schedule(batch_size=8, lr=0.05, patience=1, optimizer=optimizer, max_epochs=8)

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 8), noise(), nn.Linear(8, 1))

    def copied(tree):
        if isinstance(tree, dict):
            return {key: copied(value) for key, value in tree.items()}
        return tree.clone() if isinstance(tree, torch.Tensor) else list(tree) if isinstance(tree, list) else tree

    net, states = model(), []
    whole = fit(net, schedule)
    whole.run(on_epoch=lambda _: states.append((copied(net.state_dict()), copied(whole.state_dict()))))
    assert len(set(map(str, (state["plateau"]["lr"] for _, state in states)))) > 1  # the rate has fallen on the way
    for weights, state in states:
        again = model()
        rest = fit(again, schedule)
        again.load_state_dict(weights)
        rest.load_state_dict(state)
        rest.run()
        assert rest.history == whole.history
        assert all(one.equal(other) for one, other in zip(again.parameters(), net.parameters(), strict=True))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patience": 0}, "patience must be at least 1; got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1; got -1"),
        ({"max_epochs": 0}, "max_epochs must be at least 1; got 0"),
        ({"lr_min": 1.0}, "needs 0 <= lr_min <= lr, lr > 0 and decay > 1; got lr_min=1.0"),
        ({"lr": 0.0, "lr_min": 0.0}, "lr=0.0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"decay": 1.0}, "decay=1.0"),
        ({"decay": math.nan}, "decay=nan"),
        ({"decay": math.inf}, "decay=inf"),
        ({"momentum": 1.0}, "needs 0 <= momentum < 1 and weight_decay >= 0; got momentum=1.0"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"momentum": math.nan}, "momentum=nan"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001"),
        ({"weight_decay": math.nan}, "weight_decay=nan"),
        ({"optimizer": "adamw"}, "must be 'adam' or 'sgd'; got 'adamw'"),
        ({"select": "best"}, "must be 'penalised', 'old-penalised' or 'loss'; got 'best'"),
    ],
)
def test_impossible_schedules_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**wrong)


def rates(schedule, epochs=None):
    seen = []
    one = Fit(nn.Linear(1, 1), line(), None, mse, schedule, 0)
    one.run(on_epoch=lambda epoch: seen.append(round(epoch.lr, 9)))
    return seen


def test_steps_of_the_learning_rate_by_hand():
    plain = {"lr": 0.08, "optimizer": "sgd", "decay": 10, "patience": None, "best_weights": False, "lr_min": 0}
    assert rates(Schedule(max_epochs=4, lr_steps=(0.75,), **plain)) == [0.08, 0.08, 0.08, 0.008]
    assert rates(Schedule(max_epochs=8, lr_steps=(0.75,), **plain)) == [0.08] * 6 + [0.008] * 2  # parts, not epochs
    assert rates(Schedule(max_epochs=4, lr_steps=(0.25, 0.5), **plain)) == [0.08, 0.008, 0.0008, 0.0008]
    assert rates(Schedule(max_epochs=4, **plain)) == [0.08] * 4
    paper = Schedule(max_epochs=40, lr_steps=(0.75,), decay=10)
    assert [epoch for epoch in range(41) if paper.lr_after(epoch, 1.0) < 1] == [30]  # from index 30 on


def test_momentum_goes_on_over_a_step():
    schedule = Schedule(
        max_epochs=2, lr_steps=(0.5,), optimizer="sgd", lr=0.01, patience=None, best_weights=False, batch_size=40
    )
    model = nn.Linear(1, 1)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    Fit(model, line(), None, mse, schedule, 0).run()
    by_hand = nn.Linear(1, 1)
    by_hand.load_state_dict(start)
    speed = {name: torch.zeros_like(value) for name, value in start.items()}
    for lr in (0.01, 0.01 / 3):
        by_hand.zero_grad()
        mse(by_hand, line().split).backward()
        for name, weight in by_hand.named_parameters():
            speed[name] = 0.9 * speed[name] + weight.grad
            weight.data -= lr * speed[name]
    for name, weight in by_hand.named_parameters():
        assert torch.allclose(weight, dict(model.named_parameters())[name], atol=1e-6)


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_fit_with_steps_goes_on_after_any_epoch_bit_for_bit(stop):
    schedule = Schedule(
        max_epochs=5, lr_steps=(0.4, 0.8), optimizer="sgd", lr=0.05, patience=None, best_weights=False, batch_size=16
    )
    torch.manual_seed(0)
    whole, states = nn.Linear(1, 1), []
    first = Fit(whole, line(), None, mse, schedule, 0)
    first.run(on_epoch=lambda epoch: states.append(copy.deepcopy((whole.state_dict(), first.state_dict()))))
    again = nn.Linear(1, 1)
    again.load_state_dict(states[stop - 1][0])
    second = Fit(again, line(), None, mse, schedule, 0)
    second.load_state_dict(states[stop - 1][1])
    second.run()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    assert second.history == first.history


@pytest.mark.parametrize("wrong", [(0.0,), (1.0,), (0.5, 0.5), (0.8, 0.2), (30.0,)])
def test_steps_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="lr_steps are parts of max_epochs"):
        Schedule(lr_steps=wrong)
