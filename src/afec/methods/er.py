"""ER, experience replay: train on the new classes and on the exemplars of the old ones, by the task's own loss.

    L(θ) = the mean cross-entropy over D_new ∪ exemplars

Nothing else. It is what every comparison of replay starts from.

    learner = afec.Learner(backbone, afec.ER(per_class=20))
"""

from __future__ import annotations

from typing import final

from afec.methods.replay import Replay
from afec.strategy import Exemplars, TaskContext, Training

__all__ = ["ER"]


@final
class ER(Replay):
    """Train on new images and exemplars alike."""

    name = "er"

    def training(self, context: TaskContext, memory: Exemplars) -> Training:
        """By the task's own loss."""
        return self.on_all(context, memory, context.loss, pure=context.number == 0)
