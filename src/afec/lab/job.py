"""One run to do: what it is, and the piece of work that does it in a worker."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from afec.experiments import StoppedError
from afec.lab.config import RunConfig
from afec.lab.directory import RunDirectory
from afec.lab.lock import BusyError
from afec.lab.pool import Channel
from afec.lab.run import HERE, Place, run
from afec.lab.tensorboard import Board
from afec.whole_files import write_text

__all__ = ["BUSY", "STOPPED", "Job", "RunWork", "keep_failure"]

BUSY, STOPPED = "busy", "stopped"


@dataclass(frozen=True)
class Job:
    """One run to do."""

    config: RunConfig
    seed: int
    place: Place = HERE
    difference: str = field(default="", compare=False)
    """What tells its configuration from others of the same name in the study."""

    @property
    def label(self) -> str:
        """Method, variant and what differs in a grid."""
        return f"{self.config.label}, {self.difference}" if self.difference else self.config.label

    @property
    def device(self) -> str:
        """Where it runs."""
        return self.place.device or str(self.config.training.get("device", "cpu"))

    def directory(self, root: Path) -> RunDirectory:
        """Its run directory under `root`."""
        return RunDirectory.of(root, self.config, self.seed)

    def __str__(self) -> str:
        return f"{self.config.benchmark}, {self.label}, seed {self.seed}"


@dataclass(frozen=True)
class RunWork:
    """A job as a pool is given it: called in a worker, it runs the run to its end.

    It returns None, or the traceback if the run failed, or `BUSY` if another process holds it and it is not to be waited for,
    or `STOPPED`.
    """

    job: Job
    root: Path
    """Where the run directories are."""
    board: Path | None = None
    """Where to log for TensorBoard."""
    patient: bool = True
    """Whether to wait where another process holds the run."""

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return self.job.directory(self.root)

    def __call__(self, channel: Channel, on_saved: Callable[[RunDirectory], None] | None = None) -> str | None:
        """Run it; `on_saved` is called when there is more in the directory."""
        try:
            with ExitStack() as stack:
                if self.board is not None:
                    on_saved = stack.enter_context(Board(self.board, self.directory)).update
                directory = run(
                    self.job.config,
                    self.job.seed,
                    self.root,
                    partial(channel.send, "progress"),
                    on_wait=partial(channel.send, "waiting"),
                    on_saved=on_saved,
                    stop=channel.stop,
                    patient=self.patient,
                    place=self.job.place,
                )
                if on_saved is not None:
                    on_saved(directory)
        except BusyError:
            return BUSY
        except StoppedError:
            return STOPPED
        except Exception:
            return keep_failure(self.directory, traceback.format_exc())
        return None

    def at(self, root: Path) -> RunWork:
        """The same run under another root, without a log: where a run directory is shipped home, the log is made there."""
        return replace(self, root=root, board=None, patient=True)


def keep_failure(directory: RunDirectory, text: str) -> str:
    """Write down why a run failed, and return it."""
    with suppress(OSError):  # it may be the directory itself that cannot be written
        write_text(directory.path / "FAILED", text)
    return text
