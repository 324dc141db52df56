"""The study of `digits-regression`: every regulariser with and without AFEC, tuned alike, and what is responsible.

    python results/digits-regression/study.py --runs runs          run what is missing, then write the tables beside this file
    python results/digits-regression/study.py --stage tune         one stage only: tune, final, kinds, causes

Tuning looks at validation images of the seeds 100–102 only; the reported seeds are 0–4, and their test images take no part in
any choice. Every row of the comparison has six trials.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from afec.lab.watch import Watch
from rich.console import Console

from afec.files import write_text
from afec.lab import Job, RunDirectory, available_cores, execute, load_benchmark, resolve
from afec.report.figures import trade_off
from afec.report.plot import draw_figure
from afec.report.rows import ordered, rows_of

BENCHMARK = load_benchmark("digits-regression")
TUNING, SEEDS = range(100, 103), range(5)
STRENGTHS = {
    "ewc": (3, 10, 30, 100, 300, 1000),
    "mas": (0.3, 1, 3, 10, 30, 100),
    "si": (3, 10, 30, 100, 300, 1000),
    "rwalk": (1, 3, 10, 30, 100, 300),
}
FORGETTING = (0.01, 0.03, 0.1, 0.3, 1, 3)
TOGETHER = {"ewc": (30, 100, 300), "mas": (10, 30, 100), "si": (30, 100, 300), "rwalk": (10, 30, 100)}
BEYOND = {"ewc": (10, 1000), "mas": (3, 300), "si": (10, 1000), "rwalk": (3, 300)}  # for the trade-off curve only
# λ and λ_e of another Fisher kind are other numbers: six λ for ewc, three λ × two λ_e for ewc+afec, as above.
KINDS: dict[str, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {
    "sample": (STRENGTHS["ewc"], TOGETHER["ewc"], (0.1, 1)),
    "empirical": ((100, 300, 1000, 3000, 1e4, 3e4), (1000, 3000, 1e4), (1, 10)),
    "batched": ((2e3, 6e3, 2e4, 6e4, 2e5, 6e5), (2e4, 6e4, 2e5), (20, 200)),
}


@dataclass(frozen=True)
class Row:
    """One line of a table: a method with its settings, as a name that the report uses."""

    name: str
    method: str
    settings: tuple[tuple[str, float | str], ...]

    def job(self, seed: int) -> Job:
        """The run of this row under a seed."""
        parts: dict[str, dict[str, Any]] = {}
        for key, value in self.settings:
            term, _, setting = key.partition(".")
            parts.setdefault(term, {})[setting] = value
        training = parts.pop("training", {})
        return Job(resolve(BENCHMARK, self.method, sets={"method": parts, "training": training}), seed)


def row(name: str, method: str, **settings: float | str) -> Row:
    """A row with settings such as `ewc__strength=3`."""
    return Row(name, method, tuple((key.replace("__", "."), value) for key, value in settings.items()))


def plain(regulariser: str, strengths: Iterable[float], variant: str = "", **more: float | str) -> list[Row]:
    """The trials of a regulariser alone."""
    name = f"{regulariser} ({variant})" if variant else regulariser
    method = f"{regulariser}@{variant}" if variant else regulariser
    return [row(name, method, **{f"{regulariser}__strength": s}, **more) for s in strengths]


def with_afec(regulariser: str, protocol: str, pairs: Iterable[tuple[float, float]], **more: float | str) -> list[Row]:
    """The trials of a regulariser with AFEC."""
    name, method = f"{regulariser}+afec ({protocol})", f"{regulariser}+afec"
    return [row(name, method, **{f"{regulariser}__strength": s}, afec__forgetting=f, **more) for s, f in pairs]


class Study:
    """Runs rows over seeds and remembers what came out."""

    def __init__(self, runs: Path, workers: int) -> None:
        self.runs, self.workers, self.console = runs, workers, Console(width=140)

    def run(self, rows: Sequence[Row], seeds: Iterable[int]) -> None:
        """Run what is missing; a run that fails (diverges) is said so and stops no other."""
        jobs = [line.job(seed) for seed in seeds for line in rows]
        with Watch(self.console, len(jobs), self.workers) as watch:
            for outcome in execute(jobs, self.runs, self.workers, watch):
                if outcome.error:
                    self.console.print(f"{outcome.job} failed:\n{outcome.error}", markup=False)

    def of(self, line: Row, seed: int) -> RunDirectory:
        """The directory of a row's run."""
        job = line.job(seed)
        return RunDirectory.of(self.runs, job.config, seed)

    def score(self, line: Row) -> float:
        """The mean validation accuracy of both tasks over the tuning seeds; a run that failed (diverged) counts nothing."""
        found = [self.of(line, seed) for seed in TUNING]
        if not all(run.done for run in found):
            return -1.0
        return fmean(float(run.matrix("validation")[-1].mean()) for run in found)

    def best(self, rows: Sequence[Row]) -> Row:
        """The trial with the best score."""
        return max(rows, key=self.score)

    def measured(self, stage: str, rows: Iterable[Row], seeds: Iterable[int]) -> Iterator[list[Any]]:
        """The lines of the CSV."""
        for line in rows:
            for seed in seeds:
                run = self.of(line, seed)
                numbers: list[Any] = ["failed"] * 8
                if run.done:
                    numbers = []
                    for split in ("validation", "test"):
                        old, new = run.matrix(split)[-1]
                        numbers += [round(float(old), 5), round(float(new), 5), round(float(old + new) / 2, 5)]
                    numbers += [sum(t["epochs"] for t in run.tasks()), sum(t["epochs_theta_e"] for t in run.tasks())]
                settings = " ".join(f"{key}={value:g}" if not isinstance(value, str) else f"{key}={value}"
                                    for key, value in line.settings)  # fmt: skip
                yield [stage, line.name, line.method, settings, seed, *numbers]


HEADER = ["stage", "row", "method", "settings", "seed", "validation_old", "validation_new", "validation_average",
          "old", "new", "average", "epochs", "epochs_theta_e"]  # fmt: skip


def first_rows() -> list[list[Row]]:
    """The trials of every regulariser alone, at its own and at AFEC's compute."""
    return [plain(r, STRENGTHS[r], variant) for r in STRENGTHS for variant in ("", "equal-compute")]


def second_rows(study: Study) -> list[list[Row]]:
    """The trials with AFEC, under both protocols."""
    groups = []
    for r, strengths in STRENGTHS.items():
        kept = dict(study.best(plain(r, strengths)).settings)[f"{r}.strength"]
        assert not isinstance(kept, str)
        groups.append(with_afec(r, "λ kept", [(kept, f) for f in FORGETTING]))
        groups.append(with_afec(r, "together", [(s, f) for s in TOGETHER[r] for f in (0.1, 1)]))
    return groups


def on_curve(regulariser: str, forgetting: float) -> list[Row]:
    """A regulariser with AFEC along λ."""
    strengths = (*TOGETHER[regulariser], *BEYOND[regulariser])
    return with_afec(regulariser, "together", [(strength, forgetting) for strength in strengths])


def kind_rows() -> list[list[Row]]:
    """EWC and EWC+AFEC with the other Fisher kinds."""
    groups = []
    for kind, (strengths, some, forgetting) in KINDS.items():
        fisher = {"ewc__fisher": kind}
        trials = [row(f"ewc, {kind}", "ewc", ewc__strength=s, **fisher) for s in strengths]
        pairs = [(s, f) for s in some for f in forgetting]
        both = [
            row(f"ewc+afec, {kind}", "ewc+afec", ewc__strength=s, afec__forgetting=f, afec__fisher=kind, **fisher)
            for s, f in pairs
        ]
        groups += [trials, both]
    return groups


def cause_rows(study: Study) -> list[Row]:
    """One thing changed at a time from the tuned ewc+afec."""
    base = study.best(second_rows(study)[1])
    chosen = dict(base.settings)
    strength, forgetting = float(chosen["ewc.strength"]), float(chosen["afec.forgetting"])

    def changed(what: str, **new: float | str) -> Row:
        return row(
            f"ewc+afec: {what}", "ewc+afec", **{"ewc__strength": strength, "afec__forgetting": forgetting, **new}
        )

    # The longer everything is trained, the less is left to gain? λ of ewc as tuned at twice the patience.
    longer = float(dict(study.best(plain("ewc", STRENGTHS["ewc"], "equal-compute")).settings)["ewc.strength"])
    patient = [
        row(f"ewc: patience {patience}", "ewc", ewc__strength=longer, training__patience=patience)
        for patience in (20, 40, 80)
    ]
    return [
        *patient,
        changed("patience 20", training__patience=20),
        changed("patience 40", training__patience=40),
        changed("as tuned"),
        changed("λ × 10", ewc__strength=10 * strength),
        changed("λ / 10", ewc__strength=strength / 10),
        changed("λ_e × 10", afec__forgetting=10 * forgetting),
        changed("λ_e / 10", afec__forgetting=forgetting / 10),
        changed("F_e empirical", afec__fisher="empirical"),
        changed("schedule interleaved", afec__schedule="interleaved"),
        changed("expand_from main", afec__expand_from="main"),
    ]


def final_rows(study: Study) -> list[Row]:
    """What is reported."""
    tuned = [study.best(group) for group in [*first_rows(), *second_rows(study)]]
    order = {name: place for place, name in enumerate(STRENGTHS)}
    tuned.sort(key=lambda line: order[line.method.partition("+")[0].partition("@")[0]])
    return [row("finetune", "finetune"), row("joint", "joint"), row("scratch", "scratch"), *tuned]


def main() -> None:
    """Run the stages and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--stage", choices=("tune", "final", "kinds", "causes", "all"), default="all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    study = Study(options.runs, options.workers)
    wanted = ("tune", "final", "kinds", "causes") if options.stage == "all" else (options.stage,)
    for stage in wanted:
        lines: list[list[Any]] = []
        if stage == "tune":
            study.run([line for group in first_rows() for line in group], TUNING)
            study.run([line for group in second_rows(study) for line in group], TUNING)
            everything = [line for group in [*first_rows(), *second_rows(study)] for line in group]
            lines += study.measured("tune", everything, TUNING)
            beyond = [line for r in BEYOND for f in (0.1, 1) for line in on_curve(r, f) if line not in everything]
            study.run(beyond, TUNING)
            lines += study.measured("curve", beyond, TUNING)
            draw(study, options.out / "trade-off.png")
        elif stage == "final":
            rows = final_rows(study)
            study.run(rows, SEEDS)
            lines += study.measured("final", [line for line in rows if line.method != "scratch"], SEEDS)
        elif stage == "kinds":
            groups = kind_rows()
            study.run([line for group in groups for line in group], TUNING)
            lines += study.measured("tune", [line for group in groups for line in group], TUNING)
            tuned = [study.best(group) for group in groups]
            study.run(tuned, SEEDS)
            lines += study.measured("final", tuned, SEEDS)
        else:
            rows = cause_rows(study)
            study.run(rows, SEEDS)
            lines += study.measured("final", rows, SEEDS)
        write(options.out / f"{stage}.csv", lines)


def draw(study: Study, path: Path) -> None:
    """Old against new accuracy over λ, on the validation images of the tuning seeds."""
    drawn = []
    for r, strengths in STRENGTHS.items():
        drawn += [*plain(r, strengths), *plain(r, strengths, "equal-compute")]
        drawn += [trial for forgetting in (0.1, 1) for trial in on_curve(r, forgetting)]
    runs = []
    for trial in drawn:
        found = [(trial.job(seed).config, study.of(trial, seed)) for seed in TUNING]
        runs += found if all(run.done for _, run in found) else []
    title = "Old against new task over λ (written at each point): validation images, mean ± std of seeds 100–102"
    draw_figure(path, trade_off(ordered(rows_of(runs, "validation"))), title)


def write(path: Path, lines: Sequence[Sequence[Any]]) -> None:
    """One CSV, whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *lines])
    write_text(path, text.getvalue())


if __name__ == "__main__":
    main()
