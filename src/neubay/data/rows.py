"""Flat rows, the form in which datasets are published, read block by block.

Row i of a file holds s_i, a_i, r_{i+1} and the flags of that step; an episode is a run of rows.
Files need not fit into memory. Types, shapes, flags and episode ends are checked here; values are
checked by `layout.py`, which refuses bad ones, and by `checks.py`, which reports them.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int

from neubay.data.findings import Finding, error
from neubay.tasks import ContinuousActions, DiscreteActions, Task

BLOCK_ROWS = 1 << 15
"""Rows read at a time: a block of any usual state stays in the processor's cache."""

FLAG_ROWS = 1 << 20
"""Flags read at a time."""

LONGEST_EPISODE, USUAL_HORIZON = 2_000, 1_000
"""Steps. Where no T is known, an episode longer than the first is taken for a log that nobody
interrupted, and is read in pieces of at most the second. That is also T where no
episode ran out of time."""

HOW_TO_SET_HORIZON = "Give the T that is meant as 'horizon' in a task file (--task-file)"

SUCCESSOR_TOLERANCE = 1e-4
"""A stored successor and the next row's state are the same up to this, absolute and relative:
wide enough for rounding, far below the distance of a reset."""


@runtime_checkable
class Values(Protocol):
    """The part of an array that is needed to read it block by block, from first to last."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Column:
    """One array of a source, under its name there."""

    key: str
    values: Values
    read_rows: int = 1
    """Rows that the storage hands out together; reading fewer repeats its work."""

    def __len__(self) -> int:
        return self.values.shape[0] if self.values.shape else 0

    @property
    def width(self) -> int:
        return self.values.shape[1] if len(self.values.shape) == 2 else 1

    @property
    def kind(self) -> str:
        """NumPy's letter for the kind of values: 'f' for floats, 'i' for integers, ..."""
        return np.dtype(self.values.dtype).kind

    def read(self, begin: int, end: int) -> np.ndarray:
        return np.asarray(self.values[begin:end])


class Keys(NamedTuple):
    """What the columns are called, and where: for messages."""

    file: str
    states: str
    actions: str
    rewards: str
    next_states: str


class ColumnNames(NamedTuple):
    """What the sensors and commands of the plant are called; a unit in brackets at the end, as in
    'temperature [degC]', is part of the name."""

    states: tuple[str, ...]
    actions: tuple[str, ...]
    """One for each action; one in all where actions are discrete."""
    reward: str | None = None
    """A column, or the formula that it is computed by."""

    def misfit(self, task: Task) -> str | None:
        """Why they are not names of a task's states and actions."""
        wanted = {"states": task.state_size, "actions": math.prod(task.actions.shape)}
        for what, size in wanted.items():
            if len(getattr(self, what)) != size:
                return f"{len(getattr(self, what))} names of {what} for {size} of them"
        return None


@dataclass(frozen=True, eq=False)
class Rows:
    """The columns of a source, not yet read."""

    file: str
    states: Column
    actions: Column
    rewards: Column
    terminals: Column
    timeouts: Column | None = None
    next_states: Column | None = None
    first_rows: Column | None = None
    """NeoRL's `index`: the first row of every episode."""
    terminals_mark_any_end: bool = False
    """The flag is Gym's old `done`, true at terminals and at timeouts."""
    recorded_actions: ContinuousActions | DiscreteActions | None = None
    """The action space that was stored with the data."""
    column_names: ColumnNames | None = None
    """The names that were stored with the data."""

    def __len__(self) -> int:
        return len(self.states)

    @property
    def columns(self) -> list[Column]:
        """The columns with one entry per row."""
        every = (
            self.states,
            self.actions,
            self.rewards,
            self.terminals,
            self.timeouts,
            self.next_states,
        )
        return [column for column in every if column is not None]

    @property
    def keys(self) -> Keys:
        return Keys(
            self.file,
            self.states.key,
            self.actions.key,
            self.rewards.key,
            self.states.key if self.next_states is None else self.next_states.key,
        )

    @property
    def block_rows(self) -> int:
        """Rows to read at a time."""
        return max(BLOCK_ROWS, *(column.read_rows for column in self.columns))


def spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    """0 .. count in pieces of at most `step`: (begin, end)."""
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


# ---------------------------------------------------- what must hold before a value is read


def structure_findings(rows: Rows) -> list[Finding]:
    """Everything wrong with the types, shapes and lengths of the columns."""
    columns = rows.columns + ([] if rows.first_rows is None else [rows.first_rows])
    found = [_kind_finding(rows.file, column) for column in columns if column.kind not in "fiub"]
    found += _shape_findings(rows)
    if not found and len(rows) == 0:
        found.append(
            error(rows.file, rows.states.key, None, "has no rows", "Record at least one episode")
        )
    return found


def _kind_finding(file: str, column: Column) -> Finding:
    names = {"S": "text", "U": "text", "T": "text", "O": "objects or text", "c": "complex numbers"}
    what = names.get(column.kind, f"values of type {column.values.dtype}")
    remedy = "Store numbers as float32 and flags as bool"
    return error(file, column.key, None, f"holds {what}, not numbers", remedy)


def _shape_findings(rows: Rows) -> list[Finding]:
    found = []
    for column in rows.columns:
        shape = column.values.shape
        matrix = len(shape) == 2 and shape[1] > 0
        if column is rows.states or column is rows.next_states:
            fits, wanted = matrix, "(rows, state size)"
        elif column is rows.actions:
            fits, wanted = matrix or len(shape) == 1, "(rows, action size), or (rows,) if discrete"
        else:
            fits, wanted = len(shape) == 1 or (matrix and shape[1] == 1), "(rows,)"
        if not fits:
            found.append(
                error(rows.file, column.key, None, f"has shape {shape}", f"Make it {wanted}")
            )
        elif len(column) != len(rows):
            found.append(
                error(
                    rows.file,
                    column.key,
                    None,
                    f"has {len(column)} rows where '{rows.states.key}' has {len(rows)}",
                    "Every array needs one entry per row: cut them to one length or record again",
                )
            )
    successors = rows.next_states
    if not found and successors is not None and successors.width != rows.states.width:
        found.append(
            error(
                rows.file,
                successors.key,
                None,
                f"has states of size {successors.width} where '{rows.states.key}' has "
                f"{rows.states.width}",
                "Both hold the same states, one step apart",
            )
        )
    return found


def task_findings(rows: Rows, task: Task) -> Iterator[Finding]:
    """Where the task's sizes contradict the data's."""
    remedy = "Name the right task, or none to take the sizes from the data"
    if rows.states.width != task.state_size:
        message = (
            f"has states of size {rows.states.width}, but those of task '{task.name}' "
            f"have {task.state_size}"
        )
        yield error(rows.file, rows.states.key, None, message, remedy)
    actions = task.actions
    if rows.actions.width != math.prod(actions.shape):
        theirs = "have" if actions.kind == "continuous" else "are numbers below"
        message = (
            f"has actions of size {rows.actions.width}, but those of task '{task.name}' "
            f"{theirs} {actions.size}"
        )
        yield error(rows.file, rows.actions.key, None, message, remedy)


def refuse(found: Iterable[Finding]) -> None:
    """Raise the first finding, if there is one."""
    for finding in found:
        raise finding.as_error()


# ---------------------------------------------------------------------- flags, read whole


@dataclass(frozen=True, eq=False)
class Flags:
    """The flags of a source, and the episode ends that they mark."""

    terminals: Bool[np.ndarray, " rows"]
    ends: Bool[np.ndarray, " rows"]
    horizon: int | None
    """Where an episode ends at the latest: T where no timeouts are stored."""
    cuts: Int[np.ndarray, " cuts"] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows that end a piece of a log which goes on in the next row."""
    longest_cut: int = 0
    """Steps of the longest log that is read in pieces; 0 where none is."""

    @property
    def resets_assumed(self) -> bool:
        """Ends that nothing marks are taken to be at every T rows."""
        rows = np.diff(np.flatnonzero(self.ends), prepend=-1)
        return self.horizon is not None and int(rows.max()) > self.horizon


def read_flags(rows: Rows, task: Task, *, horizon_known: bool = True) -> Flags:
    """Terminals and timeouts end an episode; timeouts alone where the task says so. Own data that
    is longer than T is cut into pieces.

    Args:
        horizon_known: false for a task made from the data, whose T is not known yet.
    """
    terminals = read_flag(rows, rows.terminals)
    ends = np.zeros(len(rows), dtype=bool) if task.split_by_timeouts_only else terminals.copy()
    timeouts = None if rows.timeouts is None else read_flag(rows, rows.timeouts)
    if timeouts is not None:
        ends |= timeouts
    if rows.first_rows is not None:
        ends[_first_rows(rows, rows.first_rows)[1:] - 1] = True
    ends[-1] = True
    if rows.terminals_mark_any_end:
        if timeouts is not None:
            terminals &= ~timeouts
        elif horizon_known:
            # An episode of T steps ran out of time; a shorter one was terminated, and so was a log
            # that is longer.
            last = np.flatnonzero(ends)
            steps = np.diff(last, prepend=-1)
            ran_out = steps == task.horizon if task.cuts_long_logs else steps >= task.horizon
            terminals[last[ran_out]] = False
        elif terminals.any():
            raise error(
                rows.file,
                rows.terminals.key,
                int(np.argmax(terminals)),
                "marks an end, but not whether the episode terminated or ran out of time",
                "Name the task, whose horizon decides, or store 'terminals' and 'timeouts'",
            ).as_error()
    ends_known = timeouts is not None or rows.first_rows is not None
    shown = ends_known or rows.next_states is not None  # successors show where a log goes on
    if horizon_known and not (shown and task.cuts_long_logs):
        return Flags(terminals, ends, None if ends_known else task.horizon)
    return _in_pieces(rows, Flags(terminals, ends, None), task.horizon if horizon_known else None)


def _in_pieces(rows: Rows, flags: Flags, horizon: int | None) -> Flags:
    """The flags, and where episodes that are longer than T are cut."""
    stored, ends = rows.next_states is not None, flags.ends

    def episodes() -> tuple[np.ndarray, np.ndarray]:
        last = np.flatnonzero(ends)
        count = np.diff(last, prepend=-1)
        return last - count + 1, count - ~(stored | flags.terminals[last])

    first, steps = episodes()
    limit = horizon or LONGEST_EPISODE
    if stored and steps.max() > limit:  # unless an end was not marked
        ends = ends.copy()
        for block in blocks(rows, flags):
            ends[block.begin + block.jumps] = True
        first, steps = episodes()
    long = steps > limit
    if not long.any():
        return flags
    cuts = [
        begin + cuts_of(count, horizon) - 1
        for begin, count in zip(first[long].tolist(), steps[long].tolist(), strict=True)
    ]
    return replace(flags, cuts=np.concatenate(cuts), longest_cut=int(steps.max()))


def cuts_of(steps: int, horizon: int | None) -> Int[np.ndarray, " cuts"]:
    """The steps before each cut of an episode: every T, or where no T is known equal pieces of
    what is longer than any usual episode."""
    piece = horizon or steps
    if horizon is None and steps > LONGEST_EPISODE:
        piece = math.ceil(steps / math.ceil(steps / USUAL_HORIZON))
    return np.arange(max(piece, 1), steps, max(piece, 1))


def read_flag(rows: Rows, column: Column) -> Bool[np.ndarray, " rows"]:
    """A whole column of flags: false and true, or the numbers 0 and 1."""
    flags = np.empty(len(column), dtype=bool)
    for begin, end in spans(len(column), max(FLAG_ROWS, column.read_rows)):
        values = column.read(begin, end).reshape(-1)
        flags[begin:end] = values if values.dtype == bool else values != 0
        if values.dtype != bool and (odd := flags[begin:end] & (values != 1)).any():
            row = int(np.argmax(odd))
            message = f"is {values[row]}, neither 0 nor 1"
            raise error(
                rows.file, column.key, begin + row, message, "Store flags as bool"
            ).as_error()
    return flags


def _first_rows(rows: Rows, column: Column) -> Int[np.ndarray, " episodes"]:
    """NeoRL's index: row numbers that begin at 0 and grow."""
    values = column.read(0, len(column)).reshape(-1)
    with np.errstate(invalid="ignore"):
        first = values.astype(np.int64)
    sound = (
        len(first) > 0
        and np.array_equal(first, values)
        and first[0] == 0
        and first[-1] < len(rows)
        and (np.diff(first) > 0).all()
    )
    if not sound:
        raise error(
            rows.file,
            column.key,
            None,
            f"does not hold the first row of every episode: growing numbers from 0 to below "
            f"{len(rows)}",
            "Repair or leave out this key",
        ).as_error()
    return first


# -------------------------------------------------------- blocks: rows with episode ends


def cut_said(longest: int, horizon: int) -> str:
    """That logs which are longer than T are read in pieces."""
    return (
        f"an episode of {longest:,} steps is read in pieces of at most {horizon:,} (T), each as an "
        "episode of its own"
    )


HOW_TO_MARK_RESETS = "Store 'timeouts', or 'next_observations', where that is wrong"


def resets_said(horizon: int) -> str:
    """That nothing tells resets from a log that goes on."""
    return (
        f"neither timeouts nor successors are stored, so a reset is assumed after every "
        f"{horizon:,} rows (T), each of which costs a step"
    )


def unseen_horizon(
    steps: Int[np.ndarray, " episodes"], terminal: Bool[np.ndarray, " episodes"]
) -> int | None:
    """T where the data does not show it: the longest episodes were ended by terminal states and not
    by time. None where one was not, or where most episodes have one length, which is T."""
    longest = int(steps.max())
    reached = steps >= longest - 1  # the last step may not be stored
    if not terminal[reached].all() or (steps == longest).mean() > 0.5:
        return None
    return max(longest, USUAL_HORIZON)


def unseen_said(longest: int, horizon: int) -> str:
    """That the data does not show T."""
    return (
        f"the longest episode ends in a terminal state after {longest:,} steps, which does not "
        f"tell how long one can be; T is taken to be {horizon:,}"
    )


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows as stored, with their episode ends decided."""

    begin: int
    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray | None
    terminals: Bool[np.ndarray, " rows"]
    starts: Bool[np.ndarray, " rows"]
    """This row is the first of its episode."""
    ends: Bool[np.ndarray, " rows"]
    """This row is the last of its episode."""
    jumps: Int[np.ndarray, " jumps"]
    """Rows that end an episode only because their stored successor is not the next row."""
    cuts: Int[np.ndarray, " cuts"]
    """Rows that end a piece of a log that goes on in the next row."""
    following: np.ndarray
    """The states of these next rows."""


def blocks(rows: Rows, flags: Flags) -> Iterator[Block]:
    """Read everything once, and decide where episodes end.

    Flags end an episode, and so does a stored successor that is not the next row's state:
    whatever the flags say, what follows there is another episode. Where there are no timeouts,
    an episode ends at the horizon T at the latest; and at the cuts of a long log.
    """
    previous_ended = True
    steps = 0  # of the running episode in earlier blocks
    ahead = rows.states.read(0, min(rows.block_rows, len(rows)))
    for begin, end in spans(len(rows), rows.block_rows):
        states, ahead = ahead, rows.states.read(end, min(end + rows.block_rows, len(rows)))
        next_states = None if rows.next_states is None else rows.next_states.read(begin, end)
        ends = flags.ends[begin:end].copy()
        jumps = np.zeros(0, dtype=np.int64)
        if next_states is not None:
            jumps = _jumps(states, next_states, ahead[:1], ends)
            ends[jumps] = True
        if flags.horizon is not None:
            _cut_at_horizon(ends, steps, flags.horizon)
        cuts = flags.cuts[slice(*np.searchsorted(flags.cuts, (begin, end)))] - begin
        ends[cuts] = True
        last = np.flatnonzero(ends)
        steps = len(ends) - 1 - int(last[-1]) if len(last) else steps + len(ends)
        starts = np.concatenate([[previous_ended], ends[:-1]])
        previous_ended = bool(ends[-1])
        yield Block(
            begin=begin,
            states=states,
            actions=rows.actions.read(begin, end),
            rewards=rows.rewards.read(begin, end).reshape(-1),
            next_states=next_states,
            terminals=flags.terminals[begin:end],
            starts=starts,
            ends=ends,
            jumps=jumps,
            cuts=cuts,
            following=np.append(states, ahead[:1], axis=0)[cuts + 1] if len(cuts) else states[:0],
        )


def _jumps(
    states: np.ndarray, next_states: np.ndarray, ahead: np.ndarray, ends: Bool[np.ndarray, " rows"]
) -> Int[np.ndarray, " jumps"]:
    """Rows inside an episode whose stored successor is not the state of the following row."""
    different = next_states[:-1] != states[1:]
    different[ends[:-1]] = False
    jumps = np.zeros(0, dtype=np.int64)
    if different.any():
        candidates = np.flatnonzero(different.any(axis=1))
        jumps = candidates[_apart(next_states[candidates], states[candidates + 1])]
    last_differs = not ends[-1] and (next_states[-1:] != ahead).any()
    if last_differs and _apart(next_states[-1:], ahead).any():
        jumps = np.append(jumps, len(states) - 1)
    return jumps


def _apart(a: np.ndarray, b: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Rows that differ by more than rounding."""
    with np.errstate(invalid="ignore", over="ignore"):  # values are checked by who uses them
        close = np.isclose(a, b, rtol=SUCCESSOR_TOLERANCE, atol=SUCCESSOR_TOLERANCE)
    return ~close.all(axis=1)


def _cut_at_horizon(ends: Bool[np.ndarray, " rows"], steps: int, horizon: int) -> None:
    """Mark, in place, every `horizon`-th row of an episode; `steps` rows of it came before."""
    last = np.append(np.flatnonzero(ends), len(ends))
    first = np.concatenate([[-steps], last[:-1] + 1])
    long = last - first >= horizon
    for begin, end in zip(first[long].tolist(), last[long].tolist(), strict=True):
        cuts = np.arange(begin + horizon - 1, end, horizon)
        ends[cuts[cuts >= 0]] = True
