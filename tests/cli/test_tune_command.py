"""`afec tune` as a user calls it."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from afec.cli import main
from afec.lab import (
    find_runs,
    plan,
)
from afec.lab.spec import load_tuned
from afec.lab.tuning import trials_of, tune
from small_lab import TEXT, quick_file
from small_tuning import GRIDS, how, peak

SMALL = ["--scale", "smoke", "--set", "stream.sizes=[2,2]", "training.max_epochs=1"]


def test_tuning_and_running_from_the_command_line(in_process, tmp_path, capsys):
    name = quick_file(tmp_path, TEXT + GRIDS)
    command = ["tune", name, "--scale", "tiny", "--method", "ewc+afec", "--trials", "2", "--seeds", "1"]
    command += ["--runs", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "tuning of ewc+afec: validation accuracy in %" in shown.out
    assert len(re.findall(r"│ ewc +│ ewc.strength=", shown.out)) == 2
    assert len(re.findall(r"│ ewc\+afec +│ ewc.strength=\d+, afec.forgetting=", shown.out)) == 2
    assert re.search(r"4/4  quick, ewc\+afec, afec.forgetting=[\d.]+, seed 100: done", shown.out)
    file = tmp_path / "quick" / "tune" / "ewc+afec-tiny.toml"
    for path in (file, file.with_suffix(".csv"), file.with_suffix(".png")):
        assert path.exists()
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(file.with_suffix(".csv").read_text().splitlines()) == 5
    assert "on validation images of the seeds [100]" in file.read_text()
    found = tomllib.loads(file.read_text())["method"]["ewc+afec"]
    assert f"use it: afec run {name} --method ewc+afec --scale tiny --tuned {file}" in shown.out
    assert find_runs(tmp_path) == []  # trials are not reported
    assert len(find_runs(tmp_path / "tuning")) == 4

    assert main(command) == 0
    assert "done" not in capsys.readouterr().out

    # Of the very configuration of the trial, so on a tuning seed there is nothing left to run.
    trials = str(tmp_path / "tuning")
    again = ["run", name, "--scale", "tiny", "--method", "ewc+afec", "--seeds", "1", "--runs", trials]
    assert main([*again, "--first-seed", "100", "--tuned", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"ewc+afec (λ={found['ewc']['strength']:g}, λ_e={found['afec']['forgetting']:g})" in shown
    assert "seed 100: done" not in shown


def test_a_dry_run_lists_the_trials_and_what_they_cost_and_runs_nothing(fake, tmp_path, capsys):
    ran = fake(peak(strength=10))
    command = ["tune", quick_file(tmp_path, TEXT + GRIDS), "--scale", "tiny", "-m", "ewc+afec", "--seeds", "2"]
    command += ["--workers", "1", "--runs", str(tmp_path / "r")]
    before = sorted(tmp_path.rglob("*"))
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["ewc: ewc.strength=1", "ewc: ewc.strength=10", "ewc: ewc.strength=100"]
    assert shown[3:6] == [f"ewc+afec: ewc.strength as found, afec.forgetting={value}" for value in ("0.1", "1", "10")]
    assert re.fullmatch(r"2 seeds for each trial, about \d+ validation images", shown[6])
    assert shown[7].startswith("12 runs: 0 done, 0 begun, 12 to start; how long it takes is not known")
    assert shown[7].endswith(", on 1 processes; nothing was run")
    assert sorted(tmp_path.rglob("*")) == before
    assert ran == []

    # A reported run of a second says what trials take; those of the first stage are done, so its λ is known.
    assert main(["run", *command[1:4], "-m", "ewc+afec", *command[6:], "--seeds", "1"]) == 0
    assert main([*command[:5], "ewc", *command[6:]]) == 0
    capsys.readouterr()
    count = len(ran)
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[3:6] == [f"ewc+afec: ewc.strength=10, afec.forgetting={value}" for value in ("0.1", "1", "10")]
    assert shown[7] == "12 runs: 6 done, 0 begun, 6 to start; about 6 seconds, on 1 processes; nothing was run"
    assert len(ran) == count


def test_a_dry_run_of_tpe_says_its_ranges(fake, tmp_path, capsys):
    ran = fake(peak())
    command = ["tune", quick_file(tmp_path, TEXT + GRIDS), "--scale", "tiny", "-m", "ewc", "--search", "tpe"]
    assert main([*command, "--trials", "7", "--seeds", "2", "--runs", str(tmp_path / "r"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "ewc: 7 trials by TPE, ewc.strength from 1 to 100\n" in shown
    assert "14 runs: 0 done" in shown
    assert ran == []


def test_a_default_grid_is_searched_and_said(fake, tmp_path, capsys):
    fake(lambda settings, seed: (0.9 if settings["mas"]["strength"] == 10 else 0.1, 0.5))
    command = ["tune", quick_file(tmp_path), "--scale", "tiny", "-m", "mas", "--seeds", "1", "--runs", str(tmp_path)]
    words = "quick has no grid for mas: the default one is searched; [tune.mas] gives another"
    for more in (["--dry-run"], []):
        assert main([*command, *more]) == 0
        assert words in capsys.readouterr().out
    assert tomllib.loads((tmp_path / "quick" / "tune" / "mas-tiny.toml").read_text())["method"]["mas"]["strength"] == 10


def test_noise_is_said_on_the_screen_and_in_the_file(fake, tmp_path, capsys):
    fake(lambda settings, seed: ({1: 0.3, 10: 0.75, 100: 0.74}[settings["ewc"]["strength"]], 0.5))
    command = ["tune", quick_file(tmp_path, TEXT + GRIDS), "--scale", "tiny", "-m", "ewc", "--runs", str(tmp_path)]
    assert main(command) == 0
    shown, file = capsys.readouterr().out, tmp_path / "quick" / "tune" / "ewc-tiny.toml"
    assert re.search(r"ewc.strength=10 +│ +75.0 ± 0.0 +│ +[\d.]+ +│ +best mean", shown)
    assert re.search(r"ewc.strength=100 +│ +74.0 ± 0.0 +│ +[\d.]+ +│ +taken, within noise of the best", shown)
    for text in (shown, file.read_text()):
        assert "ewc.strength=10 has the highest mean, 75.0 %. It cannot be told apart from ewc.strength=100" in text
        assert "too few validation images to be sure" in text
    assert load_tuned(file).method["ewc"]["strength"] == 100


def test_out_says_where_and_tpe_and_beta_can_be_asked_for(fake, tmp_path, capsys):
    fake(peak(strength=100, forgetting=0.1))
    command = ["tune", "digits", "--scale", "smoke", "-m", "ewc+afec", "--search", "tpe", "--trials", "3", "--beta"]
    command += [
        "--seeds",
        "2",
        "--first-seed",
        "7",
        "--runs",
        str(tmp_path / "r"),
        "--out",
        str(tmp_path / "o" / "x.toml"),
    ]
    assert main(command) == 0
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == ["x.csv", "x.png", "x.toml"]
    assert "afec.beta=" in capsys.readouterr().out
    assert {run.seed for run in find_runs(tmp_path / "r" / "tuning")} == {7, 8}
    load_tuned(tmp_path / "o" / "x.toml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "-m", "finetune"], "finetune has nothing to tune"),
        (["digits", "-m", "joint"], "joint has nothing to tune"),
        (["digits", "-m", "ewcc"], "did you mean 'ewc'"),
        (["digits", "-m", "ewc", "--scale", "smok"], "did you mean 'smoke'"),
        (["digits", "-m", "ewc", "--search", "random"], "--search random: unknown search 'random'"),
        (["digits", "-m", "ewc", "--set", "training.lr=0.1,0.2"], "takes one value for each --set"),
        (["digits", "-m", "ewc", "--set", "method.ewc.fisher=batched"], "cannot be converted"),
        (["digits", "-m", "ewc", "--set", "method.ewc.strength=7"], "ewc.strength is what this tuning searches"),
        (
            ["digits", "-m", "ewc+afec", "--set", "method.afec.forgetting=7"],
            "afec.forgetting is what this tuning searches",
        ),
        (["digits", "-m", "ewc+afec", "--set", "method.afec.beta=0.5"], "method.afec.beta: afec.forgetting is what"),
        (["digits", "-m", "ewc+afec", "--beta", "--set", "method.afec.forgetting=7"], "afec.beta is what this tuning"),
        (["nowhere", "-m", "ewc"], "unknown benchmark 'nowhere'"),
        (["digits"], "--method"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_tunings_are_refused(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message.lower() in shown.lower()
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_not_searched_may_be_set(fake, tmp_path):
    ran = fake(peak())
    tune(how(sets={"method": {"ewc": {"fisher": "sample"}}}), tmp_path, 1)
    assert {config.settings["ewc"]["fisher"] for config, _ in ran} == {"sample"}


def test_the_command_to_use_it_can_be_pasted(fake, tmp_path, monkeypatch, capsys):
    fake(peak())
    folder = tmp_path / "my files"
    folder.mkdir()
    name = quick_file(folder, TEXT + GRIDS)
    command = ["tune", name, "--scale", "tiny", "-m", "ewc", "--seeds", "1", "--runs", str(folder / "my runs")]
    monkeypatch.setattr(sys, "argv", ["afec", *command])
    assert main(command) == 0
    (line,) = re.findall(r"^use it: (.*)$", capsys.readouterr().out, re.MULTILINE)
    words = shlex.split(line)
    assert words[:3] == ["afec", "run", name]
    (found,) = plan([words[2]], [words[4]], [0], words[6], [], load_tuned(Path(words[8])))
    assert found.config.settings["ewc"]["strength"] == 10
    (comment,) = re.findall(r"found by `(.*)` on", Path(words[8]).read_text())
    assert shlex.split(comment)[1:] == command


@pytest.mark.parametrize("methods", [("ewc", "mas"), ("ewc+afec", "mas+afec")])
@pytest.mark.parametrize("options", [{}, {"trials": 2}, {"search": "tpe", "trials": 5}, {"beta": True}])
def test_every_method_has_the_same_budget(methods, options, fake, tmp_path):
    ran, budgets = fake(lambda settings, seed: (0.5, 0.5)), []
    for method in methods:
        tune(how(method, **options), tmp_path / method, 1)
        budgets.append(len(ran))
        ran.clear()
        assert trials_of(how(method, **options)) * 2 == budgets[-1]
    assert budgets[0] == budgets[1]


def test_a_tuning_in_which_everything_fails_is_a_sentence(in_process, tmp_path, capsys):
    command = ["tune", "digits", *SMALL, "training.lr=1e30", "-m", "ewc", "--trials", "1", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path)]) == 2
    assert "afec: every trial of ewc failed" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.png"))


def test_ctrl_c_in_a_tuning_is_a_sentence(monkeypatch, tmp_path, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("afec.lab.tuning.tune", interrupted)
    assert main(["tune", "digits", "-m", "ewc", "--runs", str(tmp_path)]) == 130
    assert capsys.readouterr().err.strip() == "stopped; the same command goes on where it was"
