"""`Learner`: task after task, for people without a loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from os import PathLike
from typing import Any

from torch import Tensor, nn

from afec.files import FileError, load_tree, save_tree
from afec.guard import Guard
from afec.learner.course import Course
from afec.learner.fit import Epoch, Fit, OnEpoch
from afec.learner.learned import Cost, Learned, Phase
from afec.learner.machine import Machine
from afec.learner.memo import Memo
from afec.learner.progress import shown
from afec.learner.schedule import Schedule
from afec.learner.state import FORMAT, check_net, check_state, upgraded
from afec.learner.stopwatch import Stopwatch
from afec.learner.tasks import HeadLoss, Mixture, mixture_loss, stored
from afec.learner.trained import Known, Trained
from afec.learner.transfer import Transferred, transfer
from afec.randomness import forked, seed_from
from afec.strategy import Strategy, as_strategy
from afec.streams import Task

__all__ = ["Learner"]


class Learner(Trained):
    """Learns task after task with one net and one method.

        learner = afec.Learner(backbone, afec.EWC(300) + afec.AFEC(0.1))
        for task in stream.tasks:
            learner.learn(task)
        learner.evaluate(stream.tasks)

    Args:
        net: a `MultiHead`, or a backbone with the attribute `out_features`, which then gets a head for each task.
        method: a guard or a strategy; None is fine-tuning. AFEC needs no `epochs`: θ_e is trained by the same schedule.
        schedule: how each task is trained.
        seed: of batches, heads and everything else that is drawn here.
        machine: device, precision, memory format.
        progress: a progress bar; by default when standard error is a terminal.
        on_phase: called after every epoch.
        memo: where outcomes of trainings that no method touches are kept and found.
    """

    def __init__(
        self,
        net: nn.Module,
        method: Guard | Strategy | None = None,
        *,
        schedule: Schedule | None = None,
        seed: int = 0,
        machine: Machine | None = None,
        progress: bool | None = None,
        on_phase: Callable[[Phase], None] | None = None,
        memo: Memo | None = None,
    ) -> None:
        for name, value, kinds in (
            ("method", method, (Guard, Strategy)),
            ("schedule", schedule, (Schedule,)),
            ("machine", machine, (Machine,)),
        ):
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"Learner's {name} must be a {' or a '.join(k.__name__ for k in kinds)}; got {value!r}")
        super().__init__(net, machine or Machine())
        self.strategy, self.schedule = as_strategy(method), schedule or Schedule()
        self.strategy.check(self.net)
        self.seed, self.progress, self.on_phase, self.memo = seed, progress, on_phase, memo
        self._course: Course | None = None  # the task that is being learned
        self._unfinished: dict[str, Any] | None = None  # one that was loaded in its middle

    @property
    def guard(self) -> Guard | None:
        """What pulls; of a strategy, beside what else it does."""
        return self.strategy.guard

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(self, task: Task) -> Learned:
        """Learn one more task; a task that was loaded in its middle goes on."""
        self._check_unfinished(task)  # before anything is touched: what was loaded stays, for the right task
        before = self.strategy.state_dict()
        try:
            number = self._enter(task)
            self._course = Course(self, number, task, self._unfinished)
            with forked(
                seed_from("learner", self.seed), self.machine.torch_device
            ):  # a new guard takes its seed from here
                learned = self._course.run()
        except BaseException:
            if self.guard is None or self.guard.task is None:
                self.strategy.load_state_dict(before)  # a guard may have ended its task before something else failed
            raise
        finally:
            self._course = self._unfinished = None
        self._known.append(Known(task.name, task.outputs, task.loss))
        return learned

    def learn_jointly(self, tasks: Sequence[Task]) -> Learned:
        """Learn all `tasks` at once, from the present weights: the upper bound that keeps all old data. No method acts."""
        for task in tasks[len(self._known) :]:
            self._enter(task)
            self._known.append(Known(task.name, task.outputs, task.loss))
        losses = [HeadLoss.of(number, task, self.machine) for number, task in enumerate(tasks)]
        chunk = min(task.chunk for task in tasks)
        train = Mixture([stored(task.train, self.machine) for task in tasks], chunk)
        splits = [stored(task.validation, self.machine) for task in tasks if task.validation is not None]
        validation = Mixture(splits, chunk) if len(splits) == len(tasks) else None
        number, name, watch, cost = len(tasks) - 1, tasks[-1].name, Stopwatch(), Cost()
        seed = seed_from("learner", self.seed, number, "train")
        fit = Fit(self.net, train, validation, partial(mixture_loss, losses), self.schedule, seed, self.machine)
        with watch.phase("train"), self.shown(number, name, "joint") as on_epoch:
            cost.epochs["train"] = fit.run(on_epoch=on_epoch).epochs
        return cost.learned(name, fit.best_epoch, train.size, watch)

    def transfer(self, task: Task) -> Transferred:
        """How well a new head alone learns `task` on the present features; neither they nor anything else here changes."""
        if not self._known:
            raise ValueError(
                f"nothing was learned yet that '{task.name}' could be transferred from; call learn() first"
            )
        number = len(self._known) - 1
        with self.shown(number, task.name, "transfer") as on_epoch:
            return transfer(self.net, number, task, self.schedule, self.machine, self.seed, on_epoch)

    @contextmanager
    def shown(self, number: int, name: str, phase: str) -> Iterator[OnEpoch]:
        """What to call after each epoch of a training: a progress bar, and `on_phase`."""
        with shown(self.progress, number, name, phase) as show:

            def on_epoch(epoch: Epoch) -> None:
                show(epoch)
                if self.on_phase:
                    self.on_phase(Phase(number, name, phase, epoch))

            yield on_epoch

    def _enter(self, task: Task) -> int:
        """The task's number; its head is there afterwards."""
        self._prepare[task.name] = task.prepare
        number, heads = len(self._known), self.net.heads
        if task.name in self.tasks_learned:
            raise ValueError(
                f"a task called '{task.name}' was learned already, and tasks are told apart by their names; "
                "give this one another name: dataclasses.replace(task, name=…)"
            )
        if number == len(heads):
            with forked(seed_from("learner", self.seed, "head", number), self.machine.torch_device):
                self.net.add_head(task.outputs)
            self.machine.placed(self.net)
        size = heads[number].out_features
        if size != task.outputs:
            raise ValueError(
                f"task {number + 1}, '{task.name}', has {task.outputs} outputs, but head {number + 1} of the net has {size}; "
                "make the net for this stream: MultiHead(backbone, stream.outputs), or give the backbone alone"
            )
        return number

    def _check_unfinished(self, task: Task) -> None:
        begun = None if self._unfinished is None else self._unfinished["task"]
        if begun not in (None, task.name):
            raise ValueError(
                f"this learner was loaded in the middle of the task '{begun}', so that is to be learned next; got '{task.name}'"
            )

    def _outputs(self, loss: HeadLoss, batch: Any) -> Tensor:
        """The prediction, which a strategy may make in a way of its own."""
        return self.strategy.outputs(self.net, loss, batch)

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, between tasks and after any epoch inside one: plain dictionaries of tensors and numbers."""
        course = self._course
        entry = None if course is None else course.entry  # there while θ_e is trained in the net's place
        return {
            "format": FORMAT,
            "seed": self.seed,
            "tasks": [asdict(known) for known in self._known],
            "net": self.net.state_dict() if entry is None else entry,
            "heads": [head.out_features for head in self.net.heads],
            "method": self.strategy.state_dict(),
            "inside": self._unfinished if course is None else course.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict()`; net, method and schedule are those of this learner."""
        state = upgraded(state)
        check_state(state, self.strategy)
        check_net(state, self.net)
        while len(self.net.heads) < len(state["heads"]):
            self.net.add_head(state["heads"][len(self.net.heads)])
        self.machine.placed(self.net)
        self.net.load_state_dict(state["net"])
        self.strategy.load_state_dict(state["method"])
        self.seed = state["seed"]
        self._known = [Known(**known) for known in state["tasks"]]
        self._unfinished = state["inside"]

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to one safetensors file, whole or not at all."""
        save_tree(path, {"afec": "learner", **self.state_dict()})

    def load(self, path: str | PathLike[str]) -> Learner:
        """Read what `save` wrote into this learner, made with the same net and method. Nothing in the file is executed."""
        tree = load_tree(path, device=self.machine.device)
        if not isinstance(tree, dict) or tree.get("afec") != "learner":
            raise FileError(f"{path} is no file of Learner.save(); expected its mark afec='learner'")
        try:
            self.load_state_dict({key: value for key, value in tree.items() if key != "afec"})
        except Exception as error:  # whatever it was, it came from the file
            raise FileError(f"{path}: {error or type(error).__name__}") from error
        return self
