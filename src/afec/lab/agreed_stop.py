"""When to stop a run that several processes compute: all of them after the same epoch, and after its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afec.experiments import NEVER, Stop

if TYPE_CHECKING:
    from afec.parallel import Group

__all__ = ["AgreedStop", "Latch"]


class Latch:
    """The stop of the process that writes; it remembers what it has said last, when there was a checkpoint to write."""

    def __init__(self, stop: Stop = NEVER) -> None:
        self.stop, self.said = stop, False

    @property
    def asked(self) -> bool:
        """Whether to stop now."""
        self.said = self.said or self.stop.asked
        return self.said


class AgreedStop:
    """What the learner of each process looks at after every epoch: what the process that writes has said."""

    def __init__(self, group: Group, latch: Latch | None = None) -> None:
        self.group, self.latch = group, latch or Latch()

    @property
    def asked(self) -> bool:
        """Whether to stop now; all processes ask this at the same time."""
        return bool(self.group.agreed(self.latch.said))
