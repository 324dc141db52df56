"""Omniglot: its files, how they are scaled, and its stream."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from afec.data import DataError, open_omniglot
from afec.data.omniglot import _scaled
from afec.streams import make_stream
from afec.streams.omniglot import omniglot, turned
from official_layouts import png, write_omniglot

REAL = Path(os.environ.get("AFEC_DATA", "no data"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_omniglot(root / "omniglot", zipped=True, drawings=10)
    return root


@pytest.fixture(autouse=True)
def _found(root, monkeypatch):
    monkeypatch.setenv("AFEC_DATA", str(root))


@pytest.mark.parametrize("folder", ["omniglot", "omniglot-py"])
@pytest.mark.parametrize("zipped", [False, True], ids=["folders", "zips"])
def test_alphabets_characters_and_drawings_in_the_order_of_their_names(tmp_path, folder, zipped):
    write_omniglot(tmp_path / folder, zipped, drawings=3)
    data = open_omniglot(tmp_path)
    assert data.alphabets == (*(f"back_{k:02d}" for k in range(30)), *(f"eval_{k:02d}" for k in range(20)))
    assert [data.count(name) for name in ("back_00", "back_01", "eval_19")] == [(2, 6), (3, 9), (3, 9)]
    alphabet = data.read("back_01")
    assert alphabet.images.shape == (9, 1, 28, 28)
    assert alphabet.images.dtype == torch.uint8
    assert alphabet.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert alphabet.characters == 3
    # One column of ink in 3.75 that a small pixel covers; forty rows are ten small rows and two thirds of the next.
    first, third = alphabet.images[0, 0], alphabet.images[6, 0]
    assert first[:10, 0].tolist() == [round(255 / 3.75)] * 10
    assert first[10, 0] == round(255 / 3.75 * 2 / 3)
    assert first[:, 1:].sum() == 0
    assert third[:10, 0].tolist() == [round(255 * 3 / 3.75)] * 10


def test_scaling_keeps_the_mean_and_is_exact_at_the_edges():
    ink = torch.rand(3, 105, 105, generator=torch.Generator().manual_seed(0)) < 0.3
    small = _scaled(ink).float()
    assert torch.allclose(small.mean((1, 2)) / 255, ink.float().mean((1, 2)), atol=1e-3)
    corner = torch.zeros(1, 105, 105, dtype=torch.bool)
    corner[0, 104, 3] = True  # a quarter of it belongs to small column 1, three quarters to column 0
    expected = torch.zeros(28, 28)
    expected[27, 0], expected[27, 1] = 255 * 0.75 / 3.75**2, 255 * 0.25 / 3.75**2
    assert torch.equal(_scaled(corner)[0], expected.round().byte())
    assert _scaled(torch.ones(1, 105, 105, dtype=torch.bool)).unique().tolist() == [255]


def test_nothing_there_says_what_to_put_where(tmp_path):
    with pytest.raises(DataError, match="afec data get omniglot") as caught:
        open_omniglot(tmp_path)
    assert str(tmp_path / "omniglot" / "images_background.zip") in str(caught.value)
    write_omniglot(tmp_path / "omniglot", zipped=True, drawings=1)
    (tmp_path / "omniglot" / "images_evaluation.zip").unlink()
    with pytest.raises(DataError, match="lacks images_evaluation"):
        open_omniglot(tmp_path)


def test_damage_is_named(tmp_path):
    folder = tmp_path / "omniglot"
    write_omniglot(folder, zipped=False, drawings=3)
    drawing = folder / "images_background" / "back_03" / "character02" / "0003_02.png"
    whole = drawing.read_bytes()
    for content, message in (
        (whole[:40], "cannot be read as a PNG"),
        (b"", "cannot be read as a PNG"),
        (png(np.zeros((28, 28), bool)), "28×28 pixels, expected 105×105"),
    ):
        drawing.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            open_omniglot(tmp_path).read("back_03")
        assert str(drawing) in str(caught.value)
    drawing.unlink()
    with pytest.raises(DataError, match="characters of back_03 have 2 to 3 drawings"):
        open_omniglot(tmp_path)
    drawing.write_bytes(whole)
    (folder / "images_evaluation" / "eval_05").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="19 alphabets, expected 20"):
        open_omniglot(tmp_path)


def test_damaged_zips_are_named(tmp_path):
    folder = tmp_path / "omniglot"
    write_omniglot(folder, zipped=True, drawings=1)
    file = folder / "images_background.zip"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(DataError, match="damaged or no zip file"):
        open_omniglot(tmp_path)
    with zipfile.ZipFile(folder / "images_evaluation.zip") as archive:
        names = archive.namelist()
    with zipfile.ZipFile(folder / "images_evaluation.zip") as archive:
        start = archive.getinfo(next(name for name in names if "eval_00/character01" in name)).header_offset
    content = bytearray((folder / "images_evaluation.zip").read_bytes())
    content[start + 100] ^= 0xFF  # inside of the first drawing
    (folder / "images_evaluation.zip").write_bytes(bytes(content))
    file.write_bytes(whole)
    with pytest.raises(DataError, match="eval_00/character01/.*cannot be read"):
        open_omniglot(tmp_path).read("eval_00")


def test_a_zip_with_a_huge_entry_is_not_unpacked(tmp_path):
    folder = tmp_path / "omniglot"
    write_omniglot(folder, zipped=True, drawings=1)
    other = folder / "other.zip"
    with (
        zipfile.ZipFile(folder / "images_background.zip") as old,
        zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for number, name in enumerate(old.namelist()):
            new.writestr(name, bytes(2_000_000) if number == 1 else old.read(name))
    other.rename(folder / "images_background.zip")
    with pytest.raises(DataError, match="more than 1,000,000 bytes are no drawing"):
        open_omniglot(tmp_path).read("back_00")


# The stream.


def drawings_of(split):
    """Which drawing each image is: the files differ by how far down the bar reaches (character and drawing decide all)."""
    return sorted(image.numpy().tobytes() for image in split.inputs)


def test_each_character_is_divided_by_itself_and_the_test_is_the_same_for_every_seed():
    one, other = (make_stream("omniglot", seed, tasks=4) for seed in (0, 1))
    assert one.outputs == [2, 3, 2, 3]
    assert [task.name for task in one.tasks] == ["back_00", "back_01", "back_02", "back_03"]
    for first, second in zip(one.tasks, other.tasks, strict=True):
        assert torch.equal(first.test.inputs, second.test.inputs)
        for split, count in ((first.train, 6), (first.validation, 2), (first.test, 2)):
            assert split.targets.bincount().tolist() == [count] * first.outputs
        everything = drawings_of(first.train) + drawings_of(first.validation) + drawings_of(first.test)
        assert len(set(everything)) == 10 * first.outputs  # no drawing is in two splits
    assert any(
        drawings_of(first.validation) != drawings_of(second.validation)
        for first, second in zip(one.tasks, other.tasks, strict=True)
    )


def test_inputs_are_bytes_and_only_divided():
    task = make_stream("omniglot", 0, tasks=1).tasks[0]
    assert task.train.inputs.dtype == torch.uint8
    assert torch.allclose(task.prepare(task.train.inputs), task.train.inputs.float() / 255)


def test_copies_are_made_of_training_drawings_only():
    plain, copied = (make_stream("omniglot", 0, tasks=1, copies=copies).tasks[0] for copies in (1, 20))
    size = plain.train.size
    assert copied.train.size == 20 * size
    assert torch.equal(copied.train.inputs[:size], plain.train.inputs)
    assert torch.equal(copied.train.targets.view(20, -1), plain.train.targets.expand(20, -1))
    assert not torch.equal(copied.train.inputs[size : 2 * size], plain.train.inputs)
    assert torch.equal(copied.test.inputs, plain.test.inputs)
    assert torch.equal(copied.validation.inputs, plain.validation.inputs)


def test_the_official_split_shuffles_all_copies():
    task = make_stream("omniglot", 0, tasks=1, split="official", copies=3).tasks[0]  # 2 characters × 10 drawings × 3
    assert [task.train.size, task.validation.size, task.test.size] == [48, 6, 6]
    other = make_stream("omniglot", 1, tasks=1, split="official", copies=3).tasks[0]
    assert not torch.equal(task.test.inputs, other.test.inputs)
    uneven = make_stream("omniglot", 0, tasks=2, split="official").tasks[1]  # 30: tenths of 3
    assert [uneven.train.size, uneven.validation.size, uneven.test.size] == [24, 3, 3]


def test_the_order_is_that_of_the_files_or_the_seeds():
    names = [[t.name for t in make_stream("omniglot", seed, tasks=4, class_order="seed").tasks] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
    every = [task.name for task in make_stream("omniglot", 0, class_order="seed").tasks]
    assert every[:4] == names[0]
    assert sorted(every) == list(open_omniglot().alphabets)
    assert [task.name for task in make_stream("omniglot", 5, tasks=2).tasks] == ["back_00", "back_01"]


def test_fewer_characters():
    stream = make_stream("omniglot", 0, tasks=2, characters=2)
    assert stream.outputs == [2, 2]


def test_turning_and_shifting_by_hand():
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[0, 0, 5:20, 13] = 200  # upright, left of the middle
    right = turned(image, torch.tensor([0.0]), torch.tensor([[3.0, 2.0]]))
    assert torch.equal(right, torch.roll(image, (2, 3), dims=(2, 3)))
    quarter = turned(image, torch.tensor([90.0]), torch.tensor([[0.0, 0.0]]))
    assert torch.equal(quarter, torch.rot90(image, 1, dims=(2, 3)))
    both = turned(image, torch.tensor([90.0]), torch.tensor([[1.0, 0.0]]))  # first turned, then moved
    assert torch.equal(both, torch.roll(quarter, 1, dims=3))
    gone = turned(image, torch.tensor([0.0]), torch.tensor([[-14.0, 0.0]]))
    assert gone.sum() == 0  # nothing comes in from the other side


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 51}, "from 1 to 50"),
        ({"split": "paper"}, "unknown split 'paper'"),
        ({"copies": 0}, "copies=0"),
        ({"class_order": "sed"}, "did you mean 'seed'"),
        ({"characters": 1}, "at least 2"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_stream("omniglot", 0, **options)


def test_too_few_drawings_are_named(tmp_path):
    write_omniglot(tmp_path / "omniglot", zipped=True, drawings=4)
    with pytest.raises(ValueError, match="2 drawings left"):
        omniglot(0, tasks=1, root=tmp_path)


@pytest.mark.skipif(not (REAL / "omniglot" / "images_background").is_dir(), reason="AFEC_DATA has no omniglot")
def test_the_real_omniglot():
    data = open_omniglot(REAL)
    counts = [data.count(name) for name in data.alphabets]
    assert sum(characters for characters, _ in counts) == 1623
    assert all(drawings == 20 * characters for characters, drawings in counts)
    assert (min(counts)[0], max(counts)[0]) == (14, 55)
    greek = data.read("Greek")
    assert greek.images.shape == (480, 1, 28, 28)
    assert 0.04 < greek.images.float().mean() / 255 < 0.12  # thin bright lines
    task = omniglot(0, tasks=1, root=REAL).tasks[0]
    assert [task.train.size, task.validation.size, task.test.size] == [16 * 20, 40, 40]


def test_characters_keep_their_numbers_in_every_order_of_the_alphabets():
    by_file = make_stream("omniglot", 0, tasks=3, scenario="class")
    assert by_file.scenario == "class"
    every = [number for task in by_file.tasks for number in task.classes]
    assert every == list(range(len(every)))
    numbers = {task.name: task.classes for task in make_stream("omniglot", 0, class_order="sorted").tasks}
    for task in make_stream("omniglot", 1, tasks=5, class_order="seed").tasks:
        assert task.classes == numbers[task.name]
