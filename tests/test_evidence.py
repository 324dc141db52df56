"""`make evidence`: published studies, in the background, at the lowest priority."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from afec.lab.studies import load_study, study_names
from small_lab import quick_file

pytestmark = pytest.mark.slow  # each test starts a process

SCRIPT = Path(__file__).parent.parent / "results" / "evidence.py"
STUDY = """
description = "one run"

[[runs]]
benchmarks = ["quick.toml"]
methods = ["finetune"]
scale = "tiny"
seeds = 1

[[outputs]]
file = "seeds.csv"
"""


def python(code):
    """What a session of its own prints, with the script imported as `evidence`."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import evidence; {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True).stdout.split()


def test_published_studies_are_run(evidence):
    names = evidence.published()
    assert names == [name for name in study_names() if load_study(name).published]
    assert {"digits-regression", "anchor"} < set(names)
    assert "classification-table" not in names  # days of work


def test_the_priority_is_the_lowest_also_between_sessions():
    code = "import os; evidence.lowest_priority(); print(os.nice(0))"
    if os.access("/proc/self/autogroup", os.W_OK):
        nice, _, *session = python(f"{code}; print(evidence.AUTOGROUP.read_text())")
        assert (nice, session) == ("19", ["nice", "19"])
    else:
        assert python(code) == ["19"]


@pytest.fixture
def evidence(monkeypatch, tmp_path):
    """The script as a module; the priority of the tests stays as it is."""
    spec = importlib.util.spec_from_file_location("evidence", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "lowest_priority", lambda: None)
    monkeypatch.chdir(tmp_path)
    return module


def test_it_is_started_in_a_session_of_its_own_and_says_how_to_stop_it(evidence, monkeypatch, capsys):
    started = []
    fake = lambda command, **options: started.append((command, options)) or SimpleNamespace(pid=4711)  # noqa: E731
    monkeypatch.setattr(evidence.subprocess, "Popen", fake)
    monkeypatch.setattr(sys, "argv", ["evidence.py", "causes", "strength"])
    assert evidence.main() == 0
    ((command, options),) = started
    assert command[-3:] == ["--foreground", "causes", "strength"]
    assert options["start_new_session"]
    assert Path("runs/evidence.log").exists()
    shown = capsys.readouterr().out
    assert "tail -f runs/evidence.log" in shown
    assert "kill -INT -- -4711" in shown


@pytest.mark.slow
def test_a_study_that_fails_stops_no_other(evidence, tmp_path, capfd):
    quick_file(tmp_path)
    (tmp_path / "bad.toml").write_text(STUDY.replace("finetune", "finetun"))
    (tmp_path / "one.toml").write_text(STUDY)
    assert evidence.run(["bad.toml", "one.toml"]) == 1
    assert (tmp_path / "results" / "one" / "seeds.csv").exists()
    assert "bad.toml: unknown method 'finetun'" in capfd.readouterr().err
