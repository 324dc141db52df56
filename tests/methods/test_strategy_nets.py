"""Both strategies over every backbone that has a name: it is learned, or refused by name before anything is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import afec
from afec.learner import Learner, Schedule
from afec.nets import NETS, MultiHead, NoChainError, make_backbone
from afec.randomness import forked
from small_learning import few_tasks

CHAINS = {
    "digits": ({}, (1, 8)),
    "lenet": ({"width": 3}, (3, 32)),
    "cnn6": ({}, (3, 32)),
    "omniglot": ({}, (1, 28)),
    "vgg11": ({"width": 2}, (3, 32)),
    "vgg11bn": ({"width": 2}, (3, 32)),
    "alexnet": ({"hidden": 8, "pool": 1}, (3, 64)),
    "mlp": ({"inputs": 64, "hidden": 8}, (1, 8)),
    "minatar": ({"maps": 4, "hidden": 8}, (10, 10)),
    "atari": ({"width": 0.05, "hidden": 8}, (4, 84)),
}
STRATEGIES = {
    "ags-cl": lambda: afec.AGSCL(100.0, mu=1),
    "progress-compress": lambda: afec.ProgressCompress(10.0, progress_epochs=1),
}


def shaped(task, channels, size):
    """The same digits, as a net of other images takes them."""

    def prepare(images):
        return F.interpolate(images, (size, size), mode="bilinear").expand(-1, channels, -1, -1).contiguous()

    return replace(task, prepare=prepare)


def test_every_net_is_a_chain_here_or_is_refused():
    assert {*CHAINS, "resnet10", "resnet18", "resnet32"} == set(NETS)


@pytest.mark.parametrize("method", STRATEGIES)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ("cnn6", "omniglot", "alexnet") else ()) for n in CHAINS]
)
def test_digits_are_learned_by_every_chain(name, method):
    options, (channels, size) = CHAINS[name]
    tasks = [shaped(task, channels, size) for task in few_tasks(2, train=24)]
    with forked(1):
        net = MultiHead(make_backbone(name, **options), [task.outputs for task in tasks])
    first = {key: value.clone() for key, value in net.backbone.named_parameters()}
    schedule = Schedule(batch_size=12, lr=1e-3, max_epochs=1, patience=None, best_weights=False)
    learner = Learner(net, STRATEGIES[method](), schedule=schedule, seed=3)
    for task in tasks:
        learner.learn(task)
    assert all(not torch.equal(value, first[key]) for key, value in net.backbone.named_parameters())
    assert all(value.isfinite().all() for value in net.state_dict().values())
    assert all(0 <= found <= 1 for found in learner.evaluate(tasks))


@pytest.mark.parametrize("method", STRATEGIES)
def test_the_residual_net_is_refused_with_what_else_there_is(method):
    said = r"ResNet10 is no chain of layers: its 'layer1\.0' is a BasicBlock.*vgg11bn, omniglot and alexnet; give another net"
    with pytest.raises(NoChainError, match=said):
        Learner(make_backbone("resnet10", width=2), STRATEGIES[method]())
