"""Findings: what is wrong with a dataset, where exactly, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from neubay.errors import DatasetError, NeubayError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One observation about a file, a key in it and, where there is one, the first row.

    An "error" is data that contradicts itself or that `load` refuses; a "warning" loads, but
    something may not be what it seems; a "note" is worth knowing.
    """

    severity: Severity
    file: str
    key: str | None
    row: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        place = self.file
        if self.key is not None:
            place += f": '{self.key}'"
        if self.row is not None:
            place += f" row {self.row}"
        return f"{place}: {self.message}. {self.remedy}."

    def as_error(self) -> "RefusedError":
        return RefusedError(self)


class RefusedError(DatasetError):
    """What makes `load` refuse a dataset, as the finding that it is."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def error(file: str, key: str | None, row: int | None, message: str, remedy: str) -> Finding:
    """A finding that makes `load` refuse."""
    return Finding("error", file, key, row, message, remedy)


def from_error(problem: NeubayError, file: str) -> Finding:
    """An error as a finding; its last sentence is the remedy, as it is in all our errors."""
    if isinstance(problem, RefusedError):
        return problem.finding
    text = str(problem).removeprefix(f"{file}: ").removesuffix(".")
    message, _, remedy = text.rpartition(". ")
    return error(file, None, None, message or text, remedy if message else "See the message")


@dataclass
class Tally:
    """How many rows were found, and which one first."""

    count: int = 0
    first: int | None = None

    def add(self, rows: Int[np.ndarray, " rows"]) -> None:
        self.count += len(rows)
        if self.first is None and len(rows):
            self.first = int(rows[0])

    def __str__(self) -> str:
        return "1 row" if self.count == 1 else f"{self.count} rows"
