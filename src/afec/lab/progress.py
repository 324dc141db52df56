"""Live progress of a study: a table on a terminal, a line for each finished run elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from afec.experiments import Progress as Step
from afec.lab.engine import Job, Outcome

__all__ = ["LiveProgress"]


class LiveProgress(AbstractContextManager["LiveProgress"]):
    """What is running, done and failed, and about how long it will take."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self.done = self.skipped = self.failed = 0
        self.start = time.monotonic()
        self.running: dict[int, tuple[Job, Step | str]] = {}
        """Where each run is, or whom it waits for."""
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), console=console,
        )  # fmt: skip
        self.line = self.bar.add_task("runs", total=total, left="")
        self.live = Live(self._view(), console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveProgress:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.live.stop()

    def on_progress(self, index: int, job: Job, progress: Step) -> None:
        """A run has made a step."""
        self.running[index] = (job, progress)

    def on_wait(self, index: int, job: Job, holder: str) -> None:
        """A run waits until another process has ended it."""
        known = self.running.get(index)
        self.running[index] = (job, holder)
        if not self.console.is_terminal and known != (job, holder):
            print(f"[{self._took():5.0f} s] {job}: waits for {holder}", flush=True)

    def on_stop(self, running: int) -> None:
        """Say at once that Ctrl-C was heard: a step may be long."""
        if running:
            runs = "1 run ends its step and writes" if running == 1 else f"{running} runs end their steps and write"
            print(f"stopping: {runs} a checkpoint; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    def on_outcome(self, outcome: Outcome) -> None:
        """Show that a job has ended."""
        self.running = {index: pair for index, pair in self.running.items() if pair[0] != outcome.job}
        self.skipped += not outcome.fresh
        self.failed += outcome.error is not None
        self.done += 1
        self.bar.update(self.line, completed=self.done, left=self._time_left())
        if not self.console.is_terminal and outcome.fresh:
            what = "FAILED" if outcome.error else "done"
            print(f"[{self._took():5.0f} s] {self.done:3}/{self.total}  {outcome.job}: {what}", flush=True)

    def on_tick(self) -> None:
        """Redraw the display."""
        if self.console.is_terminal:
            self.live.update(self._view())

    def _took(self) -> float:
        return time.monotonic() - self.start

    def _time_left(self) -> str:
        fresh = self.done - self.skipped
        if not fresh or self.done == self.total:
            return ""
        seconds = self._took() / fresh * (self.total - self.done)
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"

    def _view(self) -> Group:
        table = Table(box=None, padding=(0, 2))
        for name in ("running", "seed", "task", "phase", "step", ""):
            table.add_column(name, justify="right" if name == "seed" else "left")
        for job, step in self.running.values():
            if isinstance(step, str):
                table.add_row(job.label, str(job.seed), f"waits for {step}")
                continue
            values = ", ".join(f"{key} {value:.4g}" for key, value in step.values.items() if type(value) is float)
            at = f"{step.unit} {step.step}"
            table.add_row(job.label, str(job.seed), f"{step.task + 1} {step.name}", step.phase, at, values)
        failed = f", {self.failed} failed" if self.failed else ""
        skipped = f", {self.skipped} were done before" if self.skipped else ""
        self.bar.update(self.line, description=f"runs{failed}{skipped}")
        return Group(table, self.bar)
