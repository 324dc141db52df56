"""A file is whole or not there at all, whatever stops its writing."""

import os
import stat

import pytest
import torch

from afec.files import load_tree, save_tree
from afec.whole_files import write_text


@pytest.fixture
def failing_replace(monkeypatch):
    def fail(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, failing_replace):
    (tmp_path / "t").write_text("old")
    for write in (lambda: save_tree(tmp_path / "t", {"x": torch.ones(3)}), lambda: write_text(tmp_path / "t", "new")):
        with pytest.raises(KeyboardInterrupt):
            write()
        assert (tmp_path / "t").read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_tree_that_cannot_be_written_leaves_the_old_file(tmp_path):
    save_tree(tmp_path / "t", [1])
    with pytest.raises(TypeError):
        save_tree(tmp_path / "t", [torch.ones(2), len])
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "t", "\ud800")
    assert load_tree(tmp_path / "t") == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_directory_in_the_way_is_an_os_error_and_leaves_nothing(tmp_path):
    (tmp_path / "t").mkdir()
    for write in (lambda: save_tree(tmp_path / "t", 1), lambda: write_text(tmp_path / "t", "x")):
        with pytest.raises(OSError):
            write()
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_the_bytes_are_on_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(("fsync", os.fstat(fd).st_size)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append(("replace", a.parent == b.parent)), replace(a, b)))
    write_text(tmp_path / "t", "four")
    assert calls == [("fsync", 4), ("replace", True)]


def test_text_is_written_as_it_is_into_new_directories(tmp_path):
    path = tmp_path / "a" / "b.csv"
    write_text(path, "é\r\n1\n")
    assert path.read_bytes() == b"\xc3\xa9\r\n1\n"
    write_text(str(path), "")
    assert path.read_bytes() == b""
    save_tree(tmp_path / "c" / "d", None)
    assert load_tree(str(tmp_path / "c" / "d")) is None


def test_files_may_be_read_by_whom_any_other_file_may(tmp_path):
    (tmp_path / "plain").touch()
    save_tree(tmp_path / "t", 1)
    write_text(tmp_path / "w", "")
    modes = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert len(modes) == 1
