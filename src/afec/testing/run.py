"""A small run that can be stopped, copied and taken up anywhere: an MLP with batch-norm and dropout on random tasks.

A place in it is (task, epoch, batch). (t, -1, 0) is before the task t has begun, (t, 0, 0) is right after its begin, and
(t, EPOCHS, 0) after its last step, before its end; places compare in the order in which they are passed.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from afec.guard import Guard, GuardedTask
from afec.testing.compare import RandomState

__all__ = ["BATCH", "EPOCHS", "SAMPLES", "Around", "Place", "Run", "between"]

EPOCHS, BATCH, SAMPLES = 2, 8, 24
FEATURES, UNITS, CLASSES = 4, 8, 3

Place = tuple[int, int, int]
Around = Callable[["Run", str], AbstractContextManager[Any]]


def between(tasks_done: int) -> Place:
    """The place after so many tasks."""
    return (tasks_done, -1, 0)


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """One task's data; counts how often a sample was read. The run itself trains from the tensors, so these are the guard's."""

    def __init__(self, task: int, dtype: torch.dtype, classes: int) -> None:
        generator = torch.Generator().manual_seed(1000 + task)
        x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        teacher = torch.randn(FEATURES, classes, generator=generator, dtype=torch.float64)
        self.x, self.y, self.reads = x.to(dtype), (x @ teacher).argmax(1), 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return self.x[index], self.y[index]


class Run:
    """All that a run consists of, with random states of its own. Without a guard it is fine-tuning."""

    def __init__(self, guard: Guard | None, dtype: torch.dtype = torch.float32, around: Around | None = None) -> None:
        self.guard, self.dtype, self.classes, self.around = guard, dtype, CLASSES, around
        self.at: Place = between(0)
        self.task: GuardedTask | None = None
        self.reads: list[int] = []  # of the guard, in each task that was ended here
        self.hooked: dict[str, list[int]] = {}  # before the task began, where a check has noted it
        torch.manual_seed(1)
        self.model = net(dtype)
        self.new_optimizer()
        self.samples = Samples(0, dtype, CLASSES)
        self.random = RandomState.now()

    # -- going on -------------------------------------------------------------------------------------------------

    def go_on(self, until: Place) -> None:
        """Train from the present place to another one."""
        self.random.put_back()
        while self.at < until:
            self._advance()
        self.random = RandomState.now()

    def _advance(self) -> None:
        number, epoch, batch = self.at
        if epoch < 0:
            self.begin()
            self.at = (number, 0, 0)
        elif epoch < EPOCHS:
            if self.task is None:
                self.begin()  # the state was loaded in the middle of the task
            if batch == 0 and self.task is not None:
                with self._acts("epoch()"):
                    self.task.epoch()
            self._step(number, epoch, batch)
            last = (batch + 1) * BATCH >= SAMPLES
            self.at = (number, epoch + 1, 0) if last else (number, epoch, batch + 1)
        else:
            if self.task is None:
                self.begin()
            self.end()
            self.at = between(number + 1)

    def arguments(self) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], nn.Module]:
        """What `guard.begin` and `guard.learning` get."""
        self.samples = Samples(self.at[0], self.dtype, self.classes)
        return self.model, self.optimizer, DataLoader(self.samples, BATCH, shuffle=True), nn.CrossEntropyLoss()

    def begin(self) -> None:
        """Begin the task, or take it up."""
        arguments = self.arguments()
        if self.guard is not None:
            with self._acts("begin()"):
                self.task = self.guard.begin(*arguments, progress=False)

    def end(self) -> None:
        """End the task."""
        if self.task is not None:
            with self._acts("end()"):
                self.task.end()
            self.reads.append(self.samples.reads)
            self.task = None

    def close(self) -> None:
        """Leave no hook behind, wherever the run was stopped."""
        if self.task is not None and self.guard is not None and self.guard.task is self.task:
            self.task.abort()
        self.task = None

    def _step(self, number: int, epoch: int, batch: int) -> None:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        rows = order[batch * BATCH : (batch + 1) * BATCH]
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.samples.x[rows]), self.samples.y[rows]).backward()  # type: ignore[no-untyped-call]
        with self._acts("step()"):
            self.optimizer.step()

    def _acts(self, what: str) -> AbstractContextManager[Any]:
        """Around everything that the guard does."""
        return nullcontext() if self.around is None else self.around(self, what)

    # -- what it holds --------------------------------------------------------------------------------------------

    def new_optimizer(self) -> None:
        """As at the start, and after the head has grown. Decay also moves weights against their gradients."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.02, weight_decay=1.0)

    def trained(self) -> dict[str, Any]:
        """Copies of what training has made of the user's things: weights, buffers and the optimiser's state."""
        return copy.deepcopy({"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()})

    def checkpoint(self) -> dict[str, Any]:
        """Everything that a fresh run needs in order to go on from here."""
        assert self.guard is not None
        return {**self.trained(), "guard": copy.deepcopy(self.guard.state_dict()), "random": self.random, "at": self.at}

    @classmethod
    def taken_up(cls, guard: Guard, checkpoint: dict[str, Any]) -> Run:
        """A run of fresh objects that goes on from a checkpoint."""
        run, saved = cls(guard), copy.deepcopy(checkpoint)
        run.model.load_state_dict(saved["model"])
        run.optimizer.load_state_dict(saved["optimizer"])
        guard.load_state_dict(saved["guard"])
        run.random, run.at = saved["random"], saved["at"]
        return run

    def grow(self, classes: int) -> None:
        """The head gets new classes: its weights grow along the first dimension."""
        old, self.classes = self.model.get_submodule("head"), classes
        new = nn.Linear(UNITS, classes, dtype=self.dtype)
        with torch.no_grad():
            for name, value in old.named_parameters():
                new.get_parameter(name)[: len(value)] = value
        self.model.add_module("head", new)
        self.new_optimizer()

    def pulls(self) -> dict[str, Tensor]:
        """What one step adds to each weight's gradient here, measured: a plain step beside it, from the same place.

        The optimiser is SGD with learning rate 1, so the difference of the weights after both steps is the pull. The weights
        are put back.
        """
        twin = net(self.dtype, self.classes)
        twin.load_state_dict(self.model.state_dict())
        for own, other in zip(self.model.modules(), twin.modules(), strict=True):
            other.training = own.training
        before = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        for model in (self.model, twin):
            model.zero_grad()
            torch.manual_seed(2)
            nn.functional.cross_entropy(model(self.samples.x[:BATCH]), self.samples.y[:BATCH]).backward()  # type: ignore[no-untyped-call]
            torch.optim.SGD(model.parameters(), 1.0).step()
        after = dict(twin.named_parameters())
        found = {name: (after[name] - weight).detach() for name, weight in self.model.named_parameters()}
        self.model.load_state_dict(before)
        return found


def net(dtype: torch.dtype, classes: int = CLASSES) -> nn.Sequential:
    """Batch-norm and dropout are what a careless pass would disturb."""
    body = nn.Sequential(
        nn.Linear(FEATURES, UNITS, dtype=dtype), nn.BatchNorm1d(UNITS, dtype=dtype), nn.ReLU(), nn.Dropout(0.2)
    )
    head = nn.Linear(UNITS, classes, dtype=dtype)
    return nn.Sequential(OrderedDict[str, nn.Module](body=body, head=head))
