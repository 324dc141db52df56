"""P&C, progress & compress (Schwarz et al. 2018), as the AFEC paper compares with it (Sec. 4.2).

Two nets: the knowledge base, which is the net that is evaluated, and an active column beside it, with lateral adapters from the
base into it (`afec.nets.column`). Each task is learned twice.

    progress   the column learns the task by its own loss; the base does not change, the column listens to it
    compress   the base learns to say what the column says, under EWC:
               L(θ) = T²·KL(softmax(column/T) ‖ softmax(base/T)) + λ/2 · Σ_i F_i (θ_i − θ*_i)²

    after a task   F ← γ·F + F_t  (online EWC), or the running average of EWC;  θ* are the base's weights

For a regression the base matches the column's outputs by the task's own loss. The column's outputs are computed once, when it
has learned, for the inputs as they are (not augmented): an epoch of compress costs what any epoch costs.

    learner = afec.Learner(backbone, afec.ProgressCompress(strength=1000))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from torch import Tensor, nn

from afec.guard import FisherFields, option
from afec.methods.distillation import softened_divergence
from afec.methods.ewc import EWC
from afec.nets import Chain, MultiHead
from afec.nets.column import Column
from afec.randomness import forked
from afec.strategy import Schedule, Strategy, TaskContext, TaskLoss, Training

__all__ = ["Distillation", "ProgressCompress"]


@dataclass(frozen=True)
class Distillation:
    """How far a net's outputs are from those of another one, which are the targets of the batch."""

    loss: TaskLoss
    temperature: float

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """T²·KL(target ‖ output), a mean over the batch; of a regression the task's own loss between the two."""
        outputs, targets = self.loss.outputs(model, batch), batch[1]
        if self.loss.kind != "cross_entropy":
            return self.loss.between(outputs, targets)
        return softened_divergence(outputs, targets, self.temperature)


@final
class ProgressCompress(FisherFields, Strategy):
    """Learn the task in a column of its own, then bring it into the net, which EWC holds.

    Works over backbones that are a chain of layers (`afec.nets.Chain`).
    """

    name = "progress-compress"
    needs_chain = needs_heads = True

    strength: float = option(
        kw_only=False, symbol="λ", at_least=0, doc="λ ≥ 0 of the EWC in compress. Zero: the base is not held."
    )
    decay: float | Literal["mean"] = option(
        default=0.9,
        paper="mean",
        official="mean",
        symbol="γ",
        at_least=0,
        at_most=1,
        doc="γ in [0, 1] of the online Fisher, F ← γ·F + F_t, or `mean`, EWC's running average over the tasks.",
    )
    column: Literal["fresh", "kept"] = option(
        default="fresh",
        doc="`fresh`, drawn anew for each task (of a pretrained net: its pretrained weights again), or `kept`, going on from "
        "the column of the task before.",
    )
    adapters: bool = option(default=True, doc="Whether the column listens to the base, from the second task on.")
    adapter_width: float = option(
        default=0.25, above=0, doc="Nodes of an adapter, as a share of the nodes of its layer."
    )
    temperature: float = option(default=1.0, above=0, doc="T > 0 of the distillation.")
    progress_epochs: int | None = option(
        default=None, at_least=1, doc="At most so many epochs of progress; by default as the schedule says."
    )
    compress_epochs: int | None = option(
        default=None, at_least=1, doc="At most so many epochs of compress; by default as the schedule says."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fisher = {key: getattr(self, key) for key in FisherFields.options if key != "preset"}
        self.own = self.guard = EWC(self.strength, decay=self.decay, **fisher)

    def trainings(self, context: TaskContext) -> Iterator[Training]:
        """Progress, then compress."""
        known, splits = context.task_state, (context.train, context.validation)
        progress, compress = (
            _at_most(context.schedule, epochs) for epochs in (self.progress_epochs, self.compress_epochs)
        )
        if "targets" not in known:  # else the column has learned already
            number = max(0, context.number - 1)
            Chain(context.net.backbone).check(context.loss.prepared(context.train.inputs[:2]), number)
            column, first = self._column(context), context.number == 0
            yield Training("progress", column, context.loss.of_task(0), guarded=False, schedule=progress, pure=first)
            targets = [None if split is None else context.predict(column, split.inputs, 0) for split in splits]
            known |= {"targets": targets, "column": dict(column.state_dict()) if self.column == "kept" else None}
        train, validation = (
            None if split is None or targets is None else (split.inputs, targets)
            for split, targets in zip(splits, known["targets"], strict=True)
        )
        loss = Distillation(context.loss, self.temperature)
        yield Training("compress", context.net, loss, train, validation, schedule=compress)
        context.state = {"column": _without_head(known["column"])}

    def _column(self, context: TaskContext) -> MultiHead:
        """The active column with the task's head."""
        base, width = context.net.backbone, self.adapter_width if self.adapters else 0.0
        with forked(context.seed("column"), next(base.parameters()).device):
            # In the first task there is nothing to listen to; later a task's statistics are those of the latest one.
            twin = Column(base, width, lateral=context.number > 0, task=max(0, context.number - 1))
            column = MultiHead(twin, [len(context.classes)], context.net.width, zero=context.net.zero)
        known = context.state.get("column")
        if known is not None and self.column == "kept":
            column.load_state_dict(known, strict=False)
        context.place(column)
        return column


def _at_most(schedule: Schedule, epochs: int | None) -> Schedule:
    return schedule if epochs is None else replace(schedule, max_epochs=epochs)


def _without_head(column: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
    """A column without what belongs to its task alone."""
    return None if column is None else {k: v.clone() for k, v in column.items() if not k.startswith("heads.")}
