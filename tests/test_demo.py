"""The demo as a user calls it, at the scale of seconds; and what it says when something goes wrong."""

import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from afec.demo.__main__ import main
from afec.demo.rows import ROWS, SMOKE, Result, Row, learn_both, learn_first
from afec.demo.show import comparisons
from afec.demo.tuning import FIRST_SEED, TRIALS, best_of
from afec.demo.workers import RowError, run_rows
from afec.learner import Schedule


def result(row, seed, average, validation=0.5, strength=1.0, forgetting=0.0):
    return Result(
        row, seed, strength, forgetting, average, average, validation, validation, 1, 0, 1, (np.zeros(2),) * 2
    )


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """The whole command as a user calls it, with two processes."""
    out = tmp_path_factory.mktemp("two")
    command = [
        sys.executable,
        "-m",
        "afec.demo",
        "--scale",
        "smoke",
        "--seeds",
        "2",
        "--workers",
        "2",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_command_prints_table_comparisons_and_paths(two_workers):
    out, done = two_workers
    assert done.stderr == ""
    for row in ROWS:
        assert str(row) in done.stdout
    assert "mean ± std of 2 seeds" in done.stdout
    assert "ewc+afec minus ewc: " in done.stdout
    assert "ewc+afec minus ewc (equal compute): " in done.stdout
    assert "95 % interval" in done.stdout
    assert str(out / "circles.png") in done.stdout
    assert (out / "circles.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in sorted(out.iterdir())] == ["circles.png", "results.csv"]


def test_the_numbers_are_written_for_every_row_and_seed(two_workers):
    rows = list(csv.DictReader((two_workers[0] / "results.csv").read_text().splitlines()))
    assert [(r["seed"], r["row"]) for r in rows] == [(str(seed), row.name) for seed in (0, 1) for row in ROWS]
    for line in rows:
        assert float(line["average"]) == pytest.approx((float(line["old"]) + float(line["new"])) / 2, abs=1e-4)
        assert (int(line["epochs_theta_e"]) > 0) == (line["row"] == "ewc+afec")


def test_the_number_of_workers_changes_no_byte(two_workers, tmp_path):
    assert main(["--scale", "smoke", "--seeds", "2", "--workers", "1", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "results.csv").read_bytes() == (two_workers[0] / "results.csv").read_bytes()


def test_rows_of_a_seed_share_everything_but_the_guard():
    first = learn_first(3, SMOKE)
    plain, again = learn_both(Row("finetune"), first, SMOKE), learn_both(Row("finetune"), first, SMOKE)
    np.testing.assert_array_equal(plain.points, again.points)
    held = learn_both(Row("ewc", strength=1e9), first, SMOKE)
    # Held by an enormous pull, the backbone and so the old task stay as the first task left them.
    untouched = learn_both(
        Row("ewc", strength=1e9), first, replace(SMOKE, schedule=replace(SMOKE.schedule, max_epochs=1))
    )
    assert abs(held.old - untouched.old) < 0.02
    assert not np.array_equal(plain.points[0], held.points[0])


def test_more_patience_trains_longer():
    setting = replace(SMOKE, schedule=Schedule(batch_size=60, patience=1, lr_min=1e-4, max_epochs=30))
    first = learn_first(0, setting)
    short = learn_both(Row("ewc", strength=10), first, setting)
    long = learn_both(Row("ewc", strength=10, patience=3), first, setting)
    assert long.epochs_second > short.epochs_second
    assert long.epochs == first.epochs + long.epochs_second


def test_tuning_gives_every_method_as_many_trials_on_seeds_that_are_not_reported():
    for row in ROWS:
        trials = [trial for trial in TRIALS if trial.name == row.name]
        assert len(set(trials)) == (6 if row.strength else 0)
        assert all(trial.patience == row.patience for trial in trials)
        assert not row.strength or row in trials
    assert FIRST_SEED >= 100


def test_tuning_looks_at_validation_alone():
    results = [
        result("ewc", 100, average=0.9, validation=0.5, strength=1),
        result("ewc", 100, average=0.1, validation=0.6, strength=2),
        result("ewc+afec", 100, average=0.1, validation=0.1, strength=3, forgetting=0.1),
    ]
    assert best_of(results) == {"ewc": (2, 0.0), "ewc+afec": (3, 0.1)}


def test_comparisons_in_words():
    results = [result("ewc", s, a) for s, a in enumerate((0.5, 0.6))]
    results += [result("ewc+afec", s, a) for s, a in enumerate((0.52, 0.64))]
    (sentence,) = comparisons(results)
    assert sentence.startswith("ewc+afec minus ewc: +3.0 points, 2 of 2 seeds won; standard error 1.0, 95 % interval")
    assert sentence.endswith("not distinguishable from zero")
    (single,) = comparisons([results[0], results[2]])
    assert single.endswith("one seed says nothing about chance")


def test_a_workers_error_names_row_and_seed():
    broken = Row("ewc", strength=-1.0)
    with pytest.raises(RowError, match=r"row 'ewc \(λ=-1\)', seed 7: ValueError: .*got -1"):
        run_rows([broken], [7], SMOKE, 1, on_result=lambda result: None, on_tick=lambda epochs: None)


def test_the_command_shows_a_workers_error(monkeypatch, capsys, tmp_path):
    def fail(*arguments):
        raise RowError("row 'ewc', seed 7: ValueError: no") from ValueError("the worker's traceback")

    monkeypatch.setattr("afec.demo.__main__.run_rows", fail)
    assert main(["--scale", "smoke", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "the worker's traceback" in error
    assert "the demo failed in row 'ewc', seed 7: ValueError: no" in error


@pytest.mark.parametrize("wrong", ["0", "-3", "many"])
def test_impossible_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", wrong])
    assert f"expected a whole number of at least 1, got '{wrong}'" in capsys.readouterr().err


def test_help_says_what_it_does(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for word in ("digits", "--seeds", "--out", "--workers", "--tune", "--patience", "--scale"):
        assert word in text


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "afec.demo", "--seeds", "1", "--workers", "1", "--out", str(tmp_path)]
    # A background job of a shell has SIGINT ignored, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert "digits-regression" in process.stdout.readline()
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers alike
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "stopped; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    command = [sys.executable, "-m", "afec.demo", "--seeds", "1", "--workers", "1", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert "digits-regression" in process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("this system does not list a process's children")
    _wait_until(lambda: len(children.read_text().split()) == 2)  # multiprocessing's resource tracker, and the worker
    workers = [int(pid) for pid in children.read_text().split()]
    process.kill()
    process.communicate()
    _wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def _wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
