"""Your own images in folders: what is read, how it is divided, and what is said where something does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from afec.cli import main
from afec.data import DataError
from afec.data.folder import find_tasks, read_images
from afec.lab import find_runs
from afec.streams import check_stream, make_stream
from afec.streams.folder import folder
from afec.streams.images import CropFlip


def picture(path, value=0, size=(12, 12), mode="RGB", **options):
    """An image of one brightness."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "1", "P") else (value,) * len(mode)).save(path, **options)


def fill(root, task, names=("cat", "dog"), count=10, split="", first=0, **options):
    """Images whose brightness is their number."""
    for offset, name in enumerate(names):
        for number in range(count):
            value = first + offset * 100 + number
            picture(root / task / split / name / f"{number:02d}.png", value, **options)


@pytest.fixture
def mine(tmp_path):
    """Two tasks: one that says what is for the test, one that does not."""
    fill(tmp_path / "mine", "b-split", split="train")
    fill(tmp_path / "mine", "b-split", split="test", count=4, first=50)
    fill(tmp_path / "mine", "a-whole", ("ant", "bee"), count=20)
    return tmp_path / "mine"


def values(split):
    return sorted(split.inputs[:, 0, 0, 0].tolist())


def test_tasks_by_name_and_classes_by_rank(mine):
    stream = make_stream(f"folder:{mine}", 0)
    assert [task.name for task in stream.tasks] == ["a-whole", "b-split"]
    assert stream.outputs == [2, 2]
    whole, split = stream.tasks
    assert whole.train.inputs.shape[1:] == (3, 12, 12)
    assert whole.train.inputs.dtype == torch.uint8
    for task in stream.tasks:
        for part in (task.train, task.validation, task.test):
            assert torch.equal(part.targets, (part.inputs[:, 0, 0, 0] >= 100).long())
    assert [p.size for p in (split.train, split.validation, split.test)] == [18, 2, 8]  # a tenth of ten, per class
    assert values(split.test) == [50, 51, 52, 53, 150, 151, 152, 153]
    assert [p.size for p in (whole.train, whole.validation, whole.test)] == [28, 4, 8]  # a fifth, then a tenth of 16
    assert sorted(values(whole.train) + values(whole.validation) + values(whole.test)) == [*range(20), *range(100, 120)]


def test_the_test_is_the_same_for_every_seed_and_validation_is_not(mine):
    tasks = [make_stream(f"folder:{mine}", seed).tasks[0] for seed in range(4)]
    assert len({tuple(values(task.test)) for task in tasks}) == 1
    assert len({tuple(values(task.validation)) for task in tasks}) > 1
    again = make_stream(f"folder:{mine}", 2).tasks[0]
    assert torch.equal(again.train.inputs, tasks[2].train.inputs)


def test_options(mine):
    stream = folder(str(mine), 0, validation=0.5, test=0.5, size=8, mode="grey", augment=True, tasks=1)
    (task,) = stream.tasks
    assert task.train.inputs.shape == (10, 1, 8, 8)
    assert (task.validation.size, task.test.size) == (10, 20)
    assert task.augment == CropFlip()
    prepared = task.prepare(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    assert prepared.flatten().tolist() == pytest.approx([-1, 1])
    orders = [[task.name for task in folder(str(mine), seed, class_order="seed").tasks] for seed in range(6)]
    assert ["b-split", "a-whole"] in orders
    assert ["a-whole", "b-split"] in orders


def test_a_class_in_two_tasks_is_two_classes_of_known_tasks_and_refused_where_they_are_told_apart(mine):
    fill(mine, "c-more", ("cat", "fox"))
    assert [task.classes for task in folder(str(mine), 0).tasks] == [(0, 1), (2, 3), (4, 5)]
    with pytest.raises(DataError, match=r"the class cat is in the tasks b-split and c-more, .* comes once"):
        folder(str(mine), 0, scenario="class")
    assert len(folder(str(mine), 0, scenario="class", tasks=2).tasks) == 2


def test_a_relative_path_is_here_or_in_the_data_directory(mine, monkeypatch, tmp_path):
    monkeypatch.chdir(mine.parent)
    assert len(make_stream("folder:mine", 0).tasks) == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="there is no folder"):
        make_stream("folder:mine", 0)
    monkeypatch.setenv("AFEC_DATA", str(mine.parent))
    assert len(make_stream("folder:mine", 0).tasks) == 2


def test_names_of_streams():
    check_stream({"name": "folder:any/where", "size": 32})
    with pytest.raises(ValueError, match="has no option 'sise'; did you mean 'size'"):
        check_stream({"name": "folder:any/where", "sise": 32})
    with pytest.raises(ValueError, match="unknown stream 'folder:'"):
        check_stream({"name": "folder:"})
    with pytest.raises(ValueError, match="write your own folder for PATH"):
        make_stream("folder:PATH", 0)


# What does not fit.


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        find_tasks(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no folders"):
        find_tasks(tmp_path)


def test_a_task_needs_two_classes(tmp_path):
    fill(tmp_path, "task", ("only",))
    with pytest.raises(DataError, match="task has 1 class; a task needs at least two"):
        find_tasks(tmp_path)


def test_train_without_test_is_pointed_at(tmp_path):
    fill(tmp_path, "task", ("train",))
    with pytest.raises(DataError, match=r"train is taken for a class, since there is no test"):
        find_tasks(tmp_path)


def test_trains_may_be_a_class(tmp_path):
    fill(tmp_path, "vehicles", ("train", "bus"))
    assert find_tasks(tmp_path)[0].classes == ("bus", "train")


def test_an_empty_class_is_named(tmp_path):
    fill(tmp_path, "task")
    (tmp_path / "task" / "eel").mkdir()
    (tmp_path / "task" / "eel" / "notes.txt").write_text("none yet")
    with pytest.raises(DataError, match=r"task/eel has no images"):
        find_tasks(tmp_path)


def test_classes_must_be_in_train_and_test(tmp_path):
    fill(tmp_path, "task", ("cat", "dog", "eel"), split="train", count=2)
    fill(tmp_path, "task", ("cat", "dog", "fox"), split="test", count=2)
    with pytest.raises(DataError, match="eel is in train only; fox is in test only"):
        find_tasks(tmp_path)


def test_things_in_the_wrong_place_are_named(tmp_path):
    fill(tmp_path, "task", split="train", count=1)
    fill(tmp_path, "task", split="test", count=1)
    (tmp_path / "task" / "val").mkdir()
    with pytest.raises(DataError, match="and val beside them"):
        find_tasks(tmp_path)
    (tmp_path / "task" / "val").rmdir()
    picture(tmp_path / "task" / "train" / "x.png")
    with pytest.raises(DataError, match=r"train has images in it \(x.png, 1 in all\)"):
        find_tasks(tmp_path)
    (tmp_path / "task" / "train" / "x.png").unlink()
    (tmp_path / "task" / "train" / "cat" / "more").mkdir()
    with pytest.raises(DataError, match="has the folder more in it"):
        find_tasks(tmp_path)


def test_other_files_are_passed_over_and_counted(mine):
    (mine / "a-whole" / "ant" / "readme.txt").write_text("?")
    (mine / "a-whole" / "labels.csv").write_text("?")
    (mine / "a-whole" / "bee" / ".hidden.png").write_text("?")
    (mine / "a-whole" / ".cache").mkdir()
    assert [task.passed_over for task in find_tasks(mine)] == [2, 0]
    with pytest.warns(RuntimeWarning, match="passed over 2 files of the task a-whole"):
        stream = make_stream(f"folder:{mine}", 0)
    assert stream.tasks[0].train.size == 28


def test_bad_images_are_an_error_or_left_out_and_counted(mine):
    (mine / "a-whole" / "ant" / "03.png").write_bytes(b"no image")
    whole = (mine / "a-whole" / "bee" / "07.png").read_bytes()
    (mine / "a-whole" / "bee" / "07.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="2 of 40 images of the task a-whole cannot be read") as caught:
        make_stream(f"folder:{mine}", 0)
    assert "ant/03.png" in str(caught.value)
    assert 'bad = "skip"' in str(caught.value)
    with pytest.warns(RuntimeWarning, match="left out 2 of 40 images"):
        task = make_stream(f"folder:{mine}", 0, bad="skip").tasks[0]
    left = values(task.train) + values(task.validation) + values(task.test)
    assert sorted(left) == sorted({*range(20), *range(100, 120)} - {3, 107})
    for part in (task.train, task.validation, task.test):
        assert torch.equal(part.targets, (part.inputs[:, 0, 0, 0] >= 100).long())


@pytest.mark.filterwarnings("ignore:left out")
def test_a_class_of_bad_images_only_is_named(mine):
    for file in (mine / "a-whole" / "ant").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(DataError, match="none of the images of the class ant"):
        make_stream(f"folder:{mine}", 0, bad="skip")


def test_mixed_modes_are_an_error_or_made_alike(mine):
    picture(mine / "a-whole" / "ant" / "00.png", 0, mode="L")
    with pytest.raises(DataError, match=r"ant/00.png is grey and .*ant/01.png is in colour"):
        make_stream(f"folder:{mine}", 0)
    assert make_stream(f"folder:{mine}", 0, mode="grey").tasks[0].train.inputs.shape[1] == 1
    assert make_stream(f"folder:{mine}", 0, mode="rgb").tasks[0].train.inputs.shape[1] == 3


def test_mixed_sizes_are_an_error_or_made_alike(mine):
    picture(mine / "a-whole" / "bee" / "00.png", 100, size=(30, 20))
    with pytest.raises(DataError, match=r"2 sizes: 12×12 .*30×20 .*give size"):
        make_stream(f"folder:{mine}", 0)
    assert make_stream(f"folder:{mine}", 0, size=16).tasks[0].train.inputs.shape[2:] == (16, 16)


def test_tasks_of_different_shapes_are_an_error(mine):
    fill(mine, "c-large", size=(20, 20))
    with pytest.raises(DataError, match=r"different shapes, \(3, 12, 12\) and \(3, 20, 20\)"):
        make_stream(f"folder:{mine}", 0)


def test_too_few_images_to_divide(tmp_path):
    fill(tmp_path, "task", count=2)
    with pytest.raises(DataError, match="class cat of the task task has 1 images left, too few"):
        make_stream(f"folder:{tmp_path}", 0)
    fill(tmp_path, "task", count=3)
    task = make_stream(f"folder:{tmp_path}", 0).tasks[0]
    assert [p.size for p in (task.train, task.validation, task.test)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0"),
        ({"mode": "gray"}, "did you mean 'grey'"),
        ({"validation": 0}, "validation=0"),
        ({"test": 1.0}, "test=1.0"),
        ({"class_order": "random"}, "class_order='random'"),
        ({"bad": "ignore"}, "bad='ignore'"),
        ({"tasks": 3}, "has 2 of them"),
    ],
)
def test_bad_options_are_named(mine, options, message):
    with pytest.raises(ValueError, match=message):
        make_stream(f"folder:{mine}", 0, **options)


# Single images.


def read(path, mode=None, size=None):
    return read_images([path], mode, size).pixels[0]


def test_kinds_of_image_files(tmp_path):
    file = tmp_path / "x.png"
    Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save(file)
    assert read(file)[:, 0, 0].tolist() == [10, 20, 30]  # transparency is dropped
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 7, 8, 9])
    image.save(file, transparency=b"\x00\x80")
    assert read(file)[:, 0, 0].tolist() == [7, 8, 9]
    Image.new("1", (4, 4), 1).save(file)
    assert read(file).tolist() == [[[255] * 4] * 4]
    Image.new("I;16", (4, 4), 1000).save(file)
    assert "more than a byte per pixel" in read_images([file], None, None).bad[0]


def test_a_photograph_is_turned_as_its_camera_says(tmp_path):
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :4] = 255  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90°: left becomes the top
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    image = read(tmp_path / "x.png")
    assert image.shape == (3, 8, 4)
    assert image[:, :4].min() == 255
    assert image[:, 4:].max() == 0


def test_squares_are_cut_from_the_middle(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200  # the middle square
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert read(tmp_path / "x.png", size=5)[:, :, 1:4].unique().tolist() == [200]


# As a benchmark.

BENCHMARK = """
[stream]
name = "folder:mine"
size = 32

[net]
name = "lenet"

[training]
max_epochs = 1

[method.ewc]
strength = 100
"""


def test_a_benchmark_of_ones_own_images(mine, monkeypatch, in_process):
    monkeypatch.chdir(mine.parent)
    (mine.parent / "own.toml").write_text(BENCHMARK)
    assert main(["run", "own.toml", "--method", "ewc", "--seeds", "1", "--runs", "runs"]) == 0
    (found,) = find_runs(mine.parent / "runs")
    assert found.done


def test_classes_of_folders_have_one_number_each_in_every_order(mine, tmp_path):
    by_name = folder(str(mine), 0, scenario="class")
    assert by_name.scenario == "class"
    every = [number for task in by_name.tasks for number in task.classes]
    assert every == list(range(len(every)))
    (tmp_path / "order.txt").write_text("b-split\na-whole\n")
    turned = folder(str(mine), 0, scenario="class", class_order=str(tmp_path / "order.txt"))
    assert [task.name for task in turned.tasks] == ["b-split", "a-whole"]
    assert [task.classes for task in turned.tasks] == [task.classes for task in by_name.tasks][::-1]
    with pytest.raises(ValueError, match="unknown scenario 'domain'"):
        folder(str(mine), 0, scenario="domain")
