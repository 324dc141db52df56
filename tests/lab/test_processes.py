"""Studies in real processes: workers and whole studies that are killed at any moment, two studies in one place, Ctrl-C."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from afec.cli import main
from afec.lab import Job, RunDirectory, RunError, execute, find_runs, plan, run
from afec.lab.local_pool import LocalPool
from small_lab import quick_config, quick_file
from small_processes import (
    ForkedCommand,
    Unreadable,
    afec,
    alive,
    all_scores,
    leave,
    polled,
    send_until_stopped,
    sleep,
    tell_number,
    wait_until,
    workers_of,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")


class Watcher:
    """Notes everything; `on_first_step` is called with the job and the process that runs it."""

    def __init__(self, root=None, on_first_step=None):
        self.root, self.on_first_step = root, on_first_step
        self.outcomes, self.seen, self.waits, self.stops = [], set(), [], []

    def on_progress(self, index, job, progress):
        if index not in self.seen and self.on_first_step:
            name = (RunDirectory.of(self.root, job.config, job.seed).path / "lock-holder").read_text()
            self.on_first_step(job, int(re.match(r"process (\d+) on ", name)[1]))
        self.seen.add(index)

    def on_wait(self, index, job, holder):
        self.waits.append((job, holder))

    def on_outcome(self, outcome):
        self.outcomes.append(outcome)

    def on_tick(self):
        pass

    def on_stop(self, running):
        self.stops.append(running)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """scores.csv of these jobs, where nothing has disturbed them."""
    root = tmp_path_factory.mktemp("whole")

    def scores(jobs):
        for job in jobs:
            run(job.config, job.seed, root)
        known = all_scores(root)
        return {name: known[name] for name in (d.path.relative_to(root) for d in directories(root, jobs))}

    return scores


def directories(root, jobs):
    return [RunDirectory.of(root, job.config, job.seed) for job in jobs]


# -- killed at any moment -----------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_fails_its_run_and_no_other(quickly, tmp_path, whole):
    jobs = [Job(quick_config("ewc", "three"), seed) for seed in range(4)]
    killed = []

    def kill(job, number):
        if job.seed < 2:
            killed.append(job)
            os.kill(number, signal.SIGKILL)

    outcomes = execute(jobs, tmp_path, 2, Watcher(tmp_path, kill))
    assert [outcome.job for outcome in outcomes if outcome.error] == jobs[:2] == sorted(killed, key=jobs.index)
    for outcome in outcomes[:2]:
        assert re.match(
            r"its worker process \d+ was killed by SIGKILL \(was there no memory left\? then use fewer --workers\); the other "
            "runs went on. The same command, or `afec resume`, goes on from its last checkpoint\n$",
            outcome.error,
        )
        assert outcome.directory.failure == outcome.error
        assert not outcome.directory.done
    assert all(outcome.directory.done for outcome in outcomes[2:])
    assert all(outcome.error is None for outcome in execute(jobs, tmp_path, 2))
    assert all(found.failure is None for found in directories(tmp_path, jobs))
    assert all_scores(tmp_path) == whole(jobs)


METHODS, SETS = ["finetune", "ewc", "ewc+afec", "mas", "si"], ["training.max_epochs=6", "training.patience=off"]


def study_of(benchmark, seeds, root):
    """A study of five methods; tasks of about a tenth of a second."""
    return [
        *("run", benchmark, "--scale", "three", "--method", *METHODS),
        *("--seeds", seeds, "--set", *SETS, "--workers", 2, "--runs", root),
    ]


@pytest.mark.slow
def test_a_study_of_the_command_line_that_is_killed_twenty_times_comes_to_the_same_bytes(tmp_path, whole):
    """The whole process group, or one worker, at random moments; then the same command or `afec resume`.

    The first time the command is started as a user starts it.
    """
    draw, benchmark, root = random.Random(0), quick_file(tmp_path), tmp_path / "runs"
    kinds = ["group"] * 8 + ["worker"] * 12
    draw.shuffle(kinds)
    seeds, groups, alone = 2, 0, 0
    while kinds:
        again = ["resume", root, "--workers", 2]
        begun = root.exists() and any(not found.done for found in find_runs(root))
        command = again if begun and draw.random() < 0.4 else study_of(benchmark, seeds, root)
        if root.exists():
            process = ForkedCommand(*command)
        else:
            process = afec(
                *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        wait_until(lambda p=process: len(workers_of(p)) == 2 or p.poll() is not None)
        while kinds:
            try:
                process.wait(timeout=draw.uniform(0, 0.4))  # while they start, learn, or write
            except subprocess.TimeoutExpired:
                pass
            else:
                break
            there = workers_of(process)
            if there and kinds.pop() == "worker":
                draw.choice(there).kill()
                alone += 1
            elif there:
                with suppress(ProcessLookupError):  # it came to its end just now
                    os.killpg(process.pid, signal.SIGKILL)
                groups += 1
                break
        out, _ = process.communicate()
        assert process.returncode in (0, 1, -signal.SIGKILL), out
        assert "Traceback" not in out
        if process.returncode == 0 and command[0] == "run":  # it came to its end before it was killed often enough
            seeds += 1
    print(f"{groups} whole studies and {alone} workers were killed; {seeds} seeds")
    process = ForkedCommand(*study_of(benchmark, seeds, root))
    out, _ = process.communicate()
    assert process.returncode == 0, out
    jobs = plan([benchmark], METHODS, range(seeds), "three", SETS)
    assert len(jobs) >= 10
    assert (groups, alone) == (8, 12)
    assert all_scores(root) == whole(jobs)
    for found in directories(root, jobs):
        assert [task["task"] for task in found.tasks()] == [1, 2, 3]
        left = {str(file.relative_to(found.path)) for file in found.path.rglob("*") if file.is_file()}
        assert left == {
            *("config.toml", "env.json", "scores.csv", "events.jsonl", "learner.safetensors", "DONE"),
            *("lock", "lock-holder"),
        }


# -- workers themselves -------------------------------------------------------------------------------------------


@pytest.fixture
def pools(quickly):
    """`pools(count)`: pools that have ended at the end of the test, whatever happens in it."""
    with ExitStack() as stack:

        def make(count, gpus=()):
            pool = LocalPool(count, gpus)
            stack.callback(pool.stop)
            return pool

        yield make


def test_workers_are_used_again_and_an_idle_one_that_has_died_is_replaced(pools):
    pool, numbers = pools(1), []
    for index in range(3):
        pool.start(index, tell_number)
        (message,) = polled(pool)
        assert (message.kind, message.index) == ("result", index)
        numbers.append(message.content)
        if index == 1:
            pool.slots[0].process.kill()
            pool.slots[0].process.join()
    assert numbers[0] == numbers[1] != numbers[2]


def test_workers_that_cannot_start_are_an_error_and_not_a_failed_run(pools):
    pool = pools(1, [Unreadable()])
    pool.start(0, sleep)
    with pytest.raises(RunError, match="a worker process could not start and ended with code 1"):
        polled(pool)


def test_workers_are_asked_to_stop_by_their_token_and_have_ended_then(pools):
    pool, sent = pools(2), set()
    for index in (0, 1):
        pool.start(index, send_until_stopped)
    while sent != {0, 1}:
        sent |= {message.index for message in pool.poll(1) if (message.kind, message.content) == ("waiting", "Godot")}
    assert (pool.busy, pool.free) == (2, 0)
    pool.stop()
    assert [worker.process.exitcode for worker in pool.slots] == [0, 0]
    pool.stop()  # a second time there is nothing to end


def test_interrupted_while_they_stop_they_end_at_once(pools, monkeypatch):
    pool = pools(1)
    pool.start(0, sleep)
    (worker,) = pool.slots
    join = worker.process.join

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker.process, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.stop()
    join(60)
    assert worker.process.exitcode == -signal.SIGKILL


def test_a_worker_that_leaves_by_itself_says_its_code(pools):
    pool = pools(1)
    pool.start(0, leave)
    (message,) = polled(pool)
    assert message.kind == "died"
    assert re.fullmatch(r"its worker process \d+ ended with code 3", message.content)
    assert (pool.busy, pool.free) == (0, 1)


# -- two at once --------------------------------------------------------------------------------------------------


def test_a_run_that_somebody_else_is_at_comes_last_and_is_waited_for(in_process, tmp_path, whole):
    jobs = [Job(quick_config("ewc", "three"), seed) for seed in (0, 1)]
    with ExitStack() as stack:
        stack.enter_context(RunDirectory.of(tmp_path, jobs[0].config, 0).locked())

        class Release(Watcher):
            def on_outcome(self, outcome):
                super().on_outcome(outcome)
                stack.close()

        watcher = Release()
        outcomes = execute(jobs, tmp_path, 1, watcher)
    assert [outcome.job.seed for outcome in watcher.outcomes] == [1, 0]
    assert [outcome.job.seed for outcome in outcomes] == [0, 1]
    assert all_scores(tmp_path) == whole(jobs)


@pytest.mark.slow
def test_two_studies_at_once_in_one_place_share_the_work(tmp_path, whole):
    command = study_of(quick_file(tmp_path), 2, tmp_path / "runs")
    command[command.index("--workers") + 1] = 1
    both = [ForkedCommand(*command) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    jobs = plan([str(tmp_path / "quick.toml")], METHODS, [0, 1], "three", SETS)
    assert all_scores(tmp_path / "runs") == whole(jobs)
    by = set()
    for found in directories(tmp_path / "runs", jobs):
        tasks = [event["task"] for event in found.events() if event["event"] == "task"]
        assert tasks == [1, 2, 3]  # every run was done once
        by.add((found.path / "lock-holder").read_text())
    assert len(by) == 2
    for out in said:
        assert "Warning" not in out
        assert out.count("seed 0: done") + out.count("seed 1: done") <= 10
        assert "mean ± std of 2 seeds" in out


@pytest.mark.slow
def test_who_waits_says_for_whom_and_can_be_stopped(tmp_path):
    benchmark, root = quick_file(tmp_path), tmp_path / "runs"
    command = ["run", benchmark, "--scale", "three", "--method", "ewc", "--seeds", 1, "--runs", root]
    (job,) = plan([benchmark], ["ewc"], [0], "three")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with RunDirectory.of(root, job.config, 0).locked():
            process = afec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            lines = iter(process.stdout.readline, "")
            (waits,) = [next(line for line in lines if "waits for" in line)]
            assert f"quick, ewc, seed 0: waits for process {os.getpid()} on " in waits
            there = workers_of(process)
            os.killpg(process.pid, signal.SIGINT)
            _, error = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 130
    assert error.startswith("stopping: 1 run ")
    wait_until(lambda: not any(map(alive, there)))
    assert not (root / "quick" / "ewc" / job.config.hash / "seed0" / "config.toml").exists()


# -- Ctrl-C -------------------------------------------------------------------------------------------------------


def test_ctrl_c_begins_no_queued_run_and_says_at_once_that_it_stops(quickly, tmp_path, whole):
    jobs = [Job(quick_config("ewc", "three"), seed) for seed in range(4)]

    def interrupt(job, number):
        raise KeyboardInterrupt

    watcher = Watcher(tmp_path, interrupt)
    with pytest.raises(KeyboardInterrupt):
        execute(jobs, tmp_path, 1, watcher)
    assert watcher.stops == [1]
    assert [found.seed for found in find_runs(tmp_path)] == [0]
    assert main(["resume", str(tmp_path), "--workers", "1"]) == 0
    assert all_scores(tmp_path) == whole(jobs[:1])


# -- many machines and one directory -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_slurm_script_divides_a_study_among_processes_that_see_the_runs_by_different_paths(tmp_path, whole):
    """Two tasks of an array, each in a directory of its own with the shared one mounted (linked) into it."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "bin").mkdir()
    for name, line in (("srun", 'shift; exec "$@"'), ("afec", f'exec {sys.executable} -m afec "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = Path(__file__).parents[2] / "examples" / "slurm.sh"
    benchmark, processes = quick_file(tmp_path), []
    words = ["run", benchmark, "--scale", "three", "--method", "finetune", "ewc", "si", "--seeds", "2"]
    for number in range(2):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "runs").symlink_to(tmp_path / "shared", target_is_directory=True)
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "1"}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(["bash", script, *words], cwd=node, env=environment, **options))
    said = [process.communicate() for process in processes]
    assert [(p.returncode, error) for p, (_, error) in zip(processes, said, strict=True)] == [(0, "")] * 2
    jobs = plan([benchmark], ["finetune", "ewc", "si"], [0, 1], "three")
    assert all_scores(tmp_path / "shared") == whole(jobs)
    for found in directories(tmp_path / "shared", jobs):  # every run was done once
        assert [event["task"] for event in found.events() if event["event"] == "task"] == [1, 2, 3]
