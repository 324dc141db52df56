"""Studies as TOML: which runs belong together, and which tables and figures come out of them.

description = "…"                 one sentence
paper = "Table 2"                 what of the paper it is, where it is something of it

[[tune]]                          searches that come first; their choices hold for all runs of the same benchmark and scale
benchmark = "digits-regression"
methods = ["ewc", "ewc+afec"]
seeds = 3                         from `first_seed` on, by default 100: never one that is reported
trials = 4                        so many of each grid; by default all of it

[[runs]]                          benchmarks × methods × settings × seeds, as `afec run` takes them
benchmarks = ["digits-regression"]
methods = ["finetune", "ewc", "ewc+afec"]
seeds = 5
scale = "short"
set = ["method.ewc.strength=10,100"]
tuned = true                      with the strengths that [[tune]] has found

[[outputs]]                       files; what they are, their endings say
file = "table.csv"                .csv: every seed; .md and .tex: the tables; .html: the page; .png, .svg, .pdf: a figure
figure = "strength"               which one
where = ["method=ewc,ewc+afec"]   of which runs, as `afec report` takes it

[scale.smoke]                     what another scale of the study changes in every [[runs]] and [[tune]]
scale = "smoke"
seeds = 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from afec.lab.config import parse_set
from afec.lab.engine import Job, labelled
from afec.lab.plan import plan
from afec.lab.run import HERE, Place
from afec.lab.spec import FULL, Changes, load_benchmark, merged
from afec.lab.toml_file import SpecError, TomlText, names_of, read, validated
from afec.naming import did_you_mean, unknown

__all__ = ["Output", "Runs", "Study", "TunedFor", "Tuning", "load_study", "study_names"]

TUNING_SEED = 100
TunedFor = Callable[[str, str, str], Changes | None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    methods: list[str] = Field(min_length=1)
    seeds: int = Field(default=5, ge=1)
    scale: str = FULL
    set: list[str] = Field(default_factory=list)

    def sets_of(self, method: str) -> list[str]:
        """The settings of `set` that this method has: a list for several methods says something about each."""
        terms = method.partition("@")[0].split("+")
        paths = [(text, parse_set(text)[0]) for text in self.set]
        return [text for text, path in paths if path[0] != "method" or path[1] in terms]


class Tuning(_Part):
    """Strengths that are searched before the runs."""

    benchmark: str
    seeds: int = Field(default=3, ge=1)
    first_seed: int = Field(default=TUNING_SEED, ge=0)
    trials: int | None = Field(default=None, ge=1)
    together: bool = False


class Runs(_Part):
    """Runs, as `afec run` takes them."""

    benchmarks: list[str] = Field(min_length=1)
    first_seed: int = Field(default=0, ge=0)
    tuned: bool = False


class Output(BaseModel):
    """One file that a study writes."""

    model_config = ConfigDict(extra="forbid")
    file: str
    figure: str | None = None
    where: list[str] = Field(default_factory=list)


class Study(BaseModel):
    """One study file."""

    model_config = ConfigDict(extra="forbid")
    name: str
    description: str
    paper: str = ""
    published: bool = False
    """Whether its results are in the project: `make evidence` then keeps them complete."""
    tune: list[Tuning] = Field(default_factory=list)
    runs: list[Runs] = Field(min_length=1)
    outputs: list[Output] = Field(min_length=1)
    scale: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def scales(self) -> list[str]:
        """The scales that can be asked for."""
        return [FULL, *self.scale]

    def at(self, scale: str) -> Study:
        """The study at another scale."""
        if scale == FULL:
            return self
        if scale not in self.scale:
            raise SpecError(unknown(f"scale of the study {self.name}", scale, self.scales))
        changes = self.scale[scale]
        parts = {kind: [_changed(part, changes) for part in getattr(self, kind)] for kind in ("tune", "runs")}
        return self.model_copy(update=parts)

    def jobs(self, tuned: TunedFor | None = None, place: Place = HERE) -> list[Job]:
        """All its runs, seed by seed, so that a study that is stopped has whole comparisons for its first seeds.

        `tuned` gives the settings that a search has found for a method on a benchmark at a scale, or None.
        """
        found: dict[tuple[int, str, str, str], Job] = {}
        for part in self.runs:
            seeds = range(part.first_seed, part.first_seed + part.seeds)
            for benchmark in part.benchmarks:
                for method in part.methods:
                    chosen = tuned(benchmark, method, part.scale) if tuned and part.tuned else None
                    for job in plan([benchmark], [method], seeds, part.scale, part.sets_of(method), chosen, place):
                        found.setdefault((job.seed, job.config.benchmark, job.config.label, job.config.hash), job)
        return labelled([found[key] for key in sorted(found, key=lambda key: key[0])])


def _changed(part: _Part, changes: dict[str, Any]) -> _Part:
    known = {key: value for key, value in changes.items() if key in type(part).model_fields}
    return type(part).model_validate(merged(part.model_dump(), known))


PARTS: dict[object, type[BaseModel]] = {"tune": Tuning, "runs": Runs, "outputs": Output}


def study_names() -> list[str]:
    """The studies that come with the package."""
    return names_of("study")


def load_study(name_or_path: str) -> Study:
    """A study of the package by its name, or any TOML file by its path."""
    return parse_study(*read("study", name_or_path, study_names()))


def parse_study(text: str, name: str, where: str) -> Study:
    """A study from its text; `where` is how errors call the file."""
    study = validated("study", TomlText(text, name, where), Study, lambda place: PARTS.get(place[0], Study))
    _check(study, where)
    return study


def _check(study: Study, where: str) -> None:
    """Everything that can be known before a run: benchmarks, methods, settings, scales, endings of files."""
    for name, changes in study.scale.items():
        valid = set(Runs.model_fields) | set(Tuning.model_fields)
        for key in changes.keys() - valid:
            raise SpecError(f"{where}: scale.{name}.{key}: unknown key{did_you_mean(key, valid)}")
    for output in study.outputs:
        if output.figure and Path(output.file).suffix not in (".png", ".svg", ".pdf"):
            raise SpecError(f"{where}: outputs: {output.file} has a figure, so its name ends in .png, .svg or .pdf")
        if Path(output.file).is_absolute() or ".." in Path(output.file).parts:
            raise SpecError(f"{where}: outputs: {output.file}: give a name inside the folder of the results")
    for scale in study.scales:
        scaled = study.at(scale)
        reported = {seed for part in scaled.runs for seed in range(part.first_seed, part.first_seed + part.seeds)}
        for search in scaled.tune:
            seeds = set(range(search.first_seed, search.first_seed + search.seeds))
            if seeds & reported:
                raise SpecError(
                    f"{where}: tune: seed {min(seeds & reported)} is also reported; give another first_seed"
                )
            _plan(scaled, [search.benchmark], search.methods, search.scale, search.set, where)
        for part in scaled.runs:
            if part.tuned and not scaled.tune:
                raise SpecError(f"{where}: runs: tuned = true, and there is no [[tune]] that could find the strengths")
            _plan(scaled, part.benchmarks, part.methods, part.scale, part.set, where)


def _plan(study: Study, benchmarks: Sequence[str], methods: list[str], scale: str, sets: list[str], where: str) -> None:
    try:
        for benchmark in benchmarks:
            load_benchmark(benchmark)
        plan(benchmarks, methods, [0], scale, sets)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error
