"""GPUs shared out among the workers, with a system that claims to have some."""

from __future__ import annotations

import os

import pytest
import torch

from afec.cli import main
from afec.lab import Job, Place, RunDirectory, available_cores, engine, execute, plan, run
from afec.lab.environment import environment
from afec.lab.gpus import default_workers, shared_gpus
from afec.lab.local_pool import LocalPool
from small_lab import quick_config, quick_file
from small_processes import polled, tell_gpu
from stopped_runs import in_task, run_until


@pytest.fixture
def three_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        (["cuda"], None, ["0", "1", "2"]),
        (["cuda", "cpu", "cuda"], None, ["0", "1", "2"]),
        (["cuda"], "5, 6,7", ["5", "6", "7"]),
        (["cuda"], "GPU-a,GPU-b,GPU-c", ["GPU-a", "GPU-b", "GPU-c"]),
        (["cpu"], None, []),
        (["cuda:1"], None, []),  # who names one means that one
        (["cuda", "cuda:1"], None, []),
        ([], None, []),
    ],
)
def test_which_gpus_are_shared_out(three_gpus, monkeypatch, devices, visible, expected):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert shared_gpus(devices) == expected
    assert default_workers(devices) == (len(expected) or available_cores())


def test_without_any_there_is_nothing_to_share(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert shared_gpus(["cuda"]) == []
    assert default_workers(["cuda"]) == available_cores()


def test_every_worker_sees_one_in_turn_and_the_successor_of_a_dead_one_the_same(quickly, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    seen = {}
    pool = LocalPool(3, ["4", "7"])
    try:
        for index in range(3):
            pool.start(index, tell_gpu)
        while len(seen) < 3:
            seen |= {message.index: message.content for message in polled(pool)}
        pool.slots[1].process.kill()
        pool.slots[1].process.join()
        for index in range(3, 6):
            pool.start(index, tell_gpu)
        while len(seen) < 6:
            seen |= {message.index: message.content for message in polled(pool)}
    finally:
        pool.stop()
    assert [seen[index] for index in range(6)] == ["4", "7", "4"] * 2
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


def test_a_study_on_cuda_takes_as_many_workers_as_gpus_and_gives_them_out(three_gpus, monkeypatch, tmp_path):
    asked = []

    class Pool:
        def __init__(self, count, gpus):
            asked.append((count, gpus))
            raise InterruptedError

    monkeypatch.setattr(engine, "LocalPool", Pool)
    for device, workers, expected in (
        ("cuda", 0, (3, ["0", "1", "2"])),
        ("cuda", 4, (4, ["0", "1", "2"])),
        ("cuda:2", 2, (2, [])),
        ("cpu", 2, (2, [])),
    ):
        config = quick_config("ewc", "three", training={"device": device})
        with pytest.raises(InterruptedError):
            execute([Job(config, seed) for seed in range(9)], tmp_path, workers)
        assert asked.pop() == expected


def test_the_option_is_short_for_a_set_and_which_gpu_it_was_is_not_in_the_hash(
    three_gpus, tmp_path, monkeypatch, capsys
):
    file, taken = quick_file(tmp_path), []
    monkeypatch.setattr("afec.cli.work.do", lambda jobs, *rest: taken.append(jobs))
    for options in (["--device", "cuda"], ["--set", "training.device=cuda"]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2" if taken else "1")
        assert main(["run", file, "-m", "ewc", "--seeds", "1", *options]) == 0
    ((first,), (second,)) = taken
    assert first.config.training["device"] == "cuda"
    assert first.config.hash == second.config.hash
    assert first.config.hash != resolve_on_cpu(file).hash
    assert environment()["visible_gpus"] == "2"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert main(["run", file, "-m", "ewc", "--device", "cuda", "--dry-run"]) == 0
    assert "on 3 processes; nothing was run" in capsys.readouterr().out
    assert main(["run", file, "--device", "cuda", "--set", "training.device=cpu"]) == 2
    assert "--device cuda: --set training.device says it as well; give one of the two" in capsys.readouterr().err
    plans = []
    monkeypatch.setattr("afec.cli.work.tune", lambda how, *rest: plans.append(how))
    assert main(["tune", file, "-m", "ewc", "--device", "cuda"]) == 0
    assert plans[0].sets == {"training": {"device": "cuda"}}


def resolve_on_cpu(file):
    (job,) = plan([file], ["ewc"], [0])
    return job.config


def test_a_device_that_is_not_there_is_refused_before_anything_runs(tmp_path, capsys):
    file = quick_file(tmp_path)
    for command in (["run", file, "-m", "ewc"], ["tune", file, "-m", "ewc"]):
        assert main([*command, "--device", "cuda", "--runs", str(tmp_path / "runs")]) == 2
        assert "device 'cuda' was asked for, but torch sees no CUDA here" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_may_go_on_on_another_device_and_says_so(in_process, three_gpus, monkeypatch, tmp_path, capsys):
    config = quick_config("ewc", "three", training={"device": "cuda"})
    here = quick_config("ewc", "three")

    run_until(in_task(1), config, tmp_path, place=Place("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["resume", str(tmp_path)]) == 2
    assert "device 'cuda' was asked for, but torch sees no CUDA here" in capsys.readouterr().err
    assert main(["resume", str(tmp_path), "--device", "cpu"]) == 0
    found = RunDirectory.of(tmp_path, config, 0)
    assert found.done
    assert found.config.training["device"] == "cuda"
    assert [event["text"] for event in found.events() if event["event"] == "note"] == [
        "from here on on cpu, not on cuda"
    ] * 2
    whole = run(here, 0, tmp_path / "whole")
    assert (found.path / "scores.csv").read_bytes() == (whole.path / "scores.csv").read_bytes()
