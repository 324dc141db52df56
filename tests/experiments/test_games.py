"""The experiment `games` goes through everything that the lab has: run, kill, resume, tune, report, TensorBoard, bad input."""

from __future__ import annotations

import csv
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from afec.cli import main
from afec.experiments import Context
from afec.experiments.games import AGENTS, CURVE, DORMANT, load_agent
from afec.files import load_tree
from afec.lab import RunDirectory, find_runs, load_benchmark, resolve, run
from afec.lab.spec import SpecError
from afec.randomness import seed_from
from small_processes import ForkedCommand, wait_until
from stopped_runs import run_until

SMALL = Path(__file__).parents[1] / "rl"
QUICK = {"training": {"steps": 1024, "importance_steps": 128, "evaluations": 1, "evaluation_episodes": 1}}


@pytest.fixture(autouse=True)
def own_games(monkeypatch):
    """Games of the tests' own, also in other processes."""
    monkeypatch.syspath_prepend(str(SMALL))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SMALL), os.environ.get("PYTHONPATH", "")]))


def config(method, benchmark="cartpole-acrobot", sets=QUICK):
    return resolve(load_benchmark(benchmark), method, "smoke", sets)


def files(directory):
    """What a run has left, byte for byte; of weights the bytes of each tensor, as the header of the file has no order."""
    after = load_tree(directory.path / AGENTS)["after"]
    weights = [{name: value.numpy().tobytes() for name, value in agent.items()} for agent in after]
    return weights, {name: (directory.path / name).read_bytes() for name in ("scores.csv", CURVE, DORMANT)}


@pytest.mark.parametrize("method", ["ewc+afec", "ewc+afec@interleaved", "ags-cl", "ags-cl+afec"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, method):
    whole = run(config(method), 0, tmp_path / "whole")
    for phase in ("theta_e", "train"):
        if phase == "theta_e" and ("@" in method or "afec" not in method):
            continue
        root = tmp_path / phase
        run_until(lambda seen, phase=phase: (seen[-1].task, seen[-1].phase) == (1, phase), config(method), root)
        assert files(run(config(method), 0, root)) == files(whole)


def test_scores_curve_and_agents(tmp_path):
    directory = run(config("finetune"), 0, tmp_path)
    rows = list(csv.DictReader((directory.path / "scores.csv").read_text().splitlines()))
    assert [(row["after"], row["task"]) for row in rows] == [("0", "1"), ("0", "2"), ("1", "1"), ("2", "1"), ("2", "2")]
    assert all(row["size"] == "2" for row in rows)
    curve = list(csv.DictReader((directory.path / CURVE).read_text().splitlines()))
    assert [(row["game"], row["evaluated"], row["steps"]) for row in curve] == [
        ("1", "1", "1024"),
        ("2", "1", "1024"),
        ("2", "2", "1024"),
    ]
    dormant = list(csv.DictReader((directory.path / DORMANT).read_text().splitlines()))
    assert [row["units"] for row in dormant] == ["64"] * 4  # two layers after each of two games
    for after in (1, 2):
        net, games = load_agent(directory.config, directory.path, 0, after)
        assert len(net.heads) == len(games) == 2


def test_scratch_learns_each_game_from_the_same_weights_and_first_games_are_alike(tmp_path):
    """The first game of every method is the same; scratch's second is what it is without the first."""
    scratch, tuned = run(config("scratch"), 0, tmp_path), run(config("ewc"), 0, tmp_path)
    first = [{score.task: score.test for score in one.scores() if score.after == 1}[1] for one in (scratch, tuned)]
    assert first[0] == first[1]
    games = ["Acrobot-v1", "CartPole-v1"]
    other = run(config("scratch", sets=QUICK | {"stream": {"games": games}}), 0, tmp_path)
    assert [score.after for score in scratch.scores()] == [0, 0, 1, 2]
    assert {score.name for score in other.scores()} == {score.name for score in scratch.scores()}


@pytest.mark.slow
def test_run_report_and_tensorboard(tmp_path, in_process, capsys):
    pytest.importorskip("tensorboard")
    runs, board = tmp_path / "runs", tmp_path / "board"
    sets = [
        "training.steps=1024",
        "training.importance_steps=128",
        "stream.games=['CartPole-v1','small_games:Long-v0']",
    ]
    arguments = ["run", "cartpole-acrobot", "--scale", "smoke", "--method", "finetune", "ewc+afec", "ewc+recycle"]
    arguments += ["--seeds", "2", "--runs", str(runs), "--set", *sets, "--tensorboard", str(board)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "average return" in said
    assert "1.5" in said  # AFEC's compute beside fine-tuning's: the second of two games twice
    assert len(list(board.rglob("events.out.tfevents.*"))) == 6
    page = tmp_path / "page.html"
    assert main(["report", str(runs), "-o", str(page)]) == 0
    assert "average return" in page.read_text()


@pytest.mark.slow
def test_tune_on_episodes_of_other_seeds(tmp_path, in_process, capsys):
    out = tmp_path / "found.toml"
    arguments = ["tune", "cartpole-acrobot", "--method", "ewc", "--scale", "smoke", "--seeds", "1", "--out", str(out)]
    sets = ["--set", "training.steps=512", "training.importance_steps=128"]
    assert main([*arguments, *sets, "--runs", str(tmp_path / "runs")]) == 0
    assert "strength" in out.read_text()
    trial = find_runs(tmp_path / "runs" / "tuning")[0]
    assert all(score.validation == score.validation for score in trial.scores())
    assert trial.config.training["validation_episodes"] == 2


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"stream": {"games": ["CartPole-v7"]}}, "did you mean 'CartPole-v"),
        ({"stream": {"games": ["small_games:Continuous-v0"]}}, "expected Discrete actions"),
        ({"stream": {"pad": False}}, "stream.pad=true fills up the shorter ones"),
        ({"net": {"name": "atari", "hidden": 8}}, "does not take the observations of CartPole-v1"),
    ],
)
def test_what_cannot_be_played_is_said_before_anything_runs(sets, words):
    found = resolve(load_benchmark("cartpole-acrobot"), "ewc", "smoke")
    sections = {name: {**getattr(found, name), **values} for name, values in sets.items()}
    if "net" in sections:
        sections["net"] = sets["net"]
    with pytest.raises(ValueError) as caught:
        found.kind.check([replace(found, **sections)], Context(0))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("method", "sets", "words"),
    [
        ("ewc", {"stream": {"name": "atar"}}, "unknown suite of games 'atar'; did you mean 'atari'?"),
        ("ewc", {"stream": {"game": ["x"]}}, "stream.game: gymnasium has no such option"),
        ("ewc", {"stream": {"games": "CartPole-v1"}}, "expected a list of names"),
        ("ewc", {"training": {"step": 3}}, "training.step: unknown key; did you mean 'steps'?"),
        ("ewc", {"training": {"gamma": 2}}, "gamma must be in [0, 1]"),
        ("progress-compress", {}, "progress-compress is a strategy"),
        ("ewc", {"method": {"ewc": {"strength": "auto"}}}, "give a number"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(method, sets, words):
    with pytest.raises(SpecError) as caught:
        config(method, sets=sets)
    assert words in str(caught.value)


@pytest.mark.parametrize(("game", "words"), [("Fault", "the joystick is gone"), ("NoNumber", "paid a reward of nan")])
def test_a_game_that_fails_in_the_middle_leaves_its_checkpoint(tmp_path, game, words):
    """It is said which, and the run is taken up from the last good state once the game is mended."""
    sets = QUICK | {"stream": {"games": ["CartPole-v1", f"small_games:{game}-v0"]}}
    found = config("ewc", sets=sets)
    with pytest.raises(RuntimeError, match=words):
        run(found, 0, tmp_path)
    directory = RunDirectory.of(tmp_path, found, 0)
    assert directory.checkpoint.exists()
    state, _ = directory.load_checkpoint(lambda state: None)
    assert state["tasks_done"] == 1


def test_a_loss_that_is_no_number_stops_with_the_last_good_checkpoint(tmp_path):
    found = config("ewc", sets=QUICK | {"stream": {"games": ["CartPole-v1", "small_games:Burst-v0"]}})
    with pytest.raises(FloatingPointError, match="last checkpoint is whole"):
        run(found, 0, tmp_path)
    state, _ = RunDirectory.of(tmp_path, found, 0).load_checkpoint(lambda state: None)
    weights = state["experiment"]["learner"]["net"].values()
    assert state["tasks_done"] == 1
    assert all(bool(weight.isfinite().all()) for weight in weights)


@pytest.mark.slow
def test_killed_workers_are_resumed_to_the_same_bytes(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = ["run", "cartpole-acrobot", "--scale", "smoke", "--method", "finetune", "ags-cl+afec", "--seeds", "1"]
    arguments += ["--set", "training.steps=4096", "--workers", "2", "--runs"]
    assert ForkedCommand(*arguments, whole).wait() == 0
    generator = random.Random(1)
    for how in (signal.SIGKILL, signal.SIGINT):
        process = ForkedCommand(*arguments, killed)
        wait_until(lambda: len(list(killed.rglob("lock-holder"))) == 2)
        time.sleep(generator.uniform(0.2, 0.6))
        os.killpg(process.pid, how)
        process.wait()
    assert ForkedCommand("resume", killed).wait() == 0
    for directory in find_runs(whole):
        assert files(directory) == files(RunDirectory(killed / directory.path.relative_to(whole)))


@pytest.mark.slow
def test_minatar_and_atari_step_and_train_at_smoke(tmp_path):
    """Every method on two games; all eight Atari games are in `results/` and in the docs' own commands."""
    pytest.importorskip("minatar")
    for method in ("ewc+afec", "mas+afec", "si", "ewc+recycle", "ewc@sum", "ags-cl"):
        directory = run(config(method, "minatar", {}), 0, tmp_path)
        assert len(directory.scores()) == 2 + 1 + 2


def test_play_writes_moving_pictures_of_any_game_after_any_game(tmp_path, capsys):
    from PIL import Image

    directory = run(config("finetune"), 0, tmp_path)
    clip = tmp_path / "clip.gif"
    arguments = ["play", str(directory.path), "--game", "cartpole-v1", "-o", str(clip), "--after", "CartPole-v1"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "after CartPole-v1" in said
    with Image.open(clip) as image:
        assert getattr(image, "n_frames", 1) > 1
    assert main(["play", str(directory.path), "--game", "CartPole-v1"]) == 2
    assert "--episodes 30 for scores" in capsys.readouterr().err
    assert main(["play", str(directory.path), "--game", "Carpole-v1", "-o", str(clip)]) == 2
    assert "did you mean 'CartPole-v1'?" in capsys.readouterr().err
    assert main(["play", str(tmp_path), "--game", "CartPole-v1", "-o", str(clip)]) == 2
    assert "is no run directory" in capsys.readouterr().err
    assert main(["play", str(directory.path), "--game", "CartPole-v1", "-o", str(tmp_path / "clip.avi")]) == 2
    assert ".gif or .mp4" in capsys.readouterr().err


def test_play_says_the_scores_of_episodes_at_any_time(tmp_path, capsys):
    """By the likeliest actions and the seed of the run's evaluation, the score of the run; at the start that of its net."""
    directory = run(config("finetune"), 0, tmp_path)
    by = {(score.after, score.task): score.test for score in directory.scores()}
    seed = seed_from(seed_from("games", 0), 0, "evaluate", "test") % 2**31
    arguments = ["play", str(directory.path), "--game", "CartPole-v1", "--episodes", "2", "--seed", str(seed)]
    for more, after in (([], 2), (["--after", "CartPole-v1"], 1), (["--after", "start"], 0)):
        assert main([*arguments, *more]) == 0
        assert f"2 episodes by the likeliest actions: mean return {by[after, 1]:.1f} ±" in capsys.readouterr().out
    assert main([*arguments, "--sampled"]) == 0
    assert "by drawn actions" in capsys.readouterr().out
