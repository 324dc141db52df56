"""Streams: targets and decoding by hand, splits as a pure function of the seed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from afec.streams import STREAMS, Split, Stream, Task, check_stream, digits, digits_regression, make_stream
from afec.streams.regression import Arrangement

IN_ORDER = Arrangement(tuple(range(10)))


def arrangement(seed, task):
    return torch.tensor(Arrangement.of("digits-regression", seed, task).positions)


def test_positions_on_the_circle_by_hand():
    points = IN_ORDER.targets(torch.tensor([0, 5, 1]))
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
        assert IN_ORDER(point).item() == position


def test_every_position_decodes_to_itself():
    positions = torch.arange(10)
    assert IN_ORDER(IN_ORDER.targets(positions)).equal(positions)


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
        expected = IN_ORDER.targets(arrangement(7, number)[digits])
        torch.testing.assert_close(task.test.targets[:50], expected)
        assert task.labels(Split(task.test.inputs[:50], expected)).equal(digits)


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


@pytest.mark.parametrize("wrong", [{"train": 0}, {"validation": 0}, {"train": 1500, "validation": 297}])
def test_sizes_that_leave_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="train \\+ validation below 1797"):
        digits_regression(seed=0, **wrong)


def test_a_split_of_unequal_lengths_is_refused():
    good, bad = Split(torch.zeros(2, 3), torch.zeros(2, 2)), Split(torch.zeros(2, 3), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="the validation split of task 'toy' has 2 inputs and 1 targets"):
        Task("toy", good, bad, good, outputs=2, loss="mse")


# `digits`: the classes divided among the tasks.

PARTS = ("train", "validation", "test")


def digit_of_image():
    data = load_digits()
    images = (data.images / 16).astype("float32")
    return {image.tobytes(): int(label) for image, label in zip(images, data.target, strict=True)}


def true_digits(split):
    known = digit_of_image()
    return [known[image.numpy().tobytes()] for image in split.inputs[:, 0]]


def rows(split):
    return {image.numpy().tobytes() for image in split.inputs}


def test_digits_by_default_are_five_tasks_of_two_classes():
    stream = digits(seed=0)
    assert (stream.name, stream.scenario, stream.outputs) == ("digits", "task", [2] * 5)
    named = [[int(word) for word in task.name.split()[1:]] for task in stream.tasks]
    assert sorted(digit for classes in named for digit in classes) == list(range(10))
    for task, classes in zip(stream.tasks, named, strict=True):
        assert task.loss == "cross_entropy"
        for part in PARTS:
            split = getattr(task, part)
            assert split.inputs.dtype == torch.float32
            assert split.targets.dtype == torch.int64
            assert split.inputs.shape[1:] == (1, 8, 8)
            # The label is the place of the image's own class among the classes that the task is named after.
            assert [classes[label] for label in split.targets] == true_digits(split)


def test_every_image_is_used_once():
    stream = digits(seed=3)
    parts = [rows(getattr(task, part)) for task in stream.tasks for part in PARTS]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 1797


def test_parts_of_each_class_by_hand():
    task = digits(seed=0, tasks=1, validation=0.1, test=0.3).tasks[0]
    # scikit-learn has 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180 images of the digits 0 to 9.
    counts = {part: torch.tensor(true_digits(getattr(task, part))).bincount().tolist() for part in PARTS}
    assert counts["test"] == [53, 55, 53, 55, 54, 55, 54, 54, 52, 54]
    assert counts["validation"] == [18, 18, 18, 18, 18, 18, 18, 18, 17, 18]
    assert counts["train"] == [107, 109, 106, 110, 109, 109, 109, 107, 105, 108]


def test_test_images_are_the_same_for_every_seed_and_the_rest_is_divided_anew():
    one, two = digits(seed=0), digits(seed=100)
    assert [task.name for task in one.tasks] != [task.name for task in two.tasks]
    tests = [set().union(*(rows(task.test) for task in stream.tasks)) for stream in (one, two)]
    trains = [set().union(*(rows(task.train) for task in stream.tasks)) for stream in (one, two)]
    assert tests[0] == tests[1]
    assert trains[0] != trains[1]
    # How the classes are divided among the tasks does not matter either.
    other = digits(seed=0, sizes=[3, 4, 3])
    assert set().union(*(rows(task.train) for task in other.tasks)) == trains[0]


def test_rows_are_mixed_and_the_test_is_in_the_order_of_the_data():
    task = digits(seed=0, tasks=2).tasks[0]
    for part in PARTS:
        assert len(set(getattr(task, part).targets[:20].tolist())) > 2
    everything = [(image / 16).astype("float32").tobytes() for image in load_digits().images]
    places = [everything.index(image.numpy().tobytes()) for image in task.test.inputs]
    assert places == sorted(places)


def test_digits_are_a_pure_function_of_their_arguments():
    torch.manual_seed(1)
    one = digits(seed=5, tasks=2)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = digits(seed=5, tasks=2)
    assert torch.get_rng_state().equal(before)
    for a, b in zip(one.tasks, two.tasks, strict=True):
        assert a.name == b.name
        for part in PARTS:
            assert getattr(a, part).inputs.equal(getattr(b, part).inputs)
            assert getattr(a, part).targets.equal(getattr(b, part).targets)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**40),
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) <= 10),
    validation=st.floats(0.001, 0.45),
    test=st.floats(0.001, 0.45),
)
def test_every_split_has_every_class_of_its_task(seed, sizes, validation, test):
    stream = digits(seed, validation=validation, test=test, sizes=sizes)
    assert stream.outputs == sizes
    for task, size in zip(stream.tasks, sizes, strict=True):
        for part in PARTS:
            assert set(getattr(task, part).targets.tolist()) == set(range(size))
        assert not rows(task.train) & rows(task.validation)
        assert not (rows(task.train) | rows(task.validation)) & rows(task.test)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tasks": 3}, "tasks=3; 10 classes make 1, 2 or 5 tasks of equal size"),
        ({"tasks": 10}, "at least two classes each. For others give sizes="),
        ({"tasks": 0}, "tasks=0"),
        ({"tasks": "5"}, "tasks='5'"),
        ({"sizes": []}, "sizes=[]; it needs the number of classes of each task"),
        ({"sizes": [1, 9]}, "at least 2 each"),
        ({"sizes": [6, 6]}, "10 in all at most"),
        ({"sizes": [2.0, 3]}, "sizes=[2.0, 3]"),
        ({"tasks": 4, "sizes": [2, 3, 5]}, "tasks=4 and 3 sizes, [2, 3, 5]; give a number from 1 to 3"),
        ({"tasks": 0, "sizes": [2, 3, 5]}, "tasks=0 and 3 sizes"),
        ({"validation": 0}, "each must be above 0"),
        ({"test": 0.9, "validation": 0.1}, "their sum below 1"),
        ({"test": float("nan")}, "test=nan"),
        ({"test": 0.5, "validation": 0.4999}, "leaves none of the 1"),
    ],
)
def test_digits_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError) as caught:
        digits(seed=0, **wrong)
    assert message in str(caught.value)


def test_a_stream_of_unequal_tasks_says_the_size_of_each():
    split, more = Split(torch.zeros(2, 3), torch.tensor([1, 0])), Split(torch.zeros(3, 3), torch.tensor([1, 0, 1]))
    first = Task("a", split, split, split, outputs=2, loss="cross_entropy")
    second = Task("b", more, split, split, outputs=2, loss="cross_entropy")
    assert str(Stream("toy", (first, second), "task")) == (
        "toy (scenario 'task'): a, b; 2/2/2, 3/2/2 images for training/validation/test"
    )


# Streams by name.


def test_named_streams_are_what_their_records_say():
    assert list(STREAMS)[:2] == ["digits", "digits-regression"]  # the built-in ones; for others see tests/data
    for name, record in list(STREAMS.items())[:2]:
        stream = make_stream(name, seed=1)
        assert (stream.name, stream.scenario) == (record.name, "task") == (name, "task")
        assert record.description
    assert STREAMS["digits"].options == ("tasks", "validation", "test", "sizes", "scenario", "class_order")
    assert STREAMS["digits-regression"].options == ("setting", "train", "validation", "tasks", "output", "loss")


def test_options_reach_the_stream():
    assert make_stream("digits", 0, sizes=[2, 3]).outputs == [2, 3]
    assert make_stream("digits", 0, sizes=[2, 3, 5], tasks=2).outputs == [2, 3]
    assert make_stream("digits-regression", 0, train=100).tasks[0].train.size == 100


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        (
            {"name": "digit-regression"},
            "name",
            "unknown stream 'digit-regression'; did you mean 'digits-regression'? Known: " + ", ".join(sorted(STREAMS)),
        ),
        ({"name": "qqq"}, "name", "unknown stream 'qqq'. Known: " + ", ".join(sorted(STREAMS))),
        (
            {"name": "digits", "task": 2},
            "task",
            "the stream 'digits' has no option 'task'; did you mean 'tasks'? It has: tasks, validation, test, sizes, "
            "scenario, class_order",
        ),
        (
            {"name": "digits-regression", "q": 2},
            "q",
            "the stream 'digits-regression' has no option 'q'. It has: setting, train, validation, tasks, output, loss",
        ),
    ],
)
def test_unknown_names_say_what_is_near_and_what_there_is(section, key, message):
    options = {k: v for k, v in section.items() if k != "name"}
    with pytest.raises(ValueError) as caught:
        make_stream(section["name"], 0, **options)
    assert str(caught.value) == message
    with pytest.raises(ValueError) as caught:
        check_stream(section)
    assert str(caught.value) == f"stream.{key}: {message}"


def test_sections_are_checked_without_making_the_stream():
    check_stream({"name": "digits", "tasks": 5, "sizes": [2, 3]})
    with pytest.raises(ValueError, match="stream.name: it is missing; known: digits, digits-regression"):
        check_stream({"tasks": 5})
    with pytest.raises(ValueError, match="stream.seed: the stream 'digits' has no option 'seed'"):
        check_stream({"name": "digits", "seed": 5})  # a seed is not part of a benchmark
