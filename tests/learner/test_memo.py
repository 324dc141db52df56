"""A memo spares trainings that no guard touches, and changes no bit."""

from dataclasses import replace

import pytest
import torch
from small_learning import SHORT, few_tasks, same, small_learner
from torch import nn

import afec
from afec.learner import Fit, Memo, Schedule
from afec.learner.machine import Machine
from afec.learner.tasks import Batches, HeadLoss
from afec.nets import MultiHead

GUARDS = {
    "finetune": lambda: None,
    "ewc": lambda: afec.EWC(1.0),
    "ewc+afec": lambda: afec.EWC(1.0) + afec.AFEC(0.5),
    "si": lambda: afec.SI(1.0),
    "rwalk+afec": lambda: afec.RWALK(1.0) + afec.AFEC(0.5),
    "official": lambda: afec.EWC(1.0, preset="official") + afec.AFEC(0.5, preset="official"),
}


def learned(guard, memo=None, tasks=2):
    """The learner's end, what it took, and the (task, phase) of each epoch that was really run."""
    stream, ran = few_tasks(tasks), []
    learner = small_learner(stream, guard, memo=memo, on_phase=lambda p: ran.append((p.task, p.phase)))
    took = [replace(learner.learn(task), seconds={}) for task in stream]
    return learner.state_dict(), took, ran


@pytest.mark.parametrize("name", GUARDS)
def test_what_was_trained_once_is_not_trained_again_and_no_bit_changes(name, tmp_path):
    state, took, _ = learned(GUARDS[name]())
    memo = Memo(tmp_path)
    learned(GUARDS["ewc+afec"](), memo)  # leaves the first task and θ_e of the second
    for _ in range(2):
        again, took_again, _ = learned(GUARDS[name](), memo)
        assert same(again, state)
        assert took_again == took


def test_what_is_spared(tmp_path):
    memo = Memo(tmp_path)
    first, second = [(0, "train")] * 2, [(1, "theta_e")] * 2
    assert learned(GUARDS["ewc+afec"](), memo)[2] == [*first, *second, *[(1, "train")] * 2]
    assert learned(GUARDS["ewc+afec"](), memo)[2] == [(1, "train")] * 2
    assert learned(GUARDS["ewc"](), memo)[2] == [(1, "train")] * 2
    assert learned(GUARDS["si"](), memo)[2][:2] == first  # SI watches every step: its path cannot be recalled


def test_a_damaged_outcome_is_trained_again(tmp_path):
    memo = Memo(tmp_path)
    state, _, ran = learned(GUARDS["ewc+afec"](), memo)
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-50])
    again, _, ran_again = learned(GUARDS["ewc+afec"](), memo)
    assert same(again, state)
    assert ran_again == ran


def test_everything_that_matters_is_in_the_name(tmp_path):
    task, other = few_tasks(2)
    memo = Memo(tmp_path)

    def path(task=task, dropout=0.1, number=0, seed=0, schedule=SHORT, machine=Machine()):  # noqa: B008
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Dropout(dropout))
        net = MultiHead(backbone, [2, 2], features=4)
        loss = HeadLoss(number, task.loss, machine)
        return memo.path(Fit(net, Batches(task.train), Batches(task.validation), loss, schedule, seed, machine))

    different = [
        path(),
        path(task=other),
        path(task=replace(task, validation=other.validation)),
        path(dropout=0.2),  # no weight shows it
        path(number=1),
        path(seed=1),
        path(schedule=Schedule()),
        path(machine=Machine(channels_last=True)),
    ]
    assert len(set(different)) == len(different)
    assert path() == path(task=replace(task, test=other.test)) == different[0]
