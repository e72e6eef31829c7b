"""One kind of table, written as Markdown, CSV, LaTeX and HTML.

A table is a grid of cells with a mean, perhaps a deviation, and the paper's three ways to set a
cell apart: bold for the best, marked for what is not significantly worse, shaded for a change.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from neubay.report.parts.statistics import Sample

_ARROWS = {sign * level: mark * level for sign, mark in ((-1, "▼"), (1, "▲")) for level in range(4)}
_SHADES_IN_WORDS = {1: "3 to 10", 2: "10 to 30", 3: "more than 30"}
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


# --- Markdown ------------------------------------------------------------------------------------


def markdown(grid: Grid) -> str:
    """Best in bold, marked cells with a dot, changes with one to three arrows."""
    names = [
        _markdown_text(f"{heading.group}: {heading.name}" if heading.group else heading.name)
        for heading in grid.headings
    ]
    lines = [
        [_markdown_text(grid.corner), *names],
        ["---", *["---:"] * len(names)],
        *([_markdown_text(row.name), *map(_markdown_cell, row.cells)] for row in grid.rows),
    ]
    return f"### {_markdown_text(grid.title)}\n\n{_pipes(lines)}\n\n{_markdown_text(grid.note)}\n"


def plain_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    return _pipes([head, ["---"] * len(head), *rows])


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
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


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


# --- HTML ----------------------------------------------------------------------------------------


def html(grid: Grid) -> str:
    """A `table` that scrolls sideways on its own where the page is narrow."""
    head = ""
    if groups := grid.groups():
        cells = "".join(
            f'<th colspan="{count}" scope="colgroup">{escape(name)}</th>' for name, count in groups
        )
        head = f'<tr class="groups"><td></td>{cells}</tr>'
    names = "".join(f'<th scope="col">{escape(heading.name)}</th>' for heading in grid.headings)
    head += f'<tr><th scope="col">{escape(grid.corner)}</th>{names}</tr>'
    rows = "".join(_html_row(row) for row in grid.rows)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(grid.title)}">'
        f"<table><caption>{escape(grid.title)}</caption>"
        f"<thead>{head}</thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">{escape(grid.note)}</p>'
    )


def _html_row(row: Row) -> str:
    cells = "".join(map(_html_cell, row.cells))
    kind = ' class="rule"' if row.rule else ""
    return f'<tr{kind}><th scope="row">{escape(row.name)}</th>{cells}</tr>'


def _html_cell(cell: Cell) -> str:
    kinds, spoken = [], []
    if cell.mean is None and cell.text != "-":
        kinds.append("words")
    if cell.marked:
        kinds.append("marked")
        spoken.append("among the best")
    if cell.shade:
        kinds.append(f"{'worse' if cell.shade < 0 else 'better'}{abs(cell.shade)}")
        way = "lower" if cell.shade < 0 else "higher"
        spoken.append(f"{_SHADES_IN_WORDS[abs(cell.shade)]} {way}")
    attribute = f' class="{" ".join(kinds)}"' if kinds else ""
    text = f"<b>{escape(cell.text)}</b>" if cell.best else escape(cell.text)
    spread = f' <small class="spread">{escape(cell.spread)}</small>' if cell.spread else ""
    hidden = f'<span class="unseen"> ({", ".join(spoken)})</span>' if spoken else ""
    return f"<td{attribute}>{text}{spread}{hidden}</td>"


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
