"""Streams without validation data: what learns from them, what refuses, what is written, and what a tuning does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from afec.cli import main
from afec.experiments import Context
from afec.experiments.hold_out import held_out
from afec.experiments.supervised import Supervised, build
from afec.lab import RunDirectory, find_runs, load_benchmark, plan, run
from afec.lab.tuning import Plan, tune
from afec.learner import Learner, Schedule
from afec.naming import Record
from afec.nets import make_backbone
from afec.streams import STREAMS, digits
from small_lab import TEXT, quick_file
from stopped_runs import in_task, run_until

FIXED = Schedule(batch_size=16, lr=1e-2, max_epochs=2, patience=None, best_weights=False)
BARE = TEXT.replace('name = "digits"\ntasks', 'name = "bare"\ntasks', 1).replace("validation = 0.05\n", "").replace(
    "patience = 1", 'patience = "off"\nbest_weights = false'
) + '[tune.ewc]\nstrength = [1, 100]\nfisher = "exact"\n'  # fmt: skip


def bare(seed, tasks=5, test=0.85, sizes=None):
    """Digits of which nobody has set any aside to tune on."""
    stream = digits(seed, tasks, 0.05, test, sizes)
    return replace(stream, tasks=tuple(replace(task, validation=None) for task in stream.tasks))


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setitem(STREAMS, "bare", Record("bare", bare, "digits without validation"))


def learner(schedule):
    torch.manual_seed(0)
    return Learner(make_backbone("digits", channels=4, features=8), schedule=schedule, progress=False)


def test_a_task_says_that_it_has_none():
    stream = bare(0, sizes=[2, 2])
    (train, none, test), task = stream.tasks[0].sizes, stream.tasks[0]
    assert (train, none, test) == (task.train.size, 0, task.test.size)
    assert f"{train}/0/{test} samples" in repr(task)
    assert f"{train}/0/{test}" in str(stream)


def test_without_validation_a_fixed_schedule_learns_exactly_as_with_it():
    """Validation data that decide on nothing change no weight."""
    one, two = learner(FIXED), learner(FIXED)
    for with_it, without in zip(digits(0, sizes=[2, 3]).tasks, bare(0, test=0.3, sizes=[2, 3]).tasks, strict=True):
        without = replace(without, train=with_it.train)
        assert one.learn(with_it).epochs == two.learn(without).epochs == 2
    for name, weight in one.net.state_dict().items():
        torch.testing.assert_close(two.net.state_dict()[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("schedule", [Schedule(), replace(FIXED, best_weights=True), replace(FIXED, patience=3)])
def test_a_schedule_that_needs_some_is_refused(schedule):
    stream = bare(0, sizes=[2, 2])
    message = "there are no validation data, and this schedule needs some: patience=.*best_weights=.* Use patience=None"
    with pytest.raises(ValueError, match=message):
        learner(schedule).learn(stream.tasks[0])
    with pytest.raises(ValueError, match=message):
        learner(schedule).learn_jointly(stream.tasks)


def test_the_loss_of_an_epoch_is_then_that_of_its_batches_and_divergence_is_seen():
    (task,), seen = bare(0, sizes=[2]).tasks, []
    one = learner(replace(FIXED, batch_size=10_000, lr=1e-9, lr_min=0.0))
    one.on_progress = lambda phase: seen.append(phase.epoch.loss)
    one.learn(task)
    with torch.no_grad():  # nothing moves at this rate, so it is the loss of all training data
        expected = torch.nn.functional.cross_entropy(one.net(task.train.inputs, task=0), task.train.targets)
    assert seen == pytest.approx([float(expected)] * 2, rel=1e-5)
    with pytest.raises(FloatingPointError, match="the training loss is (nan|inf) after epoch 1: training diverged"):
        learner(replace(FIXED, lr=1e30)).learn(task)


def test_asking_for_its_validation_accuracy_is_an_error():
    stream, one = bare(0, sizes=[2, 2]), learner(FIXED)
    one.learn(stream.tasks[0])
    with pytest.raises(ValueError, match="task 'digits .*' has no validation split; ask for 'test'"):
        one.evaluate(stream.tasks[0], "validation")
    with pytest.raises(ValueError, match="unknown split 'tset'"):
        one.evaluate(stream.tasks[0], "tset")


@pytest.mark.parametrize("method", ["ewc+afec", "joint", "scratch"])
def test_a_run_leaves_the_column_empty_and_can_be_resumed(method, tmp_path):
    (job,) = plan([quick_file(tmp_path, BARE)], [method], [0], "three")
    found = run(job.config, 0, tmp_path / "whole")
    lines = (found.path / "scores.csv").read_text().splitlines()[1:]
    assert all(line.split(",")[3] == "" for line in lines)
    assert all(math.isnan(row.validation) and 0 <= row.test <= 1 for row in found.scores())
    assert np.isfinite(np.diag(found.matrix()[1:])).all()
    assert np.isnan(found.matrix("validation")).all()

    run_until(in_task(1), job.config, tmp_path / "stopped")
    again = run(job.config, 0, tmp_path / "stopped")
    assert (again.path / "scores.csv").read_bytes() == (found.path / "scores.csv").read_bytes()


def test_a_study_refuses_before_anything_runs(in_process, tmp_path, capsys):
    text = BARE.replace("best_weights = false", "best_weights = true")
    assert main(["run", quick_file(tmp_path, text), "-m", "ewc", "--runs", str(tmp_path / "runs")]) == 2
    assert "afec: quick: there are no validation data, and this schedule needs some" in capsys.readouterr().err
    assert main(["tune", quick_file(tmp_path, text), "-m", "ewc", "--runs", str(tmp_path / "runs")]) == 2
    assert "afec: quick: there are no validation data, and this schedule needs some" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# -- tuning -------------------------------------------------------------------------------------------------------


def rows_of(split):
    return [image.numpy().tobytes() for image in split.inputs]


def test_a_tenth_is_held_out_and_is_a_function_of_the_seed():
    stream = bare(0, test=0.3)
    one, same, other = (held_out(stream, 0.1, seed) for seed in (3, 3, 4))
    for task, before, again, differently in zip(one.tasks, stream.tasks, same.tasks, other.tasks, strict=True):
        assert task.validation.size == round(0.1 * before.train.size)
        assert sorted(rows_of(task.train) + rows_of(task.validation)) == sorted(rows_of(before.train))
        assert not set(rows_of(task.train)) & set(rows_of(task.validation))
        assert rows_of(task.validation) == rows_of(again.validation) != rows_of(differently.validation)
        assert rows_of(task.test) == rows_of(before.test)
    whole = digits(0)
    assert held_out(whole, 0.1, 3).tasks[0].validation is whole.tasks[0].validation  # there was one


def test_one_sample_cannot_be_divided():
    (task,) = bare(0, sizes=[2]).tasks
    with pytest.raises(ValueError, match="has one sample to train on"):
        held_out(
            replace(bare(0, sizes=[2]), tasks=(replace(task, train=type(task.train)(*(t[:1] for t in task.train))),)),
            0.1,
            0,
        )


def test_a_tuning_holds_out_and_its_trials_are_no_reported_runs(in_process, tmp_path):
    benchmark = load_benchmark(quick_file(tmp_path, BARE))
    tuned = tune(Plan(benchmark, "ewc", "tiny", seeds=(0,)), tmp_path / "runs", 1)
    assert all(0 <= trial.score <= 1 for trial in tuned.trials)
    trials = find_runs(tmp_path / "runs")
    assert len(trials) == 2
    for found in trials:
        assert found.config.stream["hold_out"] == 0.1
        assert np.isfinite(found.matrix("validation")).all()
    (tmp_path / "t.toml").write_text(tuned.to_toml("found"))
    command = ["run", quick_file(tmp_path, BARE), "-m", "ewc", "--scale", "tiny", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path / "runs"), "--tuned", str(tmp_path / "t.toml")]) == 0
    (reported,) = [found for found in find_runs(tmp_path / "runs") if "hold_out" not in found.config.stream]
    (best,) = [t for t in trials if t.config.settings["ewc"]["strength"] == tuned.best["ewc.strength"]]
    assert reported.config.settings == best.config.settings
    assert reported.config.hash != best.config.hash
    assert RunDirectory.of(tmp_path / "runs", Supervised.for_tuning(reported.config, Context(0)), 0) == best
    assert sum(task.train.size for task in build(reported.config, 0)[0].tasks) > sum(
        task.train.size for task in build(best.config, 0)[0].tasks
    )


def test_holding_out_is_for_tuning_only(tmp_path, capsys):
    assert main(["run", quick_file(tmp_path, BARE), "-m", "ewc", "--set", "stream.hold_out=0.1"]) == 2
    assert "the stream 'bare' has no option 'hold_out'" in capsys.readouterr().err


def test_a_stream_with_validation_data_is_tuned_on_them(in_process, tmp_path):
    text = TEXT + '[tune.ewc]\nstrength = [1]\nfisher = "exact"\n'
    tune(Plan(load_benchmark(quick_file(tmp_path, text)), "ewc", "tiny", seeds=(0,)), tmp_path, 1)
    (found,) = find_runs(tmp_path)
    assert "hold_out" not in found.config.stream
