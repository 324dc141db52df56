"""Every part of both strategies, switched off or changed, changes what AlexNet learns from real photographs of birds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import afec
from afec.learner import Learner, Schedule
from afec.nets import MultiHead, make_backbone
from afec.randomness import forked
from afec.streams.cub import cub200

REAL = Path(os.environ.get("AFEC_DATA", "no data"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REAL / "CUB_200_2011").is_dir(), reason="no CUB-200-2011 under AFEC_DATA"),
]

SWITCHES = {
    afec.AGSCL: [
        {"strength": 0.0},
        {"mu": 0.0},
        {"rho": 0.0},
        {"eta": 0.0},
        {"proximal": "step"},
        {"freeze": False},
        {"cut": False},
    ],
    afec.ProgressCompress: [
        {"strength": 0.0},
        {"decay": "mean"},
        {"column": "kept"},
        {"adapters": False},
        {"adapter_width": 0.5},
        {"temperature": 2.0},
        {"progress_epochs": 1},
        {"compress_epochs": 1},
        {"fisher": "batched"},
    ],
}
BASE = {
    afec.AGSCL: {"strength": 20.0, "mu": 2.0, "rho": 0.5, "eta": 0.5},
    afec.ProgressCompress: {"strength": 100.0, "decay": 0.5, "fisher": "empirical"},
}


@pytest.fixture(scope="module")
def tasks():
    """Three tasks of ten birds, one photograph of each."""
    return cub200(seed=0, size=64, tasks=3, classes=10, images=10).tasks


def learned(make, options, tasks):
    """The backbone after these tasks."""
    with forked(1):
        net = MultiHead(make_backbone("alexnet", hidden=16, pool=1), [task.outputs for task in tasks])
    schedule = Schedule(batch_size=5, lr=1e-3, max_epochs=2, patience=None, best_weights=False)
    learner = Learner(net, make(**{**BASE[make], **options}), schedule=schedule, seed=3, progress=False)
    for task in tasks:
        learner.learn(task)
        if make is afec.AGSCL and not options:
            assert any((one == 0).any() for one in learner.strategy.state["omega"].values())  # nodes of both kinds
    return torch.cat([weight.detach().flatten() for weight in net.backbone.parameters()])


@pytest.mark.parametrize("make", SWITCHES)
def test_every_switch_changes_what_is_learned_from_birds(make, tasks):
    whole = learned(make, {}, tasks)
    assert torch.equal(learned(make, {}, tasks), whole)
    alike = [switch for switch in SWITCHES[make] if torch.equal(learned(make, switch, tasks), whole)]
    assert alike == []
