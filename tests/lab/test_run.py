"""One run in its directory: stopped anywhere, it goes on to the same bytes; damaged checkpoints; what it writes on its way."""

import fcntl
import json
import os
import sys
from dataclasses import asdict

import pytest
import torch

from afec.data.root import data_root
from afec.experiments import StoppedError, supervised
from afec.experiments.supervised import LEARNER
from afec.files import load_tree
from afec.lab import Job, Place, RunDirectory, check_runnable, execute, run
from small_lab import quick_config
from stopped_runs import Token, run_until, steps

# -- stopping and going on ----------------------------------------------------------------------------------------


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
    + [("finetune", 3), ("si", 3)]
    + [("scratch", n) for n in range(1, 7)]
    + [("joint", n) for n in range(1, 7)]
    + [("ags-cl", 3), ("progress-compress+afec", 6), ("progress-compress+afec", 8), ("progress-compress+afec", 9)],
)
def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_bytes(method, epochs, tmp_path, whole):
    config = quick_config(method, "three")
    run_until(steps(epochs), config, tmp_path)
    directory = RunDirectory.of(tmp_path, config, 0)
    assert run(config, 0, tmp_path) == directory
    assert directory.done
    for file in ("scores.csv", "config.toml"):
        assert (directory.path / file).read_bytes() == (whole(method).path / file).read_bytes()
    if method != "scratch":
        one, other = (load_tree(found.path / LEARNER)["net"] for found in (directory, whole(method)))
        assert one.keys() == other.keys()
        assert all(one[name].equal(other[name]) for name in one)
    assert (directory.epochs, directory.samples) == (whole(method).epochs, whole(method).samples)
    assert not directory.checkpoint.exists()


def test_a_run_goes_on_from_its_middle_and_not_from_its_beginning(tmp_path):
    config = quick_config("ewc+afec", "three")
    last = run_until(steps(7), config, tmp_path)[-1]
    assert (last.task, last.phase, last.step) == (2, "theta_e", 1)
    seen = []
    run(config, 0, tmp_path, seen.append)
    assert (seen[0].task, seen[0].phase, seen[0].step) == (2, "theta_e", 2)


@pytest.mark.parametrize("method", ["scratch", "joint"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_reference_goes_on_from_its_middle_too(method, epochs, tmp_path):
    config, seen = quick_config(method, "three"), []
    run_until(steps(epochs), config, tmp_path)
    run(config, 0, tmp_path, seen.append)
    assert (seen[0].task, seen[0].step) == (epochs // 2, 2)
    assert len(seen) == 6 - epochs


def test_a_stop_that_was_asked_for_before_the_run_ends_it_after_its_first_step(tmp_path):
    config, seen = quick_config("ewc", "three"), []
    with pytest.raises(StoppedError):
        run(config, 0, tmp_path, seen.append, stop=Token(asked=True))
    assert len(seen) == 1
    assert RunDirectory.of(tmp_path, config, 0).checkpoint.exists()


def test_an_error_in_a_progress_callback_is_a_crash_and_writes_no_checkpoint(tmp_path, whole):
    """Only a token asks for a stop; what a callback raises is a fault of its own, and the last checkpoint stays as it was."""
    config = quick_config("ewc", "three")
    directory = RunDirectory.of(tmp_path, config, 0)

    def crash(progress):
        if progress.task == 1:
            raise ZeroDivisionError("of the callback")

    with pytest.raises(ZeroDivisionError, match="of the callback"):
        run(config, 0, tmp_path, crash)
    assert [file.exists() for file in directory.checkpoints] == [True, False]
    assert load_tree(directory.checkpoint)["tasks_done"] == 1  # of the end of the first task
    run(config, 0, tmp_path)
    assert (directory.path / "scores.csv").read_bytes() == (whole("ewc").path / "scores.csv").read_bytes()


def test_a_run_that_is_stopped_after_every_epoch(tmp_path, whole):
    config = quick_config("ewc+afec", "three")
    for _ in range(9):
        run_until(steps(1), config, tmp_path)
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

    def look(progress):
        file = RunDirectory.of(tmp_path, config, 0).checkpoint
        times.append(file.stat().st_mtime_ns if file.exists() else None)

    run(config, 0, tmp_path, look)
    assert len(set(times)) == len(times) == 6


DAMAGE = {"cut": lambda content: content[:-200], "empty": lambda content: b"", "other": lambda content: b"x" * 500}


def damaged(config, root, damage, files):
    """A run that was stopped in its second task, with the first so many of its checkpoints damaged."""
    run_until(steps(6), config, root)
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
    assert (seen[0].task, seen[0].phase, seen[0].step) == (1, "train", 1)
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

    class Killed(BaseException):
        pass

    def kill(path, tree):
        raise Killed

    monkeypatch.setattr("afec.files.save_tree", kill)
    with pytest.warns(RuntimeWarning, match="went on from"), pytest.raises(Killed):
        run(config, 0, tmp_path)
    state, faults = directory.load_checkpoint()
    assert state["tasks_done"] == 1
    assert faults == []
    assert len(notes(directory)) == 1


def test_while_it_runs_a_run_is_locked_and_has_two_checkpoints(tmp_path, monkeypatch):
    always_saving(monkeypatch)
    config, seen = quick_config("ewc", "three"), []
    directory = RunDirectory.of(tmp_path, config, 0)

    def look(progress):
        with (directory.path / "lock").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append([load_tree(f)["experiment"]["inside"] is not None for f in directory.checkpoints if f.exists()])

    run(config, 0, tmp_path, look)
    # After the first epoch of a task the last checkpoint is of the end of the task before, which is between two tasks.
    assert seen == [[], [True], [False, True], [True, False], [False, True], [True, False]]
    assert not any(file.exists() for file in directory.checkpoints)


def test_what_earlier_processes_took_is_part_of_the_cost(tmp_path):
    config = quick_config("ewc", "three")
    run_until(steps(3), config, tmp_path)
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


def test_the_data_directory_is_part_of_the_job_and_of_nothing_else(in_process, tmp_path, monkeypatch):
    """Two jobs of one study may have two; neither the environment nor what is read afterwards changes."""
    used, real = [], supervised.build
    monkeypatch.setattr(supervised, "build", lambda *given: used.append(data_root()) or real(*given))
    monkeypatch.setenv("AFEC_DATA", str(tmp_path / "usual"))
    config = quick_config("ewc", "tiny")
    places = [Place(data=tmp_path / "one"), Place(), Place(data=tmp_path / "other")]
    jobs = [Job(config, seed, place) for seed, place in enumerate(places)]
    check_runnable(jobs[2:])
    execute(jobs, tmp_path / "runs")
    assert [folder.name for folder in used] == ["other", "one", "usual", "other"]
    assert os.environ["AFEC_DATA"] == str(tmp_path / "usual")
    assert data_root() == tmp_path / "usual"


def test_nothing_outside_is_advanced(tmp_path):
    before = torch.get_rng_state()
    run(quick_config("ewc+afec", "tiny"), 0, tmp_path)
    assert torch.get_rng_state().equal(before)


def test_events_are_json(tmp_path):
    directory = run(quick_config("ewc", "tiny"), 0, tmp_path)
    for line in (directory.path / "events.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
    assert [asdict(score)["after"] for score in directory.scores()] == [0, 0, 1, 1, 2, 2]
