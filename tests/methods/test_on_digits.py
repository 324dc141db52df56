"""On real images: what the old pull and the forgetting pull are for, and that switching either off changes the result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from afec import AFEC, EWC
from afec.nets import DigitsBackbone, MultiHead
from afec.streams import digits_regression

SEEDS = range(3)


def learn_two(seed, guard, epochs=40):
    """Old and new task's accuracy after both, and all weights."""
    stream = digits_regression(seed, train=300, validation=100)
    torch.manual_seed(seed)
    net = MultiHead(DigitsBackbone(), stream.outputs, zero=True)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for number, task in enumerate(stream.tasks):

        def loss(model, batch, number=number):
            return nn.functional.mse_loss(model(batch[0], task=number), batch[1])

        with guard.learning(
            net,
            optimizer,
            (task.train.inputs, task.train.targets),
            loss,
            predict=lambda model, batch, number=number: model(batch[0], task=number),
            likelihood="gaussian",
        ):
            for _ in range(epochs):
                for rows in torch.randperm(300).split(50):
                    optimizer.zero_grad()
                    loss(net, (task.train.inputs[rows], task.train.targets[rows])).backward()
                    optimizer.step()
    with torch.no_grad():
        accuracies = [t.accuracy(net(t.test.inputs, task=i), t.test) for i, t in enumerate(stream.tasks)]
    return torch.tensor(accuracies), nn.utils.parameters_to_vector(net.parameters()).detach()


def mean_of(make, **options):
    return torch.stack([learn_two(seed, make(), **options)[0] for seed in SEEDS]).mean(0)


@pytest.fixture(scope="module")
def ewc_alone():
    return mean_of(lambda: EWC(3000.0))


def test_the_old_pull_keeps_the_old_task(ewc_alone):
    fine_tuning = mean_of(lambda: EWC(0.0))
    assert ewc_alone[0] > fine_tuning[0] + 0.3
    assert ewc_alone[1] < fine_tuning[1]  # and holds back the new one: what active forgetting is for


def test_the_forgetting_pull_helps_the_new_task_at_the_same_strength(ewc_alone):
    both = mean_of(lambda: EWC(3000.0) + AFEC(1.0, epochs=40))
    assert both[1] > ewc_alone[1] + 0.05


def test_beta_zero_is_ewc_on_real_data_and_beta_one_half_is_not():
    plain = learn_two(0, EWC(100.0), epochs=3)[1]
    assert torch.equal(learn_two(0, EWC(100.0) + AFEC(beta=0.0, epochs=3), epochs=3)[1], plain)
    assert not torch.equal(learn_two(0, EWC(100.0) + AFEC(beta=0.5, epochs=3), epochs=3)[1], plain)
