"""Saving and loading a learner: complete, checked, and never executed."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import afec
from afec.files import FileError, save_tree
from afec.learner import Learner
from afec.nets import MultiHead
from small_learning import SHORT, few_tasks, same, small_learner

GO_ON = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from small_learning import few_tasks, small_learner
import afec
torch.set_num_threads(1)
tasks = few_tasks(3)
learner = small_learner(tasks, afec.EWC(1.0) + afec.AFEC(0.5)).load(sys.argv[2])
torch.save(learner.predict(tasks[0].test.inputs, 0), sys.argv[3])
for task in tasks[len(learner.tasks_learned):]:
    learner.learn(task)
learner.save(sys.argv[4])
"""


@pytest.mark.slow
def test_a_fresh_process_predicts_the_same_and_goes_on_bit_for_bit(tmp_path):
    tasks = few_tasks(3)
    learner = small_learner(tasks, afec.EWC(1.0) + afec.AFEC(0.5))
    for task in tasks[:2]:
        learner.learn(task)
    file, said, end = tmp_path / "learner.safetensors", tmp_path / "said.pt", tmp_path / "end.safetensors"
    learner.save(file)
    predictions = learner.predict(tasks[0].test.inputs, 0)
    command = [sys.executable, "-c", GO_ON, str(Path(__file__).parents[1]), str(file), str(said), str(end)]
    subprocess.run(command, check=True)
    assert torch.load(said, weights_only=True).equal(predictions)
    learner.learn(tasks[2])
    again = small_learner(tasks, afec.EWC(1.0) + afec.AFEC(0.5)).load(end)
    assert same(again.state_dict(), learner.state_dict())


def test_a_learner_of_a_backbone_alone_gets_its_heads_from_the_file(tmp_path):
    tasks = few_tasks(2, sizes=[2, 5])
    learner = Learner(small_learner(tasks).net.backbone, schedule=SHORT)
    for task in tasks:
        learner.learn_jointly(tasks[: tasks.index(task) + 1])
    learner.save(tmp_path / "a.safetensors")
    fresh = Learner(small_learner(tasks).net.backbone).load(tmp_path / "a.safetensors")
    assert [head.out_features for head in fresh.net.heads] == [2, 5]
    x = tasks[1].test.inputs
    assert fresh.outputs(x, 1).equal(learner.outputs(x, 1))


class Bomb:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["pickle", "torch.save", "text", "nothing", "cut"])
def test_other_files_are_refused_and_nothing_in_them_is_executed(kind, tmp_path):
    file, trace = tmp_path / "learner.safetensors", tmp_path / "executed"
    learner = small_learner(few_tasks(1))
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Bomb(trace)))
    elif kind == "torch.save":
        torch.save({"afec": "learner", "net": Bomb(trace)}, file)
    elif kind == "text":
        file.write_text("afec = 'learner'\n")
    elif kind == "cut":
        learner.save(file)
        file.write_bytes(file.read_bytes()[:-100])
    before = {name: value.clone() for name, value in learner.net.state_dict().items()}
    with pytest.raises(
        FileError, match="learner.safetensors: (it is damaged or no safetensors file|there is no such file)"
    ):
        learner.load(file)
    assert not trace.exists()
    assert same(dict(learner.net.state_dict()), before)


@pytest.mark.parametrize("tree", [{"weights": torch.zeros(3)}, [1, 2], {"afec": "something else"}], ids=str)
def test_a_file_of_ours_that_is_no_learner_is_refused(tree, tmp_path):
    save_tree(tmp_path / "a.safetensors", tree)
    with pytest.raises(FileError, match="a.safetensors is no file of Learner.save"):
        small_learner(few_tasks(1)).load(tmp_path / "a.safetensors")


@pytest.fixture
def saved(tmp_path):
    tasks = few_tasks(2)
    learner = small_learner(tasks, afec.EWC(1.0))
    learner.learn(tasks[0])
    learner.save(tmp_path / "ewc.safetensors")
    return tasks, tmp_path / "ewc.safetensors"


@pytest.mark.parametrize(
    ("guard", "name"), [(None, "finetune"), (afec.MAS(1.0), "mas"), (afec.EWC(1.0) + afec.AFEC(1.0), "ewc[+]afec")]
)
def test_another_guard_is_refused(guard, name, saved):
    tasks, file = saved
    with pytest.raises(ValueError, match=f"the state is of a learner with the method 'ewc', this one has '{name}'"):
        small_learner(tasks, guard).load(file)


def test_another_strength_is_allowed(saved):
    tasks, file = saved
    assert small_learner(tasks, afec.EWC(7.0)).load(file).tasks_learned == [tasks[0].name]


class Other(nn.Module):
    out_features = 12

    def __init__(self, width=16, extra=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), *[nn.ReLU()] * 2)
        self.layers.append(nn.Linear(width, 12))
        if extra:
            self.more = nn.Linear(2, 2)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            lambda: MultiHead(Other(width=8), [2, 2]),
            r"'backbone.layers.1.bias' has the shape \(16,\) there and \(8,\) here",
        ),
        (
            lambda: MultiHead(Other(extra=True), [2, 2]),
            r"'backbone.more.bias' has the shape nothing there and \(2,\) here",
        ),
        (lambda: MultiHead(Other(), [2, 3]), r"heads of sizes \[2, 2\], this one has \[2, 3\]; give it the net"),
        (lambda: MultiHead(Other(), [2, 2, 2]), r"heads of sizes \[2, 2\], this one has \[2, 2, 2\]"),
    ],
    ids=["narrower", "another layer", "another head", "more heads"],
)
def test_another_net_is_refused_before_anything_is_loaded(net, message, saved):
    _, file = saved
    learner = Learner(net(), afec.EWC(1.0))
    before = {name: value.clone() for name, value in learner.net.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        learner.load(file)
    assert same(dict(learner.net.state_dict()), before)
    assert learner.guard.tasks_done == 0


@pytest.mark.parametrize("state", [None, [], {}, {"format": 1}, {"format": 3}], ids=str)
def test_something_else_is_no_state(state):
    with pytest.raises(ValueError, match="this is no state of a Learner"):
        small_learner(few_tasks(1)).load_state_dict(state)


def test_a_state_of_another_format_is_refused():
    learner = small_learner(few_tasks(1))
    with pytest.raises(ValueError, match="this is no state of a Learner \\(format 3\\)"):
        learner.load_state_dict({**learner.state_dict(), "format": 99})
