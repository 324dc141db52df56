"""Logs for Weights & Biases, offline: what stands in the run directory, once, however often the command is given."""

from __future__ import annotations

import json
import struct
import sys

import pytest

from afec.cli import main
from afec.lab import find_runs
from afec.lab.tensorboard import scalars
from afec.lab.wandb import NOTE
from small_lab import quick_file

wandb = pytest.importorskip("wandb")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def records(file):
    """The records of an offline run: pieces with a checksum, a length and a kind, in blocks of 32 KiB, as in LevelDB's logs."""
    content, place, whole = file.read_bytes(), 7, b""  # the file begins with seven bytes of its own
    while place < len(content):
        if 32768 - place % 32768 < 7:  # too little for a head: filled up
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def logged(folder):
    """All that an offline run has: the records of its file, by tag and by its step."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("run-*.wandb")
    found = {}
    for data in records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            (axis,) = [key for key in items if key.startswith("step/") or key == "tasks learned"]
            for key, value in items.items():
                if key != axis and not key.startswith("_"):
                    found[key, items[axis]] = value
    return found


def test_from_the_command_line(in_process, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "-m", "ewc", "--seeds", "1", "--runs", "runs"]
    assert main([*command, "--wandb", "mine"]) == 0
    (found,) = find_runs(tmp_path / "runs")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert logged(folder) == pytest.approx(scalars(found))
    assert json.loads((found.path / NOTE).read_text())["mine"] in folder.name
    assert main([*command, "--wandb", "mine"]) == 0  # nothing new
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
    (found.path / "DONE").unlink()
    assert main(["resume", "runs", "--wandb", "other"]) == 0
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_without_the_package_nothing_is_run(in_process, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--runs", str(tmp_path / "runs"), "--wandb", "mine"]
    assert main(command) == 2
    assert "pip install 'afec[wandb]'" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["quick.toml"]
