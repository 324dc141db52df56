"""`afec` as a user calls it: what it prints, what it writes, what it says when something goes wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

import numpy as np
import psutil
import pytest
from PIL import Image

from afec.cli import expanded, main
from afec.cli.work import STOPPED
from afec.lab import (
    RunDirectory,
    benchmark_names,
    find_runs,
    load_benchmark,
    plan,
    resolve,
    run,
    study,
    unfinished,
)
from afec.methods.expression import METHODS
from small_processes import afec, alive, all_scores, wait_until

SMALL = ["--scale", "smoke", "--set", "stream.sizes=[2,2]", "training.max_epochs=2"]
LONG = ["--scale", "smoke", "--set", "stream.sizes=[2,2,2]", "training.max_epochs=30", "training.patience=off"]


def stamps(root):
    files = [file for file in root.rglob("*") if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


# -- what it shows ------------------------------------------------------------------------------------------------


def test_a_study_from_the_command_line(in_process, tmp_path, capsys):
    command = [
        "run",
        "digits",
        *SMALL,
        "--method",
        "finetune",
        "ewc",
        "ewc@equal-compute",
        "ewc+afec",
        "joint",
        "scratch",
    ]
    command += [
        "--seeds",
        "2",
        "--runs",
        str(tmp_path / "runs"),
        "--workers",
        "1",
        "--picture",
        str(tmp_path / "p.png"),
    ]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "12 runs on 1 processes, into " in shown.out
    assert re.search(r"12/12  digits, [a-z+@-]+, seed [01]: done", shown.out)
    assert "digits at scale smoke: test accuracy in %, mean ± std of 2 seeds" in shown.out
    for label in ("finetune", "ewc (λ=", "ewc@equal-compute (λ=", "ewc+afec (λ=", "joint", "scratch"):
        assert f"│ {label}" in shown.out
    for column in ("AAC", "old tasks", "new task", "BWT", "FWT vs scratch", "epochs", "compute"):
        assert column in shown.out
    assert re.search(r"ewc\+afec \(λ=[\d.]+, λ_e=[\d.]+\) +│ ewc \(λ=[\d.]+\) +│ AAC +│ +[+−]", shown.out)
    assert re.search(r"ewc\+afec \(.*\) +│ ewc@equal-compute \(", shown.out)
    assert f"picture: {tmp_path / 'p.png'}" in shown.out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert len(find_runs(tmp_path / "runs")) == 12


def test_finished_runs_are_skipped_and_scratch_is_shared(in_process, tmp_path, capsys):
    command = ["run", "digits", *SMALL, "--seeds", "1", "--runs", str(tmp_path), "--method", "scratch"]
    assert main([*command, "ewc"]) == 0
    before = stamps(tmp_path)
    first = capsys.readouterr().out
    assert "digits, scratch, seed 0: done" in first
    assert main([*command, "finetune"]) == 0
    second = capsys.readouterr().out
    assert "digits, finetune, seed 0: done" in second
    assert "scratch, seed 0: done" not in second
    assert "FWT vs scratch" in second
    assert before.items() <= stamps(tmp_path).items()
    assert main([*command, "ewc", "finetune"]) == 0
    assert ": done" not in capsys.readouterr().out


def test_python_and_command_line_give_the_same_numbers(in_process, tmp_path):
    methods = ["finetune", "ewc+afec"]
    assert main(["run", "digits", *SMALL, "--seeds", "2", "--runs", str(tmp_path / "cli"), "--method", *methods]) == 0
    study(["digits"], methods, [0, 1], scale="smoke", sets=SMALL[3:], root=tmp_path / "python", workers=1)
    found = all_scores(tmp_path / "cli")
    assert len(found) == 4
    assert all_scores(tmp_path / "python") == found
    for job in plan(["digits"], methods, [0, 1], "smoke", SMALL[3:]):
        run(job.config, job.seed, tmp_path / "run")
    assert all_scores(tmp_path / "run") == found


def test_a_grid_runs_every_combination_and_tells_them_apart(in_process, tmp_path, capsys):
    command = ["run", "digits", *SMALL, "method.ewc.strength=1,10", "training.lr=0.1,0.01", "--method", "ewc"]
    assert main([*command, "--seeds", "1", "--runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert len(find_runs(tmp_path)) == 4
    for label in ("ewc (λ=1), lr=0.1", "ewc (λ=1), lr=0.01", "ewc (λ=10), lr=0.1", "ewc (λ=10), lr=0.01"):
        assert re.search(rf"│ {re.escape(label)} +│", shown)


def test_other_tasks_are_another_table_and_a_scratch_of_an_earlier_command_is_found(in_process, tmp_path, capsys):
    small = ["run", "digits", "--scale", "smoke", "--seeds", "1", "--runs", str(tmp_path), "--method"]
    sizes = ["--set", "training.max_epochs=2", "stream.sizes=[2,2],[3,3]"]
    assert main([*small, "scratch", "--set", "training.max_epochs=2", "stream.sizes=[2,2]"]) == 0
    capsys.readouterr()
    assert main([*small, "ewc", "ewc+afec", *sizes]) == 0
    shown = capsys.readouterr().out
    first, second = re.split(r"digits at scale smoke, sizes \[\d, \d\]: test accuracy", shown)[1:]
    assert "FWT vs scratch" in first
    assert "FWT vs scratch" not in second
    for table in (first, second):
        assert len(re.findall(r"^│ ewc\+afec .* │ ewc .* │ AAC ", table, re.MULTILINE)) == 1


def test_strategies_run_beside_guards(in_process, tmp_path, capsys):
    command = ["run", "digits", *SMALL, "--seeds", "1", "--runs", str(tmp_path), "--method"]
    assert main([*command, "finetune", "afec+ags-cl", "progress-compress"]) == 0
    shown = capsys.readouterr().out
    for label in ("finetune", "ags-cl+afec (λ=1000, λ_e=0.1)", "progress-compress (λ=1000)"):
        assert re.search(rf"│ {re.escape(label)} +│", shown)
    events = {
        found.config.method: [json.loads(line) for line in (found.path / "events.jsonl").read_text().splitlines()]
        for found in find_runs(tmp_path)
    }
    phases = {method: {e["phase"] for e in each if e["event"] == "progress"} for method, each in events.items()}
    assert phases["progress-compress"] == {"progress", "compress"}
    assert phases["ags-cl+afec"] == {"theta_e", "train"}
    seconds = next(e for e in events["progress-compress"] if e["event"] == "task")["seconds"]
    assert {"progress", "compress"} <= set(seconds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "ags-cl+progress-compress"], "ags-cl and progress-compress are both strategies"),
        (["--method", "ewc+progress-compress"], "progress-compress pulls by ewc itself; set its strength"),
        (["--method", "ags-cl", "--set", "method.ags-cl.rho=2"], "method ags-cl: AGSCL: rho must be in [0, 1]; got 2"),
        (
            ["--method", "ags-cl", "--set", "net.name=resnet10", "net.width=2", "net.channels=1", "net.size=8"],
            "ResNet10 is no chain of layers: its 'layer1.0' is a BasicBlock",
        ),
    ],
)
def test_what_a_strategy_cannot_be(arguments, message, in_process, tmp_path, capsys):
    assert main(["run", "digits", "--runs", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_seeds_start_where_they_are_told_to(in_process, tmp_path):
    command = ["run", "digits", *SMALL, "--method", "finetune", "--seeds", "2", "--first-seed", "7"]
    assert main([*command, "--runs", str(tmp_path)]) == 0
    assert [found.seed for found in find_runs(tmp_path)] == [7, 8]


def test_the_circles_of_a_regression(in_process, tmp_path):
    command = ["run", "digits-regression", "--scale", "smoke", "--method", "finetune", "ewc", "scratch", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path / "runs"), "--picture", str(tmp_path / "new" / "p.svg")]) == 0
    picture = (tmp_path / "new" / "p.svg").read_text()
    assert "<svg" in picture


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (
        *benchmark_names(),
        *METHODS,
        "finetune",
        "joint",
        "scratch",
        "smoke",
        "equal-compute",
        "cnn6",
        "digits",
    ):
        assert name in shown
    assert "methods add: ewc+afec" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["run", "resume", "list", "Continual learning with active forgetting"]),
        (
            ["run", "--help"],
            ["BENCHMARKS", "--method", "--seeds", "--first-seed", "--scale", "--set", "--runs", "--workers", "--picture",
             "method.ewc.strength=10,100", "finetune", "ewc+afec", "ewc@equal-compute", "joint", "scratch", "afec list",
             "finished runs are not run again"],
        ),
        (["resume", "--help"], ["RUNS", "--workers", "checkpoint"]),
        (["list", "--help"], ["benchmarks, methods, streams and nets"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_says_what_it_does(arguments, words, capsys):
    assert main(arguments) == 0
    shown = "".join(capsys.readouterr().out.split()).lower()  # lines are broken anywhere
    for word in words:
        assert word.lower().replace(" ", "") in shown


def test_no_arguments_is_help(capsys):
    main([])
    assert "resume" in "".join(capsys.readouterr())  # to which of the two depends on the version of typer


# -- its arguments ------------------------------------------------------------------------------------------------


def test_options_that_take_several_words():
    assert expanded(["run", "a", "--method", "x", "y", "--set", "p=1", "q=2", "--seeds", "3"]) == [
        *("run", "a", "--method", "x", "--method", "y", "--set", "p=1", "--set", "q=2", "--seeds", "3")
    ]
    assert expanded(["-m", "x", "y", "--method=z", "w"]) == ["-m", "x", "-m", "y", "--method=z", "w"]
    assert expanded(["--method", "x", "--method", "y"]) == ["--method", "x", "--method", "y"]
    assert expanded([]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "benchmarks"),
        (["run", "digits", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["run", "digits", "--seeds", "many"], "Invalid value for '--seeds'"),
        (["run", "digits", "--first-seed", "-1"], "Invalid value for '--first-seed'"),
        (["run", "digits", "--method"], "--method needs at least one word after it"),
        (["run", "digits", "--method", "--seeds", "1"], "--method needs at least one word after it"),
        (["run", "digits", "--set"], "--set needs at least one word after it"),
        (["run", "digits", "--tune"], "--tune"),
        (["fly"], "fly"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_arguments_are_refused(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert message.lower() in shown.err.lower()
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_reported_and_stops_no_other(in_process, tmp_path, capsys):
    command = ["run", "digits", *SMALL, "training.lr=1e30,0.01", "--method", "finetune", "ewc", "--seeds", "1"]
    command += ["--runs", str(tmp_path / "runs"), "--picture", str(tmp_path / "p.png")]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "digits, finetune, lr=1e+30, seed 0: FAILED" in shown.out  # of a grid, what differs
    assert "digits, finetune, lr=0.01, seed 0: done" in shown.out
    assert "digits, finetune, lr=1e+30, seed 0 failed:\nTraceback" in shown.err
    assert (
        "NotFiniteError: the validation loss is nan after epoch 1: training diverged; lower the learning rate"
        in shown.err
    )
    assert "2 of 4 runs failed; their directories have the tracebacks" in shown.err
    failed = [found for found in find_runs(tmp_path / "runs") if not found.done]
    assert len(failed) == 2
    assert all("training diverged" in found.failure for found in failed)
    assert (tmp_path / "p.png").exists()  # of those that are done
    assert main(command) == 1  # they are tried again, and the others are not
    again = capsys.readouterr().out
    assert "seed 0: FAILED" in again
    assert "seed 0: done" not in again


def test_all_runs_may_fail(in_process, tmp_path, capsys):
    command = ["run", "digits", *SMALL, "training.lr=1e30", "--method", "finetune", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path / "runs"), "--picture", str(tmp_path / "p.png")]) == 1
    shown = capsys.readouterr()
    assert "no picture" in shown.out
    assert "1 of 1 runs failed" in shown.err
    assert not (tmp_path / "p.png").exists()


def test_a_failure_is_forgotten_when_the_run_is_done(in_process, tmp_path, monkeypatch, capsys):
    command = ["run", "digits", *SMALL, "--method", "finetune", "--seeds", "1", "--runs", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr("afec.lab.job.run", lambda *arguments, **options: 1 / 0)
        assert main(command) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert main(command) == 0
    (found,) = find_runs(tmp_path)
    assert found.done
    assert found.failure is None


@pytest.mark.parametrize(
    "command", [["run", "digits", *SMALL, "--seeds", "1"], ["tune", "digits", *SMALL, "-m", "ewc"]]
)
def test_runs_that_cannot_be_written_are_one_clear_line(command, in_process, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main([*command, "--runs", str(tmp_path / "file" / "runs")]) == 2
    assert capsys.readouterr().err == (
        f"afec: --runs {tmp_path / 'file' / 'runs'} cannot be written to ({tmp_path / 'file'} is a file); give a directory "
        "that you may write to\n"
    )


def test_what_the_system_says_about_an_unwritable_place_is_passed_on(in_process, tmp_path, monkeypatch, capsys):
    """As on a file system that can only be read; root may write anywhere else."""

    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("afec.whole_files.tempfile.TemporaryFile", refuse)
    command = ["run", "digits", *SMALL, "--method", "finetune", "--seeds", "1", "--runs", str(tmp_path / "runs")]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"afec: --runs {tmp_path / 'runs'} cannot be written to ({tmp_path}: Read-only file system); give a directory that "
        "you may write to\n"
    )
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr("afec.whole_files.tempfile.TemporaryFile", tempfile.SpooledTemporaryFile)
        assert main(command) == 0
    assert main(command) == 0  # finished runs are shown from where nothing can be written


@pytest.mark.parametrize("command", ["run", "tune"])
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "ewc+afek",
            "'ewc+afek': unknown method 'afek'; did you mean 'afec'? Known: afec, ags-cl, average, derpp, er, ewc, "
            "icarl, lucir, lwf, mas, merge, podnet, prior, progress-compress, recycle, rwalk, si",
        ),
        ("ewc+joint", "'ewc+joint': joint is a reference and no method, so it adds to nothing; give it alone"),
        ("ewc+", "method 'ewc+': there is nothing on one side of a +; give methods such as ewc+afec"),
    ],
)
def test_unknown_terms_of_a_sum_are_one_clear_line(command, method, message, tmp_path, capsys):
    assert main([command, "digits", "-m", method, "--runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"afec: {message}\n"


# -- images in a folder -------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two tasks of two classes, light and dark, in `my photos/2026`; the working directory is above."""
    draws = np.random.default_rng(0)
    for task in ("garden", "kitchen"):
        for label in range(2):
            place = tmp_path / "my photos" / "2026" / task / f"class{label}"
            place.mkdir(parents=True)
            for number in range(10):
                pixels = draws.integers(100 * label, 100 * label + 100, (20, 24), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_of_images_runs_as_a_benchmark(photos, in_process, capsys):
    small = ["--scale", "smoke", "--set", "stream.size=8", "net.name=lenet", "net.size=8"]
    command = ["run", "folder:my photos/2026", *small, "--method", "finetune", "ewc+afec", "--seeds", "1"]
    assert main(command) == 0
    assert "folder-2026 at scale smoke" in capsys.readouterr().out
    found = find_runs(photos / "runs")
    assert [run.config.method for run in found] == ["ewc+afec", "finetune"]
    assert all(run.done and run.config.stream["name"] == "folder:my photos/2026" for run in found)
    assert {row.name for run in found for row in run.scores()} == {"garden", "kitchen"}


def test_a_folder_of_images_is_tuned_and_planned(photos, capsys):
    assert main(["run", f"folder:{photos / 'my photos' / '2026'}", "--dry-run"]) == 0
    assert "folder-2026, ewc+afec" in capsys.readouterr().out
    assert main(["tune", "folder:my photos/2026", "-m", "ewc", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "ewc: ewc.strength=10000\n" in shown
    assert "3 seeds for each trial, about 12 validation images" in shown  # one of each of four classes, three times


def test_a_folder_that_is_nowhere_names_every_place_that_was_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFEC_DATA", str(tmp_path / "data"))
    for path, tried in (
        ("my/photos", f"{tmp_path / 'my/photos'}, {tmp_path / 'data/my/photos'}"),
        (str(tmp_path / "gone"), str(tmp_path / "gone")),
    ):
        assert main(["run", f"folder:{path}"]) == 2
        error = capsys.readouterr().err
        assert f"there is no folder {path}; tried: {tried}. Give one with a folder for each task" in error
        assert error.count("\n") == 1
    for name in ("folder:", "folder:PATH"):
        assert main(["run", name]) == 2
        assert capsys.readouterr().err == (f"afec: {name}: write your own folder for PATH, such as folder:my/images\n")
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_of_a_folder_takes_every_method(capsys):
    found = load_benchmark("folder:somewhere/nice photos!")
    assert found.name == "folder-nice-photos-"
    for method in ("finetune", "joint", "scratch", *METHODS, "ewc+afec", "ewc@equal-compute"):
        assert resolve(found, method, "smoke").stream["name"] == "folder:somewhere/nice photos!"
    assert main(["list"]) == 0
    assert len(re.findall(r"^ *folder:PATH ", capsys.readouterr().out, re.MULTILINE)) == 2  # benchmark and stream


# -- conditions of a report ---------------------------------------------------------------------------------------


def test_a_value_that_no_run_has_is_answered_with_those_that_there_are(in_process, tmp_path, capsys):
    runs = str(tmp_path)
    assert main(["run", "digits", *SMALL, "--method", "finetune", "ewc", "--seeds", "1", "--runs", runs]) == 0
    capsys.readouterr()
    where = f"(in the 2 runs under {runs})"
    for condition, message in (
        ("method=ewx", f"unknown method 'ewx'; did you mean 'ewc'? Known: ewc, finetune {where}"),
        ("method=ewc,ewx", f"unknown method 'ewx'; did you mean 'ewc'? Known: ewc, finetune {where}"),
        ("scale=short", f"unknown scale 'short'. Known: smoke {where}"),
        ("seed=7", f"unknown seed '7'. Known: 0 {where}"),
    ):
        for more in ([], ["-o", str(tmp_path / "page.html")]):
            assert main(["report", runs, "--where", condition, *more]) == 2
            assert capsys.readouterr().err == f"afec: --where {condition}: {message}\n"
    assert main(["report", runs, "--where", "method=ewc,mas", "seed=0,1"]) == 0  # what is still to be run may be named
    assert "1 finished" in capsys.readouterr().out


def test_a_stream_that_cannot_be_made_is_refused_before_anything_is_run(in_process, tmp_path, capsys):
    command = ["run", "digits", "--scale", "smoke", "--set", "stream.tasks=7", "--method", "finetune", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path)]) == 2
    assert "afec: digits: digits got tasks=7; 10 classes make 1, 2 or 5 tasks" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_a_sentence(monkeypatch, tmp_path, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("afec.cli.work.execute", interrupted)
    assert main(["run", "digits", "--runs", str(tmp_path)]) == 130
    assert capsys.readouterr().err.strip() == (
        f"stopped; finished runs are kept: the same command goes on, and `afec resume {tmp_path}` finishes the runs that "
        "were begun"
    )


# -- resume -------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    pass


def stop(phase):
    if phase.task == 1:
        raise Stop


def test_resume_finishes_what_was_begun(in_process, tmp_path, capsys):
    jobs = plan(["digits"], ["ewc+afec", "finetune"], [0], "smoke", SMALL[3:])
    for job in jobs:
        run(job.config, job.seed, tmp_path / "whole")
        with pytest.raises(Stop):
            run(job.config, job.seed, tmp_path / "stopped", stop)
    assert len(unfinished(tmp_path / "stopped")) == 2
    assert main(["resume", str(tmp_path / "stopped")]) == 0
    shown = capsys.readouterr()
    assert "2 runs on " in shown.out
    assert "│ ewc+afec" in shown.out
    assert all_scores(tmp_path / "stopped") == all_scores(tmp_path / "whole")
    before = stamps(tmp_path / "stopped")
    assert main(["resume", str(tmp_path / "stopped")]) == 0
    assert "nothing to resume: every run under" in capsys.readouterr().out
    assert stamps(tmp_path / "stopped") == before


def test_resume_of_the_wrong_place_is_refused(tmp_path, capsys):
    assert main(["resume", str(tmp_path / "nowhere")]) == 2
    assert "there is no directory" in capsys.readouterr().err
    (job,) = plan(["digits"], ["finetune"], [0], "smoke", SMALL[3:])
    with pytest.raises(Stop):
        run(job.config, 0, tmp_path, stop)
    assert main(["resume", str(tmp_path / "digits")]) == 2  # a directory too deep: it would write elsewhere
    assert "is not where its run belongs under" in capsys.readouterr().err
    (RunDirectory.of(tmp_path, job.config, 0).path / "config.toml").write_text("method = ")
    assert main(["resume", str(tmp_path)]) == 2
    assert "config.toml cannot be read" in capsys.readouterr().err


# -- processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_number_of_workers_changes_no_byte(in_process, tmp_path):
    command = ["run", "digits", *SMALL, "--seeds", "2", "--method", "finetune", "ewc+afec", "--runs"]
    assert main([*command, str(tmp_path / "here")]) == 0
    process = afec(
        *command, str(tmp_path / "two"), "--workers", "2", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, error = process.communicate()
    assert (process.returncode, error) == (0, "")
    assert "4 runs on 2 processes" in out
    found = all_scores(tmp_path / "here")
    assert len(found) == 4
    assert all_scores(tmp_path / "two") == found


@pytest.fixture
def begun(tmp_path):
    """A study that has finished its first task and is inside a later one; its processes too."""
    # A background job of a shell has SIGINT ignored, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = afec(
            *("run", "digits", *LONG, "--seeds", "1", "--method", "ewc+afec", "ewc", "--workers", "1"),
            *("--runs", str(tmp_path / "runs")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: list(tmp_path.rglob("checkpoint.safetensors")) or process.poll() is not None)
    assert process.poll() is None
    yield process, psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.kill()
        process.communicate()


def goes_on_to_the_same_bytes(tmp_path):
    jobs = plan(["digits"], ["ewc+afec", "ewc"], [0], "smoke", LONG[3:])
    assert not any(RunDirectory.of(tmp_path / "runs", job.config, 0).done for job in jobs)
    # `resume` knows what was begun, the same command the rest.
    assert main(["resume", str(tmp_path / "runs")]) == 0
    assert (
        main(["run", "digits", *LONG, "--seeds", "1", "--method", "ewc+afec", "ewc", "--runs", str(tmp_path / "runs")])
        == 0
    )
    for job in jobs:
        run(job.config, 0, tmp_path / "whole")
    assert all_scores(tmp_path / "runs") == all_scores(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_leaves_a_resumable_study_and_no_process(begun, in_process, tmp_path):
    process, children = begun
    assert children
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers alike
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error.splitlines() == [
        "stopping: 1 run ends its step and writes a checkpoint; Ctrl-C again stops at once",
        STOPPED.format(tmp_path / "runs"),
    ]
    wait_until(lambda: not any(map(alive, children)))
    goes_on_to_the_same_bytes(tmp_path)


@pytest.mark.slow
def test_a_killed_study_leaves_no_process_and_goes_on_to_the_same_bytes(begun, in_process, tmp_path):
    process, children = begun
    assert children
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, children)))
    assert not list(tmp_path.rglob("DONE"))
    goes_on_to_the_same_bytes(tmp_path)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["study", "--help"]])
def test_help_and_version_do_without_pytorch(arguments):
    code = f"""
import sys
from afec.cli import main
assert main({arguments!r}) == 0
assert not {{"torch", "numpy", "matplotlib"}} & set(sys.modules), "help has imported what only runs need"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "afec" in done.stdout


def test_what_drives_a_cluster_does_without_pytorch():
    """Until its runs are done: then there are tables to be made."""
    code = """
import sys
import afec.cli.work, afec.lab.estimate, afec.lab.ray_cluster, afec.lab.studies
from afec.cli.pools import planned
from afec.lab import plan, Place
jobs = planned("ray", plan, ["digits"], ["ewc+afec"], [0, 1], "smoke", place=Place())
assert [str(job) for job in jobs] == [f"digits, ewc+afec, seed {seed}" for seed in (0, 1)], jobs
assert not {"torch", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_the_help_says_is_what_the_rooms_say():
    from afec.data.root import VARIABLE
    from afec.lab.spec import FULL

    done = subprocess.run([sys.executable, "-m", "afec.cli", "run", "--help"], capture_output=True, text=True)
    assert f"else {VARIABLE}," in " ".join(done.stdout.split())
    assert f"[default: {FULL}]" in " ".join(done.stdout.split())


def test_the_package_gives_its_public_names_and_its_rooms_when_they_are_asked_for():
    code = """
import sys, afec
assert "torch" not in sys.modules
assert afec.EWC.name == "ewc" and afec.nets.NETS and set(afec.__all__) <= set(dir(afec))
try:
    afec.nothing
except AttributeError as error:
    assert "has no attribute 'nothing'" in str(error)
from afec import *
assert Learner.__module__ == "afec.learner.learner"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
