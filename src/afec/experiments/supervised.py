"""Supervised learning over a stream of tasks: the learner, a method and a net."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import TypeAdapter, ValidationError

from afec.experiments.base import Context, Experiment, OnProgress, Progress, Score, Section, Setup
from afec.experiments.hold_out import HOLD_OUT, PART, held_out
from afec.files import save_tree, write_text
from afec.learner import Learner, Machine, Memo, Phase, Schedule, StoppedError, TaskRecord, Transferred
from afec.methods.expression import METHODS, check_settings, make_method, terms_of, whole_settings
from afec.naming import did_you_mean, with_defaults
from afec.nets import NETS, MultiHead, check_backbone, make_backbone
from afec.randomness import forked, seed_from
from afec.strategy import as_strategy
from afec.streams import STREAMS, Stream, check_stream, make_stream

__all__ = ["Supervised", "build", "new_net", "training_of"]


def training_of(section: Section, device: str | None = None) -> tuple[Schedule, Machine]:
    """The two records that a [training] section describes; on another device, if one is given."""
    parts: list[Section] = [{}, {}]
    names = [{field.name for field in fields(record)} for record in (Schedule, Machine)]
    for key, value in (section | ({"device": device} if device else {})).items():
        if key not in names[0] | names[1]:
            raise ValueError(f"training.{key}: unknown key{did_you_mean(key, names[0] | names[1])}")
        parts[0 if key in names[0] else 1][key] = value
    if parts[0].get("patience") == "off":  # TOML has no None
        parts[0]["patience"] = None
    try:
        return TypeAdapter(Schedule).validate_python(parts[0]), TypeAdapter(Machine).validate_python(parts[1])
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise ValueError(f"training: {message}") from error
        raise ValueError(f"training.{'.'.join(map(str, first['loc']))}: {message}; got {first['input']!r}") from error


def build(setup: Setup, seed: int) -> tuple[Stream, MultiHead]:
    """The seed's stream, and its net before any learning: the same for every method."""
    options = {key: value for key, value in setup.stream.items() if key not in ("name", HOLD_OUT)}
    stream = make_stream(setup.stream["name"], seed, **options)
    if HOLD_OUT in setup.stream:
        stream = held_out(stream, setup.stream[HOLD_OUT], seed)
    return stream, new_net(setup, stream, seed)


def new_net(setup: Setup, stream: Stream, seed: int) -> MultiHead:
    """The seed's net before any learning."""
    backbone = {key: value for key, value in setup.net.items() if key not in ("name", "zero_heads")}
    with forked(seed_from("net", seed)):
        return MultiHead(
            make_backbone(setup.net["name"], **backbone), stream.outputs, zero=setup.net.get("zero_heads", False)
        )


class Supervised(Experiment):
    """A method over the tasks of a stream, one after the other."""

    description = "a method learns the tasks of a stream, one after the other"
    references: ClassVar[Mapping[str, str]] = {
        "joint": "afec.experiments.joint:Joint",
        "scratch": "afec.experiments.scratch:Scratch",
    }
    alternatives: ClassVar[Mapping[str, str]] = {"beta": "forgetting", "forgetting": "beta"}

    def __init__(self, setup: Setup, context: Context) -> None:
        super().__init__(setup, context)
        self.schedule, self.machine = training_of(setup.training, context.device)
        self.stream, net = build(setup, context.seed)
        self.tasks = [task.name for task in self.stream.tasks]
        self.origin = _origin(net)
        self._on_progress: OnProgress = lambda progress: None
        self.learner = self._learner(net)

    def _learner(self, net: MultiHead) -> Learner:
        return Learner(
            net,
            self._method(),
            schedule=self.schedule,
            machine=self.machine,
            seed=self.context.seed,
            progress=False,
            on_phase=self._tell,
            memo=None if self.context.shared is None else Memo(self.context.shared),
        )

    def _method(self) -> Any:
        return make_method(self.setup.method, self.setup.settings)

    def _tell(self, phase: Phase) -> None:
        epoch = asdict(phase.epoch)
        number = epoch.pop("number")
        self._on_progress(Progress(self._number(phase), phase.name, phase.phase, number, "epoch", epoch))
        if self.context.stop.asked:
            raise StoppedError

    def _number(self, phase: Phase) -> int:
        return phase.task

    # -- a run ----------------------------------------------------------------------------------------------------

    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """The next task of the stream."""
        self._on_progress = on_progress
        return self.learner.learn(self.stream.tasks[number])

    def measure(self, after: int) -> list[Score]:
        """The accuracy of every task, learned or not."""
        return self._scores(after, list(enumerate(self.stream.tasks, start=1)))

    def _scores(self, after: int, tasks: Sequence[tuple[int, Any]]) -> list[Score]:
        measured = [task for _, task in tasks]
        some = any(task.validation is None for task in measured)  # then no mean over the tasks means anything
        validations = [math.nan] * len(measured) if some else self.learner.evaluate(measured, "validation")
        found = zip(tasks, validations, self.learner.evaluate(measured, "test"), strict=True)
        return [
            Score(after, number, task.name, validation, test, task.test.size)
            for (number, task), validation, test in found
        ]

    def state_dict(self) -> dict[str, Any]:
        """The learner's."""
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
            write_transfers(folder, [self.learner.transfer(task) for task in self.stream.transfer])
        file = folder / "weights" / f"task{len(self.stream.tasks)}.safetensors"
        save_tree(file, dict(self.learner.net.state_dict()))

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
            check_stream({key: value for key, value in values.items() if key != HOLD_OUT})
            return with_defaults(STREAMS, values)
        _check_net(values)
        return {"zero_heads": False, **with_defaults(NETS, values)}

    @classmethod
    def terms(cls, method: str) -> tuple[str, ...]:
        """The terms of the sum; `finetune` has none."""
        return terms_of(method)

    @classmethod
    def known_terms(cls) -> Iterable[str]:
        """The methods."""
        return METHODS

    @classmethod
    def complete_term(cls, term: str, settings: Section) -> Section:
        """What the term's preset says is written out."""
        check_settings(term, settings)
        return whole_settings(term, settings)

    @classmethod
    def complete_method(cls, method: str, settings: dict[str, Section]) -> tuple[str, dict[str, Section]]:
        """The sum, sorted; it is made once, so that a value that cannot be is said."""
        from afec.methods.expression import FINETUNE

        _, whole = super().complete_method(method, settings)
        name = "+".join(cls.terms(method)) or FINETUNE
        make_method(name, whole)
        return name, whole

    @classmethod
    def check(cls, setups: Sequence[Setup], context: Context) -> list[str]:
        """Make each stream and net once, send one image through it, and ask each method whether it goes with the net."""
        kinds: dict[str, list[Setup]] = {}
        for setup in setups:
            kinds.setdefault(repr((setup.stream, setup.net)), []).append(setup)
        origins: dict[str, None] = {}
        for alike in kinds.values():
            stream, net = build(alike[0], context.seed)
            task = stream.tasks[0]
            image = task.train.inputs[:1]
            with torch.no_grad():
                net.eval()(image if task.prepare is None else task.prepare(image), task=0)
            if said := _origin(net):
                origins[said] = None
            for setup in alike:
                schedule, _ = training_of(setup.training, context.device)
                if not _validates(stream):
                    schedule.check_without_validation()
                cls._check_method(setup, net)
        return list(origins)

    @classmethod
    def _check_method(cls, setup: Setup, net: MultiHead) -> None:
        as_strategy(make_method(setup.method, setup.settings)).check(net)

    # -- tuning ---------------------------------------------------------------------------------------------------

    @classmethod
    def for_tuning(cls, setup: Setup, context: Context) -> Setup:
        """Where a task has no validation data, a part of its training data is held out; the configuration says so."""
        stream, _ = build(setup, context.seed)
        return setup if _validates(stream) else replace(setup, stream={**setup.stream, HOLD_OUT: PART})


def _origin(net: MultiHead) -> str:
    said = getattr(net.backbone, "origin", "")
    return f"initial weights {said}" if said else ""


def _validates(stream: Stream) -> bool:
    return all(task.validation is not None for task in (*stream.tasks, *stream.transfer))


def _check_net(section: Section) -> None:
    """Raise for a [net] section that is none: a backbone's name and options, and `zero_heads`, which every net has."""
    name, zero = section.get("name"), section.get("zero_heads", False)
    if not isinstance(zero, bool):
        raise ValueError(f"net.zero_heads: expected true or false; got {zero!r}")
    options = {key: value for key, value in section.items() if key != "zero_heads"}
    if isinstance(name, str) and name in NETS:
        valid = {"name", "zero_heads", *NETS[name].options}
        for key in options.keys() - valid:
            known = f"The net '{name}' has: {', '.join(sorted(valid))}"
            raise ValueError(f"net.{key}: unknown key{did_you_mean(key, valid) or '.'} {known}")
    check_backbone(options)


TRANSFER_COLUMNS = ("name", "validation", "test", "epochs")


def write_transfers(folder: Path, found: Sequence[Transferred]) -> None:
    """transfer.csv: how well linear probes learned on the final features."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TRANSFER_COLUMNS)
    writer.writerows(
        [t.name, *("" if math.isnan(v) else f"{v:.6f}" for v in (t.validation, t.test)), t.epochs] for t in found
    )
    write_text(folder / "transfer.csv", text.getvalue())
