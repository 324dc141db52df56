"""Tuning on validation accuracy: the paper's procedure, or all at once; a grid, or TPE.

The paper's procedure is λ first, without AFEC; then λ_e (or β) with that λ kept. Every trial is an ordinary run directory on
seeds that are not reported, so a tuning that is stopped goes on where it was, and nothing is run twice. Only validation
accuracy is looked at.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import tomli_w

from afec.gaussian import forgetting_from_beta
from afec.experiments import Context
from afec.lab.config import RunConfig, resolve
from afec.lab.directory import RunError
from afec.lab.engine import Job, Outcome, Watcher, execute, labelled
from afec.lab.grids import Space, search_space
from afec.lab.run import Place
from afec.lab.spec import FULL, Benchmark, SpecError, merged
from afec.lab.study import check_runnable
from afec.methods.expression import terms_of
from afec.metrics import aac
from afec.randomness import seed_from

__all__ = ["Plan", "Space", "Stage", "Trial", "Tuned", "planned", "search_space", "stages", "trials_of", "tune"]

Run = Callable[[Sequence[Job]], list[Outcome]]
Search = Literal["grid", "tpe"]
TPE_TRIALS = 20
BATCH = 4  # trials that TPE is asked for at once, whatever the number of workers: the same trials everywhere


@dataclass(frozen=True)
class Stage:
    """One search: a method, what is searched, and what an earlier stage has found."""

    method: str
    space: Space
    kept: dict[str, float] = field(default_factory=dict)
    hold_out: bool = False
    """Whether validation data are taken from the training data, because there are no others."""


@dataclass(frozen=True)
class Trial:
    """One point that was tried."""

    stage: str
    values: dict[str, float]
    """Of all settings, searched and kept."""
    scores: tuple[float, ...]
    """Averaged validation accuracy of each seed; empty where a run failed."""

    @property
    def score(self) -> float:
        """The mean over the seeds; below everything where a run failed."""
        return fmean(self.scores) if self.scores else -math.inf


@dataclass(frozen=True)
class Tuned:
    """What a tuning came to."""

    method: str
    best: dict[str, float]
    trials: tuple[Trial, ...]

    def to_toml(self, comment: str) -> str:
        """What `afec run --tuned` takes, for the method and for what was tuned on the way to it; β as the λ_e it stands for."""
        bests: dict[str, dict[str, float]] = {}
        for trial in sorted(self.trials, key=lambda trial: -trial.score):  # of equal ones the first wins
            bests.setdefault(trial.stage, trial.values)
        section: dict[str, Any] = {}
        for stage, values in {**bests, self.method: self.best}.items():
            terms, name = _settings(values), stage.partition("@")[0]
            section |= {name: terms} if len(terms) > 1 else terms
        head = "".join(f"# {line}\n" for line in comment.splitlines())
        return head + tomli_w.dumps({"method": section})

    def to_csv(self) -> str:
        """One line a trial and seed."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["stage", "settings", "seed_number", "validation_aac"])
        for trial in self.trials:
            settings = " ".join(f"{key}={repr(value).removesuffix('.0')}" for key, value in trial.values.items())
            for place, score in enumerate(trial.scores or (math.nan,)):
                writer.writerow([trial.stage, settings, place, f"{score:.6f}"])
        return text.getvalue()


def stages(config: RunConfig, *, together: bool) -> list[tuple[str, list[str]]]:
    """The searches: method (of the variant) and the terms whose settings are searched in it, in order."""
    terms = [] if config.method in REFERENCES else list(terms_of(config.method))
    if not terms:
        raise SpecError(f"{config.method} has nothing to tune; give a method with a strength, such as ewc or ewc+afec")
    others = [term for term in terms if term != "afec"]
    if together or not others or "afec" not in terms:
        return [(config.label, terms)]
    return [("+".join(others) + config.label.removeprefix(config.method), others), (config.label, ["afec"])]


@dataclass(frozen=True)
class Plan:
    """How to tune."""

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


def planned(plan: Plan) -> list[tuple[str, Space]]:
    """The stages with what each of them searches."""
    config = resolve(plan.benchmark, plan.method, plan.scale, plan.sets)
    found = []
    for method, searched in stages(config, together=plan.together):
        space: Space = {}
        for term in searched:
            space |= search_space(plan.benchmark, config, term, beta=plan.beta)
        found.append((method, space))
    _check_sets(plan.sets.get("method", {}), {key for _, space in found for key in space})
    return found


def _check_sets(sets: Mapping[str, Mapping[str, Any]], searched: set[str]) -> None:
    """Raise for a value that the search would overwrite."""
    for term, settings in sets.items():
        for key in settings:
            for name in {f"{term}.{key}", f"{term}.{TWINS.get(key, key)}"} & searched:
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


def tune(plan: Plan, root: Path, workers: int, watcher: Watcher | None = None, *, board: Path | None = None) -> Tuned:
    """Search stage by stage; what is done already is not done again. The arguments are those of `execute`."""
    run = partial(execute, root=root, workers=workers, watcher=watcher, board=board)
    kept: dict[str, float] = {}
    trials: list[Trial] = []
    searched = planned(plan)
    first = Job(resolve(plan.benchmark, plan.method, plan.scale, plan.sets), plan.seeds[0])
    hold_out = not has_validation(first)
    if hold_out:
        check_buildable([first])  # what is tuned for could not be run otherwise
    for method, space in searched:
        stage = Stage(method, space, dict(kept), hold_out)
        found = list(_search(plan, stage, run))
        trials += found
        best = max(found, key=lambda trial: trial.score)
        if not best.scores:
            raise RunError(f"every trial of {method} failed; the directories under {root} have the tracebacks")
        kept = dict(best.values)
    return Tuned(method, kept, tuple(trials))


def _search(plan: Plan, stage: Stage, run: Run) -> Iterator[Trial]:
    """The grid at once, in the order of the file; TPE a few at a time, each time knowing what came of those before."""
    seed = seed_from("tune", plan.benchmark.name, stage.method) % 2**31
    if plan.search == "grid":
        points = [dict(zip(stage.space, point, strict=True)) for point in itertools.product(*stage.space.values())]
        if plan.trials and plan.trials < len(points):
            chosen = random.Random(seed).sample(range(len(points)), plan.trials)
            points = [points[place] for place in sorted(chosen)]
        yield from _run(plan, stage, points, run)
        return
    optuna = _optuna()
    with warnings.catch_warnings():  # some versions call `constant_liar` experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
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
    values = [{**stage.kept, **point} for point in points]
    jobs = marked([Job(_config(plan, stage, one), seed) for one in values for seed in plan.seeds])
    outcomes = iter(run(jobs))
    for one in values:
        runs = [next(outcomes) for _ in plan.seeds]
        failed = any(outcome.error or not outcome.directory.done for outcome in runs)
        scores = () if failed else tuple(aac(outcome.directory.matrix("validation")) for outcome in runs)
        yield Trial(stage.method, one, scores if all(map(math.isfinite, scores)) else ())


def _config(plan: Plan, stage: Stage, values: Mapping[str, float]) -> RunConfig:
    method: dict[str, dict[str, Any]] = {term: dict(settings) for term, settings in _settings(values).items()}
    config = resolve(plan.benchmark, stage.method, plan.scale, merged(plan.sets, {"method": method}))
    return holding_out(config) if stage.hold_out else config


def _settings(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """`term.setting` as tables of the terms; β as its λ_e, so that a run has one name, and one hash, for both."""
    terms: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        term, _, setting = key.partition(".")
        if setting == "beta":
            setting, value = "forgetting", forgetting_from_beta(value)
        terms.setdefault(term, {})[setting] = value
    return terms
