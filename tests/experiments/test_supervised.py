"""The experiments of the package against loops by hand: a method over a stream, the upper bound, each task alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from afec.experiments import Context, Score, experiment_for, find_experiment
from afec.experiments.joint import Joint
from afec.experiments.scratch import Scratch
from afec.experiments.supervised import Supervised, build, training_of
from afec.lab import RunDirectory, run
from afec.learner import Learner, Machine, NotFiniteError, Schedule
from afec.methods.expression import make_method
from afec.nets import MultiHead
from small_lab import quick_config

METHODS = ["finetune", "ewc", "ewc+afec", "si+afec", "ags-cl", "progress-compress+afec"]


def learner_of(config, net, method=None, seed=0):
    """As a user makes one."""
    schedule, machine = training_of(config.training)
    return Learner(net, method, schedule=schedule, machine=machine, seed=seed, progress=False)


def by_hand(config, seed, learn):
    """scores.csv by a loop that anybody could have written; `learn(learner, tasks)` learns the last of `tasks`."""
    stream, net = build(config, seed)
    reference = config.method in ("joint", "scratch")
    learner = learner_of(config, net, None if reference else make_method(config.method, config.settings), seed)
    lines = ["after,task,name,validation,test,size"]

    def measure(after):
        accuracies = zip(learner.evaluate(stream.tasks, "validation"), learner.evaluate(stream.tasks), strict=True)
        for number, (task, (validation, test)) in enumerate(zip(stream.tasks, accuracies, strict=True), start=1):
            lines.append(f"{after},{number},{task.name},{validation:.6f},{test:.6f},{len(task.test.targets)}")

    measure(0)
    for after in range(1, len(stream.tasks) + 1):
        learn(learner, stream.tasks[:after])
        measure(after)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_gives_the_numbers_of_a_loop_by_hand(method, tmp_path):
    config = quick_config(method, "tiny")
    expected = by_hand(config, 3, lambda learner, tasks: learner.learn(tasks[-1]))
    assert (run(config, 3, tmp_path).path / "scores.csv").read_text() == expected


def test_joint_gives_the_numbers_of_a_loop_by_hand(tmp_path):
    config = quick_config("joint", "three")
    expected = by_hand(config, 3, lambda learner, tasks: learner.learn_jointly(tasks))
    assert (run(config, 3, tmp_path).path / "scores.csv").read_text() == expected


def test_methods_of_a_seed_share_stream_net_and_first_task_and_differ_after_it(tmp_path):
    matrices = [run(quick_config(method, "three"), 0, tmp_path).matrix() for method in ("finetune", "ewc", "ewc+afec")]
    for matrix in matrices[1:]:
        np.testing.assert_array_equal(matrix[:2, 0], matrices[0][:2, 0])
        assert not np.array_equal(matrix, matrices[0])
    assert not np.array_equal(run(quick_config("ewc", "three"), 1, tmp_path).matrix(), matrices[1])


def test_what_earlier_runs_left_changes_no_number(tmp_path):
    """The first task and θ_e are shared between runs; a run that finds them gives what one that does not gives."""
    for method in ("finetune", "ewc+afec"):
        run(quick_config(method, "tiny"), 0, tmp_path / "shared")
    for method in ("ewc", "ewc+afec", "si", "mas+afec"):
        config = quick_config(
            method, "tiny", method={"ewc": {"strength": 77}, "mas": {"strength": 77}, "si": {"strength": 77}}
        )
        with_them, alone = (run(config, 0, tmp_path / folder) for folder in ("shared", method))
        assert (with_them.path / "scores.csv").read_bytes() == (alone.path / "scores.csv").read_bytes()
        assert (with_them.epochs, with_them.samples) == (alone.epochs, alone.samples)


# -- references ---------------------------------------------------------------------------------------------------


def test_scratch_is_a_net_trained_alone_from_the_same_initial_weights(tmp_path):
    config = quick_config("scratch")
    matrix = run(config, 0, tmp_path).matrix()
    assert np.isnan(matrix[1:]).sum() == 5 * 5 - 5  # each task is measured just after it was learned, and no other
    stream, _ = build(config, 0)
    for number in (0, 2):
        _, net = build(config, 0)
        alone = MultiHead(net.backbone, [2])
        alone.heads[0] = net.heads[number]
        learner = learner_of(config, alone)
        learner.learn(stream.tasks[number])
        assert matrix[number + 1, number] == pytest.approx(learner.evaluate(stream.tasks[number])[0], abs=1e-6)


def test_scratch_and_finetune_agree_on_the_first_task(tmp_path):
    scratch, finetune = (run(quick_config(method), 0, tmp_path).matrix() for method in ("scratch", "finetune"))
    assert scratch[1, 0] == finetune[1, 0]
    np.testing.assert_array_equal(scratch[0], finetune[0])


def test_scratch_calls_its_tasks_by_their_own_numbers_and_keeps_no_weights(tmp_path):
    seen = []
    directory = run(quick_config("scratch", "three"), 0, tmp_path, seen.append)
    assert [(progress.task, progress.step) for progress in seen] == [(n, step) for n in range(3) for step in (1, 2)]
    assert len({progress.name for progress in seen}) == 3
    assert not list(directory.path.rglob("*.safetensors"))


def test_joint_sees_all_data_so_far(tmp_path):
    directory = run(quick_config("joint", "tiny"), 0, tmp_path)
    stream, _ = build(directory.config, 0)
    sizes = [task.train.size for task in stream.tasks]
    assert [task["samples"] for task in directory.tasks()] == [sizes[0], sum(sizes)]
    assert directory.matrix().shape == (3, 2)


def test_references_are_found_beside_the_experiment_that_they_belong_to():
    assert find_experiment("supervised") is experiment_for("supervised", "ewc+afec") is Supervised
    assert experiment_for("supervised", "joint") is Joint
    assert experiment_for("supervised", "scratch") is Scratch
    for method, reference in (("ewc", False), ("finetune", False), ("joint", True), ("scratch", True)):
        config = quick_config(method)
        assert (config.reference, config.kind.is_reference) == (reference, reference)
        assert config.kind.description
    assert set(Supervised.references) == {"joint", "scratch"}


# -- one experiment, without the lab ------------------------------------------------------------------------------


def test_an_experiment_learns_measures_and_finishes(tmp_path):
    config, told = quick_config("ewc", "tiny"), []
    experiment = config.build(Context(seed=3))
    stream, net = build(config, 3)
    assert list(experiment.tasks) == [task.name for task in stream.tasks]
    before = experiment.measure(0)
    assert [type(score) for score in before] == [Score, Score]
    assert [score.size for score in before] == [task.test.size for task in stream.tasks]
    learner = learner_of(config, net, make_method(config.method, config.settings), 3)
    for number, task in enumerate(stream.tasks):
        record, expected = experiment.learn(number, told.append), learner.learn(task)
        assert (record.epochs, record.samples, record.name) == (expected.epochs, expected.samples, task.name)
        assert [score.test for score in experiment.measure(number + 1)] == learner.evaluate(stream.tasks)
    assert [(one.task, one.name, one.phase, one.step, one.unit) for one in told] == [
        (number, name, "train", 1, "epoch") for number, name in enumerate(experiment.tasks)
    ]
    assert all(set(one.values) == {"lr", "loss", "best"} for one in told)
    experiment.finish(tmp_path, told.append)
    assert [file.name for file in tmp_path.rglob("*.safetensors")] == ["learner.safetensors"]


@pytest.mark.parametrize("method", ["ewc+afec", "joint", "scratch"])
def test_the_state_of_an_experiment_between_two_tasks_is_all_of_it(method):
    config, quiet = quick_config(method, "three"), lambda progress: None
    first, second = config.build(Context(seed=0)), config.build(Context(seed=0))
    first.learn(0, quiet)
    second.load_state_dict(first.state_dict())
    assert second.measure(1) == first.measure(1)
    for number in (1, 2):
        assert second.learn(number, quiet).samples == first.learn(number, quiet).samples
        assert second.measure(number + 1) == first.measure(number + 1)


def test_a_state_that_does_not_fit_leaves_the_experiment_as_it_was(monkeypatch):
    config = quick_config("ewc", "tiny")
    experiment = config.build(Context(seed=0))
    before = {name: weight.clone() for name, weight in experiment.learner.net.state_dict().items()}
    state = experiment.state_dict()
    state["net"] = {name: weight + 1 for name, weight in state["net"].items()}

    def refuse(state):  # when the weights are in the net already
        raise ValueError("this is no state of the method")

    monkeypatch.setattr(experiment.learner.strategy, "load_state_dict", refuse)
    with pytest.raises(ValueError, match="this is no state of the method"):
        experiment.load_state_dict(state)
    torch.testing.assert_close(dict(experiment.learner.net.state_dict()), before, rtol=0, atol=0)
    experiment.learn(0, lambda progress: None)


# -- the training section -----------------------------------------------------------------------------------------


def test_a_training_section_is_a_schedule_and_a_machine():
    assert training_of({}) == (Schedule(), Machine())
    schedule, machine = training_of({"lr": 0.5, "patience": "off", "channels_last": True})
    assert (schedule, machine) == (Schedule(lr=0.5, patience=None), Machine(channels_last=True))
    assert training_of(Supervised.complete("training", {"patience": "off"})) == (Schedule(patience=None), Machine())
    assert training_of({"device": "cpu"}, "cpu")[1] == Machine(device="cpu")
    with pytest.raises(ValueError, match="training.lrr: unknown key; did you mean 'lr'?"):
        training_of({"lrr": 0.5})
    with pytest.raises(ValueError, match="training.lr: .*number.*; got 'fast'"):
        training_of({"lr": "fast"})


def test_divergence_is_an_error(tmp_path):
    config = quick_config("finetune", training={"lr": 1e30})
    with pytest.raises(NotFiniteError, match="training diverged; lower the learning rate"):
        run(config, 0, tmp_path)
    assert not RunDirectory.of(tmp_path, config, 0).done
