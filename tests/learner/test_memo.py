"""A memo spares trainings that no guard touches, and changes no bit."""

import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from torch import nn

import afec
from afec.learner import Fit, Memo, Schedule
from afec.learner import memo as memo_module
from afec.learner.machine import Machine
from afec.learner.tasks import Batches, BatchLoss
from afec.nets import MultiHead
from small_learning import SHORT, few_tasks, numbers, same, small_learner

GUARDS = {
    "finetune": lambda: None,
    "ewc": lambda: afec.EWC(1.0),
    "ewc+afec": lambda: afec.EWC(1.0) + afec.AFEC(0.5),
    "si": lambda: afec.SI(1.0),
    "rwalk+afec": lambda: afec.RWALK(1.0) + afec.AFEC(0.5),
    "afec official": lambda: afec.AFEC(0.5, preset="official"),
    "afec interleaved": lambda: afec.AFEC(0.5, schedule="interleaved"),
    "official": lambda: afec.EWC(1.0, preset="official") + afec.AFEC(0.5, preset="official"),
}

QUICK = ("finetune", "ewc+afec", "afec interleaved")


def learned(guard, memo=None, tasks=2):
    """The learner's end, what it took, and the (task, phase) of each epoch that was really run."""
    stream, ran = few_tasks(tasks), []
    learner = small_learner(stream, guard, memo=memo, on_progress=lambda p: ran.append((p.task, p.phase)))
    took = numbers([learner.learn(task) for task in stream])
    return learner.state_dict(), took, ran


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in GUARDS]
)
def test_what_was_trained_once_is_not_trained_again_and_no_bit_changes(name, tmp_path):
    state, took, _ = learned(GUARDS[name]())
    memo = Memo(tmp_path)
    learned(GUARDS["ewc+afec"](), memo)  # leaves the first task and θ_e of the second
    for _ in range(2):
        again, took_again, _ = learned(GUARDS[name](), memo)
        assert same(again, state)
        assert took_again == took


@pytest.mark.parametrize("name", ["afec official", "afec interleaved"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_guard_that_begins_to_pull_inside_the_task_shares_nothing_with_fine_tuning(name, turned, tmp_path):
    """Before the first epoch of the second task an interleaved AFEC pulls at nothing, as fine-tuning never does."""
    names = ["finetune", name][:: -1 if turned else 1]
    alone = {each: learned(GUARDS[each]())[:2] for each in names}
    assert not same(alone[name][0]["net"], alone["finetune"][0]["net"])
    memo = Memo(tmp_path)
    for each in names:
        state, took, _ = learned(GUARDS[each](), memo)
        assert same(state, alone[each][0])
        assert took == alone[each][1]


def test_what_is_kept_is_the_first_task_and_theta_e_only(tmp_path):
    for place, name in enumerate(GUARDS):
        memo = Memo(tmp_path / str(place))
        ran, again = (learned(GUARDS[name](), memo)[2] for _ in range(2))
        kept = {(1, "theta_e")} if name in ("si", "rwalk+afec") else {(0, "train"), (1, "theta_e")}
        assert again == [phase for phase in ran if phase not in kept]


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
        loss = BatchLoss(number, task.loss, machine)
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


class ReLU(nn.ReLU):
    """Another layer that calls itself the same."""

    def forward(self, x):
        return x.square()


def test_which_weights_train_types_processor_and_version_are_in_the_name(tmp_path, monkeypatch):
    (task,) = few_tasks(1)
    memo = Memo(tmp_path)

    def path(layer=nn.ReLU, frozen=False):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), layer())
        backbone[1].weight.requires_grad_(not frozen)
        net = MultiHead(backbone, [2], features=4)
        loss = BatchLoss(0, task.loss, Machine())
        return memo.path(Fit(net, Batches(task.train), Batches(task.validation), loss, SHORT, 0, Machine()))

    assert repr(ReLU()) == repr(nn.ReLU())
    different = [path(), path(layer=ReLU), path(frozen=True)]
    with monkeypatch.context() as patch:
        patch.setattr("afec.learner.memo.processor", lambda: "another one")
        different.append(path())
    with monkeypatch.context() as patch:
        patch.setattr("afec.learner.memo.metadata.version", lambda name: "99.0")
        different.append(path())
    with monkeypatch.context() as patch:
        patch.setattr("afec.learner.memo.training_source", lambda: "other code")
        different.append(path())
    assert len(set(different)) == 6
    assert path() == different[0]


# -- which code made it -------------------------------------------------------------------------------------------


def recalls(guard, memo):
    """What each task says about the trainings that it was spared."""
    stream = few_tasks(2)
    learner = small_learner(stream, guard, memo=memo)
    return [learner.learn(task).recalled for task in stream]


def test_other_source_code_recalls_nothing_and_the_same_says_whose_training_it_took(tmp_path, monkeypatch):
    assert recalls(GUARDS["ewc+afec"](), Memo(tmp_path, {"commit": "abc", "run": "first"})) == [{}, {}]
    first, second = recalls(GUARDS["ewc+afec"](), Memo(tmp_path, {"commit": "def"}))
    assert (set(first), set(second)) == ({"train"}, {"theta_e"})
    source = memo_module.training_source()
    for recalled in (first["train"], second["theta_e"]):
        assert recalled == {"key": recalled["key"], "source": source, "commit": "abc", "run": "first"}
        assert (tmp_path / f"{recalled['key']}.safetensors").exists()
    monkeypatch.setattr(memo_module, "training_source", lambda: "other code")
    assert recalls(GUARDS["ewc+afec"](), Memo(tmp_path)) == [{}, {}]
    third, _ = recalls(GUARDS["ewc"](), Memo(tmp_path))
    assert third["train"] == {"key": third["train"]["key"], "source": "other code"}


def test_a_recall_is_not_forgotten_by_a_resume(tmp_path):
    class Stop(BaseException):
        pass

    saved = []

    def stop(phase):
        if (phase.task, phase.phase) == (1, "train"):
            saved.append(stopped.state_dict())
            raise Stop

    stream, memo = few_tasks(2), Memo(tmp_path)
    learner = small_learner(stream, GUARDS["ewc+afec"](), memo=memo)
    for task in stream:
        learner.learn(task)  # leaves θ_e of the second task
    stopped = small_learner(stream, GUARDS["ewc+afec"](), memo=memo, on_progress=stop)
    stopped.learn(stream[0])
    with pytest.raises(Stop):
        stopped.learn(stream[1])
    again = small_learner(stream, GUARDS["ewc+afec"]())  # without a memo: it can only know by what was saved
    again.load_state_dict(saved[0])
    assert set(again.learn(stream[1]).recalled) == {"theta_e"}


def test_the_file_of_a_net_of_ones_own_is_in_the_name(tmp_path):
    (task,) = few_tasks(1)

    def path(text):
        file = tmp_path / "own_layer.py"
        file.write_text(f"from torch import nn\nclass Own(nn.ReLU):\n    def forward(self, x): return {text}\n")
        spec = spec_from_file_location("own_layer", file)
        module = module_from_spec(spec)
        sys.modules["own_layer"] = module
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        net = MultiHead(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), module.Own()), [2], features=4)
        loss = BatchLoss.of(0, task, Machine())
        batches = Batches(task.train), Batches(task.validation)
        return Memo(tmp_path).path(Fit(net, *batches, loss, SHORT, 0, Machine()))

    try:
        first, second, third = path("x"), path("x.abs()"), path("x")
    finally:
        del sys.modules["own_layer"]
    assert first != second
    assert third == first
