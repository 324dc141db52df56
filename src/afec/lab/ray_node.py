"""What a node of a Ray cluster does: says what is installed there, looks at itself, and runs what it is given."""

from __future__ import annotations

import os
import pickle
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from afec.experiments import training_source
from afec.lab.directory import RunDirectory
from afec.lab.job import STOPPED, RunWork
from afec.lab.shipping import Parcel, pack, unpack

__all__ = ["Errand", "carry_out", "clean", "inspect", "versions"]

MESSAGE_SECONDS = 1.0  # between two messages of one run, at least: a cluster may run hundreds of them
ASK_SECONDS = 0.5  # between two questions whether to stop
ANSWER_SECONDS = 60.0  # a driver that does not answer for so long is gone


@cache
def versions() -> dict[str, str]:
    """What has to be the same on every node."""
    return {
        "afec": metadata.version("afec"),
        "source": training_source(),
        "torch": metadata.version("torch"),
        "python": ".".join(map(str, sys.version_info[:2])),
    }


@dataclass(frozen=True)
class Errand:
    """A piece of work on its way to a node."""

    attempt: str
    """Tells the messages of this attempt from those of an earlier one that is still alive somewhere."""
    work: Any
    folder: Path
    """Where the driver was called: names of files in a configuration may be relative to it."""
    parcel: Parcel | None = None
    """What there is of the run, where its directory is shipped home."""
    session: str = ""
    """The name of the folder on the node that such runs are in meanwhile."""


class NodeChannel:
    """What a piece of work talks through: the mailbox of the driver; its own stop token."""

    def __init__(self, ray: Any, mailbox: Any, attempt: str) -> None:
        self.ray, self.mailbox, self.attempt = ray, mailbox, attempt
        self.last = self.asked_at = -ANSWER_SECONDS
        self.told = False
        self.kept: list[Any] = []

    @property
    def stop(self) -> NodeChannel:
        """It asks the mailbox."""
        return self

    @property
    def asked(self) -> bool:
        """Whether the driver wants it to end, or is gone."""
        if not self.told and time.monotonic() - self.asked_at > ASK_SECONDS:
            try:
                self.told = self.ray.get(self.mailbox.stopping.remote(), timeout=ANSWER_SECONDS)
            except Exception:  # the mailbox has died with the driver, or with the node that it was on
                self.told = True
            self.asked_at = time.monotonic()
        return self.told

    def send(self, kind: Literal["progress", "waiting"], content: Any) -> None:
        """Tell the driver, once per second at most."""
        if time.monotonic() - self.last > MESSAGE_SECONDS:
            self.last = time.monotonic()
            self._put(kind, content)

    def ship(self, directory: RunDirectory) -> None:
        """Send the directory home as it is now; the driver fetches it, or nothing if this node dies before."""
        parcel = self.ray.put(pack(directory))
        self.kept = [*self.kept[-1:], parcel]  # an object lives as long as somebody has its name
        self._put("parcel", [parcel])

    def _put(self, kind: str, content: Any) -> None:
        with suppress(Exception):  # a driver that is gone has asked to stop
            self.mailbox.put.remote(self.attempt, kind, content)


def inspect(check: bytes, token: Path, text: str) -> tuple[str, bool]:
    """What is wrong with this node, if anything is; and whether it sees the run directories of the driver."""
    try:
        pickle.loads(check)()
    except Exception as error:
        return f"{error}" or repr(error), False
    try:
        return "", token.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return "", False


def carry_out(packed: bytes, mailbox: Any) -> tuple[str, Any, Parcel | None]:
    """Do the work: `result` or `stopped`, what it has returned, and the run directory where it is shipped home."""
    import ray
    import torch

    errand: Errand = pickle.loads(packed)
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver says when to stop
    torch.set_num_threads(1)
    with suppress(OSError):
        os.chdir(errand.folder)
    channel = NodeChannel(ray, mailbox, errand.attempt)
    if channel.asked:
        return "stopped", None, None
    channel._put("began", (platform.node(), ray.get_runtime_context().get_node_id()))
    work: Callable[..., Any] = errand.work
    if errand.parcel is None:
        result, parcel = work(channel), None
    else:
        assert isinstance(work, RunWork), "runs are shipped, nothing else"
        here = work.at(_folder(errand.session))
        directory = here.directory
        with directory.locked():
            for file in directory.path.iterdir():
                if file.is_file() and not file.name.startswith("lock"):
                    file.unlink()
            unpack(errand.parcel, directory)
        result = here(channel, channel.ship)
        parcel = pack(directory)
    return ("stopped" if channel.told and result == STOPPED else "result"), result, parcel


def clean(session: str) -> None:
    """Remove what runs that were shipped home have left here."""
    shutil.rmtree(_folder(session), ignore_errors=True)


def _folder(session: str) -> Path:
    return Path(tempfile.gettempdir()) / session
