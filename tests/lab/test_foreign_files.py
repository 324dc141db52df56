"""Files of weights and checkpoints that are whole, and not what they should be: never a traceback, always the file's name."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import afec
from afec.experiments import StoppedError
from afec.experiments.supervised import LEARNER, build, training_of
from afec.files import FileError, load_tree, save_tree
from afec.lab import RunDirectory, find_runs, load_benchmark, resolve, run
from afec.report.picture import draw_study
from small_lab import quick_config
from stopped_runs import Token, in_task, run_until

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.floats(),
    st.text(max_size=3),
    st.builds(torch.zeros, st.lists(st.integers(0, 3), max_size=3)),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


def places(tree, above=()):
    """Every place in a tree, from its root on."""
    yield above
    if isinstance(tree, dict | list | tuple):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*above, key))


def at(tree, place):
    for key in place:
        tree = tree[key]
    return tree


@st.composite
def changed(draw, tree):
    """The tree with one thing put where another was, taken out, or put in; and where."""
    place = draw(st.sampled_from([p for p in places(tree) if len(p) <= 4]))
    if not place:
        return draw(TREES), place
    tree = copy.deepcopy(tree)
    inside = at(tree, place[:-1])
    if isinstance(inside, tuple):
        return tree, place
    kind = draw(st.sampled_from(["replace", "remove", "add"]))
    if kind == "replace":
        inside[place[-1]] = draw(TREES)
    elif kind == "remove":
        del inside[place[-1]]
    elif isinstance(inside, dict):
        inside[draw(st.text(max_size=3))] = draw(TREES)
    return tree, place


@contextmanager
def named(file):
    """What goes well, or is a FileError with the name of the file."""
    try:
        yield
    except FileError as error:
        if str(file) not in str(error):
            raise AssertionError("it does not name the file") from error


CONFIG = quick_config("ewc", "three")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run in its second task, and its two checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    run_until(in_task(1), CONFIG, root)
    found = RunDirectory.of(root, CONFIG, 0)
    return (
        found,
        load_tree(found.checkpoint),
        {file: file.read_bytes() for file in found.path.rglob("*") if file.is_file()},
    )


@pytest.fixture(scope="module")
def saved(stopped):
    """A learner as `Learner.save` writes it, in the middle of a task."""
    return {"afec": "learner", **stopped[1]["experiment"]}


# What a guard and an optimiser keep for a task in its middle is looked at when that task goes on; its checksum was right.
INSIDE = {("experiment", "inside"), ("experiment", "guard")}
NET = build(CONFIG, 0)[1]


def learner():
    return afec.Learner(copy.deepcopy(NET), afec.EWC(10.0), schedule=training_of(CONFIG.training)[0], progress=False)


PATIENT = settings(suppress_health_check=[HealthCheck.too_slow])


@PATIENT
@given(data=st.data())
def test_any_file_is_a_learner_or_a_file_error(data, saved, tmp_path_factory):
    file = tmp_path_factory.mktemp("l") / "learner.safetensors"
    save_tree(file, data.draw(changed(saved))[0])
    with named(file):
        learner().load(file)


@pytest.mark.slow
@PATIENT
@given(data=st.data())
def test_any_checkpoint_is_taken_up_or_named_and_left(data, stopped):
    found, state, files = stopped
    for file, content in files.items():
        file.write_bytes(content)
    (found.path / "DONE").unlink(missing_ok=True)
    tree, place = data.draw(changed(state))
    save_tree(found.checkpoint, tree)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run(CONFIG, 0, found.path.parents[3], stop=Token(asked=True))
        except StoppedError:
            pass
        except Exception:
            if place[:2] not in INSIDE:
                raise
    for warning in said:
        assert "checkpoint" in str(warning.message)
        assert str(found.path) in str(warning.message)


def test_a_checkpoint_of_another_run_gives_way_to_the_one_before(stopped, whole_bytes, tmp_path):
    found, _, files = stopped
    for file, content in files.items():
        file.write_bytes(content)
    other = run(quick_config("ewc", "tiny"), 0, tmp_path)
    save_tree(found.checkpoint, load_tree(other.path / LEARNER))
    with pytest.warns(RuntimeWarning, match="went on from the checkpoint before it: .*it is no checkpoint of this run"):
        run(CONFIG, 0, found.path.parents[3])
    assert (found.path / "scores.csv").read_bytes() == whole_bytes


@pytest.fixture(scope="module")
def whole_bytes(tmp_path_factory):
    return (run(CONFIG, 0, tmp_path_factory.mktemp("whole")).path / "scores.csv").read_bytes()


def test_foreign_files_among_the_shared_trainings_change_nothing(tmp_path, whole_bytes):
    run(CONFIG, 0, tmp_path)
    shared = list((tmp_path / "quick" / "shared").iterdir())
    assert shared
    weights = load_tree(shared[0])["weights"]
    name = next(iter(weights))
    for number, tree in enumerate(
        [[1], {"weights": 1}, {"weights": {**weights, name: torch.zeros(1)}, "history": [0.5], "best_epoch": 1}]
    ):
        for file in shared:
            save_tree(file, tree)
        (found,) = find_runs(tmp_path / "quick" / "ewc")
        (found.path / "DONE").unlink()
        again = run(CONFIG, 0, tmp_path)
        assert (again.path / "scores.csv").read_bytes() == whole_bytes, number


@pytest.mark.slow
@PATIENT
@given(data=st.data())
def test_any_weights_are_drawn_or_a_file_error(data, drawable, tmp_path_factory):
    config, found, tree = drawable
    file = found.path / LEARNER
    save_tree(file, data.draw(changed(tree))[0])
    with named(file):
        draw_study(tmp_path_factory.mktemp("p") / "p.svg", [(config, found)])


def test_weights_of_another_net_are_not_drawn(drawable, tmp_path):
    config, found, tree = drawable
    file = found.path / LEARNER
    save_tree(file, {"weight": torch.zeros(2)})
    with pytest.raises(FileError, match="learner.safetensors is no file of Learner.save"):
        draw_study(tmp_path / "p.svg", [(config, found)])
    name = next(iter(tree["net"]))
    save_tree(file, {**tree, "net": {**tree["net"], name: torch.zeros(1)}})
    with pytest.raises(FileError, match=f"learner.safetensors: the state is of another net: '{name}' has the shape"):
        draw_study(tmp_path / "p.svg", [(config, found)])
    save_tree(file, tree)
    draw_study(tmp_path / "p.svg", [(config, found)])


@pytest.fixture(scope="module")
def drawable(tmp_path_factory):
    training = {"max_epochs": 1, "patience": 1}
    config = resolve(load_benchmark("digits-regression"), "finetune", "smoke", {"training": training})
    found = run(config, 0, tmp_path_factory.mktemp("regression"))
    return config, found, load_tree(found.path / LEARNER)
