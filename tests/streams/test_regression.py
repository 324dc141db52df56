"""The regression tasks: arrangements, readings, settings; on digits and on CIFAR-10's files."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from afec.lab import run
from afec.lab.config import resolve
from afec.lab.spec import load_benchmark
from afec.learner.tasks import CRITERIA
from afec.streams import Split, cifar10_regression, digits_regression
from afec.streams.regression import ROTATIONS, Arrangement, regression
from official_layouts import write_cifar10

REAL = Path(os.environ.get("AFEC_DATA", "")) / "cifar-10-batches-bin"


def test_a_rotation_by_hand():
    turned = Arrangement(tuple(range(10)), rotation=60)
    torch.testing.assert_close(turned.angles[1], torch.tensor(math.radians(96)))
    torch.testing.assert_close(turned.points[0], torch.tensor([0.5, math.sqrt(3) / 2]))
    plain = Arrangement(tuple(range(10)))
    point = torch.tensor([[math.cos(math.radians(77)), math.sin(math.radians(77))]])
    assert turned(point).item() == 0  # 17° from class 0 at 60°, 19° from class 1 at 96°
    assert plain(point).item() == 2  # 5° from class 2 at 72°


def test_an_angle_by_hand():
    known = Arrangement((1, 0, 2, 3, 4, 5, 6, 7, 8, 9), output="angle")
    assert known.targets(torch.tensor([0, 1])).flatten().tolist() == pytest.approx([math.pi / 5, 0.0])
    six = known.targets(torch.tensor([6]))
    assert six.item() == pytest.approx(math.radians(216 - 360))
    assert known(torch.tensor([[math.pi / 5], [2 * math.pi], [-0.1], [math.radians(216)]])).tolist() == [0, 1, 1, 6]


@given(
    positions=st.permutations(range(10)), rotation=st.sampled_from((0, *ROTATIONS)),
    output=st.sampled_from(("vector", "angle")), wobble=st.floats(-17.5, 17.5),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_every_class_is_read_off_its_target_and_within_18_degrees_of_it(positions, rotation, output, wobble):
    known = Arrangement(tuple(positions), rotation, output)
    classes = torch.arange(10)
    assert known(known.targets(classes)).equal(classes)
    angles = known.angles + math.radians(wobble)
    near = angles.unsqueeze(1) if output == "angle" else torch.stack((angles.cos(), angles.sin()), dim=1)
    assert known(near).equal(classes)


def test_losses_by_hand():
    points = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    targets = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert CRITERIA["cosine"](points, targets).item() == pytest.approx(0.5)  # 1 at a right angle, 0 at none
    angles = torch.tensor([[0.0], [math.pi / 3]])
    wanted = torch.tensor([[2 * math.pi], [0.0]])
    assert CRITERIA["angular"](angles, wanted).item() == pytest.approx(0.25)  # 0 all around, 1 − cos 60°


def test_settings():
    two, ten, transfer = (digits_regression(0, setting=name) for name in ("two-task", "ten-task", "transfer"))
    assert [len(stream.tasks) for stream in (two, ten, transfer)] == [2, 10, 2]
    assert [len(stream.transfer) for stream in (two, ten, transfer)] == [0, 0, 5]
    assert len(digits_regression(0, tasks=3).tasks) == 3
    decoders = [task.decode for task in ten.tasks]
    assert len({decoder.positions for decoder in decoders}) == 10
    assert [decoder.positions for decoder in decoders[:2]] == [task.decode.positions for task in two.tasks]
    for degrees, task in zip(ROTATIONS, transfer.transfer, strict=True):
        assert task.decode.rotation == degrees
        assert task.decode.positions == tuple(range(10))  # the first arrangement
        assert str(degrees) in task.name
        assert task.labels(task.test).equal(transfer.tasks[0].labels(transfer.tasks[0].test))
    assert "linear probes: arrangement 1 turned by 60°" in str(transfer)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"setting": "two-tasks"}, "did you mean 'two-task'"),
        ({"output": "angles"}, "did you mean 'angle'"),
        ({"loss": "mean"}, "unknown loss 'mean'"),
        ({"tasks": -1}, "tasks=-1"),
        ({"tasks": 2.5}, "tasks=2.5"),
    ],
)
def test_what_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        digits_regression(0, **wrong)


def test_more_than_ten_classes_are_refused():
    split = Split(torch.zeros(2, 1), torch.tensor([0, 10]))
    with pytest.raises(ValueError, match="at most 10 classes.* got class 10"):
        regression("mine", 0, (split, split, split))


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """CIFAR-10's files, tiny: 5 images of each class in each of six files."""
    write_cifar10(tmp_path, binary=True)
    monkeypatch.setenv("AFEC_DATA", str(tmp_path))
    return tmp_path


def test_cifar10_is_divided_by_the_seed_and_tested_on_its_own_test_images(cifar):
    one, again, other = (cifar10_regression(seed, train=200, validation=50, test=30) for seed in (0, 0, 1))
    first = one.tasks[0]
    assert [split.size for split in (first.train, first.validation, first.test)] == [200, 50, 30]
    assert first.train.inputs.dtype == torch.uint8
    assert first.train.inputs.equal(again.tasks[0].train.inputs)
    assert not first.train.inputs.equal(other.tasks[0].train.inputs)
    assert first.test.inputs.equal(other.tasks[0].test.inputs)
    pixels = {image.numpy().tobytes() for image in (*first.train.inputs, *first.validation.inputs)}
    assert len(pixels) == 250  # no image twice
    assert first.train.inputs is one.tasks[1].train.inputs  # tasks share their images
    prepared = first.prepare(first.train.inputs[:4])
    assert prepared.dtype == torch.float32
    assert first.augment is None
    assert cifar10_regression(0, train=8, validation=8, test=8, augment="crop-flip").tasks[0].augment is not None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": 251, "validation": 50}, "at most 250 images"),
        ({"train": 10, "validation": 10, "test": 51}, "test=51"),
        ({"augment": "flip"}, "unknown augmentation 'flip'"),
    ],
)
def test_cifar10_that_cannot_be_is_refused(cifar, wrong, message):
    sizes = {"train": 10, "validation": 10, "test": 10, **wrong}
    with pytest.raises(ValueError, match=message):
        cifar10_regression(0, **sizes)


def accuracy_of(tmp_path, expression="finetune", **sets):
    """A smoke run on what AFEC_DATA has."""
    config = resolve(load_benchmark("cifar10-regression"), expression, "smoke", sets)
    return (run(config, 0, tmp_path / "runs").path / "scores.csv").read_text()


@pytest.fixture
def images(request, tmp_path_factory, monkeypatch):
    """The real files where they are, else tiny ones of the same layout."""
    if not REAL.is_dir():
        root = tmp_path_factory.mktemp("cifar")
        write_cifar10(root, binary=True, per_class=8)
        monkeypatch.setenv("AFEC_DATA", str(root))


def test_each_option_changes_what_is_learned(images, tmp_path):
    quick = {"lr": 1e-2, "batch_size": 16}
    options = [
        {},
        {"output": "angle", "loss": "cosine"},
        {"loss": "cosine"},
        {"output": "angle"},
        {"augment": "crop-flip"},
    ]
    found = [accuracy_of(tmp_path, training=quick, stream=changed) for changed in options]
    assert len(set(found)) == 5


@pytest.mark.filterwarnings("ignore:the loss has no known likelihood")
def test_a_loss_without_a_likelihood_is_guarded_by_the_empirical_fisher(images, tmp_path):
    empirical = {"ewc": {"fisher": "auto"}}
    assert accuracy_of(tmp_path, "ewc", method=empirical, stream={"loss": "cosine"})


@pytest.mark.parametrize(
    "net", ["lenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vgg11", "vgg11bn", "resnet10"))]
)
def test_every_net_of_the_table_runs(images, tmp_path, net):
    options = {} if net == "lenet" else {"width": 4}
    text = accuracy_of(tmp_path, "ewc+afec", net={"name": net, **options}, stream={"setting": "transfer"})
    assert text.count("\n") == 7  # a head, and two tasks measured at the start and after each
