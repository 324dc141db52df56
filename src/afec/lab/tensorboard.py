"""Logs for TensorBoard, made of run directories and of nothing else: the directory is the truth, and a log can be deleted.

`<board>/<benchmark>/<method>/<hash>/seed<k>/` has, of the run in the directory of the same name:

loss/task1/train       by step, and so is everything else that a step says (`lr`); `theta_e` for the expansion
accuracy/test/task1    the score, by the number of tasks learned; 0 is before the first
average/test           the mean score over the tasks learned, by their number
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from afec.lab.directory import RunDirectory
from afec.lab.spec import SpecError

__all__ = ["Board", "check_tensorboard", "scalars"]

FILES = "events.out.tfevents.*"


def check_tensorboard() -> None:
    """Raise where TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise SpecError(
            f"logging for TensorBoard needs its package ({error}): pip install 'afec[tensorboard]', or leave --tensorboard out"
        ) from error


def scalars(directory: RunDirectory) -> dict[tuple[str, int], float]:
    """Everything that there is to see of a run so far, by tag and step; of an epoch that was written twice, the last."""
    found: dict[tuple[str, int], float] = {}
    for event in directory.events():
        if event.get("event") == "progress" and event.get("phase") != "transfer":  # of another task each
            place, step = f"task{event['task']}/{event['phase']}", int(event["number"])
            for key, value in event.items():
                if key not in ("task", "number") and type(value) in (int, float):
                    found[f"{key}/{place}", step] = float(value)
    return found | dict(_scores(directory))


def _scores(directory: RunDirectory) -> Iterator[tuple[tuple[str, int], float]]:
    kind, scores = directory.config.score, directory.scores()
    for split in ("validation", "test"):
        known = [(score.after, score.task, getattr(score, split)) for score in scores]
        known = [(after, task, value) for after, task, value in known if value == value]  # NaN: there is no such split
        for after, task, value in known:
            yield (f"{kind}/{split}/task{task}", after), value
        for number in sorted({after for after, _, _ in known} - {0}):
            learned = [value for after, task, value in known if after == number and task <= number]
            if len(learned) == number:  # a reference may measure the newest task only
                yield (f"average/{split}", number), sum(learned) / number


class Board:
    """The log of one run; a block.

    Each process that works on the run begins the log anew with what the directory has, so that no step is in it twice, however
    the process before it has ended. A log that cannot be written is said so, and stops no run.
    """

    def __init__(self, root: Path, directory: RunDirectory) -> None:
        self.path = root.joinpath(*directory.path.parts[-4:])
        self.writer: Any = None
        self.written: set[tuple[str, int]] = set()
        self.broken = False

    @property
    def exists(self) -> bool:
        """Whether there is a log already."""
        return any(self.path.glob(FILES))

    def update(self, directory: RunDirectory) -> None:
        """Log what the run directory has that the log has not."""
        if self.broken:
            return
        try:
            if self.writer is None:
                self._begin()
            for (tag, step), value in scalars(directory).items():
                if (tag, step) not in self.written:
                    self.writer.add_scalar(tag, value, step)
                    self.written.add((tag, step))
            self.writer.flush()
        except Exception as error:
            self.broken = True
            warnings.warn(f"{self.path}: no more of this run is logged: {error!r}", RuntimeWarning, stacklevel=2)

    def _begin(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for file in self.path.glob(FILES):
            file.unlink()
        # A TensorBoard that is looking forgets what it has read.
        self.writer = SummaryWriter(self.path, purge_step=0)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            try:
                self.writer.close()
            except Exception as fault:
                warnings.warn(f"{self.path}: the log is not whole: {fault!r}", RuntimeWarning, stacklevel=2)
