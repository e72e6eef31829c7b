"""Findings: what is wrong with a dataset, where exactly, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

from neubay.errors import DatasetError

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

    def as_error(self) -> DatasetError:
        return DatasetError(str(self))


def error(file: str, key: str | None, row: int | None, message: str, remedy: str) -> Finding:
    """A finding that makes `load` refuse."""
    return Finding("error", file, key, row, message, remedy)
