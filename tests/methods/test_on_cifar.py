"""EWC + AFEC on the CIFAR network, with real CIFAR-10 images where AFEC_DATA has them, else a file of the same layout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from afec import AFEC, EWC
from afec.nets.cnn6 import CNN6

RECORD = 1 + 3 * 32 * 32  # a label and the three colours


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """32 images and their labels, from `cifar-10-batches-bin/test_batch.bin`."""
    file = Path(os.environ.get("AFEC_DATA", "")) / "cifar-10-batches-bin" / "test_batch.bin"
    if not file.is_file():
        file = tmp_path_factory.mktemp("cifar-10-batches-bin") / "test_batch.bin"
        draws = np.random.default_rng(0)
        records = draws.integers(0, 256, (32, RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(file)
    records = torch.from_numpy(np.fromfile(file, np.uint8, 32 * RECORD).reshape(32, RECORD))
    return records[:, 1:].reshape(-1, 3, 32, 32).float() / 255, records[:, 0].long()


def test_the_stored_fisher_is_the_mean_of_squared_single_gradients(images):
    inputs, labels = images[0].double(), images[1]
    model = nn.Sequential(CNN6(), nn.Linear(256, 10)).double().to(memory_format=torch.channels_last)
    guard = EWC(1.0, fisher="empirical")
    with guard.learning(model, None, (inputs, labels), nn.CrossEntropyLoss()):
        pass
    model.eval()
    squares = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for image, label in zip(inputs, labels, strict=True):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        for square, grad in zip(squares.values(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            square += grad.detach() ** 2 / len(inputs)
    for name, found in guard.state_dict()["states"]["ewc"]["precision"].items():
        scale = squares[name].abs().max()
        assert torch.allclose(found, squares[name], rtol=1e-5, atol=1e-9 * float(scale)), name


def test_two_tasks_with_expansion_put_the_pull_into_every_step(images):
    inputs, labels = images
    model = nn.Sequential(CNN6(), nn.Linear(256, 5))
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), nn.CrossEntropyLoss()
    guard = EWC(100.0) + AFEC(1.0, epochs=2)
    penalties = []
    for targets in (labels % 5, (labels * 3 + 1) % 5):
        with guard.learning(model, optimizer, (inputs, targets), loss, batch_size=16) as task:
            for rows in torch.arange(32).split(16):
                optimizer.zero_grad()
                loss(model(inputs[rows]), targets[rows]).backward()
                before = model[0].features[0].weight.grad.clone()
                optimizer.step()
                penalties.append((float(task.penalty()), torch.equal(before, model[0].features[0].weight.grad)))
            assert task.steps == 2
    assert penalties[:2] == [(0.0, True)] * 2  # the first task has no pull
    assert all(penalty > 0 and not same for penalty, same in penalties[2:])
