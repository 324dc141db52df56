"""Devices and types, on a fake device: there is no GPU here, and the docs say that CUDA is unproven."""

from __future__ import annotations

import torch
from torch import nn

from afec import EWC
from afec.gaussian import Gaussian, merge
from afec.guard.marks import GuardedWeight
from afec.guard.passes import Passes

FAKE = torch.device("meta")


def test_the_pull_follows_a_weight_to_another_device_and_type():
    weight = nn.Parameter(torch.ones(3))
    entry = GuardedWeight("w", weight)
    old, new = (Gaussian({"w": torch.full((3,), m)}, {"w": torch.ones(3)}) for m in (0.0, 2.0))
    entry.set(merge([(2.0, old), (1.0, new)]))
    for device, dtype, working in (
        ("cpu", torch.float32, torch.float32),
        ("cpu", torch.float64, torch.float64),
        ("cpu", torch.bfloat16, torch.float32),  # λF overflows in 16 bits
        (FAKE, torch.float32, torch.float32),
    ):
        entry.weight = nn.Parameter(torch.ones(3, device=device, dtype=dtype))
        for part in entry.follow():
            assert part is not None
            assert part.device == torch.device(device)
            assert part.dtype == working


def test_batches_are_moved_to_the_device_of_the_weights():
    nested = [{"x": torch.ones(2), "more": (torch.zeros(2), ["a", 3])}]
    (batch,) = Passes(nested, FAKE).one(seed=0)
    assert batch["x"].device == batch["more"][0].device == FAKE
    assert batch["more"][1] == ["a", 3]


def test_sixteen_bit_weights_are_pulled_in_thirty_two(setting):
    """λF = 10⁶ would be infinite in half precision; the pull itself is small."""
    model = setting.model.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    guard = EWC(1e6)
    inputs, targets = setting.tasks[0][0].to(torch.bfloat16), setting.tasks[0][1]
    with guard.learning(model, optimizer, (inputs, targets), setting.loss):
        pass
    precision = guard.state_dict()["states"]["ewc"]["precision"]
    assert all(value.dtype == torch.float32 for value in precision.values())
    with guard.learning(model, optimizer, (inputs, targets), setting.loss) as task:
        setting.loss(model(inputs), targets).backward()
        before = model[0].weight.grad.clone()
        task.pull()
        assert torch.equal(model[0].weight.grad, before)  # exactly zero at θ*
        with torch.no_grad():
            model[0].weight += 0.25
        task.accept()
        model.zero_grad()
        setting.loss(model(inputs), targets).backward()
        before = model[0].weight.grad.clone()
        task.pull()
        mean = guard.state_dict()["states"]["ewc"]["mean"]["0.weight"].float()
        expected = before.float() + 1e6 * precision["0.weight"] * (model[0].weight.detach().float() - mean)
        assert torch.allclose(model[0].weight.grad.float(), expected, rtol=2e-2)
        assert torch.isfinite(model[0].weight.grad).all()
