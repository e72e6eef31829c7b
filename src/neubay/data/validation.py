"""Validation: everything that can be wrong with logged data, found in one pass.

Works on files that `load` refuses as well: what is looked at are the rows as they are stored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from neubay.data.checks import checks_for
from neubay.data.dataset import Dataset
from neubay.data.findings import Finding, Severity, from_error
from neubay.data.layout import anonymous_task
from neubay.data.rows import (
    HOW_TO_MARK_RESETS,
    HOW_TO_SET_HORIZON,
    Column,
    Flags,
    Rows,
    blocks,
    cut_said,
    cuts_of,
    read_flags,
    resets_said,
    structure_findings,
    task_findings,
)
from neubay.data.sources import Bounds, locate, open_source
from neubay.data.store import MEMORY_LIMIT, gather
from neubay.errors import NeubayError
from neubay.tasks import Task, get_task

AS_GIVEN = "That T was given"


def validate(
    source: str | Path | Dataset,
    task: Task | str | None = None,
    *,
    action_bounds: Bounds | None = None,
) -> list[Finding]:
    """Check a dataset; the worst findings first. An empty list is a clean dataset.

    Args:
        source: a dataset, or where one is, in the forms that `load` takes.
        task: the task to check against; by default the one that `load` would choose.
        action_bounds: of the actions of a file that belongs to no task, as `load` takes them.
    """
    name = source.source if isinstance(source, Dataset) else str(source)
    try:
        found = _findings(source, task, action_bounds)
    except NeubayError as problem:
        found = [from_error(problem, name)]
    order: list[Severity] = ["error", "warning", "note"]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _findings(
    source: str | Path | Dataset, task: Task | str | None, bounds: Bounds | None
) -> list[Finding]:
    if isinstance(source, Dataset):
        known = get_task(task) if isinstance(task, str) else task
        found = row_findings(_rows_of_tape(source), known or source.task)
        if source.horizon_said is not None:
            said, _, remedy = source.horizon_said.partition(": ")[2].partition(". ")
            found.append(Finding("note", source.source, None, None, said, remedy or AS_GIVEN))
        return found
    place = locate(str(source))
    try:
        with open_source(place, task, bounds) as opened:
            if opened.rows is not None:
                return row_findings(opened.rows, opened.known, opened.said, bounds)
            return _findings(opened.read(MEMORY_LIMIT), None, None)
    except NeubayError as problem:
        return [from_error(problem, place.where)]


def row_findings(
    rows: Rows, task: Task | None, said: str | None = None, bounds: Bounds | None = None
) -> list[Finding]:
    """Check rows against a task; none for what is known of the data alone. `said` is why it is
    none where a name suggested one."""
    found = structure_findings(rows)
    if found:
        return found
    if task is None:
        chosen = anonymous_task(rows, rows.file, bounds)
        found.append(_unknown_task(rows, said))
    else:
        chosen = task
        found += task_findings(rows, task)
        if found:
            return found
    try:
        flags = read_flags(rows, chosen, horizon_known=task is not None)
    except NeubayError as problem:
        found.append(from_error(problem, rows.file))
        # The values can still be looked at, as one episode.
        ends = np.zeros(len(rows), dtype=bool)
        ends[-1] = True
        flags = Flags(np.zeros(len(rows), dtype=bool), ends, None)
    if flags.longest_cut:
        piece = int(cuts_of(flags.longest_cut, None if task is None else task.horizon)[0])
        said = cut_said(flags.longest_cut, piece)
        remedy = HOW_TO_SET_HORIZON if task is None else AS_GIVEN
        found.append(Finding("note", rows.file, rows.states.key, None, said, remedy))
    if chosen.cuts_long_logs and flags.resets_assumed:
        said = resets_said(chosen.horizon)
        found.append(Finding("note", rows.file, None, None, said, HOW_TO_MARK_RESETS))
    checks = checks_for(rows, chosen, flags, horizon_known=task is not None)
    for block in blocks(rows, flags):
        for check in checks:
            check.see(block)
    for check in checks:
        found += check.findings()
    return found


def _unknown_task(rows: Rows, said: str | None) -> Finding:
    return Finding(
        "note" if said is None else "warning",
        rows.file,
        None,
        None,
        "belongs to no known task: its horizon, its terminals, and bounds of actions that the file "
        "does not record cannot be checked"
        + ("" if said is None else f"; {said.partition(': ')[2]}"),
        "Name the task if there is one (--task, or --task-file)",
    )


# ------------------------------------------------------------------- a dataset as rows


@dataclass(frozen=True, eq=False)
class _Picked:
    """Some rows of an array, picked when they are read."""

    values: np.ndarray
    rows: Int[np.ndarray, " picked"]
    commands_of: Task | None = None
    """Where given, the values are actions, and are read as the environment of that task takes
    them."""

    @property
    def shape(self) -> tuple[int, ...]:
        task = self.commands_of
        return (len(self.rows), *(self.values.shape[1:] if task is None else task.actions.shape))

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        picked = gather(self.values, self.rows[rows])
        task = self.commands_of
        return picked if task is None else task.from_unit(picked).astype(np.float32)


def _rows_of_tape(dataset: Dataset) -> Rows:
    """A tape as flat rows, counted over all."""
    tape, (steps, timeouts, successors) = dataset.tape, dataset.flat

    def column(key: str, values: Any, rows: np.ndarray, task: Task | None = None) -> Column:
        return Column(key, _Picked(values, rows, task))

    return Rows(
        file=dataset.source,
        states=column("states", tape.state, steps),
        actions=column("actions", tape.action, steps, dataset.task),
        rewards=column("rewards", tape.reward, steps),
        terminals=column("terminals", tape.terminated, steps),
        timeouts=Column("timeouts", timeouts),
        next_states=column("next_states", tape.state, steps + 1) if successors else None,
    )
