"""What the page shows from weights: circles of a regression, Grad-CAM of a classification, by hand and on digits."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import nn

from afec.cli import main
from afec.experiments.supervised import build
from afec.lab import find_runs, load_benchmark, resolve, run
from afec.learner import Machine
from afec.learner.tasks import BatchLoss
from afec.methods import AGSCL
from afec.nets import MultiHead, make_backbone
from afec.report import saliency
from afec.report import tiles as tiles_module
from afec.report.circles import panels_of
from afec.report.reading import load_learner
from afec.report.rows import ordered, rows_of
from afec.report.tiles import tiles_of
from written_runs import learned, with_weights, written


def untrained(root, methods, seeds, tasks, benchmark):
    """Runs whose weights are those of their nets before any learning."""
    for method in methods:
        for seed in range(seeds):
            config, run = written(root, method, seed, learned(tasks, 0.5), (4,) * tasks, (0,) * tasks, benchmark)
            with_weights(config, run)
    return ordered(rows_of([(run.config, run) for run in find_runs(root)]))


@pytest.fixture
def digits(tmp_path):
    return untrained(tmp_path / "runs", ("finetune", "ewc"), 2, 5, "digits")


def test_circles_in_the_page(tmp_path):
    rows = untrained(tmp_path / "runs", ("finetune", "ewc"), 1, 2, "digits-regression")
    found = tiles_of(rows)
    assert found.kind == "circles"
    assert found.head == ("finetune", "ewc (λ=30)")
    assert len(found.rows) == 2  # one for each arrangement
    (name, (tile, other)) = found.rows[0]
    assert tile.words == other.words  # the same weights
    assert tile.picture.count('class="ring"') == 10
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "runs"), "-o", str(out)]) == 0
    assert "Where each method puts the images" in out.read_text()


STRATEGIES = ("finetune", "ags-cl", "progress-compress", "ewc+afec")


def learn(root, benchmark, methods, **sets):
    """Real runs of one seed."""
    for method in methods:
        run(resolve(load_benchmark(benchmark), method, "smoke", sets), 0, root)
    return ordered(rows_of([(run.config, run) for run in find_runs(root)]))


def test_circles_of_strategies_are_those_of_their_runs(tmp_path):
    rows = learn(tmp_path, "digits-regression", STRATEGIES)
    found = tiles_of(rows)
    assert not found.faults
    assert len(found.head) == 4
    for row, (*tiles,) in zip(rows, zip(*(tiles for _, tiles in found.rows), strict=True), strict=True):
        said = row.readings[0].matrix[-1]  # what the run has measured at its end
        assert [tile.words for tile in tiles] == [f"{value:.0%} right" for value in said]


def test_grad_cam_of_strategies_is_of_what_they_predict(tmp_path):
    pytest.importorskip("captum")
    rows = learn(tmp_path, "digits", STRATEGIES)
    found = tiles_of(rows)
    assert not found.faults
    assert {tile.state for _, tiles in found.rows for tile in tiles[1:]} <= {"right", "wrong"}
    for row in rows:
        stream, net = build(row.config, 0)
        learner = load_learner(net, row.config, row.readings[0].run)
        right = [one.correct for one in saliency.look(learner, stream, list(range(stream.tasks[-1].test.size)))]
        assert np.mean(right) == pytest.approx(row.readings[0].matrix[-1, -1], abs=1e-6)


def test_a_net_with_statistics_of_each_task_is_drawn_with_those_of_its_task(tmp_path):
    net = {"name": "resnet10", "channels": 1, "size": 8, "width": 4, "batch_norm": "per-task"}
    (row,) = learn(tmp_path, "digits-regression", ("finetune",), net=net)
    stream, made = build(row.config, 0)
    panels = panels_of(made, stream, row.config, row.readings[0].run)
    assert [panel.accuracy for panel in panels] == pytest.approx(row.readings[0].matrix[-1].tolist(), abs=1e-6)


def test_a_strategy_that_predicts_in_its_own_way_is_drawn_so(tmp_path, monkeypatch):
    rows = learn(tmp_path, "digits-regression", ("ags-cl",))
    before = tiles_of(rows).rows[0][1][0].picture
    monkeypatch.setattr(AGSCL, "outputs", lambda self, net, loss, batch: -loss.outputs(net, batch))
    assert tiles_of(rows).rows[0][1][0].picture != before


def test_a_seed_that_one_method_lacks_hides_no_other_method(tmp_path):
    rows = untrained(tmp_path / "runs", ("finetune", "ewc"), 1, 2, "digits-regression")
    del rows[1].readings[0]
    rows[1].readings[7] = rows[0].readings[0]
    found = tiles_of(rows)
    assert found.rows[0][1][0].words != "–"
    assert found.faults == ("ewc (λ=30): it has no finished run of seed 0",)


def test_grad_cam_by_hand(digits):
    """The mean gradient of each channel of the last convolution weighs the channel; what is left above zero is the map."""
    pytest.importorskip("captum")
    run = digits[0].readings[0].run
    stream, net = build(run.config, 0)
    task, number = stream.tasks[-1], len(stream.tasks) - 1
    rows = [0, 3]
    learner = load_learner(net, run.config, run)
    (first, second) = saliency.look(learner, stream, rows)
    layer = saliency.last_convolution(net.backbone)
    kept = []
    hook = layer.register_forward_hook(lambda module, given, output: kept.append(output))
    inputs = BatchLoss.of(number, task, Machine()).prepared(task.test.inputs[rows])
    net.eval()
    scores = net(inputs, task=number)
    hook.remove()
    predicted = scores.argmax(1)
    (gradient,) = torch.autograd.grad(scores[range(2), predicted].sum(), kept[0])
    heat = (gradient.mean((2, 3), keepdim=True) * kept[0]).sum(1, keepdim=True).relu().detach()
    heat = nn.functional.interpolate(heat, (96, 96), mode="bilinear")[1, 0]
    colours = mpl.colormaps["inferno"]((heat / heat.max().clamp(min=1e-9)).numpy())[..., :3] * 255
    expected = 0.5 * saliency.scene(stream, 3).image + 0.5 * colours
    assert np.abs(second.heat - expected).max() <= 1
    assert (first.predicted, second.predicted) == tuple(task.class_name(number) for number in predicted.tolist())
    assert second.correct == (int(predicted[1]) == int(task.test.targets[3]))


def test_grad_cam_in_the_page_marks_right_and_wrong(digits):
    pytest.importorskip("captum")
    found = tiles_of(digits)
    assert found.head == ("image", "finetune", "ewc (λ=30)")
    last = [build(digits[0].config, seed)[0].tasks[-1].name for seed in (0, 1)]
    assert [name for name, _ in found.rows] == [*[f"seed 0: {last[0]}"] * 2, *[f"seed 1: {last[1]}"] * 2]
    states = {tile.state for _, tiles in found.rows for tile in tiles[1:]}
    assert states <= {"right", "wrong"}
    for _, tiles in found.rows:
        assert tiles[1] == tiles[2]  # the same weights
        true = tiles[0].words
        assert (tiles[1].state == "right") == (tiles[1].words == f"✓ {true}")
    assert not found.faults


def test_a_method_without_its_weights_is_named_and_the_others_are_shown(digits):
    pytest.importorskip("captum")
    (digits[1].readings[1].run.path / "learner.safetensors").unlink()
    found = tiles_of(digits)
    assert len(found.faults) == 1
    assert found.faults[0].startswith("ewc (λ=30): ")
    assert found.rows[0][1][2].state
    assert found.rows[2][1][2].words == "–"


def test_without_captum_it_says_what_to_install(digits, monkeypatch):
    monkeypatch.setattr(tiles_module, "captum_is_there", lambda: False)
    assert tiles_of(digits).missing == 'Grad-CAM needs captum: pip install "afec[explain]"'


def test_without_the_data_it_says_so(tmp_path, monkeypatch):
    pytest.importorskip("captum")
    monkeypatch.setenv("AFEC_DATA", str(tmp_path / "nothing"))
    for method in ("finetune", "ewc"):
        written(tmp_path / "runs", method, 0, learned(3, 0.5), (4,) * 3, (0,) * 3, "cifar100-sc")
    found = tiles_of(rows_of([(run.config, run) for run in find_runs(tmp_path / "runs")]))
    assert found.missing.startswith("no picture from the weights: ")
    assert "cifar" in found.missing.lower()


def test_a_net_without_convolutions_has_no_map():
    net = MultiHead(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), [2], features=3)
    assert saliency.last_convolution(net.backbone) is None


def test_the_shortcut_of_a_residual_net_is_not_its_last_convolution():
    net = make_backbone("resnet10", width=4)
    assert saliency.last_convolution(net) is net.layer4[0].conv2
