"""`afec report`: the tables and figures of runs that are there, from their directories alone."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from afec.experiments import EXPERIMENTS, find_experiment
from afec.lab import RunConfig, RunDirectory, RunError, SpecError, find_runs
from afec.lab.spec import value_of
from afec.methods.expression import FINETUNE, terms_of
from afec.naming import unknown
from afec.report.figures import FIGURES as CHARTS
from afec.report.page import TileCache, page
from afec.report.plot import draw_figure
from afec.report.reading import Reading, damaged, read
from afec.report.rows import Row, one_problem, ordered, problems, readable, rows_of
from afec.report.study_figure import draw_study, heading
from afec.report.study_tables import print_tables, tables_of, to_csv
from afec.report.table import Table, to_latex, to_markdown
from afec.whole_files import why_unwritable, write_text

__all__ = ["FIGURES", "PICTURES", "report", "write"]

PICTURES = (".png", ".svg", ".pdf")
FIGURES = ("study", *CHARTS)
TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    ".csv": to_csv,
    ".md": lambda rows: to_markdown(_tables(rows)),
    ".tex": lambda rows: to_latex(_tables(rows)),
}
PAGES = (".html",)
PARTS = ("config.toml", "env.json", "scores.csv", "transfer.csv", "events.jsonl", "FAILED", "DONE")
WATCH_SECONDS = 5.0
Runs = list[tuple[RunConfig, RunDirectory]]


def report(
    console: Console,
    root: Path,
    figure: str | None,
    out: Path | None,
    where: list[str],
    watch: bool = False,
    pictures: bool = True,
) -> None:
    """Print the tables of the finished runs under `root`, or write them, one figure, or the page into `out`."""
    check_arguments(figure, out, where, watch)
    if not root.is_dir():
        raise RunError(f"there is no directory {root}; give the one that `afec run` wrote to")
    if out is not None and out.suffix in PAGES:
        _write_page(console, root, out, where, watch=watch, pictures=pictures)
        return
    found, states = chosen(root, where)
    done = [(config, run) for config, run in found if run.done]
    if not done:
        raise RunError(
            f"no finished run under {root} fits{' ' + ' '.join(where) if where else ''}; found {_in_words(states)}"
        )
    if out is None:
        print_tables(console, done)
    else:
        _write_file(console, done, out, figure)
    console.print(_in_words(states), highlight=False, soft_wrap=True)


def write(console: Console, runs: Runs, out: Path, figure: str | None, where: list[str], root: Path) -> None:
    """One file about these finished runs: a table, a figure or the page."""
    conditions = [_condition(text) for text in where]
    done = [pair for pair in runs if pair[1].done and all(_value(*pair, path) in values for path, values in conditions)]
    if not done:
        raise RunError(f"no run of the study fits {' '.join(where)}; change `where` of {out.name}")
    if out.suffix in PAGES:
        command = shlex.join(["afec", *sys.argv[1:]])
        _write(out, page([read(config, run) for config, run in done], str(root), command, watching=False, cache={}))
        console.print(f"page: {out}", highlight=False, soft_wrap=True)
    else:
        _write_file(console, done, out, figure)


def _tables(rows: Sequence[Row]) -> list[Table]:
    return [table for mark, group in problems(rows) for table in tables_of(group, mark)]


def _write_file(console: Console, done: Runs, out: Path, figure: str | None) -> None:
    if out.suffix in TABLES:
        _write(out, TABLES[out.suffix](rows_of(done)))
        console.print(f"table: {out}", highlight=False, soft_wrap=True)
        return
    try:
        _draw(out, figure or "study", done)
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        raise SpecError(f"--figure {figure or 'study'}: {error}") from error
    console.print(f"picture: {out}", highlight=False, soft_wrap=True)


def _draw(out: Path, figure: str, done: Runs) -> None:
    if figure == "study":
        draw_study(out, readable(done))
        return
    one_problem(done)
    rows = ordered(rows_of(done))
    draw_figure(out, CHARTS[figure](rows), heading(rows))


def _write_page(console: Console, root: Path, out: Path, where: list[str], *, watch: bool, pictures: bool) -> None:
    """The page, once or again and again until Ctrl-C; what is written last does not reload itself."""
    command = shlex.join(["afec", *sys.argv[1:]])
    library = Library(root, where, watching=watch)
    cache: TileCache | None = {} if pictures else None

    def write(readings: list[Reading], *, watching: bool) -> None:
        _write(out, page(readings, str(root), command, watching=watching, cache=cache))

    readings = library.readings()
    write(readings, watching=watch)
    console.print(f"page: {out}", highlight=False, soft_wrap=True)
    nothing = f"there is no run under {root}; give the directory that `afec run` wrote to"
    message = _in_words(library.states) if readings else nothing
    console.print(message, highlight=False, soft_wrap=True)
    if not watch:
        return
    console.print("watching; Ctrl-C ends it", highlight=False)
    try:
        while True:
            time.sleep(WATCH_SECONDS)
            if (now := library.readings()) != readings:
                readings = now
                write(readings, watching=True)
    except KeyboardInterrupt:
        write(library.readings(), watching=False)


def _write(out: Path, text: str) -> None:
    try:
        write_text(out, text)
    except OSError as error:
        raise _unwritable(out, error.strerror or str(error)) from error


def _unwritable(out: Path, why: str) -> SpecError:
    return SpecError(f"--out {out} cannot be written: {why}; give a file in a directory that you may write to")


class Library:
    """The runs under a directory; one that has not changed is not read again."""

    def __init__(self, root: Path, where: list[str], *, watching: bool = False) -> None:
        self.root, self.where, self.watching = root, where, watching
        self.states: Counter[str] = Counter()
        self._known: dict[Path, tuple[object, Reading]] = {}

    def readings(self) -> list[Reading]:
        """All of them, as they are now: those that fit, and those that nobody can read."""
        found, _ = chosen(self.root, self.where, watching=self.watching)
        readings = [self._read(run, config) for config, run in found]
        fits = {run.path for _, run in found}
        for run in find_runs(self.root):
            if run.path not in fits:
                try:
                    _ = (run.config, run.seed)  # it does not fit
                except RunError as error:
                    readings.append(damaged(run, str(error)))
        self.states = Counter(one.state for one in readings)
        return readings

    def _read(self, run: RunDirectory, config: RunConfig) -> Reading:
        state = tuple(
            (file.name, found.st_mtime_ns, found.st_size)
            for file in sorted(run.path.iterdir())
            if file.name in PARTS and (found := file.lstat())
        )
        known = self._known.get(run.path)
        if known is None or known[0] != state:
            self._known[run.path] = known = (state, read(config, run))
        return known[1]


def check_arguments(
    figure: str | None, out: Path | None, where: list[str], watch: bool = False, pictures: bool = True
) -> None:
    """Raise for options of `afec report` that do not fit together, before any directory is read."""
    if watch and (out is None or out.suffix not in PAGES):
        raise SpecError("--watch: give the page to keep fresh, e.g. -o report.html")
    if figure is not None and figure not in FIGURES:
        raise SpecError(f"--figure {figure}: {unknown('figure', figure, FIGURES)}")
    if figure is not None and (out is None or out.suffix in (*TABLES, *PAGES)):
        raise SpecError(f"--figure {figure}: give the file to draw it into, e.g. -o {figure}.png")
    if out and out.suffix not in (*PAGES, *PICTURES, *TABLES):
        raise SpecError(f"--out {out}: expected a file name that ends in {', '.join((*PAGES, *PICTURES, *TABLES))}")
    if out:
        _check_out(out)
    for text in where:
        _condition(text)


def _check_out(out: Path) -> None:
    """Raise where the file could not be written, before hours of work."""
    if out.is_dir():
        raise _unwritable(out, "it is a directory")
    if why := why_unwritable(out.absolute().parent):
        raise _unwritable(out, why)


def chosen(root: Path, where: list[str], *, watching: bool = False) -> tuple[Runs, Counter[str]]:
    """The runs that fit every condition, and how many are finished, failed, unfinished and damaged.

    A key, or a value, that no run has is an error which names those that there are. While a study is watched, a value may be
    one that is still to come.
    """
    conditions = [_condition(text) for text in where]
    known: list[list[object]] = [[] for _ in conditions]
    found: Runs = []
    states: Counter[str] = Counter()
    for run in find_runs(root):
        try:
            config, _ = run.config, run.seed
        except RunError:
            states["damaged"] += 1
            continue
        for (path, _), values in zip(conditions, known, strict=True):
            value = _value(config, run, path)
            if value is not None and value not in values:
                values.append(value)
        if all(_value(config, run, path) in values for path, values in conditions):
            found.append((config, run))
            states["finished" if run.done else "failed" if run.failure else "unfinished"] += 1
    read = len(find_runs(root))
    for text, (path, asked), values in zip(where, conditions, known, strict=True):
        if not values and read:
            raise SpecError(
                f"--where {text}: none of the {read} runs under {root} has this key; their config.toml shows all"
            )
        missing = [value for value in asked if value not in values]
        wrong = missing if len(missing) == len(asked) else [v for v in missing if path == ["method"] and not _names(v)]
        if read and wrong and not watching:
            message = unknown(".".join(path), str(wrong[0]), map(str, values))
            raise SpecError(f"--where {text}: {message} (in the {read} runs under {root})")
    return found, states


def _key(path: list[str]) -> str:
    return ".".join(path)


def _condition(text: str) -> tuple[list[str], list[object]]:
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise SpecError(
            f"--where {text!r}: expected key=value, e.g. scale=short, net.name=lenet or stream.setting=two-task"
        )
    return path, [_method(part) if path == ["method"] else value_of(part) for part in value.split(",")]


def _method(text: str) -> str:
    """As directories call it: `afec+ewc` is `ewc+afec`."""
    try:
        return "+".join(terms_of(text)) or FINETUNE
    except ValueError:
        return text.strip()


def _names(method: object) -> bool:
    """Whether this is the name of a method, be there a run of it or not."""
    try:
        references = {name for kind in map(find_experiment, EXPERIMENTS) for name in kind.references}
        return method in references or bool(terms_of(str(method))) or method == FINETUNE
    except ValueError:
        return False


def _value(config: RunConfig, run: RunDirectory, path: list[str]) -> object:
    if path == ["seed"]:
        return run.seed
    inner: object = config
    for part in ["settings", *path[1:]] if path[0] == "method" and len(path) > 1 else path:
        inner = inner.get(part) if isinstance(inner, dict) else getattr(inner, part, None)
    return inner


def _in_words(states: Counter[str]) -> str:
    kinds = ("finished", "unfinished", "failed", "damaged")
    return ", ".join(f"{states[kind]} {kind}" for kind in kinds if states[kind]) or "none at all"
