"""Runs on a real Ray cluster of two nodes on this machine: the same bytes, faults, and nodes that do not fit."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import afec
from afec.cli import main
from afec.lab import Job, Place, RunError, execute, find_runs, plan, ray_pool, run, wandb
from afec.lab.directory import TUNING
from afec.lab.ray_node import versions
from afec.whole_files import write_text
from small_lab import TEXT, quick_config, quick_file
from small_processes import all_scores
from small_tuning import GRIDS

pytest.importorskip("ray", reason="ray is part of afec[dev]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Ray's own processes
]


LONG = {"training": {"max_epochs": 50, "patience": "off"}}  # seconds: a stop comes before the end of it
STUDY = """
description = "a search, and two rows of it"

[[tune]]
benchmark = "quick.toml"
methods = ["ewc"]
scale = "tiny"
seeds = 1

[[runs]]
benchmarks = ["quick.toml"]
methods = ["finetune", "ewc"]
scale = "tiny"
seeds = 1
tuned = true

[[outputs]]
file = "seeds.csv"
"""


@pytest.fixture(scope="module", autouse=True)
def memory_is_not_looked_at():
    """Ray kills workers where a machine's memory is nearly full, whoever has filled it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        yield


@pytest.fixture(scope="module")
def nodes():
    """Two nodes of one CPU each; what is added to them is killed at the end of its test."""
    import ray
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    soon = {
        "health_check_period_ms": 300,
        "health_check_initial_delay_ms": 1000,
    }  # else 15 s until a killed node is known
    found = Cluster(
        initialize_head=True, head_node_args={**options, "include_dashboard": False, "_system_config": soon}
    )
    found.add_node(**options)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def cluster(nodes):
    """What makes connections to it. This process stays connected, so that the workers of one test are there for the next."""
    import ray

    from afec.lab.ray_cluster import RayCluster

    if not ray.is_initialized():
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    return partial(RayCluster, nodes.address)


@pytest.fixture
def third(nodes):
    """`third(**options)`: one node more, until the end of the test."""
    import ray

    added = []

    def add(**options):
        added.append(nodes.add_node(num_cpus=1, object_store_memory=100 * 2**20, **options))
        return added[-1]

    yield add
    for node in added:
        if node in nodes.list_all_nodes():
            nodes.remove_node(node, allow_graceful=False)
        while any(one["Alive"] and one["NodeID"] == node.node_id for one in ray.nodes()):
            time.sleep(0.1)  # the next test would look at it


@pytest.fixture
def taken(cluster, nodes):
    """The CPUs of the two nodes have other work, until `taken()` is called: what begins meanwhile begins on a third."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Other:
        def begun(self):
            return True

    def other_on(node):
        strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        return ray.remote(num_cpus=1)(Other).options(scheduling_strategy=strategy).remote()

    others = [other_on(node) for node in nodes.list_all_nodes()]
    ray.get([other.begun.remote() for other in others])

    def end():
        while others:
            ray.kill(others.pop())

    yield end
    end()


@pytest.fixture
def on_ray(cluster):
    """The words of a command line that take it there."""
    return ["--pool", "ray", "--address", cluster().address]


def bytes_of(jobs, root):
    for job in jobs:
        run(job.config, job.seed, root)
    return all_scores(root)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Two runs that take seconds, and the bytes that they come to undisturbed."""
    jobs = [Job(quick_config("ewc", "three", **LONG), seed) for seed in range(2)]
    return jobs, bytes_of(jobs, tmp_path_factory.mktemp("long"))


class Watcher:
    def __init__(self, stop_at=None):
        self.stop_at, self.steps, self.stops, self.waits = stop_at, [], [], []

    def on_progress(self, index, job, progress):
        self.steps.append(index)
        if self.stop_at is not None and len(self.steps) == self.stop_at:
            raise KeyboardInterrupt

    def on_wait(self, index, job, holder):
        self.waits.append(holder)

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
def test_ctrl_c_leaves_everything_resumable(cluster, long, in_process, tmp_path, ship):
    (jobs, whole), watcher = long, Watcher(stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        execute(jobs, tmp_path / "ray", watcher=watcher, pool=cluster(ship=ship))
    assert watcher.stops
    begun = find_runs(tmp_path / "ray")
    assert any(found.checkpoint.exists() for found in begun if not found.done)
    execute(jobs, tmp_path / "ray")
    assert all_scores(tmp_path / "ray") == whole


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


def test_a_node_of_another_version_is_left_out_and_both_versions_are_named(cluster, third, tmp_path):
    """Its Python really sees another release, with other code of a training: no node is asked to pretend."""
    shutil.copytree(
        Path(afec.__file__).parent, tmp_path / "other" / "afec", ignore=shutil.ignore_patterns("__pycache__")
    )
    write_text(tmp_path / "other" / "afec-9.9.9.dist-info" / "METADATA", "Name: afec\nVersion: 9.9.9\n")
    with (tmp_path / "other" / "afec" / "learner" / "fit.py").open("a") as code:
        code.write("# somebody has changed it\n")
    node = third(env_vars={"PYTHONPATH": str(tmp_path / "other")})
    ours = versions()
    words = f"left out: node .*{node.node_id[:8]}.* has afec 9\\.9\\.9, source (\\w+), .* and this command has "
    with pytest.warns(RuntimeWarning, match=f"{words}afec {ours['afec']}, source {ours['source']}") as warned:
        (outcome,) = execute([Job(quick_config("ewc", "tiny"), 0)], tmp_path / "runs", pool=cluster())
    assert outcome.error is None
    assert ours["source"] not in re.search(words, str(warned[0].message))[1]


def test_where_no_node_fits_that_is_an_error(cluster, tmp_path, monkeypatch):
    other = {**versions(), "afec": "9.9.9"}
    monkeypatch.setattr(ray_pool, "versions", lambda: other)
    with pytest.raises(
        RunError, match=r"no node .*: node .* has afec 0\.1\.0, .* and this command has afec 9\.9\.9, .* install"
    ):
        execute([Job(quick_config("ewc", "tiny"), 0)], tmp_path, pool=cluster())


def test_missing_data_are_an_error_of_the_node(cluster, tmp_path):
    (job,) = plan(["cifar100-sc"], ["finetune"], [0], "smoke", place=Place(data=tmp_path / "nothing"))
    with pytest.raises(
        RunError, match=r"(?s)no node of the Ray cluster can run this: node .*nothing.*; node .*nothing"
    ):
        execute([job], tmp_path / "runs", pool=cluster())


def test_a_node_that_is_killed_in_the_middle_of_a_study_costs_nothing(cluster, nodes, taken, third, long, tmp_path):
    """Once, and at a known moment; `bench/ray_kills.py` does it again and again, at random ones."""
    (jobs, whole), pools, connection = long, [], cluster()
    doomed = third()

    def make(jobs, root):
        pools.append(connection(jobs, root))
        return pools[-1]

    class Killer(Watcher):
        def on_tick(self):
            there = any(one.node == doomed.node_id for one in pools[0].running.values())
            if self.steps and there and doomed in nodes.list_all_nodes():
                nodes.remove_node(doomed, allow_graceful=False)
                taken()

    watcher = Killer()
    outcomes = execute(jobs, tmp_path / "ray", watcher=watcher, pool=make)
    assert [outcome.error for outcome in outcomes] == [None] * 2
    assert any("another place: its node" in text for text in watcher.waits), watcher.waits
    assert all_scores(tmp_path / "ray") == whole


def test_tune_and_study_run_there_as_at_home(on_ray, in_process, tmp_path, monkeypatch, capsys):
    """A study that tunes first: the same trials, the same choice, the same table."""
    monkeypatch.chdir(tmp_path)
    quick_file(tmp_path, TEXT + GRIDS)
    (tmp_path / "small.toml").write_text(STUDY)
    for name, where in (("ray", on_ray), ("local", [])):
        command = ["tune", "quick.toml", "--method", "ewc", "--scale", "tiny", "--seeds", "1", "--runs", f"{name}-tune"]
        assert main([*command, *where]) == 0
        assert main(["study", "run", "small.toml", "--runs", name, "--out", f"{name}-out", *where]) == 0
    said = capsys.readouterr().out
    assert f"2 runs on the Ray cluster at {on_ray[-1]}, into ray" in said
    assert "2 runs on " in said.split("into ray\n")[1]
    for one, other in (("ray", "local"), ("ray-tune", "local-tune")):
        assert all_scores(tmp_path / one) == all_scores(tmp_path / other)
        assert all_scores(tmp_path / one / TUNING) == all_scores(tmp_path / other / TUNING)
    found = [(tmp_path / f"{name}-tune" / "quick" / "tune" / "ewc-tiny.csv").read_bytes() for name in ("ray", "local")]
    assert found[0] == found[1]
    assert (tmp_path / "ray-out" / "seeds.csv").read_bytes() == (tmp_path / "local-out" / "seeds.csv").read_bytes()


def test_logs_are_those_of_local_runs(on_ray, tmp_path, monkeypatch, capsys):
    """`--tensorboard` and `--wandb` by the command line, with run directories that are shipped home."""
    logged = []
    monkeypatch.setattr(wandb, "log_run", lambda directory, project: logged.append((directory.path, project)))
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--method", "ewc", "--seeds", "2", "--ship"]
    command += ["--tensorboard", str(tmp_path / "board"), "--wandb", "mine", "--runs", str(tmp_path / "runs")]
    assert main([*command, *on_ray]) == 0
    runs = find_runs(tmp_path / "runs")
    assert sorted(logged) == [(found.path, "mine") for found in runs]
    assert len(runs) == 2
    for found in runs:
        assert list((tmp_path / "board" / found.path.relative_to(tmp_path / "runs")).glob("events.out.tfevents.*"))
    shown = capsys.readouterr().out
    assert shown.count("done") >= 2


def test_a_process_that_is_connected_elsewhere_is_told_so(cluster):
    from afec.lab.ray_cluster import RayCluster

    here = cluster().address
    with pytest.raises(
        RunError, match=f"connected to the Ray cluster at {here}, and a cluster of this machine was asked for"
    ):
        RayCluster().connect()


def test_the_command_line_starts_a_cluster_and_stops_it(in_process, tmp_path, capsys):
    import ray

    ray.shutdown()  # other tests connect again
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--method", "ewc", "--seeds", "1", "--workers", "1"]
    for _ in range(3):  # Ray gives its processes 30 s to start, which a busy machine does not always keep
        code, said = main([*command, "--runs", str(tmp_path / "ray"), "--pool", "ray"]), capsys.readouterr()
        if "timed out during startup" not in said.err:
            break
    assert code == 0
    assert "1 runs on a Ray cluster of this machine" in said.out
    assert main([*command, "--runs", str(tmp_path / "local")]) == 0
    assert all_scores(tmp_path / "ray") == all_scores(tmp_path / "local")
    assert not ray.is_initialized()
