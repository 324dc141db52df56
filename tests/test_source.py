"""The digest of the source code: other code, another digest; a room that cannot train is not in it."""

import subprocess
import sys

from afec.source import CANNOT_TRAIN, PACKAGE, source_digest


def test_the_digest_is_of_the_code_that_trains(tmp_path):
    """One changed byte, or a file of another name, is other code."""
    (tmp_path / "nets").mkdir()
    file = tmp_path / "nets" / "one.py"
    digests = set()
    for name, text in (("one.py", "a"), ("one.py", "b"), ("two.py", "b")):
        file = file.rename(file.with_name(name)) if file.exists() else file.with_name(name)
        file.write_text(text)
        digests.add(source_digest([file], tmp_path))
    assert len(digests) == 3
    assert source_digest([file], tmp_path) in digests


def test_rooms_that_are_left_out_cannot_change_a_training():
    """They come after the learner, which imports only rooms before it (tests/test_house.py)."""
    rooms = {name.removesuffix(".py") for name in CANNOT_TRAIN}
    assert all((PACKAGE / name).exists() for name in CANNOT_TRAIN)
    trains = {name.split(".")[1] for name in _loaded_by("afec.learner") if name.startswith("afec.")}
    assert "learner" in trains
    assert not rooms & trains


def _loaded_by(name):
    """The modules that are loaded once this one is, in a process of its own."""
    code = f"import sys, {name}; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
