"""A table, made once, and written for a terminal, as Markdown or as LaTeX; the page's template writes the same one as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from afec.report.html import clean

__all__ = ["UNKNOWN", "Cell", "Column", "Table", "print_table", "to_latex", "to_markdown"]

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


@dataclass(frozen=True)
class Cell:
    """One cell: a text, or a number with its standard deviation."""

    text: str
    spread: str = ""
    """The standard deviation over the seeds, where there is one."""
    sort: float | None = None
    """What the page sorts by; None for words, and for what is not known."""
    best: bool = False
    """Whether it is the best of its column."""
    paper: bool = False
    """Whether it is the paper's number and not ours."""

    def __str__(self) -> str:
        return f"{self.text} ± {self.spread}" if self.spread else self.text


UNKNOWN = Cell("–")


@dataclass(frozen=True)
class Column:
    """The head of one column of a table."""

    name: str
    meaning: str = ""
    """A sentence without its full stop, for the legend; empty where the name says it."""
    kind: Literal["number", "label", "text"] = "number"
    """`label` is the name of a row of results."""


@dataclass(frozen=True)
class Table:
    """A table with everything that is needed to read it."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    """What else a reader must know; `code` in backquotes."""

    @property
    def legend(self) -> str:
        """The sentences that say what its columns mean."""
        meanings = "; ".join(column.meaning for column in self.columns if column.meaning)
        return f"{meanings}." if meanings else ""


def print_table(console: Console, table: Table) -> None:
    """On a terminal, best numbers in bold; a table that is too wide goes on below, with the names of its rows again."""
    for part in _parts(table, console.width):
        console.print(part)
    for text in filter(None, (table.legend, table.caption)):
        console.print(Text(text.replace("`", "")), style="dim", soft_wrap=True)


def _parts(table: Table, width: int) -> Iterator[RichTable]:
    """The columns after the first, as many side by side as the terminal is wide enough for."""
    texts = [[clean(str(row[place])) for row in table.rows] for place in range(len(table.columns))]
    heads = [_broken(column.name) for column in table.columns]
    wide = [
        max((len(line) for text in [*cells, head] for line in text.split("\n")), default=0) + 3
        for cells, head in zip(texts, heads, strict=True)
    ]
    start, title = 1, table.title
    while start < len(table.columns):
        end = start + 1
        while end < len(table.columns) and wide[0] + sum(wide[start : end + 1]) < width:
            end += 1
        places = [0, *range(start, end)]
        part = RichTable(title=Text(title))
        for place in places:
            right = table.columns[place].kind == "number"
            part.add_column(Text(heads[place]), justify="right" if right else "left", no_wrap=True)
        for number, row in enumerate(table.rows):
            part.add_row(*(Text(texts[place][number], style="bold" if row[place].best else "") for place in places))
        yield part
        start, title = end, "(the same rows)"


def _broken(name: str) -> str:
    """A long name of a column on two lines."""
    middle = min((at.start() for at in re.finditer(" ", name)), key=lambda at: abs(at - len(name) / 2), default=0)
    return f"{name[:middle]}\n{name[middle + 1 :]}" if middle and len(name) > 9 else name


def to_markdown(tables: Sequence[Table]) -> str:
    """Tables for a text, best numbers in bold."""
    parts = []
    for table in tables:
        lines = [f"**{clean(table.title)}**", "", f"| {' | '.join(column.name for column in table.columns)} |"]
        lines.append("|" + "|".join("---:" if column.kind == "number" else "---" for column in table.columns) + "|")
        for row in table.rows:
            lines.append(f"| {' | '.join(map(_markdown, row, table.columns))} |")
        lines += [part for text in (table.legend, table.caption) if text for part in ("", text)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown(cell: Cell, column: Column) -> str:
    text = clean(str(cell), 400).replace("|", r"\|").replace("\n", " ")
    if column.kind == "label":
        return f"`{text.replace('`', chr(39))}`"
    return f"**{text}**" if cell.best else f"*{text}*" if cell.paper and cell.sort is not None else text


def to_latex(tables: Sequence[Table]) -> str:
    """Tables for a paper, with \\usepackage{booktabs}."""
    parts = ["% \\usepackage{booktabs}"]
    for table in tables:
        columns = "".join("r" if column.kind == "number" else "l" for column in table.columns)
        texts = filter(None, (table.title, table.legend, table.caption))
        caption = " ".join(f"{text.rstrip('.')}." for text in texts)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(_latex(column.name) for column in table.columns) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex_cell, row)) + r" \\" for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _latex_cell(cell: Cell) -> str:
    style = "textbf" if cell.best else "textit" if cell.paper and cell.sort is not None else ""
    return rf"\{style}{{{_latex(str(cell))}}}" if style else _latex(str(cell))


def _latex(text: str) -> str:
    """Letters that LaTeX takes for commands are written as letters; what it cannot set is left out."""
    parts = re.split("([λθ]_e)", clean(text, 4000).replace("`", "'"))
    return "".join(
        SYMBOLS.get(part) or "".join(LATEX.get(x, x if x.isprintable() else " ") for x in part) for part in parts
    )
