"""The streams of CIFAR: the released code's orders and splits, on tiny files of the official layout and on the real ones."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from afec.data import DataError, load_cifar10, load_cifar100
from afec.streams import make_stream
from afec.streams.cifar import CIFAR10_COLOURS, CIFAR100_COLOURS, cifar100, cifar100_sc
from afec.streams.images import CropFlip
from official_layouts import write_cifar10, write_cifar100

# What the released code prints for its seeds: the superclass of each task.
ORDERS = {
    0: [18, 1, 19, 8, 10, 17, 6, 13, 4, 2, 5, 14, 9, 7, 16, 11, 3, 0, 15, 12],
    1: [3, 16, 6, 10, 2, 14, 4, 17, 7, 1, 13, 0, 19, 18, 9, 15, 8, 12, 11, 5],
    2: [12, 4, 18, 0, 9, 5, 3, 10, 1, 17, 7, 16, 14, 2, 11, 6, 19, 13, 15, 8],
    3: [14, 2, 1, 17, 4, 16, 6, 7, 15, 12, 9, 11, 19, 18, 13, 5, 0, 8, 3, 10],
    4: [19, 3, 18, 6, 13, 4, 0, 17, 12, 11, 15, 10, 9, 2, 16, 7, 8, 1, 5, 14],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Ten images per class to train on (five for each of five files of CIFAR-10), four or five to test on."""
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root, binary=True)
    write_cifar100(root, binary=False)
    return root


@pytest.fixture(autouse=True)
def _found(tiny, monkeypatch):
    monkeypatch.setenv("AFEC_DATA", str(tiny))


@pytest.mark.parametrize("seed", ORDERS)
def test_superclasses_come_in_the_order_of_the_released_code(seed):
    stream = make_stream("cifar100-sc", seed)
    assert [task.name for task in stream.tasks] == [f"things_{k}" for k in ORDERS[seed]]
    assert stream.outputs == [5] * 20
    assert stream.scenario == "task"


def test_a_superclass_has_its_classes_by_rank_and_its_images_in_the_seeds_order():
    data = load_cifar100()
    task = make_stream("cifar100-sc", 3).tasks[1]  # superclass 2: in the tiny files class k has superclass 7k mod 20
    classes = [c for c in range(100) if c * 7 % 20 == 2]
    rows = [row for row, label in enumerate(data.train_labels.tolist()) if label in classes]
    order = np.arange(50)
    np.random.RandomState(3).shuffle(order)
    rows = [rows[k] for k in order]
    assert torch.equal(task.validation.inputs, data.train_images[rows[:5]])
    assert torch.equal(task.train.inputs, data.train_images[rows[5:]])
    assert task.train.targets.tolist() == [classes.index(int(data.train_labels[row])) for row in rows[5:]]
    assert task.validation.targets.tolist() == [classes.index(int(data.train_labels[row])) for row in rows[:5]]
    test = [row for row, label in enumerate(data.test_labels.tolist()) if label in classes]
    assert torch.equal(task.test.inputs, data.test_images[test])
    assert task.test.targets.tolist() == [classes.index(int(data.test_labels[row])) for row in test]


def test_official_classes_go_by_number_and_the_seed_orders_the_tasks():
    stream = make_stream("cifar100", 1)
    firsts = [5 * k for k in ORDERS[1]]  # the same permutation of 20
    assert [task.name for task in stream.tasks] == [f"cifar100 {f} {f + 1} {f + 2} {f + 3} {f + 4}" for f in firsts]


def test_ten_classes_per_task():
    stream = make_stream("cifar100", 0, classes=10)
    assert stream.outputs == [10] * 10
    assert sorted(task.name for task in stream.tasks)[0] == "cifar100 0 1 2 3 4 5 6 7 8 9"


def classes_of(stream, kind):
    return [[int(word) for word in t.name.split()[1:]] for t in stream.tasks if t.name.split()[0] == kind]


def test_the_papers_split_is_random_and_whole():
    first, again, other = (classes_of(make_stream("cifar100", seed, split="paper"), "cifar100") for seed in (0, 0, 1))
    assert first == again
    assert {frozenset(block) for block in first} != {frozenset(block) for block in other}
    assert sorted(chain(*first)) == list(range(100))
    assert first != classes_of(make_stream("cifar100", 0), "cifar100")


@pytest.mark.parametrize("split", ["official", "paper"])
def test_cifar10_comes_first(split):
    stream = make_stream("cifar10-100", 2, split=split)
    ten, hundred = classes_of(stream, "cifar10"), classes_of(stream, "cifar100")
    assert (len(ten), len(hundred)) == (2, 20)
    assert sorted(chain(*ten)) == list(range(10))
    assert (ten == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]) == (split == "official")
    assert hundred == classes_of(make_stream("cifar100", 2, split=split), "cifar100")
    assert [task.prepare for task in stream.tasks] == [CIFAR10_COLOURS] * 2 + [CIFAR100_COLOURS] * 20
    assert [t.train.size + t.validation.size for t in stream.tasks] == [125] * 2 + [50] * 20  # 25 and 10 per class
    data = load_cifar10()
    last = torch.isin(data.test_labels, torch.tensor(ten[1]))
    assert torch.equal(stream.tasks[1].test.inputs, data.test_images[last])


def test_images_stay_bytes_and_are_normalised_by_their_task():
    task = make_stream("cifar100-sc", 0, tasks=1).tasks[0]
    assert task.train.inputs.dtype == torch.uint8
    assert task.augment is None
    prepared = task.prepare(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))
    expected = [(1 - mean) / std for mean, std in ((0.5071, 0.2675), (0.4867, 0.2565), (0.4408, 0.2761))]
    assert torch.allclose(prepared[0, :, 0, 0], torch.tensor(expected))
    assert make_stream("cifar100-sc", 0, tasks=1, augment=True).tasks[0].augment == CropFlip()


def test_a_task_holds_its_own_images_only():
    """Views of the whole dataset would keep all of it in memory for one task."""
    task = make_stream("cifar100-sc", 0, tasks=1).tasks[0]
    for split in (task.train, task.validation, task.test):
        assert split.inputs.untyped_storage().nbytes() == split.inputs.numel()


def test_fewer_images_are_the_first_of_all():
    whole = make_stream("cifar100", 0, tasks=2).tasks[1]
    some = make_stream("cifar100", 0, tasks=2, images=9).tasks[1]
    assert [some.train.size, some.validation.size, some.test.size] == [9, 1, 4]  # a fifth of 45, 5 and 20
    for name in ("train", "validation", "test"):
        part = getattr(some, name)
        assert torch.equal(part.inputs, getattr(whole, name).inputs[: part.size])
    assert make_stream("cifar100", 0, tasks=1, images=1000).tasks[0].train.size == 45


@pytest.mark.parametrize("name", ["cifar100-sc", "cifar100"])
def test_fewer_images_of_each_class_leave_the_test_whole(name):
    whole, some = (make_stream(name, 0, tasks=2, images_per_class=most).tasks[1] for most in (None, 4))
    assert some.train.targets.bincount().tolist() == [4] * 5
    assert some.validation.size <= whole.validation.size
    assert torch.equal(some.test.inputs, whole.test.inputs)


@given(seed=st.integers(0, 2**32 - 1), validation=st.floats(0.02, 0.9))
def test_splits_do_not_share_images_and_lose_none(tiny, seed, validation):
    task = cifar100_sc(seed, tasks=1, validation=validation, root=tiny).tasks[0]
    rows = torch.cat((task.train.inputs, task.validation.inputs)).flatten(1)
    assert len(rows) == 50
    assert len({row.numpy().tobytes() for row in rows}) == 50
    assert task.validation.size == max(1, round(50 * validation))


def test_torchs_and_numpys_generators_are_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    make_stream("cifar10-100", 0, split="paper")
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar100-sc", {"tasks": 21}, "from 1 to 20"),
        ("cifar100", {"tasks": 0}, "from 1 to 20"),
        ("cifar100", {"classes": 3}, "classes=3"),
        ("cifar100", {"classes": 50, "tasks": 3}, "from 1 to 2"),
        ("cifar10-100", {"tasks": 2.0}, "from 1 to 22"),
        ("cifar10-100", {"split": "offical"}, "did you mean 'official'"),
        ("cifar100", {"validation": 1}, "above 0 and below 1"),
        ("cifar100", {"validation": 0.999}, "leaves none of 50 images"),
        ("cifar100", {"images": 0}, "from 1 on"),
        ("cifar100-sc", {"images_per_class": 0}, "cifar100-sc got images_per_class=0"),
        ("cifar100-sc", {"split": "paper"}, "has no option 'split'"),
        ("cifar100", {"root": "/data"}, "has no option 'root'"),  # a place on a machine is no part of an experiment
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_stream(name, 0, **options)


def test_the_data_may_be_given(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("AFEC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="afec data get cifar100"):
        make_stream("cifar100", 0)
    assert len(cifar100(0, root=tiny).tasks) == 20


REAL = Path(os.environ.get("AFEC_DATA", "no data"))


@pytest.mark.skipif(not (REAL / "cifar-100-python" / "train").is_file(), reason="AFEC_DATA has no cifar-100-python")
def test_real_superclasses():
    stream = cifar100_sc(0, root=REAL)
    assert [task.name for task in stream.tasks[:3]] == ["vehicles_1", "fish", "vehicles_2"]
    assert {(t.train.size, t.validation.size, t.test.size) for t in stream.tasks} == {(2250, 250, 500)}
    assert sum(t.train.inputs.untyped_storage().nbytes() for t in stream.tasks) == 20 * 2250 * 3072
    prepared = torch.cat([t.prepare(t.train.inputs[:200]) for t in stream.tasks])
    assert prepared.mean((0, 2, 3)).abs().max() < 0.05
    assert (prepared.std((0, 2, 3)) - 1).abs().max() < 0.05


@pytest.mark.skipif(
    not (REAL / "cifar-10-batches-bin" / "test_batch.bin").is_file(), reason="AFEC_DATA has no cifar-10-batches-bin"
)
def test_real_first_tasks_have_ten_times_the_images():
    from afec.streams.cifar import cifar10_100

    stream = cifar10_100(0, tasks=2, root=REAL)
    assert {(t.train.size, t.validation.size, t.test.size) for t in stream.tasks} == {(22_500, 2_500, 5_000)}
    prepared = stream.tasks[0].prepare(stream.tasks[0].train.inputs[:4000])
    assert prepared.mean((0, 2, 3)).abs().max() < 0.15


def test_a_base_phase_and_a_class_order_by_name():
    stream = make_stream("cifar100", 7, sizes=[50, 10, 10], class_order="lucir-1993", scenario="class")
    assert (stream.scenario, stream.outputs) == ("class", [50, 10, 10])
    assert stream.tasks[0].classes[:6] == (68, 56, 78, 8, 23, 84)
    assert len({number for task in stream.tasks for number in task.classes}) == 70
    data, task = load_cifar100(), stream.tasks[1]
    assert task.class_names == tuple(data.names[k] for k in task.classes)
    for image, label in zip(*task.test, strict=True):
        same = data.test_images[data.test_labels == task.classes[int(label)]]
        assert (same == image).flatten(1).all(1).any()


def test_sizes_need_an_order_of_single_classes():
    with pytest.raises(ValueError, match="use split='paper', or another class order"):
        make_stream("cifar100", 0, sizes=[50, 50])
    assert make_stream("cifar100", 0, sizes=[50, 30], split="paper").outputs == [50, 30]


def test_numbers_of_classes_in_the_whole_stream():
    for name in ("cifar100-sc", "cifar10-100"):
        stream = make_stream(name, 1, scenario="class")
        every = [number for task in stream.tasks for number in task.classes]
        assert sorted(every) == list(range(100 if name == "cifar100-sc" else 110))
        assert stream.scenario == "class"
    assert stream.tasks[0].classes == (0, 1, 2, 3, 4)
    order = [task.name for task in make_stream("cifar100-sc", 1, class_order="sorted").tasks]
    assert order == [f"things_{k}" for k in range(20)]
