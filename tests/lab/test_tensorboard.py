"""Logs for TensorBoard: what stands in the run directory, once, however often the run was stopped."""

from __future__ import annotations

import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from afec.cli import main
from afec.lab import Job, RunDirectory, SpecError, execute, find_runs, run
from afec.lab.tensorboard import FILES, Board, scalars
from afec.metrics import aac_curve
from small_lab import quick_config, quick_file
from stopped_runs import run_until, steps


def logged(folder):
    """All scalars that TensorBoard finds there, by tag and step; every one must be there once."""
    reader = EventAccumulator(str(folder), purge_orphaned_data=False).Reload()
    found = [((tag, event.step), event.value) for tag in reader.Tags()["scalars"] for event in reader.Scalars(tag)]
    assert len(dict(found)) == len(found)
    return dict(found)


def of(board, found):
    return board.joinpath(*found.path.parts[-4:])


@pytest.mark.parametrize("method", ["ewc+afec", "joint", "scratch"])
def test_a_log_has_what_the_run_directory_has(method, in_process, tmp_path):
    config = quick_config(method, "three")
    (outcome,) = execute([Job(config, 0)], tmp_path / "runs", 1, board=tmp_path / "board")
    found = outcome.directory
    seen = logged(of(tmp_path / "board", found))
    assert seen == pytest.approx(scalars(found), rel=1e-6)
    epochs = [event for event in found.events() if event["event"] == "progress"]
    assert {(f"lr/task{task}/train", 1) for task in (1, 2, 3)} <= seen.keys()
    assert len([tag for tag, _ in seen if tag.startswith("loss/")]) == len(epochs)
    for event in epochs:
        place = f"task{event['task']}/{event['phase']}", event["number"]
        assert seen[f"loss/{place[0]}", place[1]] == pytest.approx(event["loss"], rel=1e-6)
        assert seen[f"lr/{place[0]}", place[1]] == pytest.approx(event["lr"], rel=1e-6)
    for score in found.scores():
        assert seen[f"accuracy/test/task{score.task}", score.after] == pytest.approx(score.test, rel=1e-6)
        assert seen[f"accuracy/validation/task{score.task}", score.after] == pytest.approx(score.validation, rel=1e-6)
    averages = {step: value for (tag, step), value in seen.items() if tag == "average/test"}
    if method == "scratch":  # of the first task alone
        assert set(averages) == {1}
    else:
        assert averages == pytest.approx(dict(enumerate(aac_curve(found.matrix()), start=1)), rel=1e-6)
    if method == "ewc+afec":
        assert any(tag == "lr/task2/theta_e" for tag, _ in seen)


def test_the_run_is_the_same_with_and_without_a_log(in_process, tmp_path):
    job = Job(quick_config("ewc", "three"), 0)
    (one,) = execute([job], tmp_path / "a", 1, board=tmp_path / "board")
    (two,) = execute([job], tmp_path / "b", 1)
    assert one.directory.path.relative_to(tmp_path / "a") == two.directory.path.relative_to(tmp_path / "b")
    for name in ("scores.csv", "config.toml"):
        assert (one.directory.path / name).read_bytes() == (two.directory.path / name).read_bytes()
    assert not list((tmp_path / "a").rglob(FILES))


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_a_run_that_was_stopped_goes_on_in_its_log_without_doubled_steps(epochs, in_process, tmp_path):
    config, board = quick_config("ewc", "three"), tmp_path / "board"
    found = RunDirectory.of(tmp_path, config, 0)
    with Board(board, found) as log:
        run_until(steps(epochs), config, tmp_path, on_saved=log.update)
    begun = logged(of(board, found))
    assert begun == pytest.approx(scalars(found), rel=1e-6)
    # As after a kill between the events and their checkpoint: the last epoch is there, and will be done again.
    event = next(event for event in reversed(list(found.events())) if event["event"] == "progress")
    found.append_events([{**event, "number": event["number"] + 1, "loss": 1e9}])
    execute([Job(config, 0)], tmp_path, 1, board=board)
    whole = run(config, 0, tmp_path / "whole")
    seen = {key: value for key, value in logged(of(board, found)).items() if value != 1e9}
    expected = scalars(whole)
    assert {key: seen[key] for key in expected} == pytest.approx(expected, rel=1e-6)
    assert seen == pytest.approx({key: value for key, value in scalars(found).items() if value != 1e9}, rel=1e-6)


def test_a_finished_run_gets_its_log_later_and_keeps_it(in_process, tmp_path):
    config, board = quick_config("ewc", "tiny"), tmp_path / "board"
    found = run(config, 0, tmp_path)
    execute([Job(config, 0)], tmp_path, 1, board=board)
    (file,) = of(board, found).glob(FILES)
    assert logged(file.parent) == pytest.approx(scalars(found), rel=1e-6)
    stamp = file.stat().st_mtime_ns
    execute([Job(config, 0)], tmp_path, 1, board=board)
    assert file.stat().st_mtime_ns == stamp


def test_a_log_that_cannot_be_written_stops_no_run(in_process, tmp_path):
    (tmp_path / "board").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="no more of this run is logged: "):
        (outcome,) = execute([Job(quick_config("ewc", "tiny"), 0)], tmp_path / "runs", 1, board=tmp_path / "board")
    assert outcome.error is None
    assert outcome.directory.done


def test_from_the_command_line(in_process, tmp_path, capsys):
    runs, board = tmp_path / "runs", tmp_path / "board"
    options = ["--runs", str(runs), "--tensorboard", str(board)]
    assert main(["run", quick_file(tmp_path), "--scale", "tiny", "-m", "ewc", "--seeds", "2", *options]) == 0
    assert len(find_runs(runs)) == 2
    for found in find_runs(runs):
        assert logged(of(board, found)) == pytest.approx(scalars(found), rel=1e-6)
        (found.path / "DONE").unlink()
    assert main(["resume", str(runs), "--tensorboard", str(tmp_path / "other")]) == 0
    assert len(list((tmp_path / "other").rglob(FILES))) == 2


def test_without_the_package_nothing_is_run(in_process, tmp_path, monkeypatch, capsys):
    for name in ("torch.utils.tensorboard", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SpecError, match=r"needs its package .*: pip install 'afec\[tensorboard\]'"):
        execute([Job(quick_config("ewc", "tiny"), 0)], tmp_path / "runs", 1, board=tmp_path / "board")
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--runs", str(tmp_path / "runs")]
    assert main([*command, "--tensorboard", str(tmp_path / "board")]) == 2
    shown = capsys.readouterr()
    assert "pip install 'afec[tensorboard]'" in shown.err
    assert shown.out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["quick.toml"]
