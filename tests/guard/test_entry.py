"""What would fail when a task ends is said when it begins, on a few samples of its first batch, and nothing else changes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from afec import AFEC, EWC, MAS
from afec.guard.task import TRIAL_SAMPLES


class NeverError(RuntimeError):
    """What the block would do, had it begun."""


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    data = (torch.randn(48, 4), torch.randint(0, 3, (48,)))
    return model, torch.optim.SGD(model.parameters(), 0.1), data


def summed(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def mean(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


NO_MEAN = "this loss is not the mean of its samples' losses"


@pytest.mark.parametrize(
    ("guard", "loss", "options", "message"),
    [
        (EWC(1.0, fisher="empirical"), summed, {}, NO_MEAN),
        (AFEC(1.0, epochs=1, fisher="empirical"), summed, {}, NO_MEAN),
        (
            EWC(1.0),
            mean,
            {"likelihood": "categorical", "predict": lambda m, b: m(b[0]).sum(1)},
            "needs logits of shape",
        ),
        (MAS(1.0), mean, {"predict": lambda m, b: m(b[0])[:1].repeat(2, 1)}, "one output per sample"),
        (MAS(1.0), mean, {"predict": lambda m, b: {"logits": m(b[0])}}, "must return a tensor. Got dict"),
    ],
    ids=["no mean", "no mean, afec", "no logits", "mas not per sample", "mas no tensor"],
)
def test_an_error_of_the_end_comes_on_entry(parts, guard, loss, options, message):
    model, optimizer, data = parts
    with pytest.raises((ValueError, TypeError), match=message), guard.learning(*parts, loss, **options):
        raise NeverError
    assert guard.tasks_done == 0
    assert not guard.in_task


def state_of(model):
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    grads = {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    return buffers, grads, [module.training for module in model.modules()]


@pytest.mark.parametrize(
    "guard", [EWC(1.0), EWC(1.0, preset="official"), MAS(1.0), MAS(1.0, preset="official")], ids=repr
)
def test_the_trial_changes_nothing_that_the_user_can_see_and_is_small(parts, guard):
    model, optimizer, data = parts
    mean(model, data).backward()
    sizes = []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    buffers, grads, modes = state_of(model)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    drawn = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    task = guard.begin(model, optimizer, data, nn.CrossEntropyLoss(), batch_size=48)
    assert (random.random(), np.random.rand(), torch.rand(1)) == drawn
    after_buffers, after_grads, after_modes = state_of(model)
    assert after_modes == modes
    for name, buffer in buffers.items():
        assert torch.equal(buffer, after_buffers[name])
    for name, (identity, grad) in grads.items():
        assert after_grads[name][0] == identity
        assert torch.equal(grad, after_grads[name][1])
    assert task.samples_measured == 0
    assert sizes.pop(0) == 48  # does the loss reach the weights?
    assert max(sizes) <= TRIAL_SAMPLES
    task.abort()


def test_the_trial_passes_over_what_another_batch_may_still_tell():
    """A first batch that is all padding has no sample, and a Fisher that overflows at the first weights may not at the last."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    padded = (torch.randn(4, 4), torch.full((4,), -100))
    whole = (torch.randn(4, 4), torch.randint(0, 3, (4,)))
    loss = nn.CrossEntropyLoss()

    def of_batch(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum") / (batch[1] != -100).sum().clamp(min=1)

    guard = EWC(1.0)
    with guard.learning(
        model,
        None,
        [padded, whole],
        of_batch,
        predict=lambda model, batch: model(batch[0]),
        likelihood="categorical",
        mask=lambda batch: batch[1] != loss.ignore_index,
    ):
        pass
    assert guard.tasks_done == 1
