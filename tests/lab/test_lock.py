"""The lock of a run directory, with flock and without."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from small_lab import quick_config

from afec.lab import RunDirectory, lock, run
from afec.lab.lock import locked


def refusing(number):
    """A system whose flock says this."""

    def flock(file, how):
        raise OSError(number, os.strerror(number))

    return SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4)


@pytest.fixture(params=["flock", "no such module", "no such file system", "no locks left"])
def system(request, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.001)
    kinds = {"no such module": None, "no such file system": errno.ENOTSUP, "no locks left": errno.ENOLCK}
    if request.param in kinds:
        number = kinds[request.param]
        monkeypatch.setattr(lock, "fcntl", None if number is None else refusing(number))
    return request.param


class Enough(BaseException):
    pass


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


def test_an_error_inside_gives_it_back(system, tmp_path):
    with pytest.raises(Enough), locked(tmp_path):
        raise Enough
    with locked(tmp_path, lambda holder: pytest.fail("it is still held")):
        pass


def test_a_holder_that_is_gone_holds_nothing(system, tmp_path):
    setting = {"flock": "", "no such module": "lock.fcntl = None"}.get(system)
    if setting is None:
        pytest.skip("as without the module")
    script = f"""
import os, pathlib
from afec.lab import lock
{setting}
with lock.locked(pathlib.Path({str(tmp_path)!r})):
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "lock-held").exists() == (system != "flock")
    with locked(tmp_path, lambda holder: pytest.fail("it is still held")):
        pass


def test_without_flock_a_holder_on_another_host_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(lock, "fcntl", None)
    (tmp_path / "lock-held").write_text("process 1 on elsewhere")

    def on_wait(holder):
        assert holder == f"process 1 on elsewhere (if that is gone, delete {tmp_path / 'lock-held'})"
        raise Enough

    with pytest.raises(Enough), locked(tmp_path, on_wait):
        pass
    assert (tmp_path / "lock-held").exists()


def test_without_flock_a_holder_that_never_wrote_its_name_is_given_some_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(lock, "fcntl", None)
    (tmp_path / "lock-held").touch()

    def on_wait(holder):
        assert holder.startswith("another process (if that is gone, delete ")
        raise Enough

    with pytest.raises(Enough), locked(tmp_path, on_wait):
        pass
    os.utime(tmp_path / "lock-held", (0, 0))
    with locked(tmp_path, on_wait):
        assert (tmp_path / "lock-held").read_text() == f"process {os.getpid()} on {platform.node()}"


@pytest.mark.parametrize("links", [None, errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_locks_and_links_comes_to_the_same_bytes(links, monkeypatch, tmp_path):
    config, whole = quick_config("ewc", "three"), tmp_path / "whole"
    expected = (run(config, 0, whole).path / "accuracy.csv").read_bytes()
    monkeypatch.setattr(lock, "fcntl", None)
    if links is None:
        monkeypatch.delattr(os, "link")
    else:

        def link(*names):
            raise OSError(links, os.strerror(links))

        monkeypatch.setattr(os, "link", link)

    def stop(phase):
        if phase.task == 2:
            raise Enough

    with pytest.raises(Enough):
        run(config, 0, tmp_path, stop)
    found = RunDirectory.of(tmp_path, config, 0)
    last, before = found.checkpoints
    assert last.read_bytes() != before.read_bytes()
    last.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="went on from the checkpoint before it"):
        run(config, 0, tmp_path)
    assert (found.path / "accuracy.csv").read_bytes() == expected
