"""What happens to batch-norm's statistics while tasks are learned: real digits, a small VGG11 and a small ResNet10."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import afec
from afec.learner import Learner
from afec.learner.memo import Memo
from afec.nets import MultiHead, make_backbone
from afec.randomness import forked
from afec.streams import digits
from small_learning import SHORT, cut, few_tasks, numbers, same

BATCH_NORMS = ["shared", "per-task"]
GUARDS = {
    "finetune": lambda: None,
    "ewc+afec": lambda: afec.EWC(1.0) + afec.AFEC(0.5),
    "ewc+afec official": lambda: afec.EWC(1.0, preset="official") + afec.AFEC(0.5, preset="official"),
    "mas+afec own epochs": lambda: afec.MAS(1.0) + afec.AFEC(0.5, epochs=2),
    "si": lambda: afec.SI(1.0),
    "rwalk": lambda: afec.RWALK(1.0),
}

QUICK = ("ewc+afec", "si")


def backbone(batch_norm, name="vgg11bn"):
    """The same one every time."""
    with forked(1):
        return make_backbone(name, channels=1, size=8, width=2, batch_norm=batch_norm)


def learner_of(batch_norm, guard=None, name="vgg11bn", **options):
    return Learner(backbone(batch_norm, name), guard, **{"schedule": SHORT, "seed": 3, **options})


def statistics(net, task=None):
    """Copies of all statistics, or of one task's."""
    wanted = "" if task is None else f".tasks.{task}."
    return {name: buffer.detach().clone() for name, buffer in net.named_buffers() if wanted in name}


@pytest.mark.parametrize(
    "guard", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in GUARDS]
)
def test_a_second_task_leaves_the_statistics_of_the_first_alone_per_task_and_moves_them_if_shared(guard):
    tasks = few_tasks(2)
    for batch_norm in BATCH_NORMS:
        learner = learner_of(batch_norm, GUARDS[guard]())
        learner.learn(tasks[0])
        first = statistics(learner.net)
        assert first
        learner.learn(tasks[1])
        after = statistics(learner.net)
        if batch_norm == "per-task":
            assert same({name: after[name] for name in first}, first)
            fresh = [name for name in after if name not in first]
            assert len(fresh) == len(first)
            assert all(not after[name].eq(float(name.endswith("var"))).any() for name in fresh)
        else:
            assert list(after) == list(first)
            assert all(not after[name].equal(first[name]) for name in first)


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_expansion_puts_statistics_back_bit_for_bit(preset, batch_norm):
    """θ_e moves them, with weights of its own; the main net finds its own again."""
    tasks, net = few_tasks(2), MultiHead(backbone(batch_norm), [2, 2])
    guard = afec.EWC(1.0, preset=preset) + afec.AFEC(0.5, preset=preset, epochs=None if preset == "official" else 2)
    optimizer, seen = torch.optim.Adam(net.parameters(), 1e-2), []

    def learn(number):
        def loss(model, batch):
            seen.append(statistics(net))
            return torch.nn.functional.cross_entropy(model(batch[0], task=number), batch[1])

        split = tasks[number].train
        before = statistics(net)
        with guard.learning(net, optimizer, (split.inputs, split.targets), loss, batch_size=16) as task:
            if preset == "official":
                task.epoch()
            assert same(statistics(net), before)
            optimizer.zero_grad()
            loss(net, (split.inputs, split.targets)).backward()
            optimizer.step()
            before = statistics(net)
        assert same(statistics(net), before)  # and so does the importance pass at the end

    learn(0)
    seen.clear()
    learn(1)
    name = "backbone.features.1.running_mean" if batch_norm == "shared" else "backbone.features.1.tasks.1.running_mean"
    assert len({one[name].sum().item() for one in seen}) > 3


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
def test_the_best_weights_come_back_with_their_statistics(batch_norm):
    task, seen = few_tasks(1)[0], []
    wrong = replace(task, validation=task.validation._replace(targets=1 - task.validation.targets))
    schedule = replace(SHORT, max_epochs=6, patience=None)
    learner = learner_of(batch_norm, schedule=schedule, on_progress=lambda _: seen.append(statistics(learner.net)))
    best = learner.learn(wrong).best_epoch
    assert best < len(seen) == 6  # the better it learns, the worse it looks
    assert same(statistics(learner.net), seen[best - 1])
    assert not same(statistics(learner.net), seen[-1])


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
@pytest.mark.parametrize(
    ("guard", "name"),
    [
        ("ewc+afec", "vgg11bn"),
        pytest.param("ewc+afec", "resnet10", marks=pytest.mark.slow),
        pytest.param("ewc+afec official", "vgg11bn", marks=pytest.mark.slow),
    ],
)
def test_a_learner_stopped_inside_a_task_ends_as_the_one_that_was_not(guard, batch_norm, name, tmp_path):
    tasks, places = few_tasks(2), []

    def save(phase):
        if phase.task == 1:
            places.append((phase.phase, phase.epoch.number))
            whole.save(tmp_path / f"{len(places)}.safetensors")

    whole = learner_of(batch_norm, GUARDS[guard](), name, on_progress=save)
    took = [whole.learn(task) for task in tasks]
    assert ("train", 1) in places
    assert guard != "ewc+afec" or ("theta_e", 1) in places
    for number, _ in enumerate(places, start=1):
        rest = learner_of(batch_norm, GUARDS[guard](), name, seed=99).load(tmp_path / f"{number}.safetensors")
        assert len(rest.net.heads) == 2  # with their statistics: the backbone alone was given
        assert numbers([rest.learn(tasks[1])]) == numbers(took[1:])
        assert same(rest.state_dict(), whole.state_dict())
    assert rest.evaluate(tasks) == whole.evaluate(tasks)


def test_a_file_of_the_other_kind_is_refused(tmp_path):
    task = few_tasks(1)[0]
    for saved, here in (BATCH_NORMS, BATCH_NORMS[::-1]):
        learner = learner_of(saved)
        learner.learn(task)
        learner.save(tmp_path / "a.safetensors")
        with pytest.raises(
            ValueError, match="the state is of another net: 'backbone.features.1.num_batches_tracked' has"
        ):
            learner_of(here).load(tmp_path / "a.safetensors")


def test_a_memo_tells_the_kinds_apart(tmp_path):
    task = few_tasks(1)[0]
    for batch_norm in BATCH_NORMS:
        for _ in range(2):
            learner = learner_of(batch_norm, memo=Memo(tmp_path))
            learner.learn(task)
        plain = learner_of(batch_norm)
        plain.learn(task)
        assert same(learner.state_dict(), plain.state_dict())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_task_is_evaluated_with_its_own_statistics():
    tasks = few_tasks(2)
    learner = learner_of("per-task")
    for task in tasks:
        learner.learn(task)
    x, net = tasks[0].test.inputs, learner.net.eval()
    for selected in (1, 0):
        net(x, task=selected)  # which a plain call of the backbone keeps to
        with torch.no_grad():
            outputs = net.heads[0](net.backbone(x))
        assert torch.allclose(outputs, learner.outputs(x, 0)) == (selected == 0)


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
def test_joint_learning_takes_batches_with_one_sample_of_a_task(batch_norm):
    """Three tasks in batches of four, on maps of one pixel."""
    tasks = few_tasks(3, train=17)
    learner = learner_of(batch_norm, schedule=replace(SHORT, batch_size=4))
    learner.learn_jointly(tasks)
    assert len(learner.evaluate(tasks)) == 3
    if batch_norm == "per-task":
        assert len({statistics(learner.net, task).popitem()[1].sum().item() for task in range(3)}) == 3


@pytest.mark.parametrize("name", ["vgg11bn", pytest.param("resnet10", marks=pytest.mark.slow)])
def test_the_kind_of_batch_norm_changes_the_result_on_real_digits(name):
    """The same weights at the start, the same batches: the first task is the same, and later evaluation is not."""
    tasks = [cut(task, 100, 60) for task in digits(seed=0, validation=0.3).tasks[:2]]
    found = {}
    for batch_norm in BATCH_NORMS:
        learner = learner_of(batch_norm, afec.EWC(10.0), name, schedule=replace(SHORT, max_epochs=3))
        learner.learn(tasks[0])
        first = learner.outputs(tasks[0].test.inputs, 0)
        learner.learn(tasks[1])
        found[batch_norm] = first, learner.outputs(tasks[0].test.inputs, 0)
    torch.testing.assert_close(found["shared"][0], found["per-task"][0])
    assert not torch.allclose(found["shared"][1], found["per-task"][1], rtol=0.1)
