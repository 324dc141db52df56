"""Supervised learning over a stream of tasks: the learner, a method and a net."""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch

from afec.data.root import data_root
from afec.experiments.base import Context, OnProgress, Progress, Score, Section, Setup
from afec.experiments.by_method import MethodExperiment, training_records
from afec.experiments.hold_out import HOLD_OUT, PART, held_out
from afec.files import write_text
from afec.learner import Learner, LinearProbe, Machine, Memo, Schedule, TaskRecord
from afec.learner import Progress as Epochs
from afec.methods.expression import make_method
from afec.naming import did_you_mean, unknown, with_defaults
from afec.nets import NETS, MultiHead, Readout, SingleHead, check_backbone, make_backbone
from afec.nets.readout import ClassifierKind
from afec.randomness import forked, seed_from
from afec.strategy import ScenarioWarning, as_strategy
from afec.streams import STREAMS, Stream, check_stream, make_stream

__all__ = ["Supervised", "build", "new_net", "training_of", "write_transfers"]

OF_METHOD = "method"
"""The value of `classifier` that leaves it to the method: `linear`, if it does not say another."""
READOUT = {"zero_heads": False, "classifier": "linear"}
"""The options of [net] that every net has, and their defaults; `classifier` is that of the scenario `class`."""
UNSAID = {"activation": "relu", "stem_stride": 1}
"""Options of nets that are younger than runs which are to stay the same: a configuration leaves them out at these values."""


def training_of(section: Section, device: str | None = None) -> tuple[Schedule, Machine]:
    """The two records that a [training] section describes; on another device, if one is given."""
    values = section | ({"device": device} if device else {})
    if values.get("patience") == "off":  # TOML has no None
        values = values | {"patience": None}
    schedule, machine = training_records(values, Schedule, Machine)
    return schedule, machine


def build(setup: Setup, seed: int) -> tuple[Stream, Readout]:
    """The seed's stream, and its net before any learning: the same for every method."""
    stream = _stream_of(setup, seed)
    return stream, new_net(setup, stream, seed)


def _stream_of(setup: Setup, seed: int) -> Stream:
    options = {key: value for key, value in setup.stream.items() if key not in ("name", HOLD_OUT)}
    stream = make_stream(setup.stream["name"], seed, **options)
    if HOLD_OUT in setup.stream:
        stream = held_out(stream, setup.stream[HOLD_OUT], seed)
    return stream


_SIZES: dict[tuple[str, Path, int], list[tuple[int, int]]] = {}


def _task_sizes(setup: Setup, seed: int) -> list[tuple[int, int]]:
    """The samples that each task has to learn from, and its classes; kept, because a study has the same tasks in many rows."""
    key = repr(sorted(setup.stream.items())), data_root(), seed
    if key not in _SIZES:
        _SIZES[key] = [(task.train.size, len(task.classes)) for task in _stream_of(setup, seed).tasks]
    return _SIZES[key]


def new_net(setup: Setup, stream: Stream, seed: int) -> Readout:
    """The seed's net before any learning: a head for each task, or one classifier that grows in the scenario `class`."""
    options = {key: value for key, value in setup.net.items() if key not in ("name", *READOUT)}
    zero, kind = setup.net.get("zero_heads", False), setup.net.get("classifier", "linear")
    if stream.scenario == "task" and kind != "linear":
        raise ValueError(
            f"net.classifier={kind!r} is for the scenario 'class', and this stream has the scenario 'task', where each task "
            "has a linear head; leave it out, or set stream.scenario=class"
        )
    if kind == OF_METHOD:
        method = None if setup.method in Supervised.references else make_method(setup.method, setup.settings)
        kind = as_strategy(method).classifier
    with forked(seed_from("net", seed)):
        backbone = make_backbone(setup.net["name"], **options)
        if stream.scenario == "class":
            return SingleHead(backbone, kind, zero=zero)
        return MultiHead(backbone, stream.outputs, zero=zero)


class Supervised(MethodExperiment):
    """A method over the tasks of a stream, one after the other."""

    description = "a method learns the tasks of a stream, one after the other"
    shared_out = True
    references: ClassVar[Mapping[str, str]] = {
        "joint": "afec.experiments.joint:Joint",
        "scratch": "afec.experiments.scratch:Scratch",
    }

    def __init__(self, setup: Setup, context: Context) -> None:
        super().__init__(setup, context)
        self.schedule, self.machine = training_of(setup.training, context.device)
        self.stream, net = build(setup, context.seed)
        self.tasks = [task.name for task in self.stream.tasks]
        self.origin = _origin(net)
        self._on_progress: OnProgress = lambda progress: None
        self.learner = self._learner(net)

    def _learner(self, net: Readout) -> Learner:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)  # `check` has said it, once for all runs
            return Learner(
                net,
                self._method(),
                schedule=self.schedule,
                machine=self.machine,
                seed=self.context.seed,
                progress=False,
                on_progress=self._tell,
                stop=self.context.stop,
                memo=None if self.context.shared is None else Memo(self.context.shared, self.context.made_by),
                counts_units=True,
            )

    def _method(self) -> Any:
        return make_method(self.setup.method, self.setup.settings)

    def _tell(self, epochs: Epochs) -> None:
        values = asdict(epochs.epoch)
        step = values.pop("number")
        values |= {f"strength.{term}": strength for term, strength in epochs.strengths.items()}
        self._on_progress(Progress(self._number(epochs), epochs.name, epochs.phase, step, "epoch", values))

    def _number(self, epochs: Epochs) -> int:
        return epochs.task

    # -- a run ----------------------------------------------------------------------------------------------------

    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """The next task of the stream."""
        self._on_progress = on_progress
        return self.learner.learn(self.stream.tasks[number])

    def measure(self, after: int) -> list[Score]:
        """The accuracy of every task, learned or not; in the scenario `class` of those whose classes have an output."""
        tasks = list(enumerate(self.stream.tasks, start=1))
        return self._scores(after, tasks[:after] if self.stream.scenario == "class" else tasks)

    def _scores(self, after: int, tasks: Sequence[tuple[int, Any]]) -> list[Score]:
        measured = [task for _, task in tasks]
        some = any(task.validation is None for task in measured)  # then no mean over the tasks means anything
        validations = [math.nan] * len(measured) if some else self.learner.evaluate(measured, "validation")
        found = zip(tasks, validations, self.learner.scores(measured, "test"), strict=True)
        return [
            Score(after, number, task.name, validation, test.accuracy, test.size, test.answers)
            for (number, task), validation, test in found
        ]

    def state_dict(self) -> dict[str, Any]:
        """The whole state of the learner."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The learner's; where it does not fit, the net is as it was before."""
        try:
            self.learner.load_state_dict(state)
        except Exception:  # a part of it may be in the net
            self.learner = self._learner(new_net(self.setup, self.stream, self.context.seed))
            raise

    def finish(self, folder: Path, on_progress: OnProgress) -> None:
        """The net after the last task, and linear probes of other tasks on its features, where the stream has some."""
        self._on_progress = on_progress
        if self.stream.transfer:
            write_transfers(folder, [self.learner.linear_probe(task) for task in self.stream.transfer])
        self.learner.save(folder / LEARNER, prediction_only=True)

    # -- what may stand in a benchmark ----------------------------------------------------------------------------

    @classmethod
    def complete(cls, section: str, values: Section) -> Section:
        """The options of the stream, the net, the schedule and the machine."""
        if section == "training":
            records = (asdict(record) for record in training_of(values))
            whole = {key: value for record in records for key, value in record.items()}
            plain = {key: list(value) if isinstance(value, tuple) else value for key, value in whole.items()}
            return {key: "off" if value is None else value for key, value in plain.items()}
        if section == "stream":
            check_stream(values)
            return with_defaults(STREAMS, values)
        _check_net(values)
        whole = {**READOUT, **with_defaults(NETS, values)}
        return {key: value for key, value in whole.items() if UNSAID.get(key) != value}

    @classmethod
    def check(cls, setups: Sequence[Setup], context: Context) -> list[str]:
        """Make each stream and net once, send one image through it, and ask each method whether it goes with the net."""
        kinds: dict[str, list[Setup]] = {}
        for setup in setups:
            kinds.setdefault(repr((setup.stream, setup.net)), []).append(setup)
        origins: dict[str, None] = {}
        advised: dict[str, dict[str, None]] = {}  # advice, and the methods that it is for
        for alike in kinds.values():
            stream, net = build(alike[0], context.seed)
            task = stream.tasks[0]
            image = task.train.inputs[:1]
            with torch.no_grad():
                net.eval().features(image if task.prepare is None else task.prepare(image), task=0)
            if origin := _origin(net):
                origins[origin] = None
            for setup in alike:
                schedule, _ = training_of(setup.training, context.device)
                if not _validates(stream):
                    schedule.check_without_validation()
                if advice := cls._check_method(setup, _net_of(setup, stream, net, context.seed), stream):
                    advised.setdefault(advice, {})[setup.method] = None
        for advice, methods in advised.items():
            warnings.warn(f"{', '.join(methods)}: {advice}", ScenarioWarning, stacklevel=2)
        return list(origins)

    @classmethod
    def _check_method(cls, setup: Setup, net: Readout, stream: Stream) -> str:
        """Raise where the method cannot be used with net or tasks; returns why it does not work well, if it does not."""
        strategy = as_strategy(make_method(setup.method, setup.settings))
        strategy.check(net)
        strategy.check_tasks(stream.tasks)
        return strategy.advice(net)

    # -- tuning ---------------------------------------------------------------------------------------------------

    @classmethod
    def validation_sizes(cls, setup: Setup, context: Context) -> list[int]:
        """The validation images of each task."""
        stream, _ = build(setup, context.seed)
        return [task.validation.size for task in stream.tasks if task.validation is not None]

    @classmethod
    def most_samples(cls, setup: Setup, context: Context) -> int | None:
        """Every task and what is replayed, for all epochs; AFEC's θ_e from the second task on; both phases of P&C."""
        every = _task_sizes(setup, context.seed)
        sizes, classes = [size for size, _ in every], [count for _, count in every]
        schedule, _ = training_of(setup.training, context.device)
        terms = cls.terms(setup.method)
        again = sum(sizes[1:]) if "afec" in terms else 0
        again += sum(sizes) if "progress-compress" in terms else 0
        replayed = as_strategy(make_method(setup.method, setup.settings)).samples_replayed(classes, schedule.max_epochs)
        return schedule.max_epochs * (sum(sizes) + again) + replayed

    @classmethod
    def for_tuning(cls, setup: Setup, context: Context) -> Setup:
        """Where a task has no validation data, a part of its training data is held out; the configuration says so."""
        stream, _ = build(setup, context.seed)
        return setup if _validates(stream) else replace(setup, stream={**setup.stream, HOLD_OUT: PART})


def _origin(net: Readout) -> str:
    origin = getattr(net.backbone, "origin", "")
    return f"initial weights {origin}" if origin else ""


def _net_of(setup: Setup, stream: Stream, net: Readout, seed: int) -> Readout:
    """The net of this row: another one than that of the other rows where the classifier is the method's."""
    return new_net(setup, stream, seed) if setup.net.get("classifier") == OF_METHOD else net


def _validates(stream: Stream) -> bool:
    return all(task.validation is not None for task in (*stream.tasks, *stream.transfer))


def _check_net(section: Section) -> None:
    """Raise for a [net] section that is none: a backbone's name and options, and those of the readout."""
    name, zero = section.get("name"), section.get("zero_heads", False)
    if not isinstance(zero, bool):
        raise ValueError(f"net.zero_heads: expected true or false; got {zero!r}")
    kinds = (*get_args(ClassifierKind), OF_METHOD)
    if section.get("classifier", "linear") not in kinds:
        raise ValueError(f"net.classifier: {unknown('classifier', str(section['classifier']), kinds)}")
    options = {key: value for key, value in section.items() if key not in READOUT}
    if isinstance(name, str) and name in NETS:
        valid = {"name", *READOUT, *NETS[name].options}
        for key in options.keys() - valid:
            known = f"The net '{name}' has: {', '.join(sorted(valid))}"
            raise ValueError(f"net.{key}: unknown key{did_you_mean(key, valid) or '.'} {known}")
    check_backbone(options)


LEARNER = "learner.safetensors"
"""What predictions need of a finished run: `Learner.load` reads it."""
TRANSFER_COLUMNS = ("name", "validation", "test", "epochs")


def write_transfers(folder: Path, found: Sequence[LinearProbe]) -> None:
    """transfer.csv: how well linear probes learned on the final features."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TRANSFER_COLUMNS)
    writer.writerows(
        [t.name, *("" if math.isnan(v) else f"{v:.6f}" for v in (t.validation, t.test)), t.epochs] for t in found
    )
    write_text(folder / "transfer.csv", text.getvalue())
