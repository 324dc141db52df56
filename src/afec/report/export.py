"""Tables as files: every seed as CSV, or what the terminal shows as Markdown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence

from afec.report.markup import clean
from afec.report.sheet import Cell, Sheet, after_tasks, differences, ordered, results
from afec.report.table import COLUMNS, Line, cells, comparisons, problems

__all__ = ["latex_of", "to_csv", "to_latex", "to_markdown"]

LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "θ": r"$\theta$",
    "–": "--",
    "—": "---",
    "−": "$-$",
}

SYMBOLS = {"λ_e": r"$\lambda_e$", "θ_e": r"$\theta_e$"}


def to_csv(rows: Sequence[Line]) -> str:
    """One line for each row and seed, fractions; empty where a metric does not exist."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["benchmark", "scale", "tasks", "method", "hash", "seed", *COLUMNS, "epochs", "samples"])
    for mark, group in problems(rows):
        for row in group:
            for seed in sorted(row.metrics):
                values = [row.metrics[seed][metric] for metric in COLUMNS]
                written = ["" if math.isnan(value) else f"{value:.6f}" for value in values]
                about = [row.config.benchmark, row.config.scale, mark, row.label, row.config.hash, seed]
                writer.writerow([*about, *written, row.epochs[seed], row.samples[seed]])
    return text.getvalue()


def to_markdown(rows: Sequence[Line]) -> str:
    """The tables with mean ± standard deviation over the seeds, and the differences in words."""
    parts = []
    for mark, group in problems(rows):
        title, head, body = cells(group, mark)
        lines = [f"**{title}**", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        lines += [f"| {' | '.join([f'`{line[0]}`', *line[1:]])} |" for line in body]
        told = [*comparisons(group), *comparisons(group, "transfer")]
        parts.append("\n".join([*lines, *(["", *(f"- {sentence}" for sentence in told)] if told else [])]))
    return "\n\n".join(parts).replace("[bold]", "**").replace("[/bold]", "**") + "\n"


def to_latex(rows: Sequence[Line]) -> str:
    """The tables for a paper, with \\usepackage{booktabs}: results, A after k tasks, and the paired differences."""
    return latex_of([(sheet, mark) for mark, group in problems(rows) for sheet in sheets_of(group)])


def latex_of(sheets: Sequence[tuple[Sheet, str]]) -> str:
    """Tables that were made already, each with what tells its study from others."""
    parts = ["% \\usepackage{booktabs}"]
    for sheet, mark in sheets:
        columns = "l" * sum(name in ("method", "with AFEC", "against", "metric") for name in sheet.head)
        columns += "r" * (len(sheet.head) - len(columns))
        title = sheet.title + (f" ({mark})" if mark else "")
        caption = ". ".join(text.rstrip(".") for text in (title, sheet.caption) if text) + "."
        body = [" & ".join(_latex_cell(cell) for cell in line) + r" \\" for line in sheet.rows]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(_latex(name) for name in sheet.head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def sheets_of(rows: Sequence[Line]) -> list[Sheet]:
    """The tables of one study that there is something to say in."""
    rows = ordered([row for row in rows if row.metrics])
    found = (results(rows), after_tasks(rows), differences(rows)) if rows else ()
    return [sheet for sheet in found if sheet is not None]


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return (
        rf"\textbf{{{text}}}" if cell.best else rf"\textit{{{text}}}" if cell.paper and cell.sort is not None else text
    )


def _latex(text: str) -> str:
    """Letters that LaTeX takes for commands are written as letters; what it cannot set is left out."""
    parts = re.split("([λθ]_e)", clean(text, 2000).replace("`", "'"))
    return "".join(
        SYMBOLS.get(part) or "".join(LATEX.get(x, x if x.isprintable() else " ") for x in part) for part in parts
    )
