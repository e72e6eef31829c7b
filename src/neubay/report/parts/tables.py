"""One kind of table, written as Markdown, CSV and LaTeX; `document` draws it into a page.

A table is a grid of cells with a mean, perhaps a deviation, and the paper's three ways to set a
cell apart: bold for the best, marked for what is not significantly worse, shaded for a change.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from neubay.report.parts.statistics import Sample

_ARROWS = {sign * level: mark * level for sign, mark in ((-1, "▼"), (1, "▲")) for level in range(4)}
_LATEX_SHADES = {1: 10, 2: 35, 3: 60}


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table; without a mean, only its text."""

    text: str = "-"
    mean: float | None = None
    std: float | None = None
    n: int | None = None
    best: bool = False
    marked: bool = False
    shade: int = 0
    decimals: int = 1

    @classmethod
    def of(
        cls,
        sample: Sample,
        *,
        best: bool = False,
        marked: bool = False,
        shade: int = 0,
        decimals: int = 1,
    ) -> "Cell":
        """A sample's mean, deviation and count."""
        text = f"{sample.mean:,.{decimals}f}"
        return cls(text, sample.mean, sample.std, sample.n, best, marked, shade, decimals)

    @classmethod
    def of_value(cls, value: int | float | None) -> "Cell":
        """A single number, where there is one."""
        return cls() if value is None else cls.of(Sample(float(value), None, 1))

    @property
    def spread(self) -> str:
        return "" if self.std is None else f"± {self.std:,.{self.decimals}f}"


@dataclass(frozen=True)
class Heading:
    name: str
    group: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Cell, ...]
    rule: bool = False
    """A line above: averages stand below one."""


@dataclass(frozen=True)
class Grid:
    """A table with its title, and a note that says how to read it."""

    name: str
    title: str
    note: str
    corner: str
    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]

    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring headings of one group, and how many they are; empty without groups."""
        found = [
            (name, len(list(columns)))
            for name, columns in groupby(self.headings, lambda heading: heading.group)
        ]
        return found if any(name for name, _ in found) else []

    def without_empty(self) -> "Grid":
        """Without the columns in which no row has anything."""
        kept = [
            number
            for number in range(len(self.headings))
            if any(row.cells[number] != Cell() for row in self.rows)
        ]
        return replace(
            self,
            headings=tuple(self.headings[number] for number in kept),
            rows=tuple(
                replace(row, cells=tuple(row.cells[number] for number in kept)) for row in self.rows
            ),
        )


# --- Markdown ------------------------------------------------------------------------------------


def markdown(grid: Grid) -> str:
    """Best in bold, marked cells with a dot, changes with one to three arrows."""
    names = [
        _markdown_text(f"{heading.group}: {heading.name}" if heading.group else heading.name)
        for heading in grid.headings
    ]
    columns = zip(*(row.cells for row in grid.rows), strict=True)
    numeric = [any(cell.mean is not None for cell in column) for column in columns]
    lines = [
        [_markdown_text(grid.corner), *names],
        ["---", *("---:" if numbers else "---" for numbers in numeric)],
        *([_markdown_text(row.name), *map(_markdown_cell, row.cells)] for row in grid.rows),
    ]
    return f"### {_markdown_text(grid.title)}\n\n{_pipes(lines)}\n\n{_markdown_text(grid.note)}\n"


Record = Mapping[str, Any]
"""What a study found, as it stands in its file."""
Columns = dict[str, Callable[[Any], str]]
"""Headings, and what stands below them in a row."""


def sections(parts: Mapping[str, str]) -> str:
    """Texts under their titles, in Markdown; those that are empty are left out."""
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts.items() if text)


def columns_markdown(columns: Columns, rows: Iterable[Any]) -> str:
    """A table from what each column says of a row, in Markdown."""
    return text_markdown(columns, ([cell(row) for cell in columns.values()] for row in rows))


def text_markdown(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts in Markdown."""
    names = list(headings)
    return _pipes([names, ["---"] * len(names), *rows])


def _pipes(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


END = "<!-- end of tables -->"
"""The marker below tables that a command writes into a text."""


def _markdown_cell(cell: Cell) -> str:
    text = _markdown_text(cell.text)
    parts = [
        f"**{text}**" if cell.best else text,
        cell.spread,
        _ARROWS[cell.shade],
        "•" if cell.marked else "",
    ]
    return " ".join(part for part in parts if part)


def _markdown_text(text: str) -> str:
    text = re.sub(r"([\\|*`<>\[\]])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # within a word it is no markup


# --- CSV -----------------------------------------------------------------------------------------


def comma_separated(grid: Grid) -> str:
    """A line per cell, with every number in full: easy to filter, group and plot."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["table", "row", "column", "group", "text"]
    writer.writerow([*names, "mean", "std", "n", "best", "marked", "shade"])
    for row in grid.rows:
        for heading, cell in zip(grid.headings, row.cells, strict=True):
            numbers = ["" if value is None else value for value in (cell.mean, cell.std, cell.n)]
            flags = [int(cell.best), int(cell.marked), cell.shade]
            texts = (grid.title, row.name, heading.name, heading.group, cell.text)
            writer.writerow([*map(_csv_text, texts), *numbers, *flags])
    return text.getvalue()


def _csv_text(text: str) -> str:
    """A name that a spreadsheet will not take for a formula."""
    return f"'{text}" if re.match(r"[=@+]|-\D", text) else text


# --- LaTeX ---------------------------------------------------------------------------------------


def latex(grid: Grid) -> str:
    """A `table` for booktabs and xcolor's [table] option, marked and shaded as in the paper."""
    columns = "l" + "r" * len(grid.headings)
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}",
        "\\begin{table}",
        f"\\caption{{{_latex_text(grid.title)}. {_latex_text(grid.note)}}}",
        "\\centering",
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
    ]
    if groups := grid.groups():
        cells = [f"\\multicolumn{{{count}}}{{c}}{{{_latex_text(name)}}}" for name, count in groups]
        lines.append(" & ".join(["", *cells]) + " \\\\")
    names = [_latex_text(name) for name in (grid.corner, *(h.name for h in grid.headings))]
    lines += [" & ".join(names) + " \\\\", "\\midrule"]
    for row in grid.rows:
        if row.rule:
            lines.append("\\midrule")
        cells = [_latex_text(row.name), *map(_latex_cell, row.cells)]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = _latex_text(cell.text)
    if cell.best:
        text = f"\\textbf{{{text}}}"
    if cell.std is not None:
        text += f" {{\\scriptsize $\\pm${cell.std:,.{cell.decimals}f}}}"
    if cell.shade:
        colour = "red" if cell.shade < 0 else "green"
        text = f"\\cellcolor{{{colour}!{_LATEX_SHADES[abs(cell.shade)]}}}{text}"
    elif cell.marked:
        text = f"\\cellcolor{{blue!12}}{text}"
    return text


_LATEX_SYMBOLS = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "ζ": "$\\zeta$",
    "λ": "$\\lambda$",
    "κ": "$\\kappa$",
    "η": "$\\eta$",
    "φ": "$\\varphi$",
    "†": "$\\dagger$",
    "±": "$\\pm$",
    "≥": "$\\geq$",
    "<": "$<$",
    ">": "$>$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX_SYMBOLS.get(letter, letter) for letter in " ".join(text.split()))


# --- Files ---------------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Grid], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "tex": latex,
}


def save(grids: Sequence[Grid], folder: Path) -> list[Path]:
    """Write every table in every format; the files are named after the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for grid in grids:
        for suffix, write in WRITERS.items():
            path = folder / f"{grid.name}.{suffix}"
            path.write_text(write(grid), encoding="utf-8")
            paths.append(path)
    return paths
