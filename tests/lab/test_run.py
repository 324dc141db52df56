"""One run: the numbers of a hand-written loop, references, resume from any epoch."""

import fcntl
import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from small_lab import quick, quick_config

from afec.files import load_tree
from afec.lab import Job, RunDirectory, build, execute, resolve, run
from afec.lab import run as run_function
from afec.learner import Learner, NotFiniteError
from afec.methods.expression import make_method
from afec.nets import MultiHead

METHODS = ["finetune", "ewc", "ewc+afec", "si+afec", "ags-cl", "progress-compress+afec"]


def by_hand(config, seed):
    """scores.csv by a loop that anybody could have written."""
    stream, net = build(config, seed)
    learner = Learner(net, make_method(config.method, config.settings), schedule=config.schedule, seed=seed)
    lines = ["after,task,name,validation,test"]

    def measure(after):
        accuracies = zip(learner.evaluate(stream.tasks, "validation"), learner.evaluate(stream.tasks), strict=True)
        for number, (validation, test) in enumerate(accuracies, start=1):
            lines.append(f"{after},{number},{stream.tasks[number - 1].name},{validation:.6f},{test:.6f}")

    measure(0)
    for after, task in enumerate(stream.tasks, start=1):
        learner.learn(task)
        measure(after)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_gives_the_numbers_of_a_loop_by_hand(method, tmp_path):
    config = quick_config(method, "tiny")
    assert (run(config, 3, tmp_path).path / "scores.csv").read_text() == by_hand(config, 3)


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
        learner = Learner(alone, schedule=config.schedule, seed=0)
        learner.learn(stream.tasks[number])
        assert matrix[number + 1, number] == pytest.approx(learner.evaluate(stream.tasks[number])[0], abs=1e-6)


def test_scratch_and_finetune_agree_on_the_first_task(tmp_path):
    scratch, finetune = (run(quick_config(method), 0, tmp_path).matrix() for method in ("scratch", "finetune"))
    assert scratch[1, 0] == finetune[1, 0]
    np.testing.assert_array_equal(scratch[0], finetune[0])


def test_joint_sees_all_data_so_far(tmp_path):
    directory = run(quick_config("joint", "tiny"), 0, tmp_path)
    stream, _ = build(directory.config, 0)
    sizes = [task.train.size for task in stream.tasks]
    assert [task["samples"] for task in directory.tasks()] == [sizes[0], sum(sizes)]
    assert directory.matrix().shape == (3, 2)


# -- stopping and going on ----------------------------------------------------------------------------------------


class Stop(BaseException):
    """The machine was switched off."""


def stopped_after(epochs, config, root):
    """Run and stop after so many epochs."""
    seen = []

    def stop(phase):
        seen.append(phase)
        if len(seen) == epochs:
            raise Stop

    with pytest.raises(Stop):
        run(config, 0, root, stop)
    return seen[-1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped."""
    root, known = tmp_path_factory.mktemp("whole"), {}

    def get(method):
        if method not in known:
            known[method] = run(quick_config(method, "three"), 0, root / method)
        return known[method]

    return get


@pytest.mark.parametrize(
    ("method", "epochs"),
    [("ewc+afec", n) for n in (1, 2, 3, 4, 5, 7, 9)]
    + [("finetune", 3), ("si", 3), ("joint", 3), ("scratch", 3), ("scratch", 5), ("joint", 5)]
    + [("ags-cl", 3), ("progress-compress+afec", 6), ("progress-compress+afec", 8), ("progress-compress+afec", 9)],
)
def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_bytes(method, epochs, tmp_path, whole):
    config = quick_config(method, "three")
    stopped_after(epochs, config, tmp_path)
    directory = RunDirectory.of(tmp_path, config, 0)
    assert not directory.done
    assert run(config, 0, tmp_path) == directory
    assert directory.done
    for file in ("scores.csv", "config.toml"):
        assert (directory.path / file).read_bytes() == (whole(method).path / file).read_bytes()
    if method != "scratch":
        one, other = (load_tree(found.path / "weights/task3.safetensors") for found in (directory, whole(method)))
        assert all(one[name].equal(other[name]) for name in one)
    assert (directory.epochs, directory.samples) == (whole(method).epochs, whole(method).samples)
    assert not directory.checkpoint.exists()


def test_a_run_goes_on_from_its_middle_and_not_from_its_beginning(tmp_path):
    config = quick_config("ewc+afec", "three")
    last = stopped_after(7, config, tmp_path)
    assert (last.task, last.phase, last.epoch.number) == (2, "theta_e", 1)
    seen = []
    run(config, 0, tmp_path, seen.append)
    assert (seen[0].task, seen[0].phase, seen[0].epoch.number) == (2, "theta_e", 2)


def test_a_run_that_is_stopped_after_every_epoch(tmp_path, whole):
    config = quick_config("ewc+afec", "three")
    for _ in range(9):
        stopped_after(1, config, tmp_path)
    again = run(config, 0, tmp_path)
    assert (again.path / "scores.csv").read_bytes() == (whole("ewc+afec").path / "scores.csv").read_bytes()
    assert again.epochs == whole("ewc+afec").epochs == 3 * 2 + 2 * 2


def always_saving(monkeypatch):
    """A checkpoint after every epoch, however short an epoch is and however long writing takes."""
    monkeypatch.setattr(sys.modules["afec.lab.run"], "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(sys.modules["afec.lab.run"], "BETWEEN", 0)


def test_checkpoints_are_written_inside_a_task_too(tmp_path, monkeypatch):
    always_saving(monkeypatch)
    config, times = quick_config("ewc", "three"), []

    def look(phase):
        file = RunDirectory.of(tmp_path, config, 0).checkpoint
        times.append(file.stat().st_mtime_ns if file.exists() else None)

    run(config, 0, tmp_path, look)
    assert len(set(times)) == len(times) == 6


DAMAGE = {"cut": lambda content: content[:-200], "empty": lambda content: b"", "other": lambda content: b"x" * 500}


def damaged(config, root, damage, files):
    """A run that was stopped in its second task, with the first so many of its checkpoints damaged."""
    stopped_after(6, config, root)
    directory = RunDirectory.of(root, config, 0)
    assert [file.exists() for file in directory.checkpoints] == [True, True]
    for file in directory.checkpoints[:files]:
        content = file.read_bytes()
        file.unlink()  # one file may have both names
        file.write_bytes(DAMAGE[damage](content))
    return directory


def notes(directory):
    return [event["text"] for event in directory.events() if event["event"] == "note"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_goes_on_from_the_one_before_it_and_says_so(damage, tmp_path, whole):
    config, seen = quick_config("ewc+afec", "three"), []
    directory = damaged(config, tmp_path, damage, 1)
    with pytest.warns(RuntimeWarning, match="went on from the checkpoint before it: .*checkpoint.safetensors"):
        run(config, 0, tmp_path, seen.append)
    # From the end of the first task; θ_e of the second is known from before the stop.
    assert (seen[0].task, seen[0].phase, seen[0].epoch.number) == (1, "train", 1)
    (note,) = notes(directory)
    assert note.startswith("went on from the checkpoint before it: ")
    assert "checkpoint.safetensors" in note
    assert (directory.path / "scores.csv").read_bytes() == (whole("ewc+afec").path / "scores.csv").read_bytes()
    assert (directory.epochs, directory.samples) == (whole("ewc+afec").epochs, whole("ewc+afec").samples)


@pytest.mark.parametrize("damage", DAMAGE)
def test_two_damaged_checkpoints_are_a_new_start_and_the_events_say_so(damage, tmp_path, whole):
    config = quick_config("ewc+afec", "three")
    directory = damaged(config, tmp_path, damage, 2)
    with pytest.warns(RuntimeWarning, match="started anew: .*checkpoint"):
        run(config, 0, tmp_path)
    found = notes(directory)
    assert len(found) == 2
    assert all(note.startswith("started anew: ") for note in found)
    assert "checkpoint.safetensors" in found[0]
    assert "checkpoint-before.safetensors" in found[1]
    assert (directory.path / "scores.csv").read_bytes() == (whole("ewc+afec").path / "scores.csv").read_bytes()
    assert directory.epochs == whole("ewc+afec").epochs  # of what was written twice, the last counts


def test_a_damaged_checkpoint_never_takes_the_place_of_the_whole_one_before_it(tmp_path, monkeypatch):
    """Stopped again while the next checkpoint is written: there is still one to go on from."""
    config = quick_config("ewc+afec", "three")
    directory = damaged(config, tmp_path, "cut", 1)

    def stop(path, tree):
        raise Stop

    monkeypatch.setattr("afec.lab.directory.save_tree", stop)
    with pytest.warns(RuntimeWarning, match="went on from"), pytest.raises(Stop):
        run(config, 0, tmp_path)
    state, faults = directory.load_checkpoint()
    assert state["tasks_done"] == 1
    assert faults == []
    assert len(notes(directory)) == 1


def test_while_it_runs_a_run_is_locked_and_has_two_checkpoints(tmp_path, monkeypatch):
    always_saving(monkeypatch)
    config, seen = quick_config("ewc", "three"), []
    directory = RunDirectory.of(tmp_path, config, 0)

    def look(phase):
        with (directory.path / "lock").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append([load_tree(f)["learner"]["inside"] is not None for f in directory.checkpoints if f.exists()])

    run(config, 0, tmp_path, look)
    # After the first epoch of a task the last checkpoint is of the end of the task before, which is between two tasks.
    assert seen == [[], [True], [False, True], [True, False], [False, True], [True, False]]
    assert not any(file.exists() for file in directory.checkpoints)


def test_what_earlier_processes_took_is_part_of_the_cost(tmp_path):
    config = quick_config("ewc", "three")
    stopped_after(3, config, tmp_path)
    directory = RunDirectory.of(tmp_path, config, 0)
    before = {"wall_seconds": 1e6, "cpu_seconds": 2e6, "peak_memory_mb": 3e6}
    directory.save_checkpoint({**load_tree(directory.checkpoint), "cost": before})
    run(config, 0, tmp_path)
    cost = json.loads((directory.path / "DONE").read_text())
    assert cost["wall_seconds"] > 1e6
    assert cost["cpu_seconds"] > 2e6
    assert cost["peak_memory_mb"] == 3e6


def test_a_run_that_was_stopped_just_before_its_end_is_only_finished(tmp_path, monkeypatch, whole):
    config = quick_config("ewc+afec", "three")
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish", lambda self, cost: None)  # as if the machine had stopped there
        directory = run(config, 0, tmp_path)
    assert not directory.done
    assert directory.checkpoint.exists()
    run(config, 0, tmp_path, on_progress=lambda progress: pytest.fail("nothing is left to learn"))
    assert directory.done
    assert (directory.path / "scores.csv").read_bytes() == (whole("ewc+afec").path / "scores.csv").read_bytes()


def test_what_a_kill_has_left_of_a_finished_run_is_removed(in_process, tmp_path):
    config = quick_config("ewc", "tiny")
    found = run(config, 0, tmp_path)
    whole = {file.name: file.read_bytes() for file in found.path.iterdir() if file.is_file()}
    for again in (lambda: run(config, 0, tmp_path), lambda: execute([Job(config, 0)], tmp_path, 1)):
        for name in ("checkpoint.safetensors", "checkpoint-before.safetensors", ".0123456789abcdef.tmp", "FAILED"):
            (found.path / name).write_text("killed between DONE and this")
        again()
        assert {file.name: file.read_bytes() for file in found.path.iterdir() if file.is_file()} == whole


def test_divergence_is_an_error(tmp_path):
    with pytest.raises(NotFiniteError, match="training diverged; lower the learning rate"):
        run(quick_config("finetune", training={"lr": 1e30}), 0, tmp_path)


def test_nothing_outside_is_advanced(tmp_path):
    before = torch.get_rng_state()
    run_function(resolve(quick(), "ewc+afec", "tiny"), 0, tmp_path)
    assert torch.get_rng_state().equal(before)


def test_events_are_json(tmp_path):
    directory = run(quick_config("ewc", "tiny"), 0, tmp_path)
    for line in (directory.path / "events.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
    assert [asdict(row)["after"] for row in directory.scores()] == [0, 0, 1, 1, 2, 2]
