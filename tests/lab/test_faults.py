"""What goes wrong around a run: two at once, a full disk, damaged files, diverging losses, and death at any moment."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from afec import files
from afec.cli import main
from afec.experiments import supervised
from afec.files import load_tree
from afec.lab import Job, RunDirectory, RunError, execute, find_runs, lock, plan, run, unfinished
from afec.report.rows import rows_of
from afec.report.study_figure import draw_study
from small_lab import quick_config, quick_file
from stopped_runs import in_task, run_until


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of scores.csv of a run that nothing has disturbed."""
    root, known = tmp_path_factory.mktemp("whole"), {}

    def scores(method="ewc", seed=0, scale="three"):
        key = (method, seed, scale)
        if key not in known:
            known[key] = numbers(run(quick_config(method, scale), seed, root))
        return known[key]

    return scores


def numbers(found):
    return (found.path / "scores.csv").read_bytes()


def stopped(root, seed=0):
    """A run that was stopped inside of its last task; with two checkpoints."""
    run_until(in_task(2), quick_config("ewc", "three"), root, seed)
    return RunDirectory.of(root, quick_config("ewc", "three"), seed)


# -- two at once --------------------------------------------------------------------------------------------------


def test_a_second_process_waits_while_a_run_is_locked(tmp_path, monkeypatch, whole):
    expected, config = whole(), quick_config("ewc", "three")
    found, waiting = RunDirectory.of(tmp_path, config, 0), threading.Event()

    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.01)
    options = {"on_wait": lambda holder: waiting.set()}
    thread = threading.Thread(target=run, args=(config, 0, tmp_path), kwargs=options)
    with found.locked():
        thread.start()
        assert waiting.wait(60)
        assert {file.name for file in found.path.iterdir()} == {"lock", "lock-holder"}  # it has touched nothing
    thread.join(120)
    assert found.done
    assert numbers(found) == expected


def test_of_two_at_once_one_runs_and_both_have_the_result(tmp_path, monkeypatch, whole):
    expected, config, trained = whole(), quick_config("ewc", "three"), set()
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.01)
    results = []

    def work():
        results.append(run(config, 0, tmp_path, lambda progress: trained.add(threading.get_ident())))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(trained) == 1
    assert [numbers(found) for found in results] == [expected] * 3


def test_a_run_that_ends_badly_gives_its_lock_back(tmp_path, whole):
    found = stopped(tmp_path)
    with found.locked():
        pass
    assert numbers(run(quick_config("ewc", "three"), 0, tmp_path)) == whole()


# -- a full disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint(where, in_process, tmp_path, monkeypatch, whole, capsys):
    full, saves, real = [], [], RunDirectory.save_checkpoint

    def save_checkpoint(self, state):
        saves.append(self.seed)
        full.append(saves.count(0) == 2 and self.seed == 0)
        try:
            real(self, state)
        finally:
            full.append(False)

    def save_file(tensors, path, metadata):
        written(tensors, path, metadata=metadata)
        if full and full[-1]:
            path.write_bytes(path.read_bytes()[:500])  # as far as the disk went
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(number):
        if full and full[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    jobs = [Job(quick_config("ewc", "three"), seed) for seed in (0, 1)]
    with monkeypatch.context() as patch:
        written = files.save_file
        patch.setattr(RunDirectory, "save_checkpoint", save_checkpoint)
        if where == "write":
            patch.setattr(files, "save_file", save_file)
        else:
            patch.setattr(files.os, "fsync", fsync)
        first, second = execute(jobs, tmp_path, 1)
    assert "No space left on device" in first.error
    assert "No space left on device" in first.directory.failure
    assert second.error is None
    assert numbers(second.directory) == whole(seed=1)  # the other one went on
    state, faults = first.directory.load_checkpoint()
    assert (state["tasks_done"], faults) == (1, [])  # the checkpoint before, whole
    assert not list(tmp_path.rglob("*.tmp"))
    assert main(["resume", str(tmp_path)]) == 0
    assert numbers(first.directory) == whole(seed=0)
    assert first.directory.failure is None


def test_a_line_that_a_full_disk_has_cut_costs_no_number(tmp_path, whole):
    found = stopped(tmp_path)
    with (found.path / "events.jsonl").open("a") as file:
        file.write('{"event": "progress", "ta')
    run(quick_config("ewc", "three"), 0, tmp_path)
    assert numbers(found) == whole()
    assert [task["task"] for task in found.tasks()] == [1, 2, 3]


# -- damaged checkpoints ------------------------------------------------------------------------------------------


def truncated(data, draw):
    return data[: draw.randrange(len(data))]


def flipped(data, draw):
    place = draw.randrange(len(data) // 2, len(data))  # in the tensors
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def replaced(data, draw):
    return b"\x00" * len(data)


@pytest.mark.parametrize("damage", [truncated, flipped, replaced])
@pytest.mark.parametrize("number", range(3))
def test_a_damaged_checkpoint_gives_way_to_the_one_before(damage, number, tmp_path, whole):
    expected, found, draw = whole(), stopped(tmp_path), random.Random(number)
    last, before = found.checkpoints
    assert load_tree(before)["tasks_done"] == 2
    last.write_bytes(damage(last.read_bytes(), draw))
    with pytest.warns(RuntimeWarning, match="went on from the checkpoint before it: .*checkpoint.safetensors"):
        run(quick_config("ewc", "three"), 0, tmp_path)
    assert numbers(found) == expected
    assert any("went on from" in event.get("text", "") for event in found.events())


def test_any_single_bit_of_a_checkpoint_is_seen_or_does_not_matter(tmp_path):
    found, draw = stopped(tmp_path), random.Random(0)
    data, state = found.checkpoint.read_bytes(), load_tree(found.checkpoint)
    for _ in range(100):
        place = draw.randrange(len(data))
        found.checkpoint.write_bytes(data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :])
        loaded, faults = found.load_checkpoint()
        if not faults:
            torch.testing.assert_close(flat(loaded), flat(state), rtol=0, atol=0)


def flat(tree):
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in flat(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in flat(item)]
    return [tree] if isinstance(tree, torch.Tensor) else []


def test_two_damaged_checkpoints_begin_anew(tmp_path, whole):
    expected, found = whole(), stopped(tmp_path)
    for file in found.checkpoints:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(RuntimeWarning, match="started anew"):
        run(quick_config("ewc", "three"), 0, tmp_path)
    assert numbers(found) == expected


# -- damaged directories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"method = ", b"\xff\xfe\x00", b"", b"x = 1\n"])
def test_a_garbled_configuration_is_named_and_stops_no_other(garbage, in_process, tmp_path, whole, capsys):
    bad, good = stopped(tmp_path, seed=0), stopped(tmp_path, seed=1)
    (bad.path / "config.toml").write_bytes(garbage)
    with pytest.warns(RuntimeWarning, match="skipped: .*seed0/config.toml cannot be read .* move the directory away"):
        (job,) = unfinished(tmp_path)
    assert job.seed == 1
    with pytest.warns(RuntimeWarning, match="skipped: .*seed0/config.toml"):
        assert main(["resume", str(tmp_path)]) == 0
    assert numbers(good) == whole(seed=1)
    assert not bad.done
    with pytest.raises(RunError, match="seed0/config.toml cannot be read"):  # nothing else is left: that is an error
        unfinished(tmp_path)
    run(quick_config("ewc", "three"), 0, tmp_path)  # who knows the configuration goes on
    assert numbers(bad) == whole(seed=0)


def test_wherever_scores_csv_is_cut_it_is_seen(tmp_path):
    for method in ("ewc", "scratch"):
        found = run(quick_config(method, "tiny"), 0, tmp_path)
        data, matrix = numbers(found), found.matrix()
        for length in range(len(data)):
            (found.path / "scores.csv").write_bytes(data[:length])
            with pytest.raises(RunError, match=r"scores.csv (cannot be read|is not whole)"):
                found.matrix()
        (found.path / "scores.csv").write_bytes(data)
        np.testing.assert_array_equal(found.matrix(), matrix)


def test_impossible_rows_are_seen(tmp_path):
    found = run(quick_config("ewc", "tiny"), 0, tmp_path)
    for row in ("9,1,x,0.5,0.5,9", "-1,1,x,0.5,0.5,9", "1,0,x,0.5,0.5,9"):
        (found.path / "scores.csv").write_text(f"after,task,name,validation,test,size\n{row}\n")
        with pytest.raises(RunError, match="scores.csv is not whole"):
            found.matrix()


@pytest.mark.parametrize("method", ["ewc", "scratch"])
def test_tables_and_pictures_leave_damaged_runs_out_and_name_them(method, tmp_path):
    pairs = [(quick_config(m, "three"), seed) for m in ("ewc", "scratch") for seed in (0, 1)]
    runs = [(config, run(config, seed, tmp_path)) for config, seed in pairs]
    (bad,) = [found for config, found in runs if config.method == method and found.seed == 0]
    (bad.path / "scores.csv").write_bytes(numbers(bad)[:-2])
    named = rf"skipped: .*{method}/.*seed0/scores.csv cannot be read .* move the directory away"
    with pytest.warns(RuntimeWarning, match=named):
        rows = {line.config.method: line for line in rows_of(runs)}
    assert sorted(rows[method].metrics) == [1]
    assert {name: sorted(row.metrics) for name, row in rows.items()} == {"ewc": [0, 1], "scratch": [0, 1]} | {
        method: [1]
    }
    if method == "scratch":  # also where it is only the reference on disk
        with pytest.warns(RuntimeWarning, match=named):
            (row,) = rows_of([pair for pair in runs if pair[0].method == "ewc"])
        assert [np.isnan(value) for value in row.values("fwt_vs_scratch")] == [True, False]
    with pytest.warns(RuntimeWarning, match=named):
        draw_study(tmp_path / "p.png", runs)
    assert (tmp_path / "p.png").exists()


def test_a_study_with_a_damaged_run_still_shows_its_table(in_process, tmp_path, capsys):
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--method", "ewc", "--seeds", "2"]
    command += ["--runs", str(tmp_path / "runs")]
    assert main(command) == 0
    capsys.readouterr()
    file = find_runs(tmp_path / "runs")[0].path / "scores.csv"
    file.write_text(file.read_text()[:-3])
    with pytest.warns(RuntimeWarning, match="seed0/scores.csv cannot be read"):
        assert main(command) == 0
    assert "test accuracy in %, one seed" in capsys.readouterr().out


def test_where_every_run_is_damaged_there_is_no_picture_and_no_traceback(in_process, tmp_path, capsys):
    command = ["run", quick_file(tmp_path), "--scale", "three", "--method", "ewc", "--seeds", "2"]
    command += ["--runs", str(tmp_path / "runs"), "--picture", str(tmp_path / "p.png")]
    assert main(command) == 0
    (tmp_path / "p.png").unlink()
    capsys.readouterr()
    for found in find_runs(tmp_path / "runs"):
        (found.path / "scores.csv").write_text("")
    with pytest.warns(RuntimeWarning, match="scores.csv is not whole|scores.csv cannot be read"):
        assert main(command) == 0
    assert "no picture: no method's run is finished and whole" in capsys.readouterr().out
    assert not (tmp_path / "p.png").exists()


# -- a loss that is no number -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "error"),
    [
        (
            "train",
            "FloatingPointError: the loss of the first batch is nan; the guard needs a finite one. Check the inputs",
        ),
        (
            "validation",
            "NotFiniteError: the validation loss is nan after epoch 1: training diverged; lower the learning",
        ),
    ],
)
def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(split, error, in_process, tmp_path, monkeypatch):
    real = supervised.build

    def build(setup, seed):
        stream, net = real(setup, seed)
        getattr(stream.tasks[1], split).inputs.fill_(torch.nan)
        return stream, net

    monkeypatch.setattr(supervised, "build", build)
    (outcome,) = execute([Job(quick_config("ewc", "three"), 0)], tmp_path, 1)
    assert error in outcome.error.splitlines()[-1]
    assert outcome.error == outcome.directory.failure
    state, faults = outcome.directory.load_checkpoint()
    assert (state["tasks_done"], faults) == (1, [])
    assert all(torch.isfinite(leaf).all() for leaf in flat(state) if leaf.is_floating_point())
    assert not outcome.directory.done
    assert {score.after for score in outcome.directory.scores()} == {0, 1}


# -- data that disappear ------------------------------------------------------------------------------------------

FOLDER = """
[stream]
name = "folder:{}"
size = 8
mode = "grey"

[net]
name = "digits"
channels = 4
features = 8

[training]
batch_size = 4
max_epochs = 2
patience = 1

[method.ewc]
strength = 10
"""


def write_images(folder):
    """Real digits: two tasks of two classes."""
    images, labels = load_digits(return_X_y=True)
    for label in range(4):
        for number, image in enumerate(images[labels == label][:8]):
            file = folder / f"task{label // 2}" / str(label) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image.reshape(8, 8) * 15).astype(np.uint8)).save(file)


def test_a_dataset_that_disappears_fails_what_needs_it_and_loses_nothing(in_process, tmp_path, capsys):
    data, away = tmp_path / "images", tmp_path / "away"
    write_images(data)
    (tmp_path / "mine.toml").write_text(FOLDER.format(data))
    jobs = plan([str(tmp_path / "mine.toml")], ["ewc"], [0, 1, 2])
    expected = [numbers(run(job.config, job.seed, tmp_path / "whole")) for job in jobs]

    class Remove:
        """Takes the data away in the middle of the first run."""

        def on_progress(self, index, job, progress):
            if data.exists():
                data.rename(away)

        def on_outcome(self, outcome):
            pass

        def on_tick(self):
            pass

    run_until(in_task(1), jobs[2].config, tmp_path / "runs", seed=2)
    first, *others = execute(jobs[:1], tmp_path / "runs", 1, Remove()) + execute(jobs[1:], tmp_path / "runs", 1)
    assert first.error is None  # it had its images
    assert numbers(first.directory) == expected[0]
    for outcome in others:
        assert str(data) in outcome.error.splitlines()[-1]
        assert "Error: " in outcome.error.splitlines()[-1]
        assert not outcome.directory.done
    state, faults = others[1].directory.load_checkpoint()
    assert (state["tasks_done"], faults) == (1, [])  # what it had learned before is still there
    assert main(["resume", str(tmp_path / "runs")]) == 2  # said before anything runs
    assert str(data) in capsys.readouterr().err
    away.rename(data)
    assert main(["resume", str(tmp_path / "runs")]) == 0
    assert [numbers(RunDirectory.of(tmp_path / "runs", job.config, job.seed)) for job in jobs] == expected


# -- killed at any moment -----------------------------------------------------------------------------------------

STUDY = """
import importlib, json, os, random, signal, sys, time
from contextlib import suppress
from pathlib import Path

import torch

torch.set_num_threads(1)
from afec.lab import plan, run, unfinished

sys.modules["afec.lab.run"].CHECKPOINT_SECONDS = 0.0  # a checkpoint after every epoch: more to be killed in
sys.modules["afec.lab.run"].BETWEEN = 0
benchmark, root = sys.argv[1], Path(sys.argv[2])
jobs = plan([benchmark], ["finetune", "ewc", "ewc+afec", "mas", "si"], [0, 1], "three")


def study(folder):
    for job in jobs:
        run(job.config, job.seed, folder)


def child(work, *arguments):
    # Nothing is trained in the parent, and so every child is as good as a new process, but quicker to start.
    number = os.fork()
    if number == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        finally:
            os._exit(code)
    return number


def end(number):
    status = os.waitpid(number, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reference():
    study(root / "whole")
    (root / "modules.json").write_text(json.dumps(sorted(sys.modules)))


def resume():
    for job in unfinished(root / "killed"):
        run(job.config, job.seed, root / "killed")
    study(root / "killed")


assert end(child(reference)) == 0
for name in json.loads((root / "modules.json").read_text()):
    with suppress(Exception):
        importlib.import_module(name)
start = time.monotonic()
assert end(child(study, root / "again")) == 0
took = time.monotonic() - start
draw, ends = random.Random(0), []
for _ in range(20):
    number = child(study, root / "killed")
    time.sleep(draw.uniform(0.0, 2.5 * took / 20))
    os.kill(number, signal.SIGKILL)
    ends.append(end(number))
done = len(list((root / "killed").rglob("DONE")))
begun = len(list((root / "killed").rglob("checkpoint.safetensors")))
assert end(child(resume)) == 0
left = sorted(f.name for f in (root / "killed").rglob("*") if f.suffix in (".tmp", ".link"))
print(json.dumps({"ends": ends, "done": done, "begun": begun, "took": took, "left": left}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_study_that_is_killed_twenty_times_comes_to_the_same_bytes(tmp_path):
    (tmp_path / "study.py").write_text(STUDY)
    command = [sys.executable, str(tmp_path / "study.py"), quick_file(tmp_path), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    print(report)  # shown by `pytest -s`: when it was killed, and what the kills have left lying about
    assert report["ends"].count(signal.SIGKILL) >= 10, report
    whole = {d.path.relative_to(tmp_path / "whole"): numbers(d) for d in find_runs(tmp_path / "whole")}
    assert len(whole) == 10
    for name in ("again", "killed"):
        found = find_runs(tmp_path / name)
        assert {d.path.relative_to(tmp_path / name): numbers(d) for d in found} == whole
        assert all(d.done and [task["task"] for task in d.tasks()] == [1, 2, 3] for d in found)
        assert not list((tmp_path / name).rglob("checkpoint*.safetensors"))
