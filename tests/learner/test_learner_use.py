"""`Learner` as somebody without a loop uses it, on real digits."""

import os
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import afec
from afec.learner import Learner, Schedule
from afec.nets import DigitsBackbone, MultiHead
from afec.streams import Split, digits, digits_regression
from small_learning import SHORT, Backbone, few_tasks, same, small_learner, small_net


def learned(tasks, guard=None, **options):
    learner = small_learner(tasks, guard, **options)
    return learner, [learner.learn(task) for task in tasks]


def test_two_classes_of_digits_are_learned_and_told_apart():
    task = digits(seed=0).tasks[0]
    learner = Learner(DigitsBackbone(), schedule=Schedule(lr=3e-3, max_epochs=10))
    took = learner.learn(task)
    (accuracy,) = learner.evaluate(task)
    assert accuracy > 0.9
    assert (learner.predict(task.test.inputs, 0) == task.test.targets).float().mean().item() == accuracy
    assert learner.evaluate(task, "validation") != learner.evaluate(task, "train")
    assert (took.name, took.epochs) == (task.name, 10)
    assert took.samples == 10 * task.train.size
    assert took.epochs_theta_e == 0


def test_outputs_and_predictions_by_number_and_by_name():
    tasks = few_tasks(2)
    learner, _ = learned(tasks)
    x = tasks[1].test.inputs
    learner.net.eval()
    with torch.no_grad():
        by_hand = learner.net(x, task=1)
    assert learner.outputs(x, 1).equal(by_hand)
    assert learner.outputs(x, tasks[1].name).equal(by_hand)
    assert learner.predict(x, 1).equal(by_hand.argmax(dim=1))
    assert not learner.outputs(x, 1).requires_grad
    assert learner.tasks_learned == [task.name for task in tasks]


def test_outputs_come_in_chunks_and_the_mode_is_put_back():
    learner, _ = learned(few_tasks(1))
    x = torch.rand(2100, 1, 8, 8)
    learner.net.train()
    assert torch.allclose(learner.outputs(x, 0)[2050:], learner.outputs(x[2050:], 0), atol=1e-6)
    assert learner.net.training


def test_a_regression_predicts_values():
    stream = digits_regression(seed=0, train=100, validation=50)
    learner = Learner(DigitsBackbone(), schedule=SHORT)
    learner.learn(stream.tasks[0])
    x = stream.tasks[0].test.inputs
    assert learner.predict(x, 0).equal(learner.outputs(x, 0))
    assert learner.predict(x, 0).shape == (len(x), 2)


@pytest.mark.parametrize("task", [1, -1, 7, "digits 42"])
def test_what_was_not_learned_cannot_be_predicted(task):
    learner, _ = learned(few_tasks(1))
    with pytest.raises(ValueError, match=r"no task .* was learned; .*digits"):
        learner.predict(torch.rand(2, 1, 8, 8), task)


def test_heads_of_different_sizes():
    tasks = few_tasks(3, sizes=[2, 3, 5])
    learner, _ = learned(tasks, afec.EWC(1.0))
    assert [len(learner.outputs(task.test.inputs, task.name)[0]) for task in tasks] == [2, 3, 5]
    assert len(learner.evaluate(tasks)) == 3


def test_a_backbone_alone_gets_a_head_for_each_task():
    tasks = few_tasks(3, sizes=[2, 3, 5])
    learner = Learner(Backbone(), afec.EWC(1.0) + afec.AFEC(0.1), schedule=SHORT)
    for number, task in enumerate(tasks):
        learner.learn(task)
        assert [head.out_features for head in learner.net.heads] == [2, 3, 5][: number + 1]
    assert all(0 <= accuracy <= 1 for accuracy in learner.evaluate(tasks))


def test_new_heads_are_a_matter_of_the_learners_seed_alone():
    tasks = few_tasks(2)

    def head(seed, outside):
        backbone = small_net(tasks).backbone
        torch.manual_seed(outside)
        learner = Learner(backbone, schedule=SHORT, seed=seed)
        for task in tasks:
            learner.learn(task)
        return learner.net.state_dict()

    assert same(head(0, outside=1), head(0, outside=2))
    assert not same(head(0, outside=1), head(1, outside=1))


def test_a_backbone_without_a_width_is_refused():
    with pytest.raises(TypeError, match="no integer attribute 'out_features': set one"):
        Learner(nn.Flatten())


def test_a_task_that_does_not_fit_its_head_is_refused():
    tasks = few_tasks(2, sizes=[2, 3])
    learner = small_learner([tasks[1], tasks[0]])
    with pytest.raises(
        ValueError, match="task 1, 'digits .*', has 2 outputs, but head 1 of the net has 3; make the net"
    ):
        learner.learn(tasks[0])


def test_two_tasks_of_one_name_are_refused():
    tasks = few_tasks(2)
    learner, _ = learned(tasks[:1])
    with pytest.raises(ValueError, match="a task called 'digits .*' was learned already"):
        learner.learn(replace(tasks[1], name=tasks[0].name))


def test_unseen_tasks_are_measured_through_their_own_heads_before_they_are_learned():
    tasks = few_tasks(3)
    learner, _ = learned(tasks[:1], None)
    with pytest.raises(ValueError, match="no task 'digits .*' was learned"):
        learner.evaluate(tasks)  # one head only
    wide = small_learner(tasks)
    untrained = [task.accuracy(wide.net.eval()(task.test.inputs, task=n), task.test) for n, task in enumerate(tasks)]
    assert wide.evaluate(tasks) == untrained


def test_the_test_images_decide_nothing_and_the_validation_images_do():
    tasks = few_tasks(2)
    schedule = replace(SHORT, max_epochs=6)
    reference = learned(tasks, afec.EWC(1.0) + afec.AFEC(0.1), schedule=schedule)[0].net.state_dict()
    noise = [replace(task, test=Split(torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.long))) for task in tasks]
    assert same(learned(noise, afec.EWC(1.0) + afec.AFEC(0.1), schedule=schedule)[0].net.state_dict(), reference)
    wrong = [replace(t, validation=Split(t.validation.inputs, 1 - t.validation.targets)) for t in tasks]
    other, took = learned(wrong, afec.EWC(1.0) + afec.AFEC(0.1), schedule=schedule)
    assert not same(other.net.state_dict(), reference)
    assert took[0].best_epoch == 1  # the better it learns, the worse it looks


@pytest.mark.parametrize("select", ["penalised", "old-penalised", "loss"])
def test_what_decides_is_the_loss_with_the_penalty_that_was_asked_for(select):
    tasks = few_tasks(2)
    guard, seen = afec.EWC(50.0) + afec.AFEC(5.0), []

    def on_progress(phase):
        if (phase.task, phase.phase) == (1, "train"):
            net, (x, y) = learner.net.eval(), tasks[1].validation
            with torch.no_grad():
                alone = F.cross_entropy(net(x, task=1), y).item()
            parts = {name: float(value) for name, value in guard.task.penalties().items()}
            assert min(parts.values()) > 0
            added = {"penalised": sum(parts.values()), "old-penalised": parts["old"], "loss": 0.0}
            seen.append((phase.epoch.loss, alone + added[select]))

    learner = small_learner(tasks, guard, schedule=replace(SHORT, select=select, max_epochs=4), on_progress=on_progress)
    for task in tasks:
        learner.learn(task)
    assert len(seen) == 4
    for told, by_hand in seen:
        assert told == pytest.approx(by_hand, rel=1e-5)


def test_the_choice_of_what_decides_changes_which_weights_stay():
    tasks, best = few_tasks(2), {}
    for select in ("penalised", "loss"):
        # From an early epoch on, a strong pull brings the weights back and the loss alone only rises.
        schedule = replace(SHORT, lr=3e-2, select=select, max_epochs=12, patience=None)
        best[select] = learned(tasks, afec.EWC(1e4), schedule=schedule)[1][1].best_epoch
    assert best["loss"] != best["penalised"]


def test_the_expansion_is_trained_by_the_schedule_and_counted():
    tasks = few_tasks(2)
    phases = []
    learner, took = learned(
        tasks, afec.EWC(1.0) + afec.AFEC(0.1), on_progress=lambda p: phases.append((p.task, p.phase))
    )
    assert phases == [(0, "train")] * 2 + [(1, "theta_e")] * 2 + [(1, "train")] * 2
    assert [t.epochs_theta_e for t in took] == [0, 2]
    assert [t.samples for t in took] == [(2 + 1) * 48, (2 + 2 + 2) * 48]  # EWC's Fisher; then F_e as well
    for seconds in (took[0].seconds, took[0].cpu_seconds):
        assert set(seconds) == {"fisher", "train"}
    for seconds in (took[1].seconds, took[1].cpu_seconds):
        assert set(seconds) == {"fisher", "expand", "train"}
        assert all(value >= 0 for value in seconds.values())
    assert took[1].seconds["expand"] > 0


@pytest.mark.parametrize(
    ("afec_term", "epochs", "passes"),
    [
        (lambda: afec.AFEC(0.1, epochs=5), 5, 1),
        (lambda: afec.AFEC(0.1, preset="official"), 2, 2),  # a new F_e every epoch
        (lambda: afec.AFEC(0.1, schedule="interleaved"), 2, 2),
        (lambda: afec.AFEC(0.0), 0, 0),
    ],
    ids=["own epochs", "official", "interleaved", "off"],
)
def test_an_expansion_that_afec_trains_itself_is_counted_too(afec_term, epochs, passes):
    tasks = few_tasks(2)
    _, took = learned(tasks, afec.EWC(1.0) + afec_term())
    assert [t.epochs_theta_e for t in took] == [0, epochs]
    assert took[1].samples == (2 + epochs + passes + 1) * 48  # the last one is EWC's own Fisher


@pytest.mark.parametrize(
    ("guard", "passes"),
    [(None, 0), (lambda: afec.SI(1.0), 0), (lambda: afec.MAS(1.0), 1), (lambda: afec.EWC(1.0, fisher="sample"), 1)],
    ids=["finetune", "si", "mas", "sampled ewc"],
)
def test_samples_of_importance_passes_are_part_of_the_cost(guard, passes):
    _, took = learned(few_tasks(2), guard and guard())
    assert [t.samples for t in took] == [(2 + passes) * 48] * 2


@pytest.mark.parametrize("preset", ["default", "official"])
def test_active_forgetting_changes_the_result_and_its_absence_does_not(preset):
    tasks = few_tasks(2)
    plain = learned(tasks, afec.EWC(1.0, preset=preset))[0].net.state_dict()
    off = learned(tasks, afec.EWC(1.0, preset=preset) + afec.AFEC(0.0, preset=preset))[0].net.state_dict()
    on = learned(tasks, afec.EWC(1.0, preset=preset) + afec.AFEC(1.0, preset=preset))[0].net.state_dict()
    assert same(plain, off)
    assert not same(plain, on)


def test_a_strong_guard_holds_the_old_task():
    tasks = few_tasks(2, train=200)
    x = tasks[0].test.inputs

    def moved(guard):
        """How far the second task moves the outputs of the first."""
        torch.manual_seed(0)
        learner = Learner(DigitsBackbone(), guard, schedule=Schedule(batch_size=16, lr=3e-3, max_epochs=8))
        learner.learn(tasks[0])
        before = learner.outputs(x, 0)
        learner.learn(tasks[1])
        return (learner.outputs(x, 0) - before).abs().mean().item()

    assert moved(afec.EWC(1e4)) < moved(None) / 4


def test_nothing_outside_is_advanced():
    tasks = few_tasks(2)
    learner = Learner(Backbone(), afec.EWC(1.0, fisher="sample") + afec.AFEC(0.1), schedule=SHORT)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    for task in tasks:
        learner.learn(task)
    learner.evaluate(tasks)
    learner.predict(tasks[0].test.inputs, 0)
    assert torch.get_rng_state().equal(before[0])
    assert str(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_an_interrupted_task_can_be_learned_again():
    tasks = few_tasks(2)

    def stop(phase):
        if phase.task == 1:
            raise KeyboardInterrupt

    learner = small_learner(tasks, afec.EWC(1.0) + afec.AFEC(0.1), on_progress=stop)
    learner.learn(tasks[0])
    before = {name: value.clone() for name, value in learner.net.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        learner.learn(tasks[1])
    assert same(before, dict(learner.net.state_dict()))  # stopped in the expansion, which borrows the net
    assert learner.state_dict()["inside"] is None
    assert learner.tasks_learned == [tasks[0].name]
    learner.on_progress = None
    assert learner.learn(tasks[1]).epochs_theta_e == 2


def test_all_tasks_jointly_is_the_mean_over_all_samples():
    """One step of SGD on a batch of everything: the mean of all losses, whatever the sizes of the tasks."""
    tasks = [few_tasks(2, train=30)[0], few_tasks(2, train=10)[1]]

    class Plain(nn.Module):
        out_features = 64

        def forward(self, x):
            return x.flatten(1)

    net, other = MultiHead(Plain(), [2, 2], zero=True), MultiHead(Plain(), [2, 2], zero=True)
    schedule = Schedule(batch_size=40, optimizer="sgd", lr=0.1, momentum=0.0, max_epochs=1)
    took = Learner(net, schedule=schedule).learn_jointly(tasks)
    total = sum(
        F.cross_entropy(other(t.train.inputs, n), t.train.targets, reduction="sum") for n, t in enumerate(tasks)
    )
    (total / 40).backward()
    for weight, by_hand in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight.detach(), -0.1 * by_hand.grad)
    assert (took.epochs, took.samples) == (1, 40)


def test_learning_jointly_sees_every_sample_once_an_epoch_and_goes_on():
    tasks = few_tasks(3, sizes=[2, 3, 5])
    learner = Learner(Backbone(), schedule=SHORT)
    for number in range(3):
        took = learner.learn_jointly(tasks[: number + 1])
        assert took.samples == 2 * sum(task.train.size for task in tasks[: number + 1])
    assert learner.tasks_learned == [task.name for task in tasks]
    assert len(learner.evaluate(tasks)) == 3


def on_terminal(monkeypatch, progress):
    """What a learner writes to standard error when that is a terminal."""
    ours, its = os.openpty()
    tasks = few_tasks(2)
    with os.fdopen(its, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        learned(tasks, afec.EWC(1.0) + afec.AFEC(0.1), progress=progress)
        monkeypatch.undo()
        os.write(its, b"end")
        return os.read(ours, 1 << 20).decode()


def test_a_progress_bar_on_a_terminal_and_nowhere_else(monkeypatch, capfd):
    shown = on_terminal(monkeypatch, None)
    assert "learning, task 1 (digits" in shown
    assert "expansion, task 2 (digits" in shown
    assert on_terminal(monkeypatch, False) == "end"
    learned(few_tasks(2), afec.EWC(1.0) + afec.AFEC(0.1))
    assert capfd.readouterr() == ("", "")


def test_a_single_task_that_was_not_learned_is_refused():
    tasks = few_tasks(2)
    with pytest.raises(ValueError, match="was learned; the tasks so far are"):
        small_learner(tasks).evaluate(tasks[1])


def test_a_task_that_was_not_learned_cannot_take_the_place_of_one_that_was():
    tasks = few_tasks(3)
    learner, _ = learned(tasks[:2])
    wide = small_learner(tasks)
    for task in tasks[:2]:
        wide.learn(task)
    for order in ([tasks[2]], [tasks[0], tasks[2]]):  # through the head of the first, of the second
        for one in (learner, wide):
            with pytest.raises(ValueError, match=f"no task '{tasks[2].name}' was learned"):
                one.evaluate(order)
    assert wide.evaluate([tasks[1], tasks[0]]) == wide.evaluate(tasks)[1::-1]  # learned ones in any order
