"""Large images and weights that are not as they should be, as the user of `afec run` and `afec data check` sees it.

Every time: an exit code, a message with the file and what to do, no traceback, and nothing half-written.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil

import pytest
import torch
from bad_images import deep, truncated
from PIL import Image

from afec.cli import main
from afec.data import cache as cache_module
from afec.data.catalogue import ALEXNET_CONV
from afec.nets import make_backbone
from official_layouts import write_cub, write_image_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Birds, things and convolutions, all as they should be."""
    root = tmp_path_factory.mktemp("whole")
    write_cub(root, size=(80, 72))
    write_image_folder(root / "imagenet100", [f"n{k:03d}" for k in range(100)])
    net = make_backbone("alexnet", hidden=1, pool=1).state_dict()
    torch.save({key: value for key, value in net.items() if key.startswith("features.")}, root / ALEXNET_CONV)
    return root


@pytest.fixture
def root(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "data")


@pytest.fixture
def user(root, capsys):
    """Calls a command as a user does; what it says, after what holds every time was looked at."""

    def call(code, *words):
        assert main([*words, "--data", str(root)]) == code
        said = "".join(capsys.readouterr())
        assert "Traceback" not in said
        assert not (root / "runs").exists()
        assert not list(root.glob(".decoded/.*.tmp"))
        return said

    return call


def run(benchmark, root, *sets):
    words = ["run", benchmark, "--method", "ewc", "--scale", "smoke", "--seeds", "1", "--workers", "1"]
    return [*words, "--runs", str(root / "runs"), *(["--set", *sets] if sets else [])]


@pytest.mark.parametrize(
    ("spoil", "said"), [(truncated, "truncated"), (deep, "save it with 8 bits"), (lambda file: file.unlink(), "anew")]
)
def test_an_image(root, user, spoil, said):
    file = root / "CUB_200_2011" / "images" / "007.Bird_7" / "Bird_7_0001.png"
    spoil(file)
    found = user(2, *run("cub200", root))
    assert str(file) in found
    assert said in found
    assert "anew" in found
    assert not (root / ".decoded" / "cub200-73px").exists()


def test_checking_data_reads_every_image(root, user):
    assert "each of the 500 images can be decoded" in user(0, "data", "check", "imagenet100")
    file = root / "imagenet100" / "train" / "n003" / "n003_0.png"
    truncated(file)
    found = user(1, "data", "check", "imagenet100")
    assert f"WRONG imagenet100: 1 of 500 images cannot be read:\n  {file}: image file is truncated" in found
    assert "Get these files anew" in found


def test_odd_colours_are_no_fault(root, user):
    folder = root / "imagenet100" / "train" / "n003"
    for mode, file in zip(("L", "CMYK", "RGBA"), sorted(folder.iterdir()), strict=True):
        Image.new(mode, (80, 72)).save(file.with_suffix(".tif"))
        file.unlink()
    assert "each of the 500 images" in user(0, "data", "check", "imagenet100")


def test_a_class_with_too_few_images(root, user):
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt"):
        file = root / "CUB_200_2011" / name
        lines = file.read_text().splitlines()
        file.write_text("\n".join(lines[:5] + lines[9:]))
    found = user(2, *run("cub200", root))
    assert "the class 002.Bird_2 has too few images: 1, and none of them for the test" in found
    assert "afec data get cub200 --again" in found
    for file in (root / "imagenet100" / "val" / "n003").iterdir():
        file.unlink()
    for words in (run("imagenet100", root), ("data", "check", "imagenet100")):
        found = user(2 if "run" in words else 1, *words)
        assert f"the class {root / 'imagenet100' / 'val' / 'n003'} has no images" in found


def test_classes_that_do_not_go_into_the_tasks(root, user):
    for part in ("train", "val"):
        shutil.rmtree(root / "imagenet100" / part / "n003")
    assert "divide its 99 classes into tasks of one size; these do: 3, 9, 11, 33, 99" in user(
        2, *run("imagenet100", root)
    )
    (root / "list.txt").write_text("# none yet\n")
    assert "names none; write the name of a class" in user(2, *run("imagenet100", root, "stream.choose=list.txt"))


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


SPOILT = {
    "missing": (lambda w: {k: v for k, v in w.items() if k != "features.6.bias"}, "lacks features.6.bias"),
    "extra": (lambda w: {**w, "features.12.bias": torch.ones(1)}, "has features.12.bias, which AlexNet has not"),
    "misshapen": (lambda w: {**w, "features.0.bias": torch.ones(63)}, "has the shape (63,), and this net's is (64,)"),
    "not finite": (lambda w: {**w, "features.0.bias": torch.full((64,), torch.inf)}, "no finite numbers"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_weights(root, user, how):
    change, said = SPOILT[how]
    file = root / ALEXNET_CONV
    torch.save(change(torch.load(file)), file)
    found = user(2, *run("cub200-pretrained", root))
    assert str(file) in found
    assert said in found
    assert "`afec data get alexnet` fetches" in found
    assert f"WRONG {file}: SHA-256" in user(1, "data", "check", "alexnet")


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_weights_with_code_in_them(root, user, tmp_path, how):
    file, marker = root / ALEXNET_CONV, tmp_path / "it was run"
    if how == "torch":
        torch.save({"features.0.bias": Evil(marker)}, file)
    else:
        file.write_bytes(pickle.dumps(Evil(marker)))
    for words in (run("cub200-pretrained", root), ("data", "check", "alexnet")):
        found = user(2 if "run" in words else 1, *words)
        assert f"{file} has something else in it than tensors" in found
        assert "it was not run. Give a file of named tensors" in found
    assert not marker.exists()


def test_a_full_disk(root, user, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    found = user(2, *run("cub200", root))
    assert f"{root / '.decoded' / 'cub200-73px'}: the disk is full" in found
    assert "set AFEC_CACHE to another directory" in found


def test_a_net_that_a_strategy_cannot_learn(root, user):
    words = ["run", "digits-regression", "--method", "ags-cl", "--scale", "smoke", "--seeds", "1"]
    found = user(2, *words, "--runs", str(root / "runs"), "--set", "net.name=resnet10", "net.channels=1", "net.size=8")
    assert "ResNet10 is no chain of layers" in found
    assert "give another net" in found
