"""The lock of a run directory, on file systems with flock and without."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys
import threading

import pytest

from afec.experiments import StoppedError
from afec.lab import RunDirectory, lock, run
from afec.lab.lock import BusyError, locked
from small_lab import quick_config
from stopped_runs import Token, in_task, run_until

SYSTEMS = {
    "flock": None,
    "no such call": errno.ENOSYS,
    "no such file system": errno.ENOTSUP,
    "no locks left": errno.ENOLCK,
}


def without_flock(monkeypatch, number=errno.ENOSYS):
    """A file system whose flock says this."""

    def flock(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture(params=SYSTEMS)
def system(request, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.004)
    if SYSTEMS[request.param]:
        without_flock(monkeypatch, SYSTEMS[request.param])
    return request.param


class Enough(BaseException):
    pass


def leave(holder):
    raise Enough


def test_one_at_a_time(system, tmp_path):
    inside, most = [], []

    def work():
        for _ in range(20):
            with locked(tmp_path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 80
    assert max(most) == 1
    assert not (tmp_path / "lock-held").exists()


def test_who_waits_is_told_for_whom_and_may_leave(system, tmp_path):
    told = []

    def on_wait(holder):
        told.append(holder)
        if len(told) == 3:
            raise Enough

    with locked(tmp_path):
        with pytest.raises(Enough), locked(tmp_path, on_wait):
            pytest.fail("two are inside")
        expected = f"process {os.getpid()} on {platform.node()}"
        if system != "flock":
            expected += f" (if that is gone, delete {tmp_path / 'lock-held'})"
        assert told == [expected] * 3
    with locked(tmp_path, on_wait):  # it was given back, by the holder and not by the one who left
        pass


def test_who_waits_can_be_stopped(system, tmp_path):
    stop, told = Token(), []

    def on_wait(holder):
        told.append(holder)
        stop.asked = len(told) == 2

    with locked(tmp_path):
        with pytest.raises(StoppedError), locked(tmp_path, on_wait, stop=stop):
            pytest.fail("two are inside")
        assert len(told) == 2
    with locked(tmp_path, on_wait, stop=stop):  # nothing is waited for, so nothing is to be stopped
        pass


def test_who_does_not_want_to_wait_is_told_at_once(system, tmp_path):
    with locked(tmp_path):
        who = f"process {os.getpid()} on {platform.node()}"
        with pytest.raises(BusyError, match=who), locked(tmp_path, leave, patient=False):
            pytest.fail("two are inside")
    with locked(tmp_path, patient=False):
        pass


def test_an_error_inside_gives_it_back(system, tmp_path):
    with pytest.raises(Enough), locked(tmp_path):
        raise Enough
    with locked(tmp_path, lambda holder: pytest.fail("it is still held")):
        pass


@pytest.mark.parametrize("flock", [True, False])
def test_a_holder_that_was_killed_holds_nothing(flock, tmp_path, monkeypatch):
    script = f"""
import errno, fcntl, os, pathlib, signal
from afec.lab import lock

def refuse(file, how):
    raise OSError(errno.ENOTSUP, "no such locks")

if not {flock}:
    fcntl.flock = refuse
with lock.locked(pathlib.Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert (tmp_path / "lock-holder").read_text().startswith("process ")
    assert (tmp_path / "lock-held").exists() != flock
    if not flock:
        without_flock(monkeypatch)
    told = []

    def on_wait(holder):
        told.append(holder)
        assert len(told) < 50  # that it is gone may be seen at the second look only

    with locked(tmp_path, on_wait):
        assert (tmp_path / "lock-holder").read_text() == f"process {os.getpid()} on {platform.node()}"


def test_a_holder_without_a_name_is_another_process(tmp_path):
    with locked(tmp_path):
        for name in (b"", b"\xff"):
            (tmp_path / "lock-holder").write_bytes(name)
            with pytest.raises(BusyError, match="^another process$"), locked(tmp_path, patient=False):
                pass
        (tmp_path / "lock-holder").unlink()
        with pytest.raises(BusyError, match="^another process$"), locked(tmp_path, patient=False):
            pass


def test_a_name_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "lock-holder").mkdir()
    with locked(tmp_path), pytest.raises(BusyError, match="another process"), locked(tmp_path, patient=False):
        pass


def test_a_folder_that_cannot_be_written_is_an_error_and_no_waiting(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError), locked(tmp_path / "file" / "run", leave):
        pass


@pytest.mark.parametrize("links", [None, errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_locks_and_links_comes_to_the_same_bytes(links, monkeypatch, tmp_path):
    config, whole = quick_config("ewc", "three"), tmp_path / "whole"
    expected = (run(config, 0, whole).path / "scores.csv").read_bytes()
    without_flock(monkeypatch, errno.ENOTSUP)
    if links is None:
        monkeypatch.delattr(os, "link")
    else:

        def link(*names):
            raise OSError(links, os.strerror(links))

        monkeypatch.setattr(os, "link", link)
    run_until(in_task(2), config, tmp_path)
    found = RunDirectory.of(tmp_path, config, 0)
    last, before = found.checkpoints
    assert last.read_bytes() != before.read_bytes()
    last.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="went on from the checkpoint before it"):
        run(config, 0, tmp_path)
    assert (found.path / "scores.csv").read_bytes() == expected
