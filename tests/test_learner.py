"""The training loop: the plateau rule by hand, the best weights back, nothing random from outside."""

import math

import pytest
import torch
from torch import nn

from afec.learner import Plateau, Schedule, predict, train_to_end
from afec.streams import Split


def mse(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def line(samples=40):
    x = torch.linspace(-1, 1, samples).unsqueeze(1)
    return Split(x, 3 * x + 1)


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


def test_best_validation_weights_come_back_and_training_ends_below_the_smallest_rate():
    losses = [5.0, 2.0, 3.0, 3.0, 1.0, 4.0, 4.0, 4.0, 4.0]
    data = Split(torch.ones(4, 1), torch.zeros(4, 1))
    model = Scripted(losses)
    seen = []

    def zero_target(model, batch):
        if model.training:
            return (model(batch[0]) - 1).square().mean()
        return model(batch[0]).square().mean()

    schedule = Schedule(batch_size=4, patience=2, lr=0.9, lr_min=0.2, decay=3.0)

    def on_epoch(epoch):
        seen.append((epoch, model.weight.item()))

    training = train_to_end(model, data, data, zero_target, schedule, seed=0, on_epoch=on_epoch)
    assert training.epochs == 7  # 0.9 falls after epoch 4, 0.3 after epoch 7: 0.1 is below the minimum
    assert [round(epoch.lr, 6) for epoch in training.history] == [0.9] * 4 + [0.3] * 3
    assert [epoch.validation_loss for epoch in training.history] == pytest.approx(losses[:7])
    assert training.best_epoch == 5
    assert model.epoch.item() == 5
    assert model.weight.item() == seen[4][1] != seen[6][1]


def test_it_fits_a_line():
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    train_to_end(model, line(), line(20), mse, Schedule(batch_size=8, lr=0.1, patience=5), seed=0)
    assert model.weight.item() == pytest.approx(3, abs=1e-3)
    assert model.bias.item() == pytest.approx(1, abs=1e-3)


def test_the_number_of_epochs_is_limited():
    training = train_to_end(nn.Linear(1, 1), line(), line(), mse, Schedule(max_epochs=3), seed=0)
    assert training.epochs == 3


def test_the_extra_loss_takes_part_in_the_choice_of_the_best_weights():
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    distance = lambda: 1e6 * sum((p - start[n]).abs().sum().item() for n, p in model.named_parameters())  # noqa: E731
    schedule = Schedule(batch_size=8, max_epochs=30)
    training = train_to_end(model, line(), line(), mse, schedule, seed=0, extra_loss=distance)
    assert training.best_epoch == 1  # every later epoch fits better and lies further off


def dropout_run(seed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    torch.manual_seed(torch.seed())  # whatever the generator outside holds
    train_to_end(model, line(), line(), mse, Schedule(batch_size=8, max_epochs=3), seed=seed)
    return model[2].weight.detach().clone()


def test_same_seed_same_weights_and_the_outer_generator_is_left_alone():
    assert dropout_run(1).equal(dropout_run(1))
    assert not dropout_run(1).equal(dropout_run(2))
    before = torch.get_rng_state()
    train_to_end(nn.Linear(1, 1), line(), line(), mse, Schedule(max_epochs=2), seed=0)
    after_init = torch.get_rng_state()
    torch.set_rng_state(before)
    nn.Linear(1, 1)
    assert torch.get_rng_state().equal(after_init)


def test_every_row_is_seen_once_an_epoch_and_the_last_short_batch_is_kept():
    seen, sizes = [], []

    def recording(model, batch):
        if model.training:
            seen.extend(batch[0][:, 0].tolist())
            sizes.append(len(batch[0]))
        return mse(model, batch)

    data = line(10)
    train_to_end(nn.Linear(1, 1), data, data, recording, Schedule(batch_size=4, max_epochs=1), seed=0)
    assert sizes == [4, 4, 2]
    assert sorted(seen) == data.inputs[:, 0].tolist()
    assert seen != data.inputs[:, 0].tolist()


def test_validation_loss_is_the_mean_over_samples_in_any_chunks():
    model = nn.Linear(1, 1)
    data = line(2500)  # two full chunks and a short one
    training = train_to_end(model, line(), data, mse, Schedule(max_epochs=1), seed=0)
    assert training.history[0].validation_loss == pytest.approx(mse(model, data).item(), rel=1e-5)


def test_divergence_is_an_error():
    model = nn.Linear(1, 1)

    def overflow(model, batch):
        return mse(model, batch) * float("nan")

    with pytest.raises(FloatingPointError, match="validation loss is nan after epoch 1: training diverged"):
        train_to_end(model, line(), line(), overflow, Schedule(), seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patience": 0}, "patience must be at least 1; got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1; got -1"),
        ({"lr_min": 1.0}, "needs 0 < lr_min <= lr and decay > 1; got lr_min=1.0"),
        ({"decay": 1.0}, "decay=1.0"),
    ],
)
def test_impossible_schedules_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**wrong)


def test_predict_joins_its_chunks():
    x = torch.arange(10.0).unsqueeze(1)
    outputs = predict(lambda part: part * 2, x, chunk=4)
    assert outputs.equal(x * 2)
    assert not outputs.requires_grad
