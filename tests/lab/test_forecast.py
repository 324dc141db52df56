"""What a study will take before it is begun: numbers by hand."""

from __future__ import annotations

import json

import pytest

from afec.cli import main
from afec.experiments import Context
from afec.lab import Job, RunDirectory, load_benchmark, resolve
from afec.lab.forecast import Forecast, forecast
from afec.streams import digits
from afec.whole_files import write_text
from small_lab import quick_config, quick_file


def finished(root, seconds, memory, name="ewc", seed=0, scale="tiny", samples=1000):
    config = quick_config(name, scale)
    directory = RunDirectory.of(root, config, seed)
    write_text(directory.path / "config.toml", config.to_toml())
    counts = {"event": "task", "task": 1, "epochs": 1, "epochs_theta_e": 0, "samples": samples}
    write_text(directory.path / "events.jsonl", json.dumps(counts) + "\n")
    directory.finish({"wall_seconds": seconds, "peak_memory_mb": memory})
    return directory


def jobs(name, seeds, scale="tiny"):
    return [Job(quick_config(name, scale), seed) for seed in seeds]


def test_finished_runs_say_what_the_others_take(tmp_path):
    finished(tmp_path, 3600.0, 400.0, seed=0)
    last = finished(tmp_path, 7200.0, 500.0, seed=1)
    found = forecast(jobs("ewc", range(6)), tmp_path)
    assert found.seconds == (5400.0,) * 4  # the mean of one and two hours, for each that is left
    assert (found.counted, found.unknown, found.memory_mb) == (0, 0, 500.0)
    assert [found.hours_on(places) for places in (1, 2, 3, 100)] == [6.0, 3.0, 3.0, 1.5]
    size = sum(file.stat().st_size for file in last.path.iterdir())
    assert found.disk_mb == pytest.approx(4 * size / 1e6, rel=0.01)


def test_where_no_run_of_the_scale_is_done_samples_are_counted(tmp_path):
    finished(tmp_path, 10.0, 400.0, scale="three", samples=500)  # 50 samples in a second, by the same net
    sizes = [task.train.size for task in digits(seed=0, sizes=[2, 3], validation=0.05, test=0.85).tasks]
    found = forecast(jobs("ewc", [0]), tmp_path)  # one epoch of each task
    assert found.seconds == (pytest.approx(sum(sizes) / 50),)
    assert (found.counted, found.unknown, found.memory_mb) == (1, 0, None)
    found = forecast(jobs("ewc+afec", [0]), tmp_path)  # and θ_e in the second
    assert found.seconds == (pytest.approx((sum(sizes) + sizes[1]) / 50),)
    twice = quick_config("progress-compress", "tiny")  # progress, and compress
    assert twice.kind.most_samples(twice, Context(0)) == 2 * sum(sizes)
    joint = quick_config("joint", "tiny")
    assert joint.kind.most_samples(joint, Context(0)) == 2 * sizes[0] + sizes[1]
    scratch = quick_config("scratch", "tiny")
    assert scratch.kind.most_samples(scratch, Context(0)) == sum(sizes)


def test_what_is_replayed_is_counted_too():
    """Three epochs over five digits and then two: 4 exemplars of each of the five, and of all seven in two epochs after it."""
    sets = {"training": {"max_epochs": 3}, "stream": {"sizes": [5, 2], "tasks": 2}}
    sizes = [task.train.size for task in digits(seed=0, sizes=[5, 2], scenario="class").tasks]

    def most(method, **settings):
        config = resolve(
            load_benchmark("digits-class"), method, sets=sets | {"method": {method.split("+")[0]: settings}}
        )
        return config.kind.most_samples(config, Context(0))

    assert most("finetune") == most("lwf") == 3 * sum(sizes)
    assert most("er", per_class=4) == 3 * (sum(sizes) + 20)
    assert most("er", total=14) == 3 * (sum(sizes) + 10)  # two of each of the five
    assert most("er+afec", per_class=4) == 3 * (sum(sizes) + sizes[1] + 20)
    assert most("podnet", per_class=4, finetune_epochs=2) == 3 * (sum(sizes) + 20) + 2 * 28
    assert most("lucir", per_class=4, finetune_epochs=2) == 3 * (sum(sizes) + 20) + 2 * 28


def test_a_trial_with_fewer_epochs_does_not_pass_for_the_whole_run(tmp_path):
    """It says how fast the net learns, and how much memory and disk a run takes; its hours are not those of the row."""
    finished(tmp_path, 10.0, 400.0, samples=500)
    long = [Job(quick_config("ewc", "tiny", training={"max_epochs": 100}), 1)]
    sizes = [task.train.size for task in digits(seed=0, sizes=[2, 3], validation=0.05, test=0.85).tasks]
    found = forecast(long, tmp_path)
    assert found.seconds == (pytest.approx(100 * sum(sizes) / 50),)
    assert (found.counted, found.unknown, found.memory_mb) == (1, 0, 400.0)
    assert found.disk_mb is not None


def test_where_nothing_is_known_it_says_so(tmp_path):
    assert forecast(jobs("ewc", [0, 1]), tmp_path) == Forecast((), 0, 2, None, None)
    assert Forecast((), 0, 2, None, None).lines(2) == [
        "nothing is known of 2 runs: no run of the benchmark, nor of its net, is done"
    ]


def test_the_words_have_hours_memory_and_disk_for_each_pool():
    assert Forecast((3600.0,) * 320, 20, 0, 2000.0, 640.0).lines(2) == [
        "core hours: 320 for 320 runs; 20 runs by their samples, at most",
        "wall time: 160 hours with --pool local (2 processes), 20.0 with --pool ray on 16 CPUs, 3.0 with --pool ray on "
        "128 CPUs",
        "memory: 2000 MB a run, 4.0 GB for 2",
        "disk: 640 MB when all are done",
    ]


def test_a_dry_run_of_the_command_line_says_it(tmp_path, capsys):
    root = tmp_path / "runs"
    finished(root, 3600.0, 400.0)
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--method", "ewc", "--seeds", "3", "--workers", "1"]
    assert main([*command, "--runs", str(root), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "core hours: 2.0 for 2 runs" in said
    assert "2.0 hours with --pool local (1 processes)" in said
    assert "memory: 400 MB a run" in said
