"""What the paper reports, as data: its datasets with their settings, and its result tables.

Numbers only, read from the JSON files beside this module; nothing here is ours. A report sets
our results beside these, and never mixes the two in one table.
"""

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from neubay.errors import TaskError

Category = Literal["low-quality", "moderate coverage", "narrow coverage"]
"""The paper's grouping of its datasets; the two coverages are both of medium quality."""

BenchmarkName = Literal["d4rl_locomotion", "neorl_locomotion", "adroit", "antmaze"]
"""The paper's four benchmarks; each is also the name of its result table."""

Over = Literal[
    "zeta", "N", "lambda", "horizon", "memory", "critic", "layernorm", "kappa", "eta_phi"
]
"""What the paper's ablations vary; the last two it chose per dataset, from a grid."""

ZETAS = (0.9, 0.99, 0.999, 1.0)
"""The truncation thresholds zeta that the paper compares."""

TableName = Literal[
    "d4rl_locomotion",
    "neorl_locomotion",
    "adroit",
    "antmaze",
    "ablation_summary",
    "ablations",
    "horizon_ablation",
    "sac_ablation",
    "rollout_cost",
    "model_cost",
    "neorl2_safety_half_cheetah",
]


@dataclass(frozen=True)
class PaperDataset:
    """One of the paper's 33 datasets and the settings its result was obtained with."""

    name: str
    """As the paper spells it, such as 'hopper-medium-replay-v2'."""
    short: str
    """The paper's abbreviation in tables, such as 'hp-med-rep'."""
    task: str
    """Name of the task in `tasks/catalogue.py`."""
    benchmark: BenchmarkName
    category: Category
    eta_phi: float | None
    """Best encoder learning rate; none where every setting scored near zero."""
    kappa: float | None
    """Best real data ratio; none where every setting scored near zero."""
    max_epochs: int | None
    """Epoch cap of the world in the published run, where there was one."""
    fixed_alpha: float | None
    """Hopper's fixed entropy coefficient."""


@dataclass(frozen=True)
class PaperBenchmark:
    """What the datasets of one benchmark share."""

    name: BenchmarkName
    title: str
    data: str
    """Where the data of its results come from, with their version."""
    environment: str
    """Where its results were scored, with the version."""
    preset: Literal["locomotion", "adroit", "antmaze"]
    """The benchmark's key in the presets of `config.py`."""
    eta_phi_grid: tuple[float, ...]
    kappa_grid: tuple[float, ...]


@dataclass(frozen=True)
class PaperColumn:
    """A method, or a setting of an ablation."""

    name: str
    group: str
    main: bool = False
    """The paper's own main result."""


@dataclass(frozen=True)
class PaperCell:
    mean: float
    std: float | None
    best: bool
    """Printed bold: the best mean of the row as the paper sees it."""
    marked: bool
    """Highlighted: not significantly different from the best (Welch's t-test, p < 0.05)."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; `table[row, column]` is a `PaperCell`, or none where it has a dash."""

    name: str
    title: str
    source: str
    """Where the numbers come from."""
    unit: str
    note: str
    columns: tuple[PaperColumn, ...]
    cells: dict[str, tuple[PaperCell | None, ...]]
    average: tuple[PaperCell | None, ...] | None
    """The average row as printed, which need not be the mean of the rounded rows."""

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.cells)

    def index(self, column: str) -> int:
        names = [each.name for each in self.columns]
        if column not in names:
            raise TaskError(
                f"table '{self.name}' has no column '{column}'; it has {', '.join(names)}"
            )
        return names.index(column)

    def __getitem__(self, key: tuple[str, str]) -> PaperCell | None:
        row, column = key
        if row not in self.cells:
            raise TaskError(
                f"table '{self.name}' has no row '{row}'; it has {', '.join(self.cells)}"
            )
        return self.cells[row][self.index(column)]


def _read(name: str) -> dict[str, Any]:
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@cache
def datasets() -> dict[str, PaperDataset]:
    """The paper's 33 datasets by name, in the order of its tables."""
    return {row["name"]: PaperDataset(**row) for row in _read("datasets")["datasets"]}


@cache
def benchmarks() -> dict[BenchmarkName, PaperBenchmark]:
    """The paper's four benchmarks with the grids that eta_phi and kappa were chosen from."""
    return {
        name: PaperBenchmark(
            name=name,
            title=fields["title"],
            data=fields["data"],
            environment=fields["environment"],
            preset=fields["preset"],
            eta_phi_grid=tuple(fields["eta_phi_grid"]),
            kappa_grid=tuple(fields["kappa_grid"]),
        )
        for name, fields in _read("datasets")["benchmarks"].items()
    }


def tables() -> tuple[str, ...]:
    """Names of the tables that `table` knows."""
    return get_args(TableName)


@cache
def table(name: str) -> PaperTable:
    """A result table by name; for the four benchmarks, the name of the benchmark."""
    if name not in tables():
        close = difflib.get_close_matches(name, tables(), n=1, cutoff=0.4)
        hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(tables())}"
        raise TaskError(f"no published table '{name}'; {hint}")
    document = _read(name)
    columns = tuple(PaperColumn(**fields) for fields in document["columns"])
    average = document.get("average")
    return PaperTable(
        name=name,
        title=document["title"],
        source=document["source"],
        unit=document["unit"],
        note=document["note"],
        columns=columns,
        cells={row["row"]: _cells(row, columns) for row in document["rows"]},
        average=None if average is None else _cells(average, columns),
    )


def _cells(row: dict[str, Any], columns: tuple[PaperColumn, ...]) -> tuple[PaperCell | None, ...]:
    """A row is stored as parallel lists over the columns, plus the names it sets apart."""
    means = row["mean"]
    deviations = row.get("std", [None] * len(means))
    return tuple(
        None
        if mean is None
        else PaperCell(
            mean=float(mean),
            std=None if std is None else float(std),
            best=column.name == row.get("best"),
            marked=column.name in row.get("marked", ()),
        )
        for column, mean, std in zip(columns, means, deviations, strict=True)
    )


def result(dataset: str, method: str = "NEUBAY") -> PaperCell | None:
    """The published score of a method on one of the 33 datasets, in that benchmark's table."""
    known = datasets()
    if dataset not in known:
        close = difflib.get_close_matches(dataset, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise TaskError(f"'{dataset}' is not one of the paper's datasets{hint}")
    return table(known[dataset].benchmark)[dataset, method]
