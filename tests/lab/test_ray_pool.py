"""Runs on a real Ray cluster of two nodes on this machine: the same bytes, faults, and nodes that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from afec.cli import main
from afec.lab import Job, Place, RunError, execute, find_runs, plan, run
from small_lab import quick_config, quick_file
from small_processes import all_scores

pytest.importorskip("ray", reason="ray is part of afec[dev]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Ray's own processes
]


@pytest.fixture(scope="module")
def address():
    """Two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    cluster.add_node(**options)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture
def cluster(address):
    """`cluster(**options)`: a connection to it, which is left at the end of the test."""
    from afec.lab.ray_pool import RayCluster

    opened = []

    def connect(**options):
        opened.append(RayCluster(address, **options))
        return opened[-1]

    yield connect
    for one in opened:
        one.__exit__()


def bytes_of(jobs, root):
    for job in jobs:
        run(job.config, job.seed, root)
    return all_scores(root)


class Watcher:
    def __init__(self, stop_at=None):
        self.stop_at, self.steps, self.stops = stop_at, [], []

    def on_progress(self, index, job, progress):
        self.steps.append(index)
        if self.stop_at is not None and len(self.steps) == self.stop_at:
            raise KeyboardInterrupt

    def on_wait(self, index, job, holder):
        pass

    def on_outcome(self, outcome):
        pass

    def on_tick(self):
        pass

    def on_stop(self, running):
        self.stops.append(running)


@pytest.mark.parametrize("ship", [False, True])
def test_the_bytes_are_those_of_local_runs_and_a_failing_run_stops_no_other(cluster, tmp_path, ship):
    jobs = [Job(quick_config(name, "tiny"), seed) for name in ("finetune", "ewc") for seed in (0, 1)]
    wrong = Job(replace(jobs[0].config, training={**jobs[0].config.training, "lr": 1e30}), 0)
    watcher = Watcher()
    outcomes = execute([wrong, *jobs], tmp_path / "ray", watcher=watcher, pool=cluster(ship=ship), board=tmp_path / "b")
    assert [outcome.error is None for outcome in outcomes] == [False, True, True, True, True]
    assert "NotFiniteError" in outcomes[0].directory.failure
    assert watcher.steps
    assert all((tmp_path / "b" / o.directory.path.relative_to(tmp_path / "ray")).is_dir() for o in outcomes[1:])
    found = {name: text for name, text in all_scores(tmp_path / "ray").items() if wrong.config.hash not in str(name)}
    assert found == bytes_of(jobs, tmp_path / "whole")
    left = {file.name for file in outcomes[1].directory.path.iterdir()}
    assert left == {f.name for f in find_runs(tmp_path / "whole")[0].path.iterdir()}


@pytest.mark.parametrize("ship", [False, True])
def test_ctrl_c_leaves_everything_resumable(cluster, tmp_path, ship):
    long = {"training": {"max_epochs": 150, "patience": "off"}}  # seconds: the stop comes before the end of it
    jobs = [Job(quick_config("ewc", "three", **long), seed) for seed in range(2)]
    watcher = Watcher(stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        execute(jobs, tmp_path / "ray", watcher=watcher, pool=cluster(ship=ship))
    assert watcher.stops
    begun = find_runs(tmp_path / "ray")
    assert begun
    assert any(found.checkpoint.exists() for found in begun if not found.done)
    assert main(["resume", str(tmp_path / "ray"), "--workers", "1"]) == 0
    assert all(item in bytes_of(jobs, tmp_path / "whole").items() for item in all_scores(tmp_path / "ray").items())


def test_work_that_dies_again_and_again_is_given_up_and_the_rest_goes_on(cluster):
    from afec.lab.ray_pool import RayPool

    def leave(channel):  # functions of a test are sent as they are: no node has this file
        raise SystemExit(3)

    def tell_number(channel):
        return 7

    connection = cluster()
    connection.connect()
    pool, found = RayPool(connection.ray), {}
    try:
        pool.start(0, leave)
        pool.start(1, tell_number)
        while pool.busy:
            found |= {message.index: message for message in pool.poll(1) if message.kind in ("result", "died")}
    finally:
        pool.stop()
    assert found[0].kind == "died"
    assert "3 times without a checkpoint" in found[0].content
    assert found[1].content == 7


def test_nodes_of_another_version_refuse_and_both_versions_are_named(cluster, tmp_path, monkeypatch):
    from afec.lab import ray_pool

    other = {**ray_pool.versions(), "afec": "9.9.9"}
    monkeypatch.setattr(ray_pool, "versions", lambda: other)
    with pytest.raises(RunError, match=r"node .* has afec 0\.1\.0, .* and this command has afec 9\.9\.9, .* install"):
        execute([Job(quick_config("ewc", "tiny"), 0)], tmp_path, pool=cluster())


def test_missing_data_are_an_error_of_the_node(cluster, tmp_path):
    (job,) = plan(["cifar100-sc"], ["finetune"], [0], "smoke", place=Place(data=tmp_path / "nothing"))
    with pytest.raises(
        RunError, match=r"(?s)no node of the Ray cluster can run this: node .*nothing.*; node .*nothing"
    ):
        execute([job], tmp_path / "runs", pool=cluster())


def test_a_node_that_is_killed_in_the_middle_of_a_study_costs_nothing(tmp_path):
    script = Path(__file__).parents[2] / "bench" / "ray_kills.py"
    command = [sys.executable, str(script), "--kills", "1", "--seeds", "1", "--every", "3"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout.splitlines()[-1])
    assert (report["kills"], report["lost"], report["identical"]) == (1, 0, True), report
    assert report["done"] == report["runs"]


def test_the_command_line_starts_a_cluster_and_stops_it(tmp_path, capsys):
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--method", "ewc", "--seeds", "2", "--workers", "2"]
    assert main([*command, "--runs", str(tmp_path / "ray"), "--pool", "ray"]) == 0
    assert "2 runs on a Ray cluster of this machine" in capsys.readouterr().out
    assert main([*command, "--runs", str(tmp_path / "local")]) == 0
    assert all_scores(tmp_path / "ray") == all_scores(tmp_path / "local")
    import ray

    assert not ray.is_initialized()
