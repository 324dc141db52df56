"""Run directories on their way between machines: whole or not at all, whatever is cut, and wherever the receiver is killed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from afec.lab import RunDirectory, run, shipping
from afec.lab.shipping import ShippingError, pack, unpack
from small_lab import quick_config
from stopped_runs import in_task, run_until

CONFIG = quick_config("ewc+afec", "three")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run in the middle of its second task, and the bytes that it comes to."""
    root = tmp_path_factory.mktemp("stopped")
    run_until(in_task(1), CONFIG, root)
    whole = run(CONFIG, 0, tmp_path_factory.mktemp("whole"))
    return RunDirectory.of(root, CONFIG, 0), (whole.path / "scores.csv").read_bytes()


def test_a_run_goes_on_elsewhere_and_comes_home_done(stopped, tmp_path):
    home, expected = stopped
    there, back = RunDirectory.of(tmp_path / "there", CONFIG, 0), RunDirectory.of(tmp_path / "back", CONFIG, 0)
    unpack(pack(home, before=True), there)
    assert there.load_checkpoint()[0]["tasks_done"] == 1
    run(CONFIG, 0, tmp_path / "there")
    unpack(pack(home), back)
    unpack(pack(there), back)
    assert back.done
    assert (back.path / "scores.csv").read_bytes() == expected
    assert not list(back.path.glob("checkpoint*"))
    assert {f.name for f in back.path.iterdir()} | {"lock", "lock-holder"} == {f.name for f in there.path.iterdir()}


def test_the_checkpoint_that_was_there_is_kept_as_the_one_before(stopped, tmp_path):
    home, _ = stopped
    back = RunDirectory.of(tmp_path, CONFIG, 0)
    unpack(pack(home), back)
    first = back.checkpoint.read_bytes()
    unpack(pack(home), back)
    assert back.checkpoints[1].read_bytes() == first


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "renamed"])
def test_nothing_of_a_damaged_parcel_is_taken(stopped, tmp_path, damage):
    home, _ = stopped
    parcel, back = pack(home), RunDirectory.of(tmp_path, CONFIG, 0)
    (name, content), *others = parcel.files
    changed = {
        "cut": ((name, content[:-1]), *others),
        "changed": ((name, bytes([content[0] ^ 1]) + content[1:]), *others),
        "missing": tuple(others),
        "renamed": (("DONE", content), *others),
    }
    with pytest.raises(ShippingError, match="damaged on its way; nothing of it was taken"):
        unpack(replace(parcel, files=changed[damage]), back)
    assert not back.path.exists()


def test_no_parcel_writes_outside_of_its_directory(tmp_path):
    files = (("../outside", b"1"),)
    parcel = shipping.Parcel(files, shipping._checksum(files))
    with pytest.raises(ShippingError, match=r"'../outside' outside of it"):
        unpack(parcel, RunDirectory(tmp_path / "run"))
    assert not (tmp_path / "outside").exists()


def test_a_receiver_that_is_killed_between_any_two_files_can_go_on(stopped, tmp_path, monkeypatch):
    """After each number of files the run goes on from what is there, to the same bytes."""
    home, expected = stopped
    parcel, real = pack(home), shipping.write_bytes

    class Killed(BaseException):
        pass

    for count in range(len(parcel.files) + 1):
        root, written = tmp_path / str(count), []

        def write(path, data, root=root, written=written, count=count):
            if len(written) == count:
                raise Killed
            written.append(path)
            real(path, data)

        monkeypatch.setattr(shipping, "write_bytes", write)
        back = RunDirectory.of(root, CONFIG, 0)
        if count < len(parcel.files):
            with pytest.raises(Killed):
                unpack(parcel, back)
        else:
            unpack(parcel, back)
        assert (run(CONFIG, 0, root).path / "scores.csv").read_bytes() == expected
    assert written[-1].name == "checkpoint.safetensors"  # after all that it belongs to


def test_a_failure_that_is_over_is_forgotten_at_home(stopped, tmp_path):
    home, _ = stopped
    back = RunDirectory.of(tmp_path, CONFIG, 0)
    back.path.mkdir(parents=True)
    (back.path / "FAILED").write_text("earlier")
    unpack(pack(home), back)
    assert back.failure is None
