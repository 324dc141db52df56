"""Streams: targets and decoding by hand, splits as a pure function of the seed."""

import math

import pytest
import torch
from sklearn.datasets import load_digits

from afec.streams import Split, Task, digits_regression
from afec.streams.digits import arrangement, circle, nearest_position


def test_positions_on_the_circle_by_hand():
    points = circle(torch.tensor([0, 5, 1]))
    expected = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [math.cos(math.pi / 5), math.sin(math.pi / 5)]])
    torch.testing.assert_close(points, expected)


@pytest.mark.parametrize(
    ("degrees", "position"),
    [(0, 0), (17.9, 0), (18.1, 1), (36, 1), (-17.9, 0), (-18.1, 9), (180, 5), (-179.9, 5), (341.9, 9), (342.1, 0)],
)
def test_decoding_takes_the_nearest_angle_at_any_radius(degrees, position):
    angle = math.radians(degrees)
    for radius in (0.01, 1.0, 30.0):
        point = radius * torch.tensor([[math.cos(angle), math.sin(angle)]])
        assert nearest_position(point).item() == position


def test_every_position_decodes_to_itself():
    positions = torch.arange(10)
    assert nearest_position(circle(positions)).equal(positions)


def test_first_arrangement_keeps_the_order_and_others_are_permutations_of_the_seed():
    assert arrangement(3, 0).tolist() == list(range(10))
    second = arrangement(3, 1)
    assert sorted(second.tolist()) == list(range(10))
    assert second.equal(arrangement(3, 1))
    assert not second.equal(arrangement(4, 1))
    assert not second.equal(arrangement(3, 2))


def test_targets_are_the_positions_of_the_true_digits():
    stream = digits_regression(seed=7, tasks=3)
    images = torch.from_numpy(load_digits().images).float() / 16
    digit_of = {image.numpy().tobytes(): digit for image, digit in zip(images, load_digits().target, strict=True)}
    for number, task in enumerate(stream.tasks):
        digits = torch.tensor([digit_of[x.numpy().tobytes()] for x in task.test.inputs[:50, 0]])
        expected = circle(arrangement(7, number)[digits])
        torch.testing.assert_close(task.test.targets[:50], expected)
        assert task.classes(Split(task.test.inputs[:50], expected)).equal(digits)


def test_splits_are_a_pure_function_of_the_seed():
    torch.manual_seed(1)
    one = digits_regression(seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = digits_regression(seed=5)
    assert torch.get_rng_state().equal(before)
    for a, b in zip(one.tasks, two.tasks, strict=True):
        for split in ("train", "validation", "test"):
            assert getattr(a, split).inputs.equal(getattr(b, split).inputs)
            assert getattr(a, split).targets.equal(getattr(b, split).targets)


def test_splits_are_disjoint_and_complete_and_shared_by_the_tasks():
    first, second = digits_regression(seed=0).tasks
    rows = {
        name: {x.numpy().tobytes() for x in getattr(first, name).inputs} for name in ("train", "validation", "test")
    }
    assert [first.train.size, first.validation.size, first.test.size] == [700, 300, 797]
    assert not rows["train"] & rows["validation"]
    assert not rows["train"] & rows["test"]
    assert not rows["validation"] & rows["test"]
    assert first.train.inputs.equal(second.train.inputs)
    assert not first.train.targets.equal(second.train.targets)
    assert first.train.inputs.dtype == torch.float32
    assert 0 <= first.train.inputs.min() < first.train.inputs.max() <= 1


def test_no_seed_tests_on_what_another_tunes_on():
    tuned, reported = digits_regression(seed=100).tasks[0], digits_regression(seed=0).tasks[0]
    assert tuned.test.inputs.equal(reported.test.inputs)
    assert not tuned.train.inputs.equal(reported.train.inputs)


def test_accuracy_counts_the_right_classes():
    task = digits_regression(seed=0).tasks[1]
    outputs = task.test.targets.clone()
    assert task.accuracy(outputs, task.test) == 1.0
    outputs[:79] *= -1  # the opposite point of the circle is another position
    assert task.accuracy(outputs, task.test) == pytest.approx(1 - 79 / 797)


def test_a_classification_task_reads_its_class_off_the_largest_output():
    split = Split(torch.zeros(2, 3), torch.tensor([1, 0]))
    task = Task("toy", split, split, split, outputs=2, loss="cross_entropy")
    assert task.accuracy(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), split) == 0.5


def test_a_stream_says_what_it_is():
    text = str(digits_regression(seed=0))
    assert "digits-regression (scenario 'task'): arrangement 1, arrangement 2; 700/300/797 images" in text


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"train": 0}, {"validation": 0}, {"train": 1500, "validation": 297}])
def test_sizes_that_leave_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="train \\+ validation below 1797"):
        digits_regression(seed=0, **wrong)


def test_a_split_of_unequal_lengths_is_refused():
    good, bad = Split(torch.zeros(2, 3), torch.zeros(2)), Split(torch.zeros(2, 3), torch.zeros(1))
    with pytest.raises(ValueError, match="the validation split of task 'toy' has 2 inputs and 1 targets"):
        Task("toy", good, bad, good, outputs=2, loss="mse")
