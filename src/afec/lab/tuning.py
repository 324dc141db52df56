"""Tuning on validation accuracy: the paper's procedure, or all at once; a grid, or TPE.

The paper's procedure is λ first, without AFEC; then λ_e (or β) with that λ kept. Every trial is an ordinary run directory on
seeds that are not reported, so a tuning that is stopped goes on where it was, and nothing is run twice. Only validation
accuracy is looked at; `afec.lab.choice` says what its noise leaves open.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tomli_w

from afec.data.root import data_root_is
from afec.experiments import Context, Experiment
from afec.lab.choice import Choice, Trial, choose, effective_images
from afec.lab.config import RunConfig, resolve
from afec.lab.directory import RunDirectory, RunError
from afec.lab.engine import Job, MakePool, Outcome, Watcher, execute, labelled
from afec.lab.plan import check_runnable
from afec.lab.run import HERE, Place
from afec.lab.spec import FULL, Benchmark, SpecError, merged
from afec.randomness import seed_from

__all__ = [
    "Plan",
    "Space",
    "Stage",
    "Trial",
    "Tuned",
    "planned",
    "rehearse",
    "stages",
    "trials_of",
    "tune",
    "without_grid",
]

Run = Callable[[Sequence[Job]], list[Outcome]]
Space = dict[str, tuple[float, ...]]
"""The values of each setting, by `term.setting`."""
Search = Literal["grid", "tpe"]
TPE_TRIALS = 20
BATCH = 4  # trials that TPE is asked for at once, whatever the number of workers: the same trials everywhere


@dataclass(frozen=True)
class Stage:
    """One search: a method, what is searched, and what an earlier stage has found."""

    method: str
    space: Space
    kept: dict[str, float] = field(default_factory=dict)
    images: float = math.inf
    """How many validation images the mean of a trial rests on."""


@dataclass(frozen=True)
class Tuned:
    """The result of a tuning: its trials and the choice."""

    method: str
    best: dict[str, float]
    trials: tuple[Trial, ...]
    kind: type[Experiment]

    @property
    def choices(self) -> dict[str, Choice]:
        """What was taken in each stage, and what noise leaves open."""
        stages: dict[str, list[Trial]] = {}
        for trial in self.trials:
            stages.setdefault(trial.stage, []).append(trial)
        return {stage: choose(found) for stage, found in stages.items()}

    @property
    def remarks(self) -> list[str]:
        """How sure each choice is, in words."""
        return [text for choice in self.choices.values() for text in (str(choice), choice.warning) if text]

    def to_toml(self, comment: str) -> str:
        """What `afec run --tuned` takes, for the method and for what was tuned on the way to it; β as the λ_e it stands for.

        Comments have every trial with its spread, and how sure the choice is.
        """
        section: dict[str, Any] = {}
        bests = {stage: choice.trial.values for stage, choice in self.choices.items()}
        for stage, values in {**bests, self.method: self.best}.items():
            terms, name = _settings(self.kind, values), stage.partition("@")[0]
            section |= {name: terms} if len(terms) > 1 else terms
        trials = [f"{trial.stage}: {trial.label}: {trial.numbers}" for trial in self.trials]
        title = f"validation {self.kind.score.title} of every trial, mean ± standard deviation over the seeds:"
        head = "".join(f"# {line}\n" for line in [*comment.splitlines(), *self.remarks, title, *trials])
        return head + tomli_w.dumps({"method": section})

    def to_csv(self) -> str:
        """One line a trial and seed."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        average = self.kind.score.average.lower().replace(" ", "_")
        writer.writerow(["stage", "settings", "seed_number", f"validation_{average}"])
        for trial in self.trials:
            settings = " ".join(f"{key}={repr(value).removesuffix('.0')}" for key, value in trial.values.items())
            for place, score in enumerate(trial.scores or (math.nan,)):
                writer.writerow([trial.stage, settings, place, f"{score:.6f}"])
        return text.getvalue()


def stages(config: RunConfig, *, together: bool) -> list[tuple[str, tuple[str, ...]]]:
    """The searches: method (of the variant) and the terms whose settings are searched in it, in order."""
    found = config.kind.stages(config.method, together=together)
    if not any(terms for _, terms in found):
        raise SpecError(f"{config.method} has nothing to tune; give a method with a strength, such as ewc or ewc+afec")
    suffix = f"@{config.variant}" if config.variant else ""
    return [(method + suffix, terms) for method, terms in found]


@dataclass(frozen=True)
class Plan:
    """What is searched, on which seeds, and how."""

    benchmark: Benchmark
    method: str
    scale: str = FULL
    sets: dict[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = tuple(range(100, 103))
    search: Search = "grid"
    trials: int | None = None
    """Of each stage; by default the whole grid, or 20 with TPE."""
    together: bool = False
    """λ and λ_e at once, instead of λ first."""
    beta: bool = False
    """β in place of λ_e."""
    place: Place = HERE
    """Where the trials run."""


def planned(plan: Plan) -> list[tuple[str, Space]]:
    """The stages with what each of them searches."""
    config = resolve(plan.benchmark, plan.method, plan.scale, plan.sets)
    found = []
    for method, searched in stages(config, together=plan.together):
        space: Space = {}
        for term in searched:
            settings, grid = config.settings.get(term, {}), plan.benchmark.tune.get(term, {})
            try:
                values = config.kind.search_space(term, grid, settings, beta=plan.beta)
            except ValueError as error:
                raise SpecError(f"{plan.benchmark.name}: {error}") from error
            space |= {f"{term}.{key}": points for key, points in values.items()}
        found.append((method, space))
    _check_sets(plan, {key for _, space in found for key in space})
    return found


def without_grid(plan: Plan) -> list[str]:
    """The terms whose default grid is searched, because the benchmark has none."""
    config = resolve(plan.benchmark, plan.method, plan.scale, plan.sets)
    terms = [term for _, searched in stages(config, together=plan.together) for term in searched]
    grids = plan.benchmark.tune
    return [term for term in terms if not config.kind.has_grid(term, grids.get(term, {}), beta=plan.beta)]


def _check_sets(plan: Plan, searched: set[str]) -> None:
    """Raise for a value that the search would overwrite."""
    same = plan.benchmark.kind.alternatives
    for term, settings in plan.sets.get("method", {}).items():
        for key in settings:
            for name in {f"{term}.{key}", f"{term}.{same.get(key, key)}"} & searched:
                raise SpecError(
                    f"--set method.{term}.{key}: {name} is what this tuning searches; leave it out, or change the grid in "
                    f"[tune.{term}]"
                )


def trials_of(plan: Plan) -> int:
    """How many trials there will be, over all stages."""
    wholes = [math.prod(map(len, space.values())) for _, space in planned(plan)]
    if plan.search == "tpe":
        return (plan.trials or TPE_TRIALS) * len(wholes)
    return sum(min(plan.trials or whole, whole) for whole in wholes)


def tune(
    plan: Plan,
    root: Path,
    workers: int,
    watcher: Watcher | None = None,
    *,
    board: Path | None = None,
    pool: MakePool | None = None,
) -> Tuned:
    """Search stage by stage; what is done already is not done again. The arguments are those of `execute`."""
    run = partial(execute, root=root, workers=workers, watcher=watcher, board=board, pool=pool)
    kept: dict[str, float] = {}
    trials: list[Trial] = []
    for stage in _stages(plan):
        stage = replace(stage, kept=kept)
        found = list(_search(plan, stage, run))
        if not any(trial.scores for trial in found):
            raise RunError(f"every trial of {stage.method} failed; the directories under {root} have the tracebacks")
        trials += found
        kept = choose(found).trial.values
    return Tuned(stage.method, kept, tuple(trials), plan.benchmark.kind)


def rehearse(plan: Plan, root: Path) -> list[tuple[Stage, list[dict[str, float]], list[Job]]]:
    """The stages with their points and runs, as far as they can be known before anything is run.

    What a stage keeps of an earlier one that is not done is the middle of its grid, and the points of TPE are spread evenly:
    such runs cost what the real ones will.
    """
    found: list[tuple[Stage, list[dict[str, float]], list[Job]]] = []
    kept: dict[str, float] = {}
    for stage in _stages(plan):
        stage = replace(stage, kept=kept)
        points = _points(plan, stage) if plan.search == "grid" else _spread(stage.space, plan.trials or TPE_TRIALS)
        jobs = _jobs(plan, stage, points)
        found.append((stage, points, jobs))
        kept = {**kept, **{key: sorted(values)[len(values) // 2] for key, values in stage.space.items()}}
        runs = [RunDirectory.of(root, job.config, job.seed) for job in jobs]
        if plan.search == "grid" and all(run.done for run in runs):
            kept = choose(list(_trials(plan, stage, points, runs))).trial.values
    return found


def _stages(plan: Plan) -> list[Stage]:
    """The searches, with what there is to measure on; nothing of an earlier stage is kept yet."""
    searched = planned(plan)
    config = resolve(plan.benchmark, plan.method, plan.scale, plan.sets)
    check_runnable([Job(config, plan.seeds[0], plan.place)])  # what is tuned for could not be run otherwise
    with data_root_is(plan.place.data):
        sizes = config.kind.validation_sizes(_for_tuning(plan, config), Context(plan.seeds[0], plan.place.device))
    images = effective_images(sizes, len(plan.seeds))
    return [Stage(method, space, images=images) for method, space in searched]


def _points(plan: Plan, stage: Stage) -> list[dict[str, float]]:
    """The grid in the order of the file, or a fixed part of it."""
    points = [dict(zip(stage.space, point, strict=True)) for point in itertools.product(*stage.space.values())]
    if plan.trials and plan.trials < len(points):
        chosen = random.Random(_seed(plan, stage)).sample(range(len(points)), plan.trials)
        points = [points[place] for place in sorted(chosen)]
    return points


def _spread(space: Space, count: int) -> list[dict[str, float]]:
    """So many points between the smallest and the largest value of each setting."""
    parts = [(number + 0.5) / count for number in range(count)]
    return [{k: min(v) + part * (max(v) - min(v)) for k, v in space.items()} for part in parts]


def _seed(plan: Plan, stage: Stage) -> int:
    return seed_from("tune", plan.benchmark.name, stage.method) % 2**31


def _search(plan: Plan, stage: Stage, run: Run) -> Iterator[Trial]:
    """The grid at once; TPE a few at a time, each time knowing what came of those before."""
    if plan.search == "grid":
        yield from _run(plan, stage, _points(plan, stage), run)
        return
    optuna = _optuna()
    with warnings.catch_warnings():  # some versions call `constant_liar` experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=_seed(plan, stage), constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    ranges = {
        key: optuna.distributions.FloatDistribution(min(values), max(values), log=min(values) > 0)
        for key, values in stage.space.items()
    }
    count = plan.trials or TPE_TRIALS
    for start in range(0, count, BATCH):
        asked = [study.ask(ranges) for _ in range(min(BATCH, count - start))]
        points = [{key: float(value) for key, value in trial.params.items()} for trial in asked]
        for trial, found in zip(asked, _run(plan, stage, points, run), strict=True):
            if found.scores:
                study.tell(trial, found.score)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            yield found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise SpecError("the search `tpe` needs Optuna: pip install 'afec[tune]', or use the search `grid`") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _run(plan: Plan, stage: Stage, points: Sequence[dict[str, float]], run: Run) -> Iterator[Trial]:
    """The trials at these points, all seeds of all of them at once."""
    outcomes = run(_jobs(plan, stage, points))
    return _trials(plan, stage, points, [None if one.error else one.directory for one in outcomes])


def _jobs(plan: Plan, stage: Stage, points: Sequence[dict[str, float]]) -> list[Job]:
    values = [{**stage.kept, **point} for point in points]
    return labelled([Job(_config(plan, stage, one), seed, plan.place) for one in values for seed in plan.seeds])


def _trials(
    plan: Plan, stage: Stage, points: Sequence[dict[str, float]], runs: Sequence[RunDirectory | None]
) -> Iterator[Trial]:
    """What the runs of these points came to; None is one that failed."""
    for place, point in enumerate(points):
        own = runs[place * len(plan.seeds) : (place + 1) * len(plan.seeds)]
        done = [run for run in own if run is not None and run.done]
        kind = plan.benchmark.kind.score
        scores = tuple(run.average("validation") for run in done) if len(done) == len(own) else ()
        values = {**stage.kept, **point}
        yield Trial(stage.method, values, scores if all(map(math.isfinite, scores)) else (), stage.images, kind)


def _config(plan: Plan, stage: Stage, values: Mapping[str, float]) -> RunConfig:
    kind = plan.benchmark.kind
    config = resolve(plan.benchmark, stage.method, plan.scale, merged(plan.sets, {"method": _settings(kind, values)}))
    return _for_tuning(plan, config)


def _for_tuning(plan: Plan, config: RunConfig) -> RunConfig:
    """The same run with validation data, where the benchmark has none."""
    with data_root_is(plan.place.data):
        found = config.kind.for_tuning(config, Context(plan.seeds[0], plan.place.device))
    assert isinstance(found, RunConfig), "for_tuning changes sections, and nothing else"
    return found


def _settings(kind: type[Experiment], values: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """`term.setting` as tables of the terms, as a configuration has them: a run has one name, and one hash."""
    terms: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        term, _, setting = key.rpartition(".")
        terms.setdefault(term, {})[setting] = value
    return {term: dict(kind.searched_settings(term, settings)) for term, settings in terms.items()}
