"""Linear probes on features that no longer move, and inputs that are prepared and augmented."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import afec
from afec.learner import Learner, Machine, Schedule
from afec.learner.tasks import CRITERIA, BatchLoss
from afec.streams import Split, digits_regression
from afec.streams.images import Normalise

from small_learning import SHORT, few_tasks, small_net  # isort: skip

LONGER = Schedule(batch_size=32, lr=1e-2, max_epochs=25, patience=5)


@pytest.fixture(scope="module")
def learned():
    stream = digits_regression(0, setting="transfer", train=300, validation=100)
    learner = Learner(afec.nets.DigitsBackbone(8, 16), seed=1, schedule=LONGER)
    for task in stream.tasks:
        learner.learn(task)
    return stream, learner


def test_nothing_of_the_learner_changes_and_the_head_learns(learned):
    stream, learner = learned
    before = {name: value.clone() for name, value in learner.net.state_dict().items()}
    found = learner.linear_probe(stream.transfer[0])
    assert found.name == "arrangement 1 turned by 60°"
    assert all(value.equal(before[name]) for name, value in learner.net.state_dict().items())
    assert learner.tasks_learned == ["arrangement 1", "arrangement 2"]
    assert found.test > 0.2  # ten positions: chance is 0.1
    assert learner.linear_probe(stream.transfer[0]) == found  # the same again
    assert learner.linear_probe(stream.transfer[1]) != found


def test_it_is_a_linear_regression_on_the_features(learned):
    """Trained to its end, a head on MSE comes to the accuracy of the least-squares solution on the same features."""
    stream, learner = learned
    task = stream.transfer[2]
    net = learner.net.eval()
    with torch.no_grad():
        features = [net.backbone(split.inputs) for split in (task.train, task.test)]
    ones = [torch.cat((f, torch.ones(len(f), 1)), 1) for f in features]
    solution = torch.linalg.lstsq(ones[0].double(), task.train.targets.double(), driver="gelsd").solution
    exact = task.accuracy((ones[1].double() @ solution).float(), task.test)
    learner.schedule = replace(LONGER, max_epochs=150, patience=20)
    try:
        assert learner.linear_probe(task).test == pytest.approx(exact, abs=0.06)
    finally:
        learner.schedule = LONGER


def test_before_anything_is_learned():
    learner = Learner(afec.nets.DigitsBackbone(4, 8))
    task = digits_regression(0, setting="transfer").transfer[0]
    with pytest.raises(ValueError, match=r"nothing was learned yet.*learn\(\) first"):
        learner.linear_probe(task)


def test_phases_are_told(learned):
    stream, learner = learned
    told = []
    learner.on_progress = told.append
    try:
        learner.linear_probe(stream.transfer[0])
    finally:
        learner.on_progress = None
    assert {phase.phase for phase in told} == {"transfer"}


# -- inputs as bytes ------------------------------------------------------------------------------------------------


def as_bytes(task, **changes):
    """The digits of a task as bytes, which it normalises itself."""
    splits = {
        name: Split((getattr(task, name).inputs * 255).round().to(torch.uint8), getattr(task, name).targets)
        for name in ("train", "validation", "test")
    }
    return replace(task, **splits, prepare=Normalise((0.0,), (1.0,)), **changes)


class Blank:
    """An augmentation that leaves nothing to learn from."""

    def __call__(self, images):
        return torch.zeros_like(images)


def test_bytes_that_a_task_normalises_learn_as_the_floats_do():
    floats, learners = few_tasks(2), []
    kept = [as_bytes(task) for task in floats]
    given = [replace(task, **{
        name: Split(task.prepare(split.inputs), split.targets)
        for name, split in (("train", task.train), ("validation", task.validation), ("test", task.test))
    }, prepare=None) for task in kept]  # fmt: skip
    for tasks in (kept, given):
        learner = Learner(small_net(tasks), afec.EWC(1.0) + afec.AFEC(1.0), schedule=SHORT)
        for task in tasks:
            learner.learn(task)
        learners.append((learner, tasks))
    outputs = [learner.outputs(tasks[1].test.inputs, 1) for learner, tasks in learners]
    assert outputs[0].equal(outputs[1])


def test_a_loaded_learner_asks_for_the_task_where_inputs_are_bytes(tmp_path):
    tasks = [as_bytes(task) for task in few_tasks(1)]
    learner = Learner(small_net(tasks), schedule=SHORT)
    learner.learn(tasks[0])
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner(small_net(tasks), schedule=SHORT).load(tmp_path / "learner.safetensors")
    images = tasks[0].test.inputs
    with pytest.raises(TypeError, match="give the task itself in place of its number or name"):
        loaded.predict(images, 0)
    assert loaded.predict(images, tasks[0]).equal(learner.predict(images, 0))


def test_augmentation_acts_in_training_mode_only():
    task = as_bytes(few_tasks(1)[0], augment=Blank())
    net = small_net([task])
    loss, batch = BatchLoss.of(0, task, Machine()), (task.train.inputs[:8], task.train.targets[:8])
    plain = F.cross_entropy(net.eval()(task.prepare(batch[0]), task=0), batch[1])
    assert loss(net.eval(), batch).equal(plain)
    torch.manual_seed(0)
    blank = net.train()(torch.zeros(8, 1, 8, 8), task=0)
    torch.manual_seed(0)
    assert loss.outputs(net.train(), batch).equal(blank)


def test_augmentation_is_not_in_the_fisher():
    """At equal weights the Fisher is the same with an augmentation that leaves nothing of the images."""
    found = []
    for augment in (None, Blank()):
        task = as_bytes(few_tasks(1)[0], augment=augment)
        net, guard, loss = small_net([task]), afec.EWC(1.0, fisher="empirical"), BatchLoss.of(0, task, Machine())
        with guard.learning(net, None, task.train, loss):
            pass
        found.append(tensors(guard.state_dict(), "precision"))
    assert len(found[0]) > 0
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


def test_augmentation_is_in_the_training_of_theta_e():
    """θ and θ_e learn from blank images: outputs no longer depend on what is shown in training."""
    outputs = []
    for augment in (None, Blank()):
        tasks = [as_bytes(task, augment=augment) for task in few_tasks(2)]
        learner = Learner(small_net(tasks), afec.AFEC(100.0), schedule=SHORT)
        for task in tasks:
            learner.learn(task)
        outputs.append(learner.outputs(tasks[1].test.inputs, 1))
    assert not outputs[0].equal(outputs[1])


def tensors(tree, under, inside=False):
    """All tensors of a nested state below a key that contains `under`."""
    if isinstance(tree, torch.Tensor):
        return [tree] if inside else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return [found for key, value in items for found in tensors(value, under, inside or under in str(key))]


def test_a_cosine_has_a_tame_gradient_at_the_origin():
    outputs = torch.zeros(1, 2, requires_grad=True)
    CRITERIA["cosine"](outputs, torch.tensor([[0.6, 0.8]])).backward()
    torch.testing.assert_close(outputs.grad, torch.tensor([[-6.0, -8.0]]))  # −target / 0.1
