"""`cub200`, `cub200-pretrained` and `imagenet100` as benchmarks: the λ of the paper, the schedule, and runs through the CLI."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from afec.cli import main
from afec.experiments.supervised import training_of
from afec.fisher import Problem, estimate
from afec.lab import find_runs
from afec.lab.config import RunConfig, resolve
from afec.lab.spec import load_benchmark
from afec.lab.tuning import Plan, planned
from afec.learner import Fit, Learner, Machine, Memo, Schedule
from afec.learner.tasks import Batches, BatchLoss
from afec.nets import MultiHead, make_backbone
from afec.report.rows import Row, problems
from afec.streams.cub import cub200
from official_layouts import write_cub, write_image_folder

REAL = Path(os.environ.get("AFEC_DATA", "no data"))
NAMES = ("cub200", "cub200-pretrained", "imagenet100")
METHODS = ["finetune", "ewc", "mas", "si", "rwalk", "ewc+afec", "mas+afec", "si+afec", "rwalk+afec"]
FACTOR = 204.8
HARD = pytest.mark.filterwarnings("ignore:the expansion learned nothing")  # in one epoch on a few images

# λ of EWC, MAS, SI and RWALK and λ_e as the paper's table has them.
SELECTED = {
    "cub200": (1, 0.01, 0.4, 25, 0.01),
    "cub200-pretrained": (40, 0.6, 0.75, 50, 0.001),
    "imagenet100": (80, 0.1, 1, 3, 0.001),
}


def test_the_fisher_of_the_released_code_for_large_images_is_204_8_times_ours():
    """There: (64 / number of batches of 64) · Σ g², over batches of 20; here (20/N) · Σ g²."""
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(3, 4), torch.randn(640, 3), torch.randint(0, 4, (640,))
    batches = list(zip(inputs.split(20), targets.split(20), strict=True))
    squares = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    for batch in batches:
        model.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        for name, weight in model.named_parameters():
            squares[name] += weight.grad**2
    there = {name: 64 / (640 / 64) * square for name, square in squares.items()}
    problem = Problem(model, lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1]))
    here = estimate(problem, dict(model.named_parameters()), batches, kind="batched", batch_size=20).mean()
    for name, value in there.items():
        assert torch.allclose(value, FACTOR * here[name], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_strengths_stand_there_for_our_fisher(name):
    benchmark = load_benchmark(name)
    ewc, mas, si, rwalk, afec = SELECTED[name]
    for method, key, value in (
        ("ewc", "strength", ewc * FACTOR),
        ("mas", "strength", mas * 64),
        ("si", "strength", si),
        ("rwalk", "strength", rwalk),
        ("afec", "forgetting", afec * FACTOR),
    ):
        assert benchmark.method[method][key] == pytest.approx(value), method
        grid = benchmark.tune[method][key]
        assert len(grid) == 5
        assert any(one == pytest.approx(value) for one in grid), method
    settings = resolve(benchmark, "ewc+afec").settings
    assert settings["ewc"]["preset"] == "official"
    assert (settings["afec"]["fisher"], settings["afec"]["fisher_batch"]) == ("batched", 20)
    assert planned(Plan(benchmark, "ewc")) == [("ewc", {"ewc.strength": tuple(benchmark.tune["ewc"]["strength"])})]


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_schedule(name):
    benchmark = load_benchmark(name)
    schedule, _ = training_of(resolve(benchmark, "finetune").training)
    assert (schedule.optimizer, schedule.momentum, schedule.lr, schedule.batch_size) == ("sgd", 0.9, 0.005, 64)
    assert (schedule.max_epochs, schedule.lr_steps, schedule.decay, schedule.weight_decay) == (40, (0.75,), 10, 0)
    schedule.check_without_validation()
    longer, _ = training_of(resolve(benchmark, "ewc@equal-compute").training)
    assert longer.max_epochs == 80
    assert [epoch for epoch in range(81) if longer.lr_after(epoch, 0.005) != 0.005] == [60]
    official = resolve(benchmark, "ewc+afec@official").settings["afec"]
    assert official["preset"] == "official"
    assert official["fisher_dropout"] is False
    full = resolve(benchmark, "finetune")
    assert full.stream["size"] == 224
    assert (full.net["hidden"], full.net["pool"]) == (4096, 6)
    assert full.net["pretrained"] == ("all" if name == "cub200-pretrained" else "none")


def test_a_config_with_steps_comes_back_from_its_file_and_has_a_hash_of_its_own():
    config = resolve(load_benchmark("cub200"), "ewc")
    again = RunConfig.from_toml(config.to_toml())
    assert (again.hash, training_of(again.training)) == (config.hash, training_of(config.training))
    plain = resolve(load_benchmark("digits"), "ewc")
    before = {key: value for key, value in plain.training.items() if key != "lr_steps"}
    assert training_of(before) == training_of(plain.training)
    assert replace(plain, training={**before, "lr_steps": (0.5,)}).hash != plain.hash


def test_the_table_names_the_size_and_the_net():
    row = Row(resolve(load_benchmark("cub200-pretrained"), "ewc", "smoke"))
    ((mark, _),) = problems([row])
    assert mark == "64 pixels, alexnet (hidden 64, pool 1, pretrained conv)"


# Learning from numbers of images.


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    write_cub(root, size=(80, 72))
    write_image_folder(root / "imagenet100", [f"n{k:03d}" for k in range(100)])
    torch.manual_seed(3)
    convs = {name: value.half() for name, value in make_backbone("alexnet", hidden=1, pool=1).state_dict().items()}
    convs = {name: value for name, value in convs.items() if name.startswith("features.")}
    torch.save(convs, root / "alexnet_conv_imagenet_fp16.pth")
    return root


def test_a_memo_knows_images_by_their_content(root, tmp_path):
    schedule = Schedule(max_epochs=1, patience=None, best_weights=False)
    other = tmp_path / "other"
    write_cub(other, size=(80, 71))

    def path(root, size=64, seed=0, augment=True):
        task = cub200(seed=seed, size=size, tasks=1, root=root).tasks[0]
        task = task if augment else replace(task, augment=None)
        torch.manual_seed(0)
        net = MultiHead(make_backbone("alexnet", hidden=2, pool=1), [20])
        return Memo(tmp_path).path(Fit(net, Batches(task.train), None, BatchLoss.of(0, task, Machine()), schedule, 0))

    found = [path(root), path(other), path(root, size=66), path(root, seed=1), path(root, augment=False)]
    assert None not in found
    assert len(set(found)) == len(found)
    moved = tmp_path / "moved"
    write_cub(moved, size=(80, 72))
    assert path(moved) == found[0]


def test_switching_the_crops_off_changes_what_is_learned(root):
    def learned(augment):
        task = cub200(seed=0, size=64, tasks=1, images=20, root=root).tasks[0]
        task = task if augment else replace(task, augment=None)
        torch.manual_seed(0)
        schedule = Schedule(10, 0.05, "sgd", max_epochs=1, patience=None, best_weights=False)
        learner = Learner(make_backbone("alexnet", hidden=4, pool=1), schedule=schedule, progress=False)
        learner.learn(task)
        return learner.net.heads[0].bias.detach()

    assert torch.equal(learned(True), learned(True))
    assert not torch.equal(learned(True), learned(False))


def smoke(name, root, runs, *methods, **sets):
    words = [f"{key.replace('__', '.')}={value}" for key, value in sets.items()]
    command = ["run", name, "--method", *methods, "--scale", "smoke", "--seeds", "1", "--workers", "1"]
    return main([*command, "--data", str(root), "--runs", str(runs), *(["--set", *words] if words else [])])


@HARD
@pytest.mark.parametrize("name", NAMES)
def test_ewc_with_afec_through_the_command_line(name, root, tmp_path, in_process, capsys):
    sets = {"stream__tasks": 2, "stream__images": 20, "net__hidden": 4}
    assert smoke(name, root, tmp_path, "ewc+afec", **sets) == 0
    shown = capsys.readouterr().out
    assert "64 pixels, alexnet (hidden 4, pool 1" in shown
    (found,) = find_runs(tmp_path)
    events = [json.loads(line) for line in (found.path / "events.jsonl").read_text().splitlines()]
    assert not [event for event in events if event["event"] == "note"]  # nothing went wrong
    (origin,) = [event["text"] for event in events if event["event"] == "origin"]
    assert origin in shown
    if name == "cub200-pretrained":
        assert origin.startswith("initial weights from alexnet_conv_imagenet_fp16.pth (SHA-256 ")
        assert origin.endswith("features.10; at random: classifier.1, classifier.4 and the heads")
    else:
        assert origin == "initial weights at random in all layers"
    tasks = [event for event in events if event["event"] == "task"]
    assert [task["epochs_theta_e"] for task in tasks] == [0, 1]


def test_the_page_says_which_layers_are_pretrained_and_calls_it_no_fault(root, tmp_path, in_process, monkeypatch):
    sets = {"stream__tasks": 2, "stream__images": 20, "net__hidden": 4}
    assert smoke("cub200-pretrained", root, tmp_path / "runs", "finetune", **sets) == 0
    (found,) = find_runs(tmp_path / "runs")
    assert '"event": "origin"' in (found.path / "events.jsonl").read_text()
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "page.html"), "--data", str(root)]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count('src="data:image/jpeg') == 4  # two birds, as they are and with what finetune looks at
    assert "initial weights from alexnet_conv_imagenet_fp16.pth (SHA-256 " in page
    assert "at random: classifier.1, classifier.4 and the heads" in page
    assert "64 pixels, alexnet (hidden 4, pool 1, pretrained conv)" in page
    assert "met a fault" not in page


@pytest.mark.parametrize("missing", ["weights", "birds"])
def test_what_is_missing_is_said_before_anything_runs(missing, root, tmp_path, capsys):
    here = tmp_path / "data"
    here.mkdir()
    if missing == "weights":
        (here / "CUB_200_2011").symlink_to(root / "CUB_200_2011")
    assert smoke("cub200-pretrained", here, tmp_path / "runs", "ewc") == 2
    said = capsys.readouterr().err
    assert ("afec data get alexnet" if missing == "weights" else "afec data get cub200") in said
    assert not (tmp_path / "runs").exists()


@HARD
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_method_on_tiny_images(name, root, tmp_path, in_process):
    sets = {"stream__tasks": 2, "stream__images": 20, "net__hidden": 4}
    assert smoke(name, root, tmp_path, *METHODS, "ewc+afec@official", "joint", "scratch", **sets) == 0
    assert all(run.done for run in find_runs(tmp_path))


@HARD
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_real_images(name, tmp_path, in_process):
    need = {"imagenet100": ["imagenet100"]}.get(name, ["CUB_200_2011"])
    need += ["alexnet_conv_imagenet_fp16.pth"] if name == "cub200-pretrained" else []
    if not all((REAL / one).exists() for one in need):
        pytest.skip(f"no {' or '.join(need)} under AFEC_DATA")
    assert smoke(name, REAL, tmp_path, "finetune", "ewc+afec") == 0
