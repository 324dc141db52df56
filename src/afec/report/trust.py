"""Can these numbers be trusted: what a careful reader would ask of a study, answered from its run directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from afec.lab.spec import FULL
from afec.report.comparison import without_afec
from afec.report.reading import Reading
from afec.report.rows import Row
from afec.report.statistics import TIE

__all__ = ["Verdict", "missing_runs", "verdicts"]

ENOUGH = 5
ALIKE = 0.9  # of the compute of a row with AFEC, its counterpart has at least so much
SAME = {"afec": "afec", "commit": "commit", "torch": "torch", "processor": "processor", "threads": "threads"}


@dataclass(frozen=True)
class Verdict:
    """One answer to a question of trust, and why."""

    good: bool
    text: str


def verdicts(rows: Sequence[Row], readings: Sequence[Reading]) -> list[Verdict]:
    """The answers for one study; `readings` are all its runs, whatever became of them."""
    found = [_whole(rows, readings), _seeds(rows), _equal_compute(rows), _scale(rows[0]), _same_place(readings)]
    found += _alike(rows)
    strengths = Counter((row.config.label, repr(row.config.training)) for row in rows if row.config.settings)
    if any(number > 1 for number in strengths.values()):
        text = (
            "Several strengths of one method stand here. To pick the best of them by this table is to tune on test data: "
            "`afec tune` uses validation data of other seeds."
        )
        found.append(Verdict(False, text))
    names = Counter((one.config.label, one.config.hash, one.run.seed) for one in readings if one.config)
    if twice := sum(number > 1 for number in names.values()):
        text = f"{_many(twice, 'run')} stand here more than once, in copied directories; of each, one counts."
        found.append(Verdict(False, text))
    noted = [one for one in readings if one.notes]
    if noted:
        text = f"{_many(len(noted), 'run')} met a fault on the way and went on; the list of runs says which."
        found.append(Verdict(False, text))
    return found


def _whole(rows: Sequence[Row], readings: Sequence[Reading]) -> Verdict:
    states = Counter(one.state for one in readings)
    absent = len(missing_runs(rows, readings))
    bad = [f"{states[s]} {s}" for s in ("failed", "damaged", "unfinished") if states[s]]
    bad += [f"{absent} missing"] if absent else []
    if not bad:
        return Verdict(True, f"All {len(readings)} runs are finished and whole.")
    return Verdict(False, f"{states['finished']} runs are finished; {', '.join(bad)}: no mean has them in it.")


def _seeds(rows: Sequence[Row]) -> Verdict:
    counts = {row.label: len(row.metrics) for row in rows if row.metrics}
    if not counts:
        return Verdict(False, "There is no finished run yet.")
    if len({frozenset(row.metrics) for row in rows if row.metrics}) > 1:
        span = f"{min(counts.values())} to {max(counts.values())} of them"
        return Verdict(False, f"Rows have different seeds ({span}); differences are taken over common seeds only.")
    number = min(counts.values())
    if number < ENOUGH:
        return Verdict(False, f"Only {_many(number, 'seed')} for each row; the paper has {ENOUGH}.")
    return Verdict(True, f"{number} seeds for each row, the same ones.")


def _equal_compute(rows: Sequence[Row]) -> Verdict:
    bases = {without_afec(row.config.method) for row in rows} - {""}
    have = {row.config.method for row in rows if row.config.variant == "equal-compute" and row.metrics}
    if not bases:
        return Verdict(True, "No row has AFEC, so there is none whose extra compute needs a counterpart.")
    if bases <= have:
        if cheap := _cheaper(rows):
            return Verdict(
                False, f"{cheap[0]} is called so and cost less: {cheap[1]:.2f} of the samples of {cheap[2]}."
            )
        return Verdict(True, "Every row with AFEC has its counterpart at equal compute.")
    lacking = ", ".join(f"{base}@equal-compute" for base in sorted(bases - have))
    return Verdict(
        False, f"AFEC trains two nets; without {lacking} its gain cannot be told from that of more training."
    )


def _cheaper(rows: Sequence[Row]) -> tuple[str, float, str] | None:
    """A row at equal compute that had clearly less of it than the row with AFEC: its name, its part, and the other's."""
    costs = [(row, sum(row.samples.values()) / len(row.samples)) for row in rows if row.samples]
    for ours, cost in costs:
        base = without_afec(ours.config.method)
        for theirs, less in costs:
            counterpart = theirs.config.method == base and theirs.config.variant == "equal-compute"
            if counterpart and less < ALIKE * cost:
                return theirs.label, less / cost, ours.label
    return None


def _alike(rows: Sequence[Row]) -> list[Verdict]:
    means = [sum(values) / len(values) for row in rows if (values := row.values(row.parts.average))]
    if len(means) < 2 or max(means) - min(means) > TIE:
        return []
    average = "average incremental accuracy" if rows[0].pooled else rows[0].kind.average
    return [Verdict(False, f"All rows have the same {average}: too little was learned here to tell methods apart.")]


def _scale(row: Row) -> Verdict:
    if row.config.scale == FULL:
        return Verdict(True, "The benchmark's full scale.")
    return Verdict(False, f"Scale `{row.config.scale}`: smaller than the paper's. Differences may not carry over.")


def _same_place(readings: Sequence[Reading]) -> Verdict:
    known = [one.environment for one in readings if one.environment]
    differing = [name for key, name in SAME.items() if len({e.get(key, "") for e in known}) > 1]
    changed = any(e.get("commit", "").endswith("+changed") for e in known)
    if not known:
        return Verdict(False, "No run says by which version and on which machine it was made.")
    if differing:
        return Verdict(
            False, f"Runs differ in: {', '.join(differing)}. Numbers may differ by rounding, or by what was changed."
        )
    if changed:
        return Verdict(False, "The checkout had changes that were not committed when these runs were made.")
    return Verdict(True, "One version of everything, on one kind of processor.")


def missing_runs(rows: Sequence[Row], readings: Sequence[Reading]) -> list[tuple[Row, int]]:
    """Seeds that other rows of the study have and this one has not even begun."""
    begun = {(one.config.label, one.config.hash, one.run.seed) for one in readings if one.config}
    seeds = sorted({seed for _, _, seed in begun})
    methods = [row for row in rows if not row.config.reference]
    return [(row, seed) for row in methods for seed in seeds if (row.config.label, row.config.hash, seed) not in begun]


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
