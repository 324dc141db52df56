"""What the replay strategies share: a memory of exemplars, the old net, and what a guard beside them learns from.

Classes come phase by phase, one classifier tells all of them, and some images of each old class are kept. A phase:

    train      on the new classes' images and all exemplars, by the strategy's own loss
    choose     exemplars of the new classes, by herding on the features of the net that has just learned them
    after      a strategy may train once more, on the exemplars alone: a balanced set

A guard beside it pulls the backbone; the classifier, which is trained on exemplars of all classes, is left to the strategy.
AFEC's θ_e, and what EWC or MAS measure, come from the new classes' images alone, if `guard_data` says no other.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from afec.guard import OptionFields, State, option
from afec.nets import SingleHead
from afec.randomness import forked
from afec.strategy import Exemplars, MemoryPolicy, Strategy, TaskContext, Training, herding
from afec.strategy.context import Learnable
from afec.strategy.exemplars import Choice

__all__ = ["Replay", "class_features", "old_net", "old_outputs", "remember", "single_head"]


class Replay(OptionFields, Strategy):
    """A strategy that trains on exemplars of old classes again. A subclass says by which loss."""

    needs_classes = keeps_examples = True
    guards_rows = False
    exempt_contracts: ClassVar[dict[str, str]] = {
        "bounded": "exemplars of every class are kept, so what is kept grows with the classes"
    }

    per_class: int = option(default=20, at_least=1, doc="How many exemplars of each class are kept.")
    total: int | None = option(
        default=None, at_least=1, doc="How many in all, divided among the classes so far, in place of `per_class`."
    )
    choice: Choice = option(
        default="herding", doc="How exemplars are chosen: `herding`, nearest to the mean of their class, or `random`."
    )
    guard_data: Literal["new", "with-exemplars"] = option(
        default="new",
        doc="What a guard learns from, AFEC's θ_e above all: the `new` classes' images alone, or `with-exemplars`.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = MemoryPolicy(self.per_class, self.total, self.choice)

    # -- what a strategy says -------------------------------------------------------------------------------------

    @abstractmethod
    def training(self, context: TaskContext, memory: Exemplars) -> Training:
        """The training on the new classes and the exemplars; it is asked for again after a stop."""

    def prepare(self, context: TaskContext) -> None:
        """What is done to the net before a later phase is trained, once."""

    def after(self, context: TaskContext, memory: Exemplars) -> Iterator[Training]:
        """Trainings on the exemplars of all classes, the new ones included; by default none."""
        yield from ()

    @property
    def epochs_after(self) -> int:
        """The epochs of the trainings on exemplars alone."""
        return 0

    def kept(self, context: TaskContext, memory: Exemplars) -> State:
        """What is kept beside the exemplars."""
        return {}

    # -- a phase --------------------------------------------------------------------------------------------------

    def trainings(self, context: TaskContext) -> Iterator[Training]:
        """The phase, see above."""
        known = context.task_state
        if "memory" not in known:  # else its training is over
            if context.number > 0 and remember(context):
                self.prepare(context)
            memory = Exemplars.of(context.state.get("exemplars"))
            yield self.training(context, memory)
            known["memory"] = self._chosen(context, memory).state_dict()
        memory = Exemplars.of(known["memory"])
        yield from self.after(context, memory)
        context.state = {"exemplars": memory.state_dict(), **self.kept(context, memory)}

    def on_all(self, context: TaskContext, memory: Exemplars, loss: object, *, pure: bool = False) -> Training:
        """A training on the new classes and the exemplars, and what a guard beside it learns from."""
        data = memory.with_data(*self.new_data(context)) if memory.size else None
        guard_data = data if self.guard_data == "with-exemplars" else None
        return Training("train", context.net, loss, data=data, guard_data=guard_data, pure=pure)  # type: ignore[arg-type]

    def new_data(self, context: TaskContext) -> tuple[Tensor, Tensor]:
        """The new classes' images."""
        return context.train.inputs, context.train.targets

    def _chosen(self, context: TaskContext, memory: Exemplars) -> Exemplars:
        """The exemplars after this phase: of old classes as many as there is room for, and of the new ones."""
        inputs, targets = context.train.inputs, context.train.targets
        count = self.memory.quota(sum(context.net.sizes))
        rows = []
        for one in sorted(set(targets.tolist())):
            mine = (targets == one).nonzero().flatten()
            self._check_images(len(mine), f"output {one}")
            if self.memory.choice == "herding":
                features = context.features(context.net, inputs[mine])
                rows.append(mine[herding(features, min(count, len(mine)))])
            else:
                with forked(context.seed("exemplars", one)):
                    rows.append(mine[torch.randperm(len(mine))[:count].to(mine.device)])
        new = torch.cat(rows)
        if memory.size == 0:
            return Exemplars(inputs[new], targets[new])
        kept = memory.rows_kept(count)
        context.task_state["rows"] = kept
        return memory.at(kept).joined(Exemplars(inputs[new], targets[new]))

    def check_tasks(self, tasks: Sequence[Learnable]) -> None:
        """Raise for a class with too few images, or for too many classes."""
        self.memory.quota(sum(len(task.classes) for task in tasks))
        for task in tasks:
            for number, found in zip(
                task.classes, task.train.targets.bincount(minlength=len(task.classes)), strict=True
            ):
                self._check_images(int(found), f"class {number} of '{task.name}'")

    def kept_megabytes(self, task: Learnable) -> float:
        """What the exemplars take, here or as images on disk."""
        on_disk = getattr(task.prepare, "images", None)  # of a stream whose inputs are numbers of them
        sizes = None if on_disk is None else on_disk.sizes
        return Exemplars.of(self.state.get("exemplars")).megabytes(sizes)

    def samples_replayed(self, classes: Sequence[int], epochs: int) -> int:
        """The exemplars of old classes in every epoch of a later phase, and those of all classes in what comes after it."""
        found, ends = 0, list(accumulate(classes))
        for before, now in pairwise(ends):
            found += epochs * before * self.memory.quota(before) + self.epochs_after * now * self.memory.quota(now)
        return found

    def _check_images(self, found: int, where: str) -> None:
        if self.total is None and found < self.per_class:
            raise ValueError(
                f"{self.method} keeps {self.per_class} exemplars of each class, and {where} has {found} images to train on; "
                f"set method.{self.name}.per_class={found} or fewer, or give the classes more images"
            )


def single_head(context: TaskContext) -> SingleHead:
    """The net of a strategy that needs classes."""
    assert isinstance(context.net, SingleHead), "needs_classes"
    return context.net


def remember(context: TaskContext) -> bool:
    """Keep the net as it is now for `old_net`, in the state of the task; False where that was done before a stop."""
    known = context.task_state
    if "old" in known:
        return False
    known["old"] = {name: value.detach().clone() for name, value in context.net.state_dict().items()}
    return True


def old_net(context: TaskContext) -> SingleHead:
    """The net as it was when the phase began, which answers and does not learn."""
    old = copy.deepcopy(single_head(context))
    old.load_state_dict(context.task_state["old"])
    context.place(old)
    return old.eval().requires_grad_(False)


def old_outputs(context: TaskContext) -> int:
    """How many outputs earlier phases have brought."""
    return sum(context.net.sizes[: context.number])


def class_features(context: TaskContext) -> dict[int, Tensor]:
    """The features of the new classes' images, by output."""
    features, targets = context.features(context.net, context.train.inputs), context.train.targets
    return {one: features[targets == one] for one in sorted(set(targets.tolist()))}
