"""One run: a benchmark, a method and a seed, from the first task to the last, into its directory."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from afec.files import save_tree
from afec.lab.config import RunConfig
from afec.lab.directory import Row, RunDirectory
from afec.lab.hold_out import HOLD_OUT, held_out
from afec.lab.memory import peak_memory_mb, reset_peak_memory
from afec.learner import Learner, Memo, Progress, Stopwatch, TaskRecord
from afec.methods.expression import make_method
from afec.nets import MultiHead, Readout, SingleHead, make_backbone
from afec.randomness import forked, seed_from
from afec.streams import Stream, make_stream

__all__ = ["ORIGIN", "build", "origin", "run"]

CHECKPOINT_SECONDS = 30.0
BETWEEN = 20  # times as long as writing a checkpoint took, at least: AlexNet's has gigabytes


ORIGIN = "initial weights "


def build(config: RunConfig, seed: int) -> tuple[Stream, Readout]:
    """The seed's stream, and its net before any learning: the same for every method."""
    options = {key: value for key, value in config.stream.items() if key not in ("name", HOLD_OUT)}
    stream = make_stream(config.stream["name"], seed, **options)
    if HOLD_OUT in config.stream:
        stream = held_out(stream, config.stream[HOLD_OUT], seed)
    if stream.scenario != "task" and config.method == "scratch":
        raise ValueError("scratch learns each task alone, with outputs of its own: it knows the scenario 'task' only")
    return stream, _new_net(config, stream, seed)


def origin(net: Readout) -> str:
    """Where the initial weights are from, of a net that says so."""
    said = getattr(net.backbone, "origin", "")
    return f"{ORIGIN}{said}" if said else ""


def _new_net(config: RunConfig, stream: Stream, seed: int) -> Readout:
    """The seed's net before any learning."""
    options = {key: value for key, value in config.net.items() if key not in ("name", "zero_heads")}
    zero = config.net.get("zero_heads", False)
    with forked(seed_from("net", seed)):
        backbone = make_backbone(config.net["name"], **options)
        return (
            SingleHead(backbone, zero=zero)
            if stream.scenario == "class"
            else MultiHead(backbone, stream.outputs, zero=zero)
        )


def run(
    config: RunConfig,
    seed: int,
    root: Path,
    on_phase: Callable[[Progress], None] | None = None,
    *,
    on_wait: Callable[[str], None] | None = None,
    on_saved: Callable[[RunDirectory], None] | None = None,
    device: str | None = None,
) -> RunDirectory:
    """Run to the end, from the last checkpoint where there is one; a finished run is not run again.

    Trainings that no guard touches (the first task, θ_e) are shared by all runs of a benchmark, in `shared/`.

    Args:
        config: what to run.
        seed: its seed.
        root: where the run directories are.
        on_phase: called after every epoch; what it raises stops the run, which can be resumed.
        on_wait: told again and again who holds the run, while another process does; what it raises ends the waiting.
        on_saved: called when there is more in the directory.
        device: where to run, if not where the configuration says; the numbers may differ by rounding then.
    """
    directory = RunDirectory.of(root, config, seed)
    if directory.done:
        directory.tidy()
        return directory
    with directory.locked(on_wait):
        if not directory.done:  # another process may have done it meanwhile
            commit = directory.begin(config)["commit"]
            _Run(config, seed, directory, on_phase, on_saved, device, commit).to_end()
    return directory


class _Run:
    """A run in progress."""

    def __init__(
        self,
        config: RunConfig,
        seed: int,
        directory: RunDirectory,
        on_phase: Callable[[Progress], None] | None,
        on_saved: Callable[[RunDirectory], None] | None,
        device: str | None,
        commit: str,
    ) -> None:
        self.config, self.seed, self.directory = config, seed, directory
        self.on_phase, self.on_saved = on_phase, on_saved
        self.machine = config.machine_on(device)
        self.stream, net = build(config, seed)
        self.rows: list[Row] = []
        self.tasks_done = 0
        self.spent = {"wall_seconds": 0.0, "cpu_seconds": 0.0, "peak_memory_mb": 0.0}  # in earlier processes
        self.start, self.cpu, self.saved = time.monotonic(), time.process_time(), time.monotonic()
        reset_peak_memory()
        self.save_seconds = 0.0
        self.events: list[dict[str, Any]] = []
        benchmark = directory.path.parents[2]
        name = directory.path.relative_to(benchmark).as_posix()
        self.memo = Memo(benchmark / "shared", {"commit": commit, "run": name})
        self.learner = self._learner(net, config.method)
        self._take_up()
        if not self.rows and (words := origin(net)):
            self.directory.append_events([{"event": "origin", "text": words}])
        if self.machine.device != config.training["device"]:
            self._note(f"from here on on {self.machine.device}, not on {config.training['device']}")

    def _learner(self, net: Readout, method: str) -> Learner:
        guard = None if method in ("joint", "scratch") else make_method(method, self.config.settings)
        return Learner(
            net,
            guard,
            schedule=self.config.schedule,
            machine=self.machine,
            seed=self.seed,
            progress=False,
            on_phase=self._on_phase,
            memo=self.memo,
        )

    def to_end(self) -> None:
        """All tasks that are left."""
        learn = {"joint": self._learn_jointly, "scratch": self._learn_alone}.get(self.config.method, self._learn)
        if not self.rows:
            self._measure(0)
        for number in range(self.tasks_done, len(self.stream.tasks)):
            learned = learn(number)
            self.tasks_done = number + 1
            watch = Stopwatch()
            with watch.phase("evaluate"):
                self._measure(number + 1)
            event = {"event": "task", "task": number + 1, **asdict(learned)}
            event["seconds"] = {**learned.seconds, **watch.wall}
            event["cpu_seconds"] = {**learned.cpu_seconds, **watch.cpu}
            self.events.append(event)
            self._save()
        if self.config.method != "scratch":
            if self.stream.transfer:
                self.directory.write_transfer([self.learner.linear_probe(task) for task in self.stream.transfer])
                self._tell()
            file = self.directory.path / "weights" / f"task{len(self.stream.tasks)}.safetensors"
            save_tree(file, dict(self.learner.net.state_dict()))
        self.directory.finish(self._cost())

    def _learn(self, number: int) -> TaskRecord:
        return self.learner.learn(self.stream.tasks[number])

    def _learn_jointly(self, number: int) -> TaskRecord:
        return self.learner.learn_jointly(self.stream.tasks[: number + 1])

    def _learn_alone(self, number: int) -> TaskRecord:
        """From the random initial weights, with the head that the task has in every other run."""
        net = _new_net(self.config, self.stream, self.seed)
        assert isinstance(net, MultiHead)  # `build` refuses the scenario `class`
        alone = MultiHead(net.backbone, [self.stream.outputs[number]])
        alone.heads[0].load_state_dict(net.heads[number].state_dict())
        self.learner = self._learner(alone, "scratch")
        return self.learner.learn(self.stream.tasks[number])

    def _measure(self, after: int) -> None:
        """The accuracy of every task, learned or not; alone from scratch, of its own only."""
        tasks = list(enumerate(self.stream.tasks, start=1))
        if self.stream.scenario == "class":
            tasks = tasks[:after]  # no other class has an output
        if self.config.method == "scratch" and after > 0:
            tasks = [tasks[after - 1]]
        measured = [task for _, task in tasks]
        some = any(task.validation is None for task in measured)  # then no mean over the tasks means anything
        validations = [math.nan] * len(measured) if some else self.learner.evaluate(measured, "validation")
        found = zip(tasks, validations, self.learner.evaluate(measured, "test"), strict=True)
        self.rows += [Row(after, number, task.name, validation, test) for (number, task), validation, test in found]
        self.directory.write_accuracy(self.rows)

    def _on_phase(self, phase: Progress) -> None:
        if self.config.method == "scratch":
            phase = replace(phase, task=self.tasks_done)  # the learner of a task alone calls each its first
        self.events.append({"event": "epoch", "task": phase.task + 1, "phase": phase.phase, **asdict(phase.epoch)})
        saves = self.config.method != "scratch"
        if self.on_phase:
            try:
                self.on_phase(phase)
            except BaseException:  # stopped from outside: nothing that was learned is lost
                if saves:
                    self._save()
                raise
        if saves and time.monotonic() - self.saved > max(CHECKPOINT_SECONDS, BETWEEN * self.save_seconds):
            self._save()

    def _tell(self) -> None:
        self.directory.append_events(self.events)
        self.events = []

    def _save(self) -> None:
        start = time.monotonic()
        self._tell()
        state = {
            "learner": None if self.config.method == "scratch" else self.learner.state_dict(),
            "rows": [list(asdict(row).values()) for row in self.rows],
            "tasks_done": self.tasks_done,
            "cost": self._cost(),
        }
        self.directory.save_checkpoint(state)
        self.saved = time.monotonic()
        self.save_seconds = self.saved - start
        if self.on_saved:
            self.on_saved(self.directory)

    def _take_up(self) -> None:
        """Go on from the last whole checkpoint, where there is one; a damaged one is said so."""
        state, faults = self.directory.load_checkpoint(self._restore)
        how = "started anew" if state is None else "went on from the checkpoint before it"
        for fault in faults:
            self._note(f"{how}: {fault}")
            warnings.warn(f"{self.directory.path}: {how}: {fault}", RuntimeWarning, stacklevel=2)

    def _restore(self, state: dict[str, Any]) -> None:
        rows, done = [Row(*row) for row in state["rows"]], state["tasks_done"]
        spent = {key: float(state["cost"][key]) for key in self.spent}
        if type(done) is not int or not 0 <= done <= len(self.stream.tasks):
            raise ValueError(f"{done!r} of {len(self.stream.tasks)} tasks are done")
        if self.config.method != "scratch":
            try:
                self.learner.load_state_dict(state["learner"])
            except Exception:  # a part of it may be in the net
                self.learner = self._learner(_new_net(self.config, self.stream, self.seed), self.config.method)
                raise
        self.rows, self.tasks_done, self.spent = rows, done, spent

    def _note(self, text: str) -> None:
        self.directory.append_events([{"event": "note", "text": text}])

    def _cost(self) -> dict[str, float]:
        """Of this process and of those before it."""
        return {
            "wall_seconds": round(self.spent["wall_seconds"] + time.monotonic() - self.start, 3),
            "cpu_seconds": round(self.spent["cpu_seconds"] + time.process_time() - self.cpu, 3),
            "peak_memory_mb": round(max(self.spent["peak_memory_mb"], peak_memory_mb()), 1),
        }
