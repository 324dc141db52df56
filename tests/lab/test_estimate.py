"""How long a study will take: numbers by hand, and a dry run that is one."""

from __future__ import annotations

import json

import pytest

from afec.cli import main
from afec.lab import Job, RunDirectory, process_memory
from afec.lab.estimate import Estimate, estimate
from afec.whole_files import write_text
from small_lab import quick_config, quick_file


def finished(root, seconds, name="ewc", seed=0, scale="tiny", **sections):
    config = quick_config(name, scale, **sections)
    directory = RunDirectory.of(root, config, seed)
    write_text(directory.path / "config.toml", config.to_toml())
    directory.finish({"wall_seconds": seconds})
    return directory


def jobs(name, seeds, scale="tiny", **sections):
    return [Job(quick_config(name, scale, **sections), seed) for seed in seeds]


def test_nothing_is_known_before_a_run_is_done(tmp_path):
    assert estimate(jobs("ewc", range(3)), tmp_path / "nowhere", 2) == Estimate(3, 0, 0, None)
    finished(tmp_path, 10.0, scale="three")  # another scale says nothing
    found = estimate(jobs("ewc", range(3)), tmp_path, 2)
    assert found == Estimate(3, 0, 0, None)
    assert str(found) == (
        "3 runs: 0 done, 0 begun, 3 to start; how long it takes is not known before a run of this benchmark and scale is done"
    )


def test_the_mean_of_the_finished_runs_of_the_same_row(tmp_path):
    finished(tmp_path, 10.0, seed=0)
    finished(tmp_path, 20.0, seed=1)
    finished(tmp_path, 500.0, "ewc+afec")
    finished(tmp_path, 900.0, method={"ewc": {"strength": 77}})
    assert estimate(jobs("ewc", range(4)), tmp_path, 1) == Estimate(4, 2, 0, 30.0)
    # Another strength that was never run: the mean of the method, (10 + 20 + 900) / 3.
    assert estimate(jobs("ewc", [0], method={"ewc": {"strength": 5}}), tmp_path, 1).seconds == pytest.approx(310)
    # A method that was never run: the mean of the benchmark at this scale.
    assert estimate(jobs("mas", [0]), tmp_path, 1).seconds == pytest.approx((10 + 20 + 500 + 900) / 4)
    # Where nothing is left, nothing is left to wait for.
    assert estimate(jobs("ewc", range(2)), tmp_path, 1) == Estimate(2, 2, 0, 0.0)


def test_workers_share_the_runs_as_the_pool_does(tmp_path):
    finished(tmp_path, 10.0, "ewc")
    finished(tmp_path, 100.0, "mas")
    three = jobs("ewc", [1, 2, 3])
    assert [estimate(three, tmp_path, workers).seconds for workers in (1, 2, 3, 8)] == [30, 20, 10, 10]
    mixed = [*three, *jobs("mas", [1])]  # 10, 10, 10, 100: the long one begins last, after ten seconds
    assert estimate(mixed, tmp_path, 2).seconds == 110
    assert estimate(mixed[::-1], tmp_path, 2).seconds == 100
    assert estimate([*three, *three], tmp_path, 1) == Estimate(3, 0, 0, 30.0)  # a run that is asked for twice is one


def test_begun_runs_are_counted_as_such(tmp_path):
    finished(tmp_path, 10.0)
    directory = RunDirectory.of(tmp_path, quick_config("ewc", "tiny"), 1)
    write_text(directory.checkpoint, "some")
    assert estimate(jobs("ewc", range(3)), tmp_path, 1) == Estimate(3, 1, 1, 20.0)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"wall_seconds": null}', '{"wall_seconds": "x"}', "\x00"])
def test_what_cannot_be_read_is_left_out(tmp_path, text):
    finished(tmp_path, 10.0)
    (finished(tmp_path, 99.0, seed=1).path / "DONE").write_text(text)
    (finished(tmp_path, 99.0, seed=2).path / "config.toml").write_text("method = ")
    assert estimate(jobs("ewc", [7]), tmp_path, 1).seconds == 10


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 seconds"), (90, "90 seconds"), (91, "2 minutes"), (5400, "90 minutes"), (5401, "1.5 hours")],
)
def test_in_words(seconds, words):
    assert str(Estimate(4, 1, 1, seconds)) == f"4 runs: 1 done, 1 begun, 2 to start; about {words}"
    assert str(Estimate(4, 4, 0, 0.0)) == "4 runs: 4 done, 0 begun, 0 to start"


def test_a_dry_run_runs_nothing_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("afec.cli.work.execute", lambda *arguments, **options: pytest.fail("it ran"))
    runs, name = tmp_path / "runs", quick_file(tmp_path)
    command = ["run", name, "--scale", "tiny", "--method", "ewc", "mas", "--seeds", "2", "--dry-run", "--workers", "2"]
    command += ["--runs", str(runs)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[:2] == ["quick, ewc (λ=10)", "quick, mas (λ=1)"]
    assert "4 runs: 0 done, 0 begun, 4 to start; how long it takes is not known" in shown
    assert "on 2 processes; nothing was run" in shown
    assert not runs.exists()
    done = finished(runs, 30.0)
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    assert main(command) == 0
    # ewc seed 1: 30; mas: 30 each by the benchmark's mean; two processes need two rounds.
    assert "4 runs: 1 done, 0 begun, 3 to start; about 60 seconds, on 2 processes" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()} == before
    assert json.loads((done.path / "DONE").read_text()) == {"wall_seconds": 30.0}


def test_a_dry_run_refuses_what_a_run_refuses(tmp_path, capsys):
    assert main(["run", "digits", "--scale", "smok", "--dry-run", "--runs", str(tmp_path / "r")]) == 2
    assert "did you mean 'smoke'" in capsys.readouterr().err


# -- memory -------------------------------------------------------------------------------------------------------


def test_peak_memory_is_of_this_run_and_in_megabytes():
    process_memory.reset_peak_memory()
    before = process_memory.peak_memory_mb()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])  # touched, so that it is there
    peak = process_memory.peak_memory_mb()
    assert 20 < before < 100_000
    assert peak >= 64
    del block
    assert process_memory.peak_memory_mb() >= peak - 1  # a peak does not go down by itself


def test_peak_memory_from_what_the_system_says(tmp_path, monkeypatch):
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t  204800 kB\nThreads:\t1\n")
    monkeypatch.setattr(process_memory, "STATUS", tmp_path / "status")
    assert process_memory.peak_memory_mb() == 200
    monkeypatch.setattr(process_memory, "STATUS", tmp_path / "gone")
    monkeypatch.setattr(process_memory, "CLEAR", tmp_path / "gone" / "too")
    process_memory.reset_peak_memory()  # it cannot, and says nothing
    resource = pytest.importorskip("resource")
    usage = type("Usage", (), {"ru_maxrss": 300 * 2**20})
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(process_memory.sys, "platform", "darwin")
    assert process_memory.peak_memory_mb() == 300
    monkeypatch.setattr(process_memory.sys, "platform", "linux")
    assert process_memory.peak_memory_mb() == 300 * 1024
