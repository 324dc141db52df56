"""Tables as files: every seed as CSV, or what the terminal shows as Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from afec.report.table import COLUMNS, Line, cells, comparisons, problems

__all__ = ["to_csv", "to_markdown"]


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
