"""Tables of results in README and docs: made from the files in `results/`, between two marks.

    python docs/tables.py            write every table anew; tests/test_tables.py compares

A table stands below the comment that says what is in it, in TOML:

    <!-- table
    file = "digits-transfer/seeds.csv"            a file under results/, as `afec report -o x.csv` writes it
    columns = ["aac", "old_accuracy", "compute"]  columns of the file, `epochs`, `compute`, `worst` (seed of the old tasks);
                                                  `memory`, `prediction` and `class_order` are texts of the file;
                                                  a name that the file does not have is a text that rows bring
    heads = { aac = "both (AAC)" }                other headings
    where = { benchmark = "digits" }              only lines with these values; a row may have its own, which is added
    digits = 2                                    numbers as they are, and not in per cent: losses, perplexities
    cells = { GELU = { tasks = "…" } }            columns of `of` (AAC if not said), each of the lines with these values
    rows = [
      "finetune",                                 the method, as the file has it
      ["ewc+afec (λ=1)", "ewc (λ=1)"],            a difference, paired over the seeds
      { row = "ewc (λ=1)", name = "EWC", paper = "39.9" },
    ]
    -->

    <!-- end -->

A method of another file is written `other/seeds.csv: ewc (λ=1)`; a difference with a name of its own is
`{ row = …, minus = …, name = … }`. Numbers are mean ± standard deviation over the seeds, in per cent unless `digits` is given.
"""

from __future__ import annotations

import csv
import re
import tomllib
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from afec.report.statistics import mean_and_std, number, paired_difference

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TABLE = re.compile(r"(<!-- table\n(.*?)-->\n)(.*?)(<!-- end -->)", flags=re.S)
HEADS = {
    "aac": "AAC",
    "old_accuracy": "old tasks",
    "new_accuracy": "new task",
    "mean_new_task_accuracy": "each new task",
    "bwt": "BWT",
    "transfer": "transfer",
}
MADE = ("epochs", "compute", "worst")
"""Columns that are worked out here, whether or not the file has one of that name."""
PROTOCOL = ("memory", "prediction", "class_order")
"""Columns of texts, which files of earlier runs do not have."""
SETTINGS = ("benchmark", "scale", "tasks", *PROTOCOL)
"""Columns that say what was learned, and how."""
Seeds = dict[int, dict[str, str]]


class TableError(ValueError):
    """A table asks for what its file does not have."""


def main() -> None:
    """Write the tables of every page anew."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (made := with_tables(text)) != text:
            page.write_text(made, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: tables written")


def with_tables(text: str) -> str:
    """The text of a page with its tables as the files in `results/` have them."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table(tomllib.loads(found[2]))}\n\n{found[4]}", text)


def table(spec: dict[str, Any]) -> str:
    """One table as Markdown."""
    columns, heads = spec["columns"], HEADS | spec.get("heads", {})
    lines = [["", *(heads.get(column, column) for column in columns)], ["---"] * (len(columns) + 1)]
    for row in spec["rows"]:
        if isinstance(row, str | list):
            row = dict(zip(("row", "minus"), [row] if isinstance(row, str) else row, strict=False))
        name = row.get("name") or " minus ".join(shown(row[key]) for key in ("row", "minus") if key in row)
        lines.append([name, *(row[c] if c in row else cell_of(spec, row, c) for c in columns)])
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def cell_of(spec: dict[str, Any], row: dict[str, Any], column: str) -> str:
    """A number; empty only in a column of texts that other rows bring."""
    file, where = spec["file"], spec.get("where", {}) | row.get("where", {})
    if column in spec.get("cells", {}):
        where, column = where | spec["cells"][column], spec.get("of", "aac")
    if column in MADE or any(column in line for line in lines_of(file)):
        found = {key: seeds_of(file, row[key], where) for key in ("row", "minus") if key in row}
        if "minus" in row:
            return difference_cell(row, found["row"], found["minus"], column, spec.get("digits"))
        if column == "compute":
            one = fmean(values(seeds_of(file, "finetune", where), "samples"))
            return f"{fmean(values(found['row'], 'samples')) / one:.2f} ×"
        return plain_cell(found["row"], column, spec.get("digits"))
    if not any(isinstance(one, dict) and column in one for one in spec["rows"]):
        raise TableError(f"results/{file} has no column {column!r}, and no row brings a text of that name")
    return ""


def unit(digits: int | None) -> tuple[int, int]:
    """What numbers are multiplied by, and how many digits they have."""
    return (100, 1) if digits is None else (1, digits)


def plain_cell(seeds: Seeds, column: str, digits: int | None) -> str:
    """The mean of one method over its seeds."""
    scale, digits = unit(digits)
    if column == "epochs":
        return f"{fmean(values(seeds, 'epochs')):.0f}"
    if column in PROTOCOL:
        return seeds[min(seeds)][column]
    if column == "worst":
        return number(100 * min(values(seeds, "old_accuracy")), 0)
    mean, std = mean_and_std(values(seeds, column))
    return number(scale * mean, digits) + (f" ± {scale * std:.{digits}f}" if len(seeds) > 1 else "")


def difference_cell(row: dict[str, Any], ours: Seeds, theirs: Seeds, column: str, digits: int | None) -> str:
    """The difference of two methods in points, with Student's 95 % interval and the seeds won; bold where zero is outside."""
    if ours.keys() != theirs.keys():
        raise TableError(f"{row['row']} has the seeds {sorted(ours)}, {row['minus']} has {sorted(theirs)}")
    found = paired_difference(values(ours, column), values(theirs, column))
    scale, digits = unit(digits)
    low, high = (number(scale * (found.mean + sign * found.half_width), digits, sign=True) for sign in (-1, 1))
    mean = number(scale * found.mean, digits, sign=True)
    return f"{f'**{mean}**' if found.distinguishable else mean} ({low} to {high}; {found.won} of {found.pairs})"


def shown(method: str) -> str:
    """A method of a file as a page shows it: the expression as code, its strengths behind it."""
    name, _, strengths = method.rpartition(".csv: ")[2].partition(" ")
    return f"`{name}` {strengths}".strip()


def seeds_of(file: str, method: str, where: dict[str, str]) -> Seeds:
    """What one method has come to, by seed."""
    other, _, name = method.rpartition(".csv: ")
    path = f"{other}.csv" if other else file
    lines = [line for line in lines_of(path) if all(line.get(key) == value for key, value in where.items())]
    if not lines:
        raise TableError(f"results/{path} has no line where {where}")
    found: Seeds = {}
    for line in lines:
        if line["method"] != name:
            continue
        if (seed := int(line["seed"])) in found:
            differ = [key for key in line if line[key] != found[seed][key] and key in SETTINGS]
            raise TableError(
                f"results/{path} has seed {seed} of {name!r} more than once; say which by `where`: {differ}"
            )
        found[seed] = line
    if not found:
        raise TableError(f"results/{path} has no method {name!r}; it has {sorted({r['method'] for r in lines})}")
    return found


def values(seeds: Seeds, column: str) -> list[float]:
    """One column, seed by seed."""
    texts = [seeds[seed].get(column, "") for seed in sorted(seeds)]
    if "" in texts:
        raise TableError(f"{seeds[min(seeds)]['method']} has no {column}")
    return [float(text) for text in texts]


@cache
def lines_of(path: str) -> list[dict[str, str]]:
    """The lines of a file under `results/`."""
    with (ROOT / "results" / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
