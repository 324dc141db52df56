"""Run directories, checkpoints, saved learners, shared trainings and TOML: read, or an error of ours with the file's name."""

from __future__ import annotations

import os
import platform

import pytest
import torch
from torch import nn

import afec
from afec.experiments.supervised import LEARNER, build, training_of, write_transfers
from afec.files import FileError, load_tree, save_tree
from afec.lab import RunDirectory, RunError, lock, resolve
from afec.lab.engine import Job
from afec.lab.estimate import estimate
from afec.lab.spec import SpecError, load_benchmark, load_tuned
from afec.learner import Learner, LinearProbe, Machine, Memo, Schedule
from afec.learner.fit import Fit
from afec.learner.tasks import Batches
from afec.methods.expression import make_method
from afec.report.reading import load_learner, read
from afec.streams import Split
from damaged_files import changed, damaged, reads_or_says, try_all
from small_lab import TEXT, quick_config
from written_runs import learned, written

pytestmark = pytest.mark.slow  # a thousand damaged inputs for each reader


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: None)


def test_trees(tmp_path):
    file = tmp_path / "tree.safetensors"
    save_tree(file, {"a": torch.arange(6.0).reshape(2, 3), "b": [1, 2.5, (None, True)], "c": {3: 2**80, "d": "text"}})
    try_all(file, lambda: load_tree(file), FileError)


# -- TOML ---------------------------------------------------------------------------------------------------------


MORE = """
[case."net.name=digits"]
net = { channels = 3 }

[tune.ewc]
strength = [1, 10]
fisher = "batched"
fisher_batch = 2
"""


def test_benchmarks(tmp_path):
    file = tmp_path / "quick.toml"
    file.write_text(TEXT + MORE)

    def use():
        benchmark = load_benchmark(str(file))
        for method in ("ewc", "mas+afec", "ags-cl", *(f"ewc@{variant}" for variant in benchmark.variant)):
            for scale in benchmark.scales:
                try:
                    resolve(benchmark, method, scale)
                except SpecError:  # what is wrong with a method, a scale and a variant together is said by their names
                    continue

    try_all(file, use, SpecError, text=True)


def test_settings_of_a_tuning(tmp_path):
    file = tmp_path / "tuned.toml"
    file.write_text('# by hand\n[method.ewc]\nstrength = 10.0\n\n[method."ewc+afec".afec]\nforgetting = 0.5\n')
    try_all(file, lambda: load_tuned(file), SpecError, text=True)


# -- run directories ----------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path):
    _, found = written(tmp_path / "runs", "ewc", 0, learned(3, 0.5), (4,) * 3, (0,) * 3, "digits")
    write_transfers(found.path, [LinearProbe("a", 0.5, 0.25, 3)])
    found.append_events([{"event": "note", "text": "a note"}, {"event": "progress", "task": 1}])
    return found


FILES = ("config.toml", "scores.csv", "transfer.csv", "events.jsonl", "env.json", "DONE")


@pytest.mark.parametrize("name", FILES)
def test_the_files_of_a_run(finished, name):
    """By the run directory itself, by a report and by an estimate; the last two raise nothing at all."""

    def use():
        found = RunDirectory(finished.path)
        estimate([], finished.path.parents[3], 1)
        config = found.config
        assert config.hash
        assert config.to_toml()
        reading = read(config, found)
        for split in ("test", "validation"):
            found.matrix(split)
        list(found.events())
        whole = found.tasks(), found.epochs, found.samples
        if reading.state == "damaged":
            raise RunError(reading.fault)
        same = list(reading.tasks), reading.epochs, reading.samples
        assert repr(whole) == repr(same)  # a NaN equals nothing

    if name in ("env.json", "DONE"):  # what is wrong with them is left out
        whole = (finished.path / name).read_bytes()
        for words, content in damaged(whole, text=True):
            (finished.path / name).unlink()
            (finished.path / name).write_bytes(content)
            assert reads_or_says(use, RunError, finished.path, words)
    else:
        try_all(finished.path / name, use, RunError, finished.path, text=True)


@pytest.mark.parametrize("key", ["training", "stream", "net", "settings"])
@pytest.mark.parametrize("value", ["1", "[]", '"x"', "[" * 200 + "]" * 200])
def test_sections_of_a_configuration_that_are_no_tables(finished, key, value):
    file = finished.path / "config.toml"
    lines = file.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"[{key}"))
    end = next((number for number in range(start + 1, len(lines)) if lines[number].startswith("[")), len(lines))
    file.write_text("\n".join([f"{key} = {value}", *lines[:start], *lines[end:]]))
    with pytest.raises(RunError, match="config.toml cannot be read"):
        _ = finished.config


def test_tracebacks(finished):
    (finished.path / "FAILED").write_text("Traceback (most recent call last):\n  …\nValueError: ä\n")
    for words, content in damaged((finished.path / "FAILED").read_bytes()):
        (finished.path / "FAILED").unlink()
        (finished.path / "FAILED").write_bytes(content)
        assert reads_or_says(lambda: finished.failure, RunError, finished.path, words)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"wall_seconds": 1' + "0" * 400 + "}", '{"wall_seconds": NaN}', "{}"]
)
def test_an_estimate_leaves_out_what_is_no_number_of_seconds(finished, content):
    job = Job(finished.config, 1)
    assert estimate([job], finished.path.parents[3], 1).seconds == 1
    (finished.path / "DONE").write_text(content)
    assert estimate([job], finished.path.parents[3], 1).seconds is None


def test_locks(tmp_path):
    """Whatever stands in the file of a holder, the lock is free or is waited for, and something is said about who holds it."""
    with lock.locked(tmp_path):
        pass
    file = tmp_path / "lock-holder"
    whole = file.read_bytes()
    assert lock._name(file) == f"process {os.getpid()} on {platform.node()}"
    for _, content in damaged(whole):
        file.unlink()
        file.write_bytes(content)
        assert lock._name(file)
        with lock.locked(tmp_path, patient=False):  # what stands there does not decide
            assert file.read_bytes() == whole


# -- checkpoints, learners, shared trainings, weights -------------------------------------------------------------


def test_checkpoints(tmp_path):
    found = RunDirectory(tmp_path / "seed0")
    found.save_checkpoint({"tasks_done": 1, "scores": [[0, 1, "a", 0.5, 0.5, 9]], "experiment": {"w": torch.zeros(3)}})

    def use():
        state, faults = found.load_checkpoint()
        if state is None:
            raise RunError(faults[0])

    try_all(found.checkpoint, use, RunError)


NET = quick_config("ewc", "tiny")


def learner():
    return afec.Learner(build(NET, 0)[1], afec.EWC(10.0), schedule=training_of(NET.training)[0], progress=False)


def test_saved_learners(tmp_path):
    file = tmp_path / "learner.safetensors"
    learner().save(file)
    one = learner()
    try_all(file, lambda: one.load(file), FileError)
    whole = load_tree(file)
    for words, tree in changed(whole):
        save_tree(file, tree)
        reads_or_says(lambda: one.load(file), FileError, file, words)


def test_shared_trainings(tmp_path):
    """A file that is none is no error: the training is done again."""
    torch.manual_seed(0)
    data = Batches(Split(torch.rand(8, 2), torch.rand(8, 1)))
    fit = Fit(nn.Linear(2, 1), data, data, nn.MSELoss(), Schedule(max_epochs=1), 0, Machine())
    file = tmp_path / "shared.safetensors"
    fit.history, fit.best_epoch = [0.5], 1
    Memo(tmp_path).keep(file, fit)
    whole, known = file.read_bytes(), load_tree(file)
    assert Memo.recall(file, fit)
    for words, content in damaged(whole):
        file.unlink()
        file.write_bytes(content)
        assert reads_or_says(lambda: Memo.recall(file, fit), FileError, file, words)
    for words, tree in changed(known):
        save_tree(file, tree)
        assert reads_or_says(lambda: Memo.recall(file, fit), FileError, file, words)


def test_weights_of_a_run(tmp_path):
    config, found = quick_config("ewc", "tiny"), RunDirectory(tmp_path / "seed0")
    net, file = build(config, 0)[1], found.path / LEARNER
    Learner(net, make_method(config.method, config.settings)).save(file, prediction_only=True)
    try_all(file, lambda: load_learner(net, config, found), FileError)
    whole = load_tree(file)
    for words, tree in changed(whole):
        save_tree(file, tree)
        reads_or_says(lambda: load_learner(net, config, found), FileError, file, words)
