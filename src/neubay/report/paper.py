"""The paper's own tables, from the numbers in `neubay.published` alone."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from neubay import published
from neubay.errors import NeubayError
from neubay.published import PaperColumn, PaperTable
from neubay.report.parts.statistics import Sample, best_of, not_worse, shade
from neubay.report.parts.tables import Cell, Grid, Heading, Row

SEEDS = 6
"""Of the paper's own results. How many its baselines had, it does not say: the same is assumed."""

LIKELY_SEEDS = {"VIPO": 4, "MoDAP": 4, "SUMO": 4, "LEQ": 5, "BC": 10}
"""Of baselines, inferred from the marks: one number per method that explains the most of them."""

SETS: dict[str, tuple[str, ...]] = {
    "locomotion": ("d4rl_locomotion",),
    "neorl": ("neorl_locomotion",),
    "adroit": ("adroit",),
    "antmaze": ("antmaze",),
    "ablations": ("ablation_summary", "ablations", "horizon_ablation", "sac_ablation"),
    "costs": ("rollout_cost", "model_cost"),
    "neorl2": ("neorl2_safety_half_cheetah",),
}
"""Short names, and the tables they stand for."""


Cause = Literal["rounding", "seeds", "no deviation", "none"]


@dataclass(frozen=True)
class Disagreement:
    """A cell that the paper marks and Welch's test from its printed numbers would not, or the
    other way round."""

    row: str
    column: str
    printed: bool
    cause: Cause
    """Whether the mark follows from numbers that print the same; or from `LIKELY_SEEDS`; or is
    withheld where no deviation is printed, so that there was nothing to test. Or none of these."""


def grids(name: str) -> list[Grid]:
    """The tables behind a short name, or behind the name of one table."""
    wanted = name.lower()
    names = SETS.get(wanted, (wanted,) if wanted in published.tables() else ())
    if not names:
        known = [*SETS, *published.tables()]
        close = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
        hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(SETS)}"
        raise NeubayError(f"the paper has no table '{name}'; {hint}")
    return [grid(published.table(each)) for each in names]


def grid(table: PaperTable) -> Grid:
    """A table as the paper prints it: its bold and marked cells, and its shading of changes."""
    decimals = 2 if table.name == "neorl2_safety_half_cheetah" else 1
    titles = {str(key): each.title for key, each in published.benchmarks().items()}
    rows = [
        Row(
            titles.get(name, name),
            tuple(_cell(table, name, column, decimals) for column in table.columns),
        )
        for name in table.rows
    ]
    note = f"{table.note} Source: {table.source}."
    if table.average is not None:
        rows += [_printed_average(table), _recomputed_average(table)]
        note += _tested_note(table)
    if _shows_changes(table):
        note += (
            " Shaded or with arrows: 3 to 10, 10 to 30 and more than 30 away from the main result."
        )
    headings = tuple(
        Heading(column.name, "the paper's own" if column.group == "ours" else column.group)
        for column in table.columns
    )
    origins = _origins(table)
    if len(origins) == 1:
        title = f"{table.title} ({table.unit}; {origins[0]})"
    else:
        title = f"{table.title} ({table.unit})"
        note += f" Of several benchmarks: {'; '.join(origins)}." if origins else ""
    corner = "dataset" if table.unit == "normalised score" else ""
    return Grid(table.name, title, note, corner, headings, tuple(rows))


def disagreements(table: PaperTable, seeds: int = SEEDS) -> list[Disagreement]:
    """Where Welch's one-sided test from the printed means and deviations marks differently.

    All methods are taken to have as many seeds, and a deviation that is not printed to be none.
    """
    found = []
    for row in table.rows:
        samples = _samples(table, row, seeds)
        tested = not_worse(samples)
        for name in samples:
            cell = table[row, name]
            if cell is not None and cell.marked != (name in tested):
                cause = _cause(table, row, name, cell.marked, seeds)
                found.append(Disagreement(row, name, cell.marked, cause))
    return found


def _cause(table: PaperTable, row: str, column: str, printed: bool, seeds: int) -> Cause:
    samples = _samples(table, row, seeds)
    best = best_of(samples)
    pairs = product(_printing_alike(samples[best]), _printing_alike(samples[column]))
    if any(_marked(first, second) == printed for first, second in pairs):
        return "rounding"
    likely = _samples(table, row, seeds, LIKELY_SEEDS)
    if _marked(likely[best], likely[column]) == printed:
        return "seeds"
    return "no deviation" if samples[column].std is None and not printed else "none"


def _marked(best: Sample, other: Sample) -> bool:
    return "other" in not_worse({"best": best, "other": other})


def _printing_alike(sample: Sample, half: float = 0.05) -> list[Sample]:
    """The corners of what rounds to the same mean and deviation, with one decimal each."""
    means = (sample.mean - half, sample.mean + half)
    deviations = [None] if sample.std is None else [max(sample.std - half, 0.0), sample.std + half]
    return [replace(sample, mean=mean, std=std) for mean, std in product(means, deviations)]


def comparisons(table: PaperTable) -> int:
    """How many cells of a table the test has something to say about."""
    return sum(len(_samples(table, row)) for row in table.rows)


def column_average(table: PaperTable, column: str) -> float | None:
    """Mean of a column's printed rows; none where one is missing, or of the data's own scores."""
    cells = [table[row, column] for row in table.rows]
    if column == "data" or any(cell is None for cell in cells):
        return None
    return sum(cell.mean for cell in cells if cell) / len(cells)


def change(table: PaperTable, row: str, column: PaperColumn) -> float | None:
    """By how much a setting differs from the main result of its group; none for that itself."""
    cell = table[row, column.name]
    mains = [each for each in table.columns if each.main and each.group == column.group]
    if cell is None or column.main or len(mains) != 1:
        return None
    main = table[row, mains[0].name]
    return None if main is None else cell.mean - main.mean


def _shows_changes(table: PaperTable) -> bool:
    """Whether columns are settings around a main result, and not methods or costs."""
    settings = any(column.main for column in table.columns) and table.average is None
    return settings and table.unit == "normalised score"


def _samples(
    table: PaperTable, row: str, seeds: int = SEEDS, others: Mapping[str, int] | None = None
) -> dict[str, Sample]:
    """Printed means and deviations of all methods, with so many seeds but for `others`."""
    cells = {column.name: table[row, column.name] for column in table.columns}
    return {
        name: Sample(cell.mean, cell.std, (others or {}).get(name, seeds))
        for name, cell in cells.items()
        if cell is not None and name != "data"
    }


def _cell(table: PaperTable, row: str, column: PaperColumn, decimals: int) -> Cell:
    cell = table[row, column.name]
    if cell is None:
        return Cell()
    difference = change(table, row, column) if _shows_changes(table) else None
    return Cell.of(
        Sample(cell.mean, cell.std, SEEDS),
        best=cell.best,
        marked=cell.marked,
        # Printed as 30.0, a change may be more: both such cells of the paper are dark.
        shade=0 if difference is None else shade(difference, rounding=0.1),
        decimals=decimals,
    )


def _printed_average(table: PaperTable) -> Row:
    cells = (
        Cell() if cell is None else Cell.of(Sample(cell.mean, None, SEEDS), best=cell.best)
        for cell in table.average or ()
    )
    return Row("average, as printed", tuple(cells), rule=True)


def _recomputed_average(table: PaperTable) -> Row:
    means = {column.name: column_average(table, column.name) for column in table.columns}
    samples = {name: Sample(mean, None, SEEDS) for name, mean in means.items() if mean is not None}
    best = best_of(samples)
    return Row(
        "average of the rows",
        tuple(
            Cell.of(samples[name], best=name == best, decimals=2) if name in samples else Cell()
            for name in means
        ),
    )


def _tested_note(table: PaperTable) -> str:
    differing = disagreements(table)
    text = (
        f" Bold and marked as the paper prints them. Welch's one-sided test from these numbers, "
        f"with {SEEDS} seeds for every method and no deviation where none is printed, agrees on "
        f"{comparisons(table) - len(differing)} of {comparisons(table)} cells"
    )
    if not differing:
        return f"{text}."
    causes = [
        f"{_CAUSES[cause]}: {', '.join(cells)}"
        for cause in _CAUSES
        if (cells := [_in_words(each) for each in differing if each.cause == cause])
    ]
    return f"{text}. Of the others: {'; '.join(causes)}."


_CAUSES: dict[Cause, str] = {
    "rounding": "within the rounding of the printed numbers",
    "seeds": "by other numbers of seeds, one per method throughout ("
    + ", ".join(f"{name} {count}" for name, count in LIKELY_SEEDS.items())
    + ", inferred from the marks)",
    "no deviation": "left unmarked where no deviation is printed, as if not tested",
    "none": "by none of these",
}


def _in_words(cell: Disagreement) -> str:
    return f"{cell.column} on {cell.row} ({'marked' if cell.printed else 'not marked'})"


def _origins(table: PaperTable) -> list[str]:
    """The data and environments behind the rows, each benchmark once."""
    known = published.benchmarks()
    of_row: dict[str, str] = {name: name for name in known}
    of_row |= {name: each.benchmark for name, each in published.datasets().items()}
    names = dict.fromkeys(of_row[row] for row in table.rows if row in of_row)
    several = len(names) > 1
    return [
        (f"{one.title}: " if several else "") + f"{one.data} data, {one.environment} env"
        for name, one in known.items()
        if name in names
    ]
