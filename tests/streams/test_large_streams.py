"""CUB-200 and folders like ImageNet's as streams: which images, which classes, and what is said where something is wrong."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from afec.data import DataError, load_cub
from afec.streams import make_stream
from afec.streams.cub import cub200
from afec.streams.imagenet import imagenet100
from official_layouts import write_cub, write_image_folder

REAL = Path(os.environ.get("AFEC_DATA", "no data"))
NAMES = [f"n{k:04d}" for k in range(6)]


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    root = tmp_path_factory.mktemp("birds")
    write_cub(root)
    return root


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    root = tmp_path_factory.mktemp("things")
    write_image_folder(root / "imagenet100", NAMES)
    return root


def seen(task, rows):
    """The class (from 1) and the number in its class of each image, which are its colours."""
    cache = task.prepare.images
    return [tuple(cache[row][0, 0, :2].tolist()) for row in rows.tolist()]


# CUB-200.


def test_the_lists_are_read_as_they_are(birds):
    data = load_cub(birds)
    assert str(data) == "CUB(200 classes, 1000 images, 400 to train)"
    assert data.names[0] == "001.Bird_1"
    assert data.files[7] == birds / "CUB_200_2011" / "images" / "002.Bird_2" / "Bird_2_0002.png"
    assert data.labels[5:10].tolist() == [1] * 5
    assert data.for_training[:5].tolist() == [False, True, False, True, False]


def test_ten_tasks_of_twenty_birds(birds):
    stream = cub200(seed=0, size=16, root=birds)
    assert stream.outputs == [20] * 10
    assert [task.sizes for task in stream.tasks] == [(80, 0, 20)] * 10
    places = np.arange(200)
    np.random.RandomState(0).shuffle(places)
    for number, task in enumerate(stream.tasks):
        assert task.validation is None
        for split in (task.train, task.test):
            for (bird, _), label in zip(seen(task, split.inputs), split.targets.tolist(), strict=True):
                assert places[bird - 1] == 20 * number + label


def test_birds_are_called_by_their_names(birds):
    task = cub200(seed=0, size=16, root=birds).tasks[3]
    classes = [number for number, _ in seen(task, task.test.inputs)]
    assert [task.class_name(int(k)) for k in task.test.targets] == [f"Bird {number}" for number in classes]


def test_the_released_code_trains_on_the_first_four_fifths_of_a_class(birds, tmp_path):
    task = cub200(seed=1, size=16, root=birds).tasks[3]
    assert {k for _, k in seen(task, task.train.inputs)} == {0, 1, 2, 3}
    assert {k for _, k in seen(task, task.test.inputs)} == {4}
    write_cub(tmp_path, per_class=6)  # ⌈0.8 · 6⌉ = 5
    task = cub200(seed=1, size=16, root=tmp_path).tasks[0]
    assert task.sizes == (100, 0, 20)


def test_the_paper_trains_on_the_datasets_own_list(birds):
    task = cub200(seed=1, split="paper", size=16, root=birds).tasks[3]
    assert {k for _, k in seen(task, task.train.inputs)} == {1, 3}
    assert {k for _, k in seen(task, task.test.inputs)} == {0, 2, 4}


def test_training_images_are_mixed_and_a_function_of_the_seed(birds):
    one, again, other = (cub200(seed=s, size=16, root=birds).tasks[0] for s in (0, 0, 1))
    assert torch.equal(one.train.inputs, again.train.inputs)
    assert sorted(one.train.inputs.tolist()) != sorted(other.train.inputs.tolist())
    first = one.train.targets[:20].tolist()
    assert len(set(first)) > 8  # a batch of 20 has many classes


def test_fewer_images_are_of_every_class(birds):
    task = cub200(seed=0, size=16, images=40, tasks=2, root=birds).tasks[1]
    assert task.sizes == (40, 0, 10)
    assert torch.bincount(task.train.targets).tolist() == [2] * 20


def test_what_a_net_is_given(birds):
    task = make_stream_at(birds, "cub200", size=16)
    torch.manual_seed(0)
    crops = task.augment(task.train.inputs[:3])
    assert crops.shape == (3, 3, 16, 16)
    assert task.prepare(crops).dtype == torch.float32
    red = task.prepare(task.test.inputs[:1])[0, 0, 0, 0]
    (bird, _) = seen(task, task.test.inputs[:1])[0]
    assert red == pytest.approx((bird / 255 - 0.485) / 0.232, abs=1e-5)


def test_an_epoch_decodes_nothing_and_neither_does_another_seed(birds, monkeypatch):
    first = cub200(seed=0, size=16, root=birds).tasks[0]

    def no_more(*arguments, **options):
        raise AssertionError("a file of an image was opened")

    monkeypatch.setattr("PIL.Image.open", no_more)
    for task in (first, *cub200(seed=1, split="paper", size=16, root=birds).tasks):
        assert task.prepare(task.augment(task.train.inputs)).shape[1:] == (3, 16, 16)
        assert task.prepare(task.test.inputs).shape[1:] == (3, 16, 16)
    with pytest.raises(DataError, match="was opened"):
        cub200(seed=0, size=15, root=birds)  # so it would have been noticed


def make_stream_at(root, name, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AFEC_DATA", str(root))
        return make_stream(name, seed=0, **options).tasks[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "half"}, "unknown split 'half'"),
        ({"classes": 30}, "does not divide its 200 classes"),
        ({"classes": 1}, "from 2 to all 200"),
        ({"tasks": 11}, "a number from 1 to 10"),
        ({"size": 0}, "pixels of one side"),
        ({"images": 0}, "from 1 on"),
    ],
)
def test_options_that_cannot_be(birds, options, said):
    with pytest.raises(ValueError, match=said):
        cub200(seed=0, root=birds, **options)


@pytest.fixture
def copy(birds, tmp_path):
    shutil.copytree(birds / "CUB_200_2011", tmp_path / "CUB_200_2011")
    return tmp_path / "CUB_200_2011"


def test_missing_birds_are_said_with_the_remedy(tmp_path):
    with pytest.raises(DataError, match="not in the data directory.*\n.*CUB_200_2011/.*afec data get cub200"):
        cub200(seed=0, root=tmp_path)


def drop_line(folder, name, line):
    lines = (folder / name).read_text().splitlines()
    del lines[line]
    (folder / name).write_text("\n".join(lines))


@pytest.mark.parametrize("name", ["image_class_labels.txt", "train_test_split.txt"])
def test_lists_that_do_not_agree(copy, name):
    drop_line(copy, name, 17)
    with pytest.raises(DataError, match=f"{name} is about 999 images, and images.txt about 1000"):
        load_cub(copy.parent)


def test_a_list_with_something_else_in_it(copy):
    (copy / "image_class_labels.txt").write_text("1 1\ntwo 1\n")
    with pytest.raises(DataError, match="image_class_labels.txt, line 2: expected a number"):
        load_cub(copy.parent)
    (copy / "image_class_labels.txt").unlink()
    with pytest.raises(DataError, match="cannot be read .*--again"):
        load_cub(copy.parent)


def test_a_list_that_leads_out_of_the_folder(copy):
    text = (copy / "images.txt").read_text()
    (copy / "images.txt").write_text(text.replace("001.Bird_1/", "../../secret/", 1))
    with pytest.raises(DataError, match="not inside of images/"):
        load_cub(copy.parent)


def test_a_class_that_is_lacking(copy):
    drop_line(copy, "classes.txt", 199)
    with pytest.raises(DataError, match="199 classes in classes.txt and 200"):
        load_cub(copy.parent)


def test_a_class_with_too_few_images_is_named(copy):
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt"):
        for _ in range(4):
            drop_line(copy, name, 5)  # of the second class one is left
    with pytest.raises(DataError, match="002.Bird_2 has too few images: 1, and none of them for the test"):
        cub200(seed=0, size=16, root=copy.parent)


def test_an_image_that_is_not_there(copy):
    (copy / "images" / "007.Bird_7" / "Bird_7_0001.png").unlink()
    with pytest.raises(DataError, match="Bird_7_0001.png: No such file"):
        cub200(seed=0, size=16, root=copy.parent)


# Folders like ImageNet's.


def test_a_folder_in_tasks_of_two(things):
    stream = imagenet100(seed=0, classes=2, size=16, root=things)
    assert [task.sizes for task in stream.tasks] == [(6, 0, 4)] * 3
    places = np.arange(6)
    np.random.RandomState(0).shuffle(places)
    for number, task in enumerate(stream.tasks):
        for (name, _), label in zip(seen(task, task.train.inputs), task.train.targets.tolist(), strict=True):
            assert places[name] == 2 * number + label


def test_a_list_chooses_classes_and_their_order(things, tmp_path):
    (tmp_path / "mine.txt").write_text("# chosen\nn0004 a cat\n\nn0001\nn0005\nn0000\n")
    stream = imagenet100(
        seed=0, classes=2, choose=str(tmp_path / "mine.txt"), class_order="sorted", size=16, root=things
    )
    cache = stream.tasks[0].prepare.images
    assert len(cache) == 4 * 5  # no other class is decoded
    files = [sorted({int(cache[row][0, 0, 0]) for row in task.test.inputs.tolist()}) for task in stream.tasks]
    assert files == [[1, 4], [0, 5]]
    assert [task.test.targets.tolist() for task in stream.tasks] == [[1, 1, 0, 0]] * 2  # n0004 before n0001
    (tmp_path / "turned.txt").write_text("n0000\nn0001\nn0004\nn0005\n")
    turned = imagenet100(
        seed=0, classes=2, choose=str(tmp_path / "turned.txt"), class_order="sorted", size=16, root=things
    )
    assert turned.tasks[0].prepare.images.folder == cache.folder  # one cache for every order
    assert [task.test.targets.tolist() for task in turned.tasks] == [[0, 0, 1, 1]] * 2


def test_names_choose_a_hundred(tmp_path):
    names = [f"n{k:03d}" for k in range(105)]
    write_image_folder(tmp_path / "all", names, train=1, test=1)
    stream = imagenet100(
        seed=0, folder=str(tmp_path / "all"), choose="first", class_order="sorted", size=16, root=tmp_path
    )
    assert [label for label, _ in seen(stream.tasks[9], stream.tasks[9].test.inputs)] == list(range(90, 100))
    stream = imagenet100(
        seed=0, folder=str(tmp_path / "all"), choose="lucir", class_order="sorted", size=16, root=tmp_path
    )
    np.random.seed(1993)
    drawn = np.random.choice(names, 100, replace=False)
    rows, labels = stream.tasks[0].test
    found = {label: f"n{k:03d}" for (k, _), label in zip(seen(stream.tasks[0], rows), labels.tolist(), strict=True)}
    assert [found[label] for label in range(10)] == drawn[:10].tolist()


@pytest.mark.parametrize(
    ("list_", "said"),
    [("n0001\nn0009\nn0002\n", "names n0009, which .* has not"), ("n0001\nn0001\n", "names n0001 twice")],
)
def test_lists_that_cannot_be(things, tmp_path, list_, said):
    (tmp_path / "list.txt").write_text(list_)
    with pytest.raises(DataError, match=said):
        imagenet100(seed=0, choose=str(tmp_path / "list.txt"), root=things)


def test_options_of_a_folder_that_cannot_be(things, tmp_path):
    with pytest.raises(ValueError, match="does not divide its 6 classes"):
        imagenet100(seed=0, classes=4, root=things)
    with pytest.raises(ValueError, match="unknown class order 'name'"):
        imagenet100(seed=0, classes=2, class_order="name", root=things)
    with pytest.raises(DataError, match="has 6 classes, and choose='lucir' takes 100"):
        imagenet100(seed=0, choose="lucir", root=things)
    with pytest.raises(ValueError, match="or the path of a list"):
        imagenet100(seed=0, choose="last", root=things)
    with pytest.raises(DataError, match="there is no folder.*train/<class>/<image>"):
        imagenet100(seed=0, root=tmp_path)


def test_parts_that_do_not_agree(things, tmp_path):
    folder = tmp_path / "imagenet100"
    shutil.copytree(things / "imagenet100", folder)
    shutil.rmtree(folder / "val" / "n0003")
    with pytest.raises(DataError, match="the class n0003 is in train only"):
        imagenet100(seed=0, classes=2, root=tmp_path)
    (folder / "val" / "n0003").mkdir()
    with pytest.raises(DataError, match="n0003 has no images"):
        imagenet100(seed=0, classes=2, root=tmp_path)
    shutil.rmtree(folder / "val")
    with pytest.raises(DataError, match="there is no folder .*val"):
        imagenet100(seed=0, classes=2, root=tmp_path)


# The real ones.


@pytest.mark.skipif(not (REAL / "CUB_200_2011").is_dir(), reason="no CUB-200-2011 under AFEC_DATA")
def test_the_real_birds():
    data = load_cub(REAL)
    assert (len(data.files), int(data.for_training.sum())) == (11_788, 5_994)
    counts = torch.bincount(data.labels)
    assert (int(counts.min()), int(counts.max())) == (41, 60)
    assert set(torch.bincount(data.labels[data.for_training]).tolist()) == {29, 30}
    stream = cub200(seed=0, size=64)
    assert sum(task.sizes[0] for task in stream.tasks) == sum(-(-4 * n // 5) for n in counts.tolist())
    task = stream.tasks[0]
    crops = task.prepare(task.augment(task.train.inputs[:64]))
    assert crops.shape == (64, 3, 64, 64)
    assert 0.3 < crops.std() < 2.0


@pytest.mark.skipif(not (REAL / "imagenet100").is_dir(), reason="no imagenet100 under AFEC_DATA")
def test_the_real_folder():
    stream = imagenet100(seed=0, size=64)
    assert len(stream.tasks) == 10
    assert stream.outputs == [10] * 10
    task = stream.tasks[-1]
    assert abs(task.prepare(task.test.inputs[:64]).mean()) < 1.0


def test_a_base_phase_in_the_scenario_class(things):
    stream = imagenet100(seed=0, sizes=[3, 1, 2], scenario="class", class_order="sorted", size=16, root=things)
    assert (stream.scenario, [task.classes for task in stream.tasks]) == ("class", [(0, 1, 2), (3,), (4, 5)])
    by_seed = imagenet100(seed=0, sizes=[3, 3], size=16, root=things)
    plain = imagenet100(seed=0, classes=3, size=16, root=things)
    assert [task.classes for task in by_seed.tasks] == [task.classes for task in plain.tasks]
    with pytest.raises(ValueError, match=r"imagenet100 got sizes=\[5, 2\]"):
        imagenet100(seed=0, sizes=[5, 2], root=things)
