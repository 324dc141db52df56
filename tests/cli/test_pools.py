"""`--pool` and what belongs to it, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from afec.cli import main
from afec.cli.pools import place_of
from small_lab import quick_file


@pytest.mark.parametrize("option", [["--address", "auto"], ["--cpus", "2"], ["--gpus", "1"], ["--ship"]])
def test_options_of_a_cluster_without_one_are_refused(option, capsys, tmp_path):
    assert main(["run", "digits", "--runs", str(tmp_path), *option]) == 2
    assert f"{option[0]} is for a cluster; give --pool ray with it" in capsys.readouterr().err


def test_an_unknown_pool_is_answered_with_those_that_there_are(capsys, tmp_path):
    assert main(["run", "digits", "--runs", str(tmp_path), "--pool", "rai"]) == 2
    assert "did you mean 'ray'" in capsys.readouterr().err


def test_an_address_without_a_cluster_is_said_at_once(capsys, tmp_path):
    pytest.importorskip("ray", reason="ray is part of afec[dev]")
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--pool", "ray", "--address", "127.0.0.1:1"]
    assert main([*command, "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert "there is no Ray cluster at 127.0.0.1:1 ([Errno" in said
    assert "leave --address out and one is started on this machine" in said


def test_a_cluster_that_does_not_start_is_a_sentence(monkeypatch, capsys, tmp_path):
    ray = pytest.importorskip("ray", reason="ray is part of afec[dev]")

    def too_slow(**options):
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.setattr(ray, "init", too_slow)
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--pool", "ray", "--runs", str(tmp_path / "runs")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert (
        said == "afec: no Ray cluster could be started on this machine (The current node timed out during startup.)\n"
    )


def test_each_node_has_data_of_its_own_unless_they_are_given_once(monkeypatch, tmp_path):
    monkeypatch.setenv("AFEC_DATA", str(tmp_path))
    assert place_of("local", None).data == tmp_path
    assert place_of("ray", None).data is None
    assert place_of("ray", Path("data")).data == Path.cwd() / "data"
