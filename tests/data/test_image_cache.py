"""Images are decoded once, into a file that is whole, checked, and of these files in this size, or made anew."""

from __future__ import annotations

import errno
import io
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from bad_images import deep, truncated
from PIL import Image

from afec.data import DataError
from afec.data import cache as cache_module
from afec.data import decode as decode_module
from afec.data.cache import open_images


@pytest.fixture
def folder(tmp_path):
    """Five images of different sizes, with known bytes."""
    draws = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for k in range(5):
        pixels = draws.integers(0, 256, (20 + k, 30 - k, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{k}.png")
    return tmp_path / "photos"


def opened(folder, short=64, root=None):
    return open_images("photos", sorted(folder.iterdir()), folder, short, root or folder.parent)


def left(folder):
    """What there is beside whole caches and their locks."""
    return [path.name for path in (folder.parent / ".decoded").iterdir() if path.name.endswith(".tmp")]


@pytest.fixture
def decodings(monkeypatch):
    """How often images were decoded."""
    seen = []
    real = cache_module.decode_all
    monkeypatch.setattr(cache_module, "decode_all", lambda files, short: seen.append(len(files)) or real(files, short))
    return seen


def test_small_images_are_kept_byte_by_byte(folder):
    images = opened(folder)
    assert len(images) == 5
    for k in range(5):
        assert np.array_equal(images[k].numpy(), np.asarray(Image.open(folder / f"{k}.png")))
    assert images.heights.tolist() == [20, 21, 22, 23, 24]
    assert images.widths.tolist() == [30, 29, 28, 27, 26]
    assert images.sizes.tolist() == [1800, 1827, 1848, 1863, 1872]


def test_larger_ones_are_scaled_by_their_short_side(folder):
    images = opened(folder, short=10)
    assert images.heights.tolist() == [10] * 5
    assert images.widths.tolist() == [15, 14, 13, 12, 11]
    expected = Image.open(folder / "0.png").resize((15, 10), Image.Resampling.BILINEAR)
    assert np.array_equal(images[0].numpy(), np.asarray(expected))


def test_it_is_decoded_once_and_looked_up_from_then_on(folder, decodings):
    first, second = opened(folder), opened(folder)
    assert decodings == [5]
    assert repr(first) == repr(second)
    assert " at 0x" not in repr(first)


def test_images_are_decoded_at_the_same_time(folder, monkeypatch):
    (folder / "4.png").unlink()
    real, pair = decode_module.decode, threading.Barrier(2, timeout=60)

    def together(file, short):
        pair.wait()  # alone nobody comes past here
        return real(file, short)

    monkeypatch.setattr(decode_module, "decode", together)
    monkeypatch.setattr(decode_module.os, "sched_getaffinity", lambda process: {0, 1})
    assert len(opened(folder)) == 4


def test_a_bar_shows_how_far_it_is_on_a_terminal(folder, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for shown in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", shown)
        opened(folder, short=10 if shown.isatty() else 11)
        assert ("decoding photos, once" in shown.getvalue()) is shown.isatty()


def test_another_size_is_another_cache(folder, decodings):
    assert repr(opened(folder, 10)) != repr(opened(folder, 12))
    opened(folder, 10)
    assert decodings == [5, 5]


@pytest.mark.parametrize("change", ["content", "size", "time", "more", "fewer"])
def test_other_files_are_noticed_and_decoded_anew(folder, decodings, change):
    before = opened(folder)
    file = folder / "2.png"
    if change in ("content", "size"):
        at = file.stat().st_mtime_ns
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(file)
        if change == "size":
            os.utime(file, ns=(at, at))  # as a program that keeps times would copy it
    elif change == "time":
        os.utime(file, ns=(1, 1))
    elif change == "more":
        (folder / "9.png").write_bytes(file.read_bytes())
    else:
        file.unlink()
    after = opened(folder)
    assert len(decodings) == 2
    assert (repr(before) == repr(after)) is (change == "time")  # the checksum is of what the images show
    assert before[2].shape == (22, 28, 3)  # who has the old one open keeps it
    assert left(folder) == []


def test_the_place_is_no_part_of_it(folder, tmp_path):
    other = tmp_path / "elsewhere" / "photos"
    other.mkdir(parents=True)
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert repr(opened(folder)) == repr(opened(other, root=tmp_path / "elsewhere"))


def test_the_variable_says_where_else(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("AFEC_CACHE", str(tmp_path / "fast disk"))
    opened(folder)
    assert (tmp_path / "fast disk" / "photos-64px" / "pixels").is_file()
    assert not (tmp_path / ".decoded").exists()


def test_a_flipped_bit_is_said_when_its_image_is_read(folder):
    pixels = opened(folder).folder / "pixels"
    content = bytearray(pixels.read_bytes())
    content[20 * 30 * 3 + 5] ^= 1  # in the second image
    pixels.write_bytes(content)
    images = opened(folder)
    images[0]
    with pytest.raises(DataError, match="image 1 is not what was written") as caught:
        images[1]
    assert str(images.folder) in str(caught.value)


@pytest.mark.parametrize("damage", ["pixels", "index.safetensors"])
def test_a_cache_that_is_cut_off_is_made_anew(folder, decodings, damage):
    file = opened(folder).folder / damage
    file.write_bytes(file.read_bytes()[:-3])
    assert np.array_equal(opened(folder)[4].numpy(), np.asarray(Image.open(folder / "4.png")))
    assert decodings == [5, 5]


def test_nothing_is_written_into_the_file(folder):
    images = opened(folder)
    before = (images.folder / "pixels").read_bytes()
    images[0].zero_()
    assert (images.folder / "pixels").read_bytes() == before


# Odd images.


def test_grey_cmyk_transparent_and_numbered_colours_become_red_green_blue(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    Image.new("L", (8, 6), 77).save(folder / "0.png")
    Image.new("CMYK", (8, 6), (0, 255, 255, 0)).save(folder / "1.jpg", quality=100)
    Image.new("RGBA", (8, 6), (10, 20, 30, 128)).save(folder / "2.png")
    Image.new("RGB", (8, 6), (200, 0, 0)).quantize(4).save(folder / "3.png")
    Image.new("LA", (8, 6), (50, 9)).save(folder / "4.png")
    Image.new("1", (8, 6), 1).save(folder / "5.png")
    images = opened(folder)
    assert [images[k][0, 0].tolist() for k in (0, 2, 3, 4, 5)] == [
        [77, 77, 77],
        [10, 20, 30],
        [200, 0, 0],
        [50, 50, 50],
        [255, 255, 255],
    ]
    red, green, blue = images[1][3, 3].tolist()
    assert red > 240
    assert max(green, blue) < 15


def test_a_photograph_is_turned_as_its_camera_says(tmp_path):
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # by 90° clockwise
    Image.fromarray(pixels).save(tmp_path / "photos" / "0.png", exif=exif)
    assert np.array_equal(opened(tmp_path / "photos")[0].numpy(), np.rot90(pixels, -1))


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (truncated, "2.jpg", "truncated"),
        (lambda path: path.write_text("no image"), "2.jpg", "cannot identify"),
        (lambda path: path.write_bytes(b""), "2.jpg", "cannot identify"),
        (deep, "2.png", "more than a byte per pixel"),
    ],
)
def test_what_is_no_image_is_named_and_nothing_is_kept(folder, make, name, said):
    make(folder / name)
    with pytest.raises(DataError, match="1 of [56] images of photos cannot be read") as caught:
        opened(folder)
    assert str(folder / name) in str(caught.value)
    assert said in str(caught.value)
    assert "anew" in str(caught.value)
    assert left(folder) == []
    assert not (folder.parent / ".decoded" / "photos-64px").exists()


def test_a_long_list_of_bad_files_is_shortened(folder):
    for k in range(8):
        (folder / f"bad{k}.png").write_text("no")
    with pytest.raises(DataError, match="8 of 13 images .*\n.*(\n.*){4}\n  … and 3 more"):
        opened(folder)


def test_a_file_that_vanished_is_named(folder):
    files = [*sorted(folder.iterdir()), folder / "gone.png"]
    with pytest.raises(DataError, match="gone.png: No such file"):
        open_images("photos", files, folder, 64, folder.parent)


# The disk, and other processes.


def test_a_full_disk_is_said_and_nothing_half_written_stays(folder, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.os, "fsync", full)
        with pytest.raises(DataError, match="the disk is full.*Free some space, or set AFEC_CACHE"):
            opened(folder)
    assert left(folder) == []
    assert len(opened(folder)) == 5


def test_a_write_that_the_system_refuses_is_said(folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(DataError, match="cannot be written .*File too large.*AFEC_CACHE"):
            opened(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(folder) == []


def test_a_place_that_is_no_directory_is_said(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AFEC_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match="cannot be written"):
        opened(folder)


def test_of_two_at_once_one_decodes_and_the_other_waits(folder, decodings, monkeypatch, capfd):
    begun, go = threading.Event(), threading.Event()
    make = cache_module._make

    def slowly(*arguments):
        begun.set()
        assert go.wait(60)
        make(*arguments)

    monkeypatch.setattr(cache_module, "_make", slowly)
    found = []
    threads = [threading.Thread(target=lambda: found.append(repr(opened(folder)))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()  # a lock is held by an open file, so a thread is kept out as a process is
    while "waiting for it" not in capfd.readouterr().err:
        assert threads[1].is_alive()
    go.set()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert decodings == [5]


def test_what_a_killed_process_left_is_cleared_away(folder):
    junk = folder.parent / ".decoded" / ".photos-64px.0123.tmp"
    junk.mkdir(parents=True)
    (junk / "pixels").write_bytes(b"half")
    opened(folder)
    assert left(folder) == []


SLOWLY = """
import sys, time
from pathlib import Path
from afec.data import cache, decode

real = decode.decode
def slowly(file, short):
    if file.name == sys.argv[2]:
        print("there", flush=True)
        time.sleep(float(sys.argv[3]))
    return real(file, short)

decode.decode = slowly
folder = Path(sys.argv[1])
print(repr(cache.open_images("photos", sorted(folder.iterdir()), folder, 64, folder.parent)))
"""


def other_process(folder, stop, seconds):
    """Another process that opens the images, and is slow at one of them; it says when it is there."""
    words = [sys.executable, "-c", SLOWLY, str(folder), stop, str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_decodes_leaves_nothing_as_if_whole(folder, decodings):
    with other_process(folder, "3.png", 600) as process:
        assert process.stdout.readline() == "there\n"
        process.kill()
    assert len(left(folder)) == 1  # half a file, which is not taken for a cache
    assert not (folder.parent / ".decoded" / "photos-64px").exists()
    assert np.array_equal(opened(folder)[4].numpy(), np.asarray(Image.open(folder / "4.png")))
    assert decodings == [5]
    assert left(folder) == []


@pytest.mark.slow
def test_of_two_processes_one_decodes_and_both_read_the_same(folder, decodings, capfd):
    with other_process(folder, "3.png", 3) as process:
        assert process.stdout.readline() == "there\n"
        here = repr(opened(folder))
        assert "another process is decoding images" in capfd.readouterr().err
        assert process.communicate()[0] == f"{here}\n"
    assert decodings == []


def test_rows_need_not_all_be_in_memory(folder):
    """The tensor is a window on the file: no byte of it is the process's own before it is written to."""
    images = opened(folder)
    assert str(images.folder / "pixels") in Path("/proc/self/maps").read_text()
    assert images[0].data_ptr() == images._pixels.data_ptr()  # no copy
