"""The scenario `class`: one classifier that grows, measured over all classes so far."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import afec
from afec.files import load_tree, save_tree
from afec.learner import Learner, Schedule
from afec.metrics import class_summary
from afec.nets import SingleHead
from afec.randomness import forked
from afec.strategy import ScenarioWarning
from afec.streams import digits
from small_learning import SHORT, Backbone, cut, numbers, same

METHODS = {
    "finetune": lambda: None,
    "ewc": lambda: afec.EWC(1.0),
    "ewc+afec": lambda: afec.EWC(1.0) + afec.AFEC(0.5),
    "mas+afec": lambda: afec.MAS(1.0) + afec.AFEC(0.5),
    "si": lambda: afec.SI(1.0),
    "rwalk+afec official": lambda: afec.RWALK(1.0, preset="official") + afec.AFEC(0.5, preset="official"),
    "ewc+afec carried": lambda: afec.EWC(1.0) + afec.AFEC(0.5, expand_from="carry"),
}


def class_tasks(sizes=(3, 2, 2), train=48):
    """Real digits, cut."""
    return [cut(task, train) for task in digits(0, sizes=sizes, scenario="class", validation=0.15).tasks]


def class_learner(guard=None, kind="linear", **options):
    """A learner with the same net every time, and without the warning that a test of its own looks for."""
    with forked(1):
        net = SingleHead(Backbone(), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)
        return Learner(net, guard, **{"schedule": SHORT, "seed": 3, **options})


def test_streams_give_classes_their_numbers_in_the_whole_dataset():
    stream = digits(0, sizes=[3, 2], scenario="class", class_order="sorted")
    assert stream.scenario == "class"
    assert [task.classes for task in stream.tasks] == [(0, 1, 2), (3, 4)]
    by_seed = digits(0)
    assert sorted(number for task in by_seed.tasks for number in task.classes) == list(range(10))
    assert [task.name for task in by_seed.tasks] == ["digits " + " ".join(map(str, t.classes)) for t in by_seed.tasks]
    assert set(stream.tasks[1].train.targets.tolist()) == {0, 1}  # inside a task from 0 on


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_class_is_told_from_all_classes_so_far(kind):
    tasks, learner = class_tasks(), class_learner(kind=kind)
    for count in (1, 2, 3):
        learner.learn(tasks[count - 1])
        assert learner.net.sizes == [3, 2, 2][:count]
        with torch.no_grad():
            for number, (task, score) in enumerate(zip(tasks[:count], learner.scores(tasks[:count]), strict=True)):
                logits = learner.net.eval()(task.test.inputs)
                assert logits.shape[1] == sum([3, 2, 2][:count])
                right = logits.argmax(1) == task.test.targets + sum([3, 2, 2][:number])
                assert score[:3] == (task.name, pytest.approx(right.float().mean().item()), task.test.size)
                ends = torch.tensor([3, 2, 2][:count]).cumsum(0)
                assert score.answers == tuple(
                    torch.bucketize(logits.argmax(1), ends, right=True).bincount(minlength=count)
                )
                truth = torch.tensor(task.classes)[task.test.targets]
                predicted = learner.predict(task.test.inputs)  # nobody says which task
                assert predicted.eq(truth).equal(right)
                assert set(predicted.tolist()) <= {c for t in tasks[:count] for c in t.classes}
        if count < 3:
            with pytest.raises(ValueError, match="no task .* was learned"):
                learner.evaluate(tasks)


def test_one_step_is_the_cross_entropy_over_all_classes_so_far():
    """SGD, all data in one batch, the second task: against autograd by hand."""
    tasks = class_tasks((3, 2))
    schedule = Schedule(batch_size=1000, optimizer="sgd", lr=0.1, momentum=0.0, max_epochs=1)
    with forked(1):
        net = SingleHead(torch.nn.Flatten(), features=64)
    learner = Learner(net, schedule=schedule)
    learner.learn(tasks[0])
    before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    learner.learn(tasks[1])
    rows = [before["blocks.0.weight"], before["blocks.0.bias"]]
    with forked(afec.randomness.seed_from("learner", 0, "head", 1)):
        new = torch.nn.Linear(64, 2)
    rows += [new.weight.detach(), new.bias.detach()]
    rows = [row.clone().requires_grad_() for row in rows]
    x, y = tasks[1].train.inputs.flatten(1), tasks[1].train.targets + 3
    F.cross_entropy(torch.cat([F.linear(x, *rows[:2]), F.linear(x, *rows[2:])], 1), y).backward()
    for weight, row in zip(net.parameters(), rows, strict=True):
        torch.testing.assert_close(weight.detach(), (row - 0.1 * row.grad).detach())


def test_joint_learning_is_one_pass_over_all_classes_and_the_upper_bound():
    tasks = class_tasks((4, 3, 3), train=300)
    schedule = Schedule(batch_size=32, lr=3e-3, max_epochs=6, patience=None)
    ends = {}
    for name in ("finetune", "joint"):
        learner, matrix = class_learner(schedule=schedule), np.full((4, 3), np.nan)
        for after in (1, 2, 3):
            learner.learn(tasks[after - 1]) if name == "finetune" else learner.learn_jointly(tasks[:after])
            scores = learner.scores(tasks[:after])
            matrix[after, :after] = [score.accuracy for score in scores]
        ends[name] = class_summary(matrix, [score.size for score in scores])
    assert ends["joint"]["old_class_accuracy"] > 0.5
    assert ends["finetune"]["old_class_accuracy"] < 0.2  # the classifier answers with new classes only
    assert ends["finetune"]["new_class_accuracy"] > 0.7
    assert ends["joint"]["average_incremental_accuracy"] > ends["finetune"]["average_incremental_accuracy"]


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "linear") for name in METHODS), ("ewc+afec", "cosine"), ("si", "cosine")]
)
def test_saved_after_any_epoch_it_goes_on_bit_for_bit(name, kind, tmp_path):
    tasks, files = class_tasks((2, 2)), []

    def save(at):
        if at.task == 1:
            files.append(tmp_path / f"{len(files)}.safetensors")
            save_tree(files[-1], learner.state_dict())

    learner = class_learner(METHODS[name](), kind, on_progress=save)
    took = [learner.learn(task) for task in tasks]
    assert files
    for file in files:
        again = class_learner(METHODS[name](), kind, seed=99)
        again.load_state_dict(load_tree(file))
        assert numbers([again.learn(tasks[1])]) == numbers(took[1:])
        assert same(again.state_dict(), learner.state_dict())


def test_a_file_brings_the_classes_with_it(tmp_path):
    tasks, learner = class_tasks(), class_learner(afec.EWC(1.0))
    for task in tasks[:2]:
        learner.learn(task)
    learner.save(tmp_path / "a.safetensors")
    state = torch.get_rng_state()
    fresh = class_learner(afec.EWC(1.0)).load(tmp_path / "a.safetensors")
    assert torch.get_rng_state().equal(state)
    assert fresh.net.task_classes == learner.net.task_classes
    x = tasks[0].test.inputs
    assert fresh.predict(x).equal(learner.predict(x))
    for one in (fresh, learner):
        one.learn(tasks[2])
    assert same(fresh.state_dict(), learner.state_dict())
    with pytest.raises(ValueError, match=r"with a SingleHead \(linear\), this one has a SingleHead \(cosine\)"):
        class_learner(afec.EWC(1.0), "cosine").load(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"with a SingleHead \(linear\), this one has a MultiHead"):
        Learner(Backbone(), afec.EWC(1.0)).load(tmp_path / "a.safetensors")


def test_a_regulariser_alone_is_warned_of_and_told_why():
    message = "ewc.afec: no examples of old classes are kept.*every batch has new classes only.*'joint'"
    with pytest.warns(ScenarioWarning, match=message) as seen:
        learner = Learner(SingleHead(Backbone()), afec.EWC(1.0) + afec.AFEC(0.5), schedule=SHORT)
    assert len(seen) == 1
    for task in class_tasks((2, 2)):
        learner.learn(task)  # warned of once: another warning were an error here
    Learner(SingleHead(Backbone()))  # nothing is promised, nothing is warned of
    Learner(Backbone(), afec.EWC(1.0))


def test_what_cannot_be_in_this_scenario():
    for method in (afec.AGSCL(1.0), afec.ProgressCompress(1.0)):
        with pytest.raises(ValueError, match="needs outputs of its own for each task.*the scenario 'task' only"):
            Learner(SingleHead(Backbone()), method)
    tasks, learner = class_tasks((2, 2)), class_learner()
    learner.learn(tasks[0])
    with pytest.raises(ValueError, match="no class comes twice"):
        learner.learn(replace(tasks[1], classes=tasks[0].classes))
    regression = afec.streams.digits_regression(0, train=40, validation=40).tasks[0]
    with pytest.raises(ValueError, match="is a regression, and in the scenario 'class' tasks are classifications"):
        learner.learn(regression)
    assert learner.net.sizes == [2]
    with pytest.raises(ValueError, match="say which task"):
        Learner(Backbone()).predict(torch.rand(2, 1, 8, 8))


def test_a_task_that_has_begun_is_learned_before_another():
    tasks = class_tasks((2, 2, 2))

    def fail(_):
        raise KeyboardInterrupt

    learner = class_learner(on_progress=fail)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(tasks[0])
    learner.on_progress = None
    with pytest.raises(ValueError, match="has begun in its place; learn that one first"):
        learner.learn(tasks[1])
    learner.learn(tasks[0])
