"""A regulariser in a user's own file, found as `file.py:Class`: through run, resume, tune, report and the contracts."""

from __future__ import annotations

import pytest

from afec.cli import main
from afec.lab import find_runs
from afec.naming import load_object
from afec.testing import check_method
from small_lab import TEXT
from stopped_runs import run_until, steps

MINE = '''
import torch

from afec.methods.regulariser import Regulariser


class Ridge(Regulariser):
    """Hold every weight alike."""

    name = "ridge"

    def importance(self, task, task_state):
        return {name: torch.ones_like(value) for name, value in task.values().items()}
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "quick.toml").write_text(TEXT + '\n[method."mine.py:Ridge"]\nstrength = 0.5\n')
    return "mine.py:Ridge"


def test_it_runs_and_is_called_by_its_name(mine, tmp_path, in_process, capsys):
    command = ["run", "quick.toml", "--scale", "tiny", "--seeds", "2", "--runs", "runs", "--method"]
    assert main([*command, "finetune", mine, f"{mine}+afec"]) == 0
    said = capsys.readouterr().out
    assert "ridge (λ=0.5)" in said
    assert "ridge+afec (λ=0.5, λ_e=1)" in said
    matrices = {run.config.label: run.matrix().tolist() for run in find_runs(tmp_path / "runs")}
    assert matrices["ridge"] != matrices["finetune"]
    assert main([*command, mine, "--set", f"method.{mine}.strength=0"]) == 0
    off = next(run for run in find_runs(tmp_path / "runs") if run.config.settings.get(mine, {}).get("strength") == 0)
    finetune = next(run for run in find_runs(tmp_path / "runs") if run.config.method == "finetune")
    assert off.matrix().tolist() == finetune.matrix().tolist()


def test_it_is_resumed_and_tuned(mine, tmp_path, in_process, capsys):
    from afec.lab import load_benchmark, resolve, run

    config = resolve(load_benchmark("quick.toml"), mine, "tiny")
    run_until(steps(1), config, tmp_path / "stopped")
    stopped = run(config, 0, tmp_path / "stopped")
    whole = run(config, 0, tmp_path / "whole")
    assert (stopped.path / "scores.csv").read_bytes() == (whole.path / "scores.csv").read_bytes()
    assert main(["tune", "quick.toml", "--scale", "tiny", "--method", mine, "--seeds", "1", "--out", "found.toml"]) == 0
    assert "the default one is searched" in capsys.readouterr().out
    assert (
        main(["run", "quick.toml", "--scale", "tiny", "--method", mine, "--seeds", "1", "--tuned", "found.toml"]) == 0
    )
    assert main(["report", "runs", "-o", "table.md"]) == 0
    assert "ridge" in (tmp_path / "table.md").read_text()


def test_it_keeps_the_contracts(mine):
    check_method(load_object(mine), strength=0.5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.py:Rigde", "has no Rigde; did you mean 'Ridge'?"),
        ("nowhere.py:Ridge", "there is no file nowhere.py"),
        ("mine.py:torch", "is no method: expected a subclass of"),
    ],
)
def test_what_is_no_method_is_one_clear_line(mine, name, words, capsys):
    assert main(["run", "quick.toml", "--method", name]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
