"""Precision, compilation and memory format change the rounding and nothing else."""

from dataclasses import replace

import pytest
import torch

import afec
from afec.learner import Learner, Machine
from afec.nets import DigitsBackbone
from afec.streams import digits
from small_learning import SHORT, cut

SCHEDULE = replace(SHORT, lr=3e-3, max_epochs=3)


def outputs(machine, guard=True):
    """The outputs for two tasks after learning both."""
    tasks = [cut(task, train=64) for task in digits(seed=0).tasks[:2]]
    torch.manual_seed(0)
    learner = Learner(
        DigitsBackbone(4, 8), afec.EWC(1.0) + afec.AFEC(0.1) if guard else None, schedule=SCHEDULE, machine=machine
    )
    for task in tasks:
        learner.learn(task)
    return torch.cat([learner.outputs(task.test.inputs, task.name) for task in tasks]), learner


@pytest.fixture(scope="module")
def plain():
    return outputs(Machine())[0]


@pytest.mark.parametrize("machine", [Machine(channels_last=True), Machine(compile="eager")], ids=str)
def test_the_same_but_for_rounding(machine, plain):
    torch.testing.assert_close(outputs(machine)[0], plain, atol=1e-3, rtol=1e-3)


def test_bfloat16_gives_about_the_same(plain):
    found, learner = outputs(Machine(amp="bfloat16"))
    assert found.dtype == torch.float32
    assert all(weight.dtype == torch.float32 for weight in learner.net.parameters())
    assert not found.equal(plain)  # it was in use
    assert (found - plain).abs().max() < 0.1 * plain.abs().max()


def test_channels_last_is_kept_and_used():
    _, learner = outputs(Machine(channels_last=True))
    seen = []
    first = learner.net.backbone.layers[2]
    assert first.weight.is_contiguous(memory_format=torch.channels_last)
    handle = first.register_forward_hook(
        lambda m, i, o: seen.append(i[0].is_contiguous(memory_format=torch.channels_last))
    )
    learner.predict(torch.rand(5, 1, 8, 8), 0)
    handle.remove()
    assert seen == [True]


def test_compilation_is_used(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda net, **options: compiled.append(options) or net)
    outputs(Machine(compile=True), guard=False)
    outputs(Machine(compile="eager"), guard=False)
    assert compiled == [{}, {}, {"backend": "eager"}, {"backend": "eager"}]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"amp": "float32"}, "amp must be 'off', 'bfloat16' or 'float16'; got 'float32'"),
        ({"amp": "float16"}, "amp='float16' needs CUDA .* use amp='bfloat16' on a CPU"),
        ({"device": "gpu"}, "device must be what torch.device takes, 'cpu' or 'cuda:0'; got 'gpu'"),
        ({"device": "cuda"}, "device 'cuda' was asked for, but torch sees no CUDA here; use device='cpu'"),
    ],
)
def test_impossible_machines_are_refused(wrong, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        Machine(**wrong)
