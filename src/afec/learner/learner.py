"""`Learner`: task after task, for people without a loop of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from afec.files import FileError, load_tree, save_tree
from afec.guard import Guard
from afec.learner.linear_probe import LinearProbe, linear_probe
from afec.learner.machine import Machine
from afec.learner.memo import Memo
from afec.learner.records import Progress, TaskRecord, telling
from afec.learner.task_run import TaskRun
from afec.learner.tasks import BatchLoss, in_chunks
from afec.naming import unknown
from afec.nets import Readout, SingleHead
from afec.parallel import group_here
from afec.randomness import forked, seed_from
from afec.stopping import Stop, StoppedError
from afec.strategy import Plain, ScenarioWarning, Schedule, Strategy, as_strategy
from afec.streams import Split, Task

__all__ = ["Learner", "Score"]

FORMAT = 3
KEYS = {"format", "seed", "tasks", "losses", "classes", "net", "readout", "method", "inside"}
INSIDE = {"tasks", "phase", "fit", "weights", "cost", "task_state"}


class Score(NamedTuple):
    """How well one task is done."""

    name: str
    accuracy: float
    size: int
    """How many samples the accuracy is the mean of."""
    answers: tuple[int, ...] = ()
    """In the scenario `class`: to how many of them a class of the first task was answered, of the second, …"""


class Learner:
    """Learns task after task with one net and one method.

        learner = afec.Learner(backbone, afec.EWC(300) + afec.AFEC(0.1))
        for task in stream.tasks:
            learner.learn(task)
        learner.evaluate(stream.tasks)

    Args:
        net: a readout (`MultiHead`, or `SingleHead` for the scenario `class`), or a backbone with the attribute
            `out_features`, which becomes a `MultiHead`, or for a replay strategy a `SingleHead`. Outputs are added as
            tasks come.
        method: a guard or a strategy; None is fine-tuning. AFEC needs no `epochs`: θ_e is trained by the same schedule.
        schedule: how each task is trained.
        seed: what batches, output layers and everything else that is drawn here come from.
        machine: device, precision, memory format.
        progress: a progress bar; by default when standard error is a terminal.
        on_progress: called after every epoch; `state_dict()` is complete then.
        stop: looked at after every epoch, after `on_progress`. Where it says so, `learn` raises `StoppedError`; the learner
            is then in the middle of the task, and `learn` of the same task goes on, bit for bit.
        memo: where outcomes of trainings that no method touches are kept and found.
        counts_units: whether dead and saturated units are counted at the end of each task (`TaskRecord.units`), by a forward
            pass over its training data.
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
        on_progress: Callable[[Progress], None] | None = None,
        stop: Stop | None = None,
        memo: Memo | None = None,
        counts_units: bool = False,
    ) -> None:
        for name, value, kinds in (
            ("method", method, (Guard, Strategy)),
            ("schedule", schedule, (Schedule,)),
            ("machine", machine, (Machine,)),
        ):
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"Learner's {name} must be a {' or a '.join(k.__name__ for k in kinds)}; got {value!r}")
        self.strategy, self.schedule = as_strategy(method), schedule or Schedule()
        self.net, self.machine = net if isinstance(net, Readout) else self.strategy.readout(net), machine or Machine()
        self.machine.placed(self.net)
        self.strategy.check(self.net)
        if isinstance(self.net, SingleHead):
            self.net.guards_rows = self.strategy.guards_rows
        if advice := self.strategy.advice(self.net):
            warnings.warn(f"{self.strategy.method}: {advice}", ScenarioWarning, stacklevel=2)
        self.seed, self.progress, self.on_progress, self.stop, self.memo = seed, progress, on_progress, stop, memo
        self.counts_units = counts_units
        self.tasks_learned: list[str] = []
        """The names of the tasks so far."""
        self._losses: list[str] = []  # the kind of loss of each
        self._prepare: dict[str, Callable[[Tensor], Tensor] | None] = {}  # of the tasks that this process has seen
        self._run: TaskRun | None = None  # the task that is being learned
        self._unfinished: dict[str, Any] | None = None  # one that was loaded, or stopped, in its middle
        self._only_predicts = False  # loaded from a file without the method's memory

    @property
    def guard(self) -> Guard | None:
        """What pulls; of a strategy, beside what else it does."""
        return self.strategy.guard

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(self, task: Task) -> TaskRecord:
        """Learn one more task; a task that was loaded or stopped in its middle goes on."""
        return self._learn([task], len(self.tasks_learned), self.strategy)

    def learn_jointly(self, tasks: Sequence[Task]) -> TaskRecord:
        """Learn all `tasks` at once, from the present weights: the upper bound that keeps all old data. No method acts."""
        return self._learn(tasks, len(tasks) - 1, Plain())

    def linear_probe(self, task: Task) -> LinearProbe:
        """How well a linear layer learns `task` on the present features; neither they nor anything else here changes."""
        if not self.tasks_learned:
            raise ValueError(
                f"nothing was learned yet whose features '{task.name}' could be learned from; call learn() first"
            )
        number = len(self.tasks_learned) - 1
        with telling(self.progress, self.on_progress, number, task.name, "transfer") as on_epoch:
            return linear_probe(self.net, number, task, self.schedule, self.machine, self.seed, on_epoch, self.stop)

    def _learn(self, tasks: Sequence[Task], number: int, strategy: Strategy) -> TaskRecord:
        """Learn these tasks at once, the last of which has this number."""
        self._check_ready([task.name for task in tasks])  # before anything is touched: what was loaded stays
        if group_here() is not None and not isinstance(strategy, Plain):
            raise ValueError(
                f"{strategy.method} has trainings and losses of its own, which are not shared out over processes; run it in "
                "one process, or take a guard such as EWC, MAS, SI, RWALK or AFEC"
            )
        before = self.strategy.state_dict()
        new = tasks[len(self.tasks_learned) - (number - len(tasks) + 1) :]
        try:
            for place, task in enumerate(new):
                self._begin(task, len(self.tasks_learned) + place)
            self._run = TaskRun(self, strategy, number, tasks, self._unfinished)
            with forked(seed_from("learner", self.seed), self.machine.torch_device):  # nothing outside is drawn from
                record = self._run.run()
        except BaseException as error:
            stopped = self._run.stopped if self._run is not None and isinstance(error, StoppedError) else None
            self._run = self._unfinished = None
            if stopped is not None:
                self.load_state_dict(stopped)
            elif self.guard is None or self.guard.task is None:
                self.strategy.load_state_dict(before)  # a guard may have ended its task before something else failed
            raise
        self._run = self._unfinished = None
        self.tasks_learned += [task.name for task in new]
        self._losses += [task.loss for task in new]
        return record

    def _check_ready(self, names: list[str]) -> None:
        if self._only_predicts:
            raise RuntimeError(
                "this learner was loaded from a file that was saved for prediction only, without the method's memory; to "
                "learn on, load a file of save(path)"
            )
        begun = names if self._unfinished is None else self._unfinished["tasks"]
        if begun != names:
            raise ValueError(
                f"this learner was loaded in the middle of the task '{begun[-1]}', so that is to be learned next; "
                f"got '{names[-1]}'"
            )

    def _begin(self, task: Task, number: int) -> None:
        """The task's outputs are there afterwards."""
        if task.name in self.tasks_learned:
            raise ValueError(
                f"a task called '{task.name}' was learned already, and tasks are told apart by their names; "
                "give this one another name: dataclasses.replace(task, name=…)"
            )
        if self.net.scenario == "class" and task.loss != "cross_entropy":
            raise ValueError(
                f"task '{task.name}' is a regression, and in the scenario 'class' tasks are classifications"
            )
        if number == len(self.net.sizes):
            with forked(seed_from("learner", self.seed, "head", number), self.machine.torch_device):
                self.net.begin_task(task.classes)
            self.machine.placed(self.net)
        known = self.net.task_classes[number]
        if len(known) != task.outputs:
            raise ValueError(
                f"task {number + 1}, '{task.name}', has {task.outputs} outputs, but head {number + 1} of the net has "
                f"{len(known)}; make the net for this stream: MultiHead(backbone, stream.outputs), or give the backbone alone"
            )
        if self.net.scenario == "class" and known != task.classes:
            raise ValueError(
                f"task {number + 1}, '{task.name}', has the classes {task.classes}, but a task with the classes {known} has "
                "begun in its place; learn that one first"
            )
        self._prepare[task.name] = task.prepare

    # -- what can be asked ----------------------------------------------------------------------------------------

    def evaluate(self, tasks: Task | Sequence[Task], split: str = "test") -> list[float]:
        """The accuracy of a task that was learned, or of each task of a stream.

        In the scenario `class` a class is told from all classes so far. A stream is given in its order from the first task
        on: then tasks that are not learned yet can be asked for as well, where their heads are there.
        """
        return [score.accuracy for score in self.scores(tasks, split)]

    def scores(self, tasks: Task | Sequence[Task], split: str = "test") -> list[Score]:
        """As `evaluate`, with how many samples each accuracy is the mean of."""
        found = []
        for place, task in enumerate([tasks] if isinstance(tasks, Task) else tasks):
            number = self._number_of(task.name, None if isinstance(tasks, Task) else place)
            inputs, targets = _split_of(task, split)
            outputs = self._predicted(BatchLoss.of(number, task, self.machine), inputs)
            targets = self.net.output_targets(number, targets.cpu())
            accuracy = task.accuracy(outputs, Split(inputs, targets))
            found.append(Score(task.name, accuracy, len(inputs), self._answers(outputs)))
        return found

    def _answers(self, outputs: Tensor) -> tuple[int, ...]:
        """How often a class of each task was answered; empty where the task is known."""
        if self.net.scenario != "class":
            return ()
        ends = torch.tensor(self.net.sizes).cumsum(0)
        tasks = torch.bucketize(outputs.argmax(dim=1), ends, right=True)
        return tuple(tasks.bincount(minlength=len(ends)).tolist())

    def outputs(self, x: Tensor, task: int | str | Task | None = None) -> Tensor:
        """The outputs for the inputs `x`: logits, or the values of a regression.

        `task` is a number from 0, a name or the task itself. In the scenario `class` it is not needed, and there is an output
        for each class so far.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"the inputs must be a tensor (torch.as_tensor); got {type(x).__name__}")
        number = self._learned_number(task)
        name = self.tasks_learned[number]
        prepare = task.prepare if isinstance(task, Task) else self._prepare.get(name)
        if prepare is None and not x.is_floating_point():
            raise TypeError(
                f"the inputs are {x.dtype}, and how task '{name}' prepares them is not in a loaded file; "
                "give the task itself in place of its number or name"
            )
        return self._predicted(BatchLoss(number, self._losses[number], self.machine, prepare), x)

    def predict(self, x: Tensor, task: int | str | Task | None = None) -> Tensor:
        """The class of each input, or, of a regression task, its values; `task` is as in `outputs`.

        Classes are numbered as in the task; in the scenario `class`, as in the whole stream (`Task.classes`).
        """
        outputs = self.outputs(x, task)
        if self._losses[self._learned_number(task)] != "cross_entropy":
            return outputs
        if self.net.scenario == "class":
            every = [number for classes in self.net.task_classes for number in classes]
            return torch.tensor(every)[outputs.argmax(dim=1)]
        return outputs.argmax(dim=1)

    def _predicted(self, loss: BatchLoss, inputs: Tensor) -> Tensor:
        """The prediction, which a strategy may make in a way of its own."""

        def ask(part: Tensor) -> Tensor:
            return self.strategy.outputs(self.net, loss, (part,))

        return in_chunks(self.net, ask, inputs, loss).cpu()

    def _learned_number(self, task: int | str | Task | None) -> int:
        if task is None and self.net.scenario == "task":
            raise ValueError("each task has outputs of its own here: say which task, by number, by name or as a Task")
        if task is None:
            task = len(self.tasks_learned) - 1
        number = task if isinstance(task, int) else self._number_of(task.name if isinstance(task, Task) else task, None)
        if not 0 <= number < len(self.tasks_learned):
            raise ValueError(
                f"no task number {number} was learned; there are {len(self.tasks_learned)}: {self.tasks_learned}"
            )
        return number

    def _number_of(self, name: str, default: int | None) -> int:
        if name in self.tasks_learned:
            return self.tasks_learned.index(name)
        if default is None or not len(self.tasks_learned) <= default < len(self.net.sizes):
            raise ValueError(f"no task '{name}' was learned; the tasks so far are {self.tasks_learned}")
        return default

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, between tasks and after any epoch inside one: plain dictionaries of tensors and numbers."""
        run = self._run
        entry = None if run is None else run.entry  # there while θ_e is trained in the net's place
        return {
            "format": FORMAT,
            "seed": self.seed,
            "tasks": list(self.tasks_learned),
            "losses": list(self._losses),
            "classes": [list(classes) for classes in self.net.task_classes],
            "net": self.net.state_dict() if entry is None else entry,
            "readout": self.net.described(),
            "method": self.strategy.state_dict(),
            "inside": self._unfinished if run is None else run.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict()`; net, method and schedule are those of this learner."""
        self._check_state(state)
        with forked(0, self.machine.torch_device):  # of the weights that are drawn here none stays
            for classes in state["classes"][len(self.net.sizes) :]:
                self.net.begin_task(classes)
        self.net.task_classes = [tuple(classes) for classes in state["classes"]]
        self.machine.placed(self.net)
        self.net.load_state_dict(state["net"])
        self._only_predicts = "prediction" in (state["method"] or {})
        if self._only_predicts:
            self.strategy.state = dict(state["method"]["prediction"])
        else:
            self.strategy.load_state_dict(state["method"])
        self.seed, self._unfinished = state["seed"], state["inside"]
        self.tasks_learned, self._losses = list(state["tasks"]), list(state["losses"])

    def save(self, path: str | PathLike[str], *, prediction_only: bool = False) -> None:
        """Write everything to one safetensors file, whole or not at all; or only what prediction needs, without memory."""
        state = self.state_dict()
        if prediction_only:
            prediction = {"method": self.strategy.method, "prediction": self.strategy.prediction_state()}
            state = {**state, "method": prediction, "inside": None}
        save_tree(path, {"afec": "learner", **state})

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

    def _check_state(self, state: Any) -> None:
        """Raise where this is no state, or one of another method or net; before anything of it is loaded."""
        if not isinstance(state, dict) or set(state) != KEYS or state["format"] != FORMAT:
            found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"this is no state of a Learner (format {FORMAT}): expected {sorted(KEYS)}, got {found}")
        inside = state["inside"]
        if inside is not None and (not isinstance(inside, dict) or set(inside) != INSIDE):
            raise ValueError(
                f"this is no state of a Learner: what it says about a task in its middle is {type(inside).__name__}"
            )
        saved, here = (state["method"] or {}).get("method", "finetune"), self.strategy.method
        if saved != here:
            raise ValueError(
                f"the state is of a learner with the method '{saved}', this one has '{here}'; give it that one"
            )
        if state["readout"] != self.net.described():
            raise ValueError(
                f"the state is of a net with a {state['readout']}, this one has a {self.net.described()}; give it the net that "
                "was saved"
            )
        sizes, own_sizes = [len(classes) for classes in state["classes"]], self.net.sizes
        if own_sizes != sizes[: len(own_sizes)]:
            raise ValueError(
                f"the state is of a net with heads of sizes {sizes}, this one has {own_sizes}; give it the net that was saved"
            )
        of_one_task = (
            self.net.task_prefixes()
        )  # what the state's tasks need beyond the net's is made before it is loaded
        shapes, own = (
            {name: tuple(value.shape) for name, value in weights.items() if not name.startswith(of_one_task)}
            for weights in (state["net"], self.net.state_dict())
        )
        for name in sorted(shapes.keys() | own.keys()):
            if shapes.get(name) != own.get(name):
                there, present = shapes.get(name, "nothing"), own.get(name, "nothing")
                raise ValueError(
                    f"the state is of another net: '{name}' has the shape {there} there and {present} here; "
                    "give the learner the net that was saved"
                )


def _split_of(task: Task, name: str) -> Split:
    if name not in ("train", "validation", "test"):
        raise ValueError(unknown("split", name, ["train", "validation", "test"]))
    split = getattr(task, name)
    if split is None:
        raise ValueError(f"task '{task.name}' has no {name} split; ask for 'test' or 'train'")
    assert isinstance(split, Split)
    return split
