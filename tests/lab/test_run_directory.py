"""What a run leaves on disk: the files, their formats, and which configuration lives where."""

import csv
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afec.experiments import Score
from afec.experiments.supervised import build, training_of
from afec.lab import RunConfig, RunDirectory, RunError, find_runs, run
from afec.lab import directory as directory_module
from afec.lab import environment as environment_module
from afec.lab.directory import COLUMNS
from afec.lab.environment import environment
from afec.learner import Learner
from afec.methods.expression import make_method
from small_lab import quick_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return run(quick_config("ewc+afec"), 0, root)


def test_the_files_are_those_that_the_docstring_names(finished):
    found = {str(path.relative_to(finished.path)) for path in finished.path.rglob("*") if path.is_file()}
    assert found == {
        "config.toml", "env.json", "scores.csv", "events.jsonl", "learner.safetensors", "DONE", "lock", "lock-holder"
    }  # fmt: skip
    listed = (directory_module.__doc__ or "").split("\n\n")[1].splitlines()
    named = {name for line in listed for name in line[:30].replace(",", " ").split()}
    own = {"learner.safetensors"}  # what the experiment has written
    assert named == (found - own) | {"FAILED", "checkpoint.safetensors", "checkpoint-before.safetensors"}
    config = finished.config
    assert finished.path.parts[-4:] == ("quick", "ewc+afec", config.hash, "seed0")
    assert finished.done
    assert finished.failure is None
    assert finished.seed == 0


def test_scores_csv(finished):
    lines = list(csv.reader((finished.path / "scores.csv").read_text().splitlines()))
    assert tuple(lines[0]) == COLUMNS[:-1] == ("after", "task", "name", "validation", "test", "size")  # no answers
    assert [(int(after), int(task)) for after, task, *_ in lines[1:]] == [(a, t) for a in range(6) for t in range(1, 6)]
    assert all(re.fullmatch(r"[01]\.\d{6}", number) for line in lines[1:] for number in line[3:5])
    assert all(line[2].startswith("digits ") for line in lines[1:])
    stream, _ = build(finished.config, 0)
    assert [int(line[5]) for line in lines[1:]] == [len(task.test.targets) for task in stream.tasks] * 6


def test_the_matrix_has_random_initialisation_first(finished):
    stream, net = build(finished.config, 0)
    untrained = [t.accuracy(net.eval()(t.test.inputs, task=n).detach(), t.test) for n, t in enumerate(stream.tasks)]
    matrix = finished.matrix()
    assert matrix.shape == (6, 5)
    np.testing.assert_allclose(matrix[0], untrained, atol=1e-6)
    assert not np.array_equal(matrix, finished.matrix("validation"))
    with pytest.raises(ValueError, match="unknown split 'tset'; did you mean 'test'?"):
        finished.matrix("tset")


def test_events_have_every_epoch_and_every_task(finished):
    events = list(finished.events())
    assert [event["event"] for event in events].count("task") == 5
    assert {event["phase"] for event in events if event["event"] == "progress"} == {"theta_e", "train"}
    tasks = finished.tasks()
    assert [task["task"] for task in tasks] == [1, 2, 3, 4, 5]
    assert [task["epochs_theta_e"] for task in tasks] == [0, 2, 2, 2, 2]
    assert finished.epochs == 5 * 2 + 4 * 2
    stream, _ = build(finished.config, 0)
    passes = [2 + 1] + [2 + 2 + 2] * 4  # EWC's Fisher in every task; θ_e and F_e from the second on
    assert finished.samples == sum(n * task.train.size for n, task in zip(passes, stream.tasks, strict=True))
    for task in tasks:
        phases = {"train", "fisher", "units", "evaluate"} | ({"expand"} if task["task"] > 1 else set())
        assert set(task["seconds"]) == set(task["cpu_seconds"]) == phases
    for event in events:
        if event["event"] == "progress":
            assert set(event) == {"event", "unit", "task", "phase", "number", "lr", "loss", "best"}
            assert event["unit"] == "epoch"
    steps = [(event["task"], event["phase"], event["number"]) for event in events if event["event"] == "progress"]
    trainings = [("theta_e", "train") if task > 1 else ("train",) for task in range(1, 6)]
    assert steps == [(task, phase, n) for task, phases in enumerate(trainings, 1) for phase in phases for n in (1, 2)]
    assert [event["event"] for event in finished.events(progress=False)] == ["task"] * 5


def test_env_json_says_where_it_ran(finished):
    env = json.loads((finished.path / "env.json").read_text())
    assert {"afec", "python", "torch", "numpy", "commit", "machine", "processor", "threads", "started"} <= set(env)


def git(folder, *words):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_our_own_checkout_and_of_no_other(tmp_path, monkeypatch):
    file = tmp_path / "venv" / "directory.py"
    file.parent.mkdir()
    file.write_text("")
    (tmp_path / "theirs").write_text("")
    monkeypatch.setattr(environment_module, "__file__", str(file))
    assert environment()["commit"] == ""  # no repository at all
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "theirs")
    git(tmp_path, "commit", "-qm", "somebody's own project")
    assert environment()["commit"] == ""  # a package that was installed inside it
    git(tmp_path, "add", "venv")
    git(tmp_path, "commit", "-qm", "as if it were ours")
    assert environment()["commit"] == git(tmp_path, "rev-parse", "HEAD")
    file.write_text("changed")
    assert environment()["commit"] == git(tmp_path, "rev-parse", "HEAD") + "+changed"


def test_done_says_what_it_took(finished):
    cost = json.loads((finished.path / "DONE").read_text())
    assert set(cost) == {"wall_seconds", "cpu_seconds", "peak_memory_mb"}
    assert all(value > 0 for value in cost.values())


def test_what_is_kept_predicts_as_the_run_did(finished):
    stream, net = build(finished.config, 0)
    learner = Learner(net, make_method(finished.config.method, finished.config.settings), progress=False)
    found = learner.load(finished.path / "learner.safetensors").evaluate(stream.tasks)
    assert found == pytest.approx(finished.matrix()[-1], abs=1e-6)


def test_reading_what_is_damaged(tmp_path, finished):
    directory = RunDirectory(tmp_path / "seed0")
    directory.path.mkdir()
    for read in (lambda: directory.scores(), lambda: directory.config):
        with pytest.raises(RunError, match="cannot be read .* move the directory away and run again"):
            read()
    (directory.path / "scores.csv").write_text("after,task\n1,x\n")
    with pytest.raises(RunError, match="scores.csv cannot be read"):
        directory.scores()
    (directory.path / "config.toml").write_text("method = 1\n")
    with pytest.raises(RunError, match="config.toml cannot be read"):
        _ = directory.config
    (directory.path / "events.jsonl").write_text('{"event": "task", "task": 1}\n{"event": "ta')
    assert list(directory.events()) == [{"event": "task", "task": 1}]
    with pytest.raises(RunError, match="expected a name like seed0"):
        _ = RunDirectory(tmp_path / "seedling").seed


def test_a_score_survives_the_file(tmp_path):
    directory = RunDirectory(tmp_path / "seed0")
    scores = [Score(0, 1, 'a "name", with a comma', 0.5, 0.25, 40), Score(1, 1, "ü", 1.0, 1 / 3, 3)]
    directory.write_scores(scores)
    assert directory.scores() == [scores[0], replace(scores[1], test=0.333333)]
    directory.write_scores([Score(0, 1, "a return", float("nan"), -1234.5, 10)])
    (found,) = directory.scores()
    assert np.isnan(found.validation)
    assert (found.test, found.size) == (-1234.5, 10)
    answered = [Score(2, 1, "a", float("nan"), 0.5, 4, (3, 1)), Score(2, 2, "b", float("nan"), 0.5, 2, (0, 2))]
    directory.write_scores(answered)
    assert [one.answers for one in directory.scores()] == [(3, 1), (0, 2)]
    file = directory.path / "scores.csv"
    file.write_text("after,task,name,validation,test,size\n1,1,a,,0.5,4\n")  # as earlier versions wrote it
    assert directory.scores()[0].answers == ()


# -- the configuration and its hash -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["finetune", "ewc", "ewc+afec", "joint", "scratch", "mas@long"])
@pytest.mark.parametrize("patience", [3, "off"])
def test_a_configuration_survives_its_file(method, patience):
    config = quick_config(method, training={"patience": patience})
    again = RunConfig.from_toml(config.to_toml())
    assert again == config
    assert again.hash == config.hash
    assert training_of(again.training) == training_of(config.training)
    assert (again.reference, again.score_kind.name) == (method in ("joint", "scratch"), "accuracy")


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.text(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
)  # fmt: skip


@given(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=3), st.text(max_size=8))
def test_any_configuration_survives_its_file(section, name):
    config = replace(quick_config("ewc"), stream=section, settings={"ewc": section}, benchmark=name)
    again = RunConfig.from_toml(config.to_toml())
    assert again == config
    assert again.hash == config.hash


def test_the_hash_is_of_the_content_and_not_of_the_names():
    config = quick_config("ewc")
    names = ("benchmark", "scale", "variant", "score", "title", "reference")  # the last three follow from the others
    for name in names:
        assert replace(config, **{name: "other"}).hash == config.hash
    other = {
        "method": "mas",
        "stream": {**config.stream, "tasks": 2},
        "net": {**config.net, "channels": 5},
        "training": {**config.training, "lr": 0.5},
        "settings": {"ewc": {"strength": 11}},
        "experiment": "file.py:Other",
    }
    assert set(other) | set(names) == {field.name for field in fields(RunConfig)}
    hashes = {replace(config, **{name: value}).hash for name, value in other.items()}
    assert len(hashes | {config.hash}) == 7


@pytest.mark.parametrize("key", sorted(quick_config("ewc").training))
def test_every_training_option_is_in_the_hash(key):
    config = quick_config("ewc")
    assert replace(config, training={**config.training, key: "changed"}).hash != config.hash


def test_the_hash_is_the_same_in_every_process():
    assert quick_config("ewc", "tiny").hash == RunConfig.from_toml(quick_config("ewc", "tiny").to_toml()).hash
    assert re.fullmatch("[0-9a-f]{12}", quick_config("ewc").hash)


def test_a_variant_that_changes_nothing_is_the_same_run(tmp_path):
    plain, named = quick_config("ewc"), replace(quick_config("ewc"), variant="same")
    assert RunDirectory.of(tmp_path, plain, 0) == RunDirectory.of(tmp_path, named, 0)


def stamps(directory: RunDirectory) -> dict[Path, tuple[int, bytes]]:
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in directory.path.rglob("*") if file.is_file()}


def test_a_changed_configuration_never_overwrites_another_and_a_finished_run_is_not_run_again(tmp_path):
    first = run(quick_config("ewc", "tiny"), 0, tmp_path)
    before = stamps(first)
    second = run(quick_config("ewc", "tiny", method={"ewc": {"strength": 20}}), 0, tmp_path)
    third = run(quick_config("ewc", "tiny"), 1, tmp_path)
    assert len({first.path, second.path, third.path}) == 3
    assert run(quick_config("ewc", "tiny"), 0, tmp_path, on_progress=lambda progress: pytest.fail("it ran")) == first
    assert stamps(first) == before
    assert find_runs(tmp_path) == sorted([first, second, third], key=lambda run: run.path)
    assert tomllib.loads((second.path / "config.toml").read_text())["settings"]["ewc"]["strength"] == 20
