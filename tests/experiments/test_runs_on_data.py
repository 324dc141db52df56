"""`afec run` on the streams of datasets: `--data` reaches the runs and stays out of their configuration."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from afec.cli import main
from afec.experiments.supervised import build
from afec.lab import find_runs
from afec.lab.config import resolve
from afec.lab.spec import load_benchmark
from official_layouts import write_cifar10, write_cifar100, write_omniglot

REAL = Path(os.environ.get("AFEC_DATA", "no data"))
SMALL = ["--scale", "smoke", "--set", "stream.tasks=2", "--set", "stream.images=8", "--seeds", "1", "--workers", "1"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root, binary=True)
    write_cifar100(root, binary=False)
    write_omniglot(root / "omniglot", zipped=True)
    return root


def test_data_reaches_the_run_and_no_config(root, tmp_path, monkeypatch, in_process, capsys):
    monkeypatch.setenv("AFEC_DATA", str(tmp_path / "nothing here"))
    command = ["run", "cifar100-sc", "--method", "finetune", *SMALL, "--runs", str(tmp_path / "runs")]
    assert main([*command, "--data", str(root)]) == 0
    assert os.environ["AFEC_DATA"] == str(tmp_path / "nothing here")  # of that command alone
    (found,) = find_runs(tmp_path / "runs")
    texts = [file.read_text() for file in found.path.rglob("*") if file.suffix in (".toml", ".json", ".jsonl", ".csv")]
    assert texts
    assert not any(str(root) in text for text in texts)
    # The same data elsewhere are the same run: it is finished, and not run again.
    shutil.copytree(root, tmp_path / "moved")
    capsys.readouterr()
    assert main([*command, "--data", str(tmp_path / "moved")]) == 0
    assert len(list(find_runs(tmp_path / "runs"))) == 1


def test_missing_data_are_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("AFEC_DATA", raising=False)
    command = ["run", "cifar10-100", "--method", "ewc", *SMALL, "--runs", str(tmp_path / "runs")]
    assert main([*command, "--data", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "afec data get cifar10" in said
    assert str(tmp_path / "cifar-10-python.tar.gz") in said
    assert not (tmp_path / "runs").exists()
    assert "AFEC_DATA" not in os.environ


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_strategies_run_on_the_cifar_net(real, root, tmp_path, in_process, capsys):
    if real and not (REAL / "cifar-100-python").is_dir():
        pytest.skip("AFEC_DATA has no CIFAR-100")
    methods = ["ags-cl", "progress-compress+afec"]
    command = ["run", "cifar100-sc", "--method", *methods, *SMALL, "--runs", str(tmp_path / "runs")]
    assert main([*command, "--data", str(REAL if real else root)]) == 0
    runs = list(find_runs(tmp_path / "runs"))
    assert {found.config.method for found in runs} == set(methods)
    assert all(found.done for found in runs)


@pytest.mark.slow
def test_data_reaches_worker_processes(root, tmp_path, monkeypatch):
    monkeypatch.delenv("AFEC_DATA", raising=False)
    monkeypatch.chdir(root.parent)  # a relative path is one of this directory
    command = ["run", "cifar100", "--method", "ewc+afec", *SMALL, "--runs", str(tmp_path / "runs")]
    assert main([*command, "--data", root.name]) == 0
    (found,) = find_runs(tmp_path / "runs")
    assert found.done


@pytest.mark.parametrize("name", ["cifar100-sc", "cifar100", "cifar10-100", "omniglot"])
def test_every_scale_can_be_built(root, monkeypatch, name):
    monkeypatch.setenv("AFEC_DATA", str(root))
    benchmark = load_benchmark(name)
    tasks = {}
    for scale in benchmark.scales:
        stream, net = build(resolve(benchmark, "finetune", scale), seed=0)
        tasks[scale] = len(stream.tasks)
        task = stream.tasks[-1]
        outputs = net(task.prepare(task.test.inputs[:2]), task=len(stream.tasks) - 1)
        assert outputs.shape == (2, task.outputs)
    assert tasks["full"] == tasks["short"] == {"cifar10-100": 22, "omniglot": 50}.get(name, 20)
    assert tasks["smoke"] < tasks["short"]
