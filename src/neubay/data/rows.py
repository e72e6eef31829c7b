"""Flat rows, the form in which datasets are published, and how they become a tape.

Row i of a file holds s_i, a_i, r_{i+1} and the flags of that step. An episode is a run of rows
up to a row that ends it. Where the file stores successors (`next_states`), an episode of L rows
has L steps; where it does not, the last row of an episode has no successor: it becomes the
tape's s_L row, and its action, reward and flags are dropped.

Everything is read once, block by block, so that a file need not fit into memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.data.findings import Finding, error
from neubay.tape import Tape
from neubay.tasks import ContinuousActions, DiscreteActions, Task

BLOCK_ROWS = 1 << 14
"""Rows read at a time: a block of any usual state stays in the processor's cache."""

SUCCESSOR_TOLERANCE = 1e-4
"""A stored successor and the next row's state are the same up to this, absolute and relative:
wide enough for rounding, far below the distance of a reset."""

BOUNDS_TOLERANCE = 1e-4
"""How far beyond its bounds, as a share of their width, an action is clipped, not refused."""

MOST_DISCRETE_ACTIONS = 1024
"""Without a task, integers above this are taken for something other than action numbers."""


Bound = int | float | Sequence[float] | np.ndarray
"""The low or high end of actions: one for all dimensions, or one each."""


@runtime_checkable
class Values(Protocol):
    """The part of an array that is needed to read it block by block."""

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

    def read(self, begin: int, end: int) -> np.ndarray:
        return np.asarray(self.values[begin:end])


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

    def __len__(self) -> int:
        return len(self.states)

    @property
    def columns(self) -> list[Column]:
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
    def block_rows(self) -> int:
        """Rows to read at a time."""
        return max(BLOCK_ROWS, *(column.read_rows for column in self.columns))


# --- what must hold before a value is read -------------------------------------------------


def structure_findings(rows: Rows) -> list[Finding]:
    """Everything wrong with the types, shapes and lengths of the columns."""
    found = []
    for column in rows.columns:
        kind = np.dtype(column.values.dtype).kind
        if kind not in "fiub":
            what = {"S": "text", "U": "text", "T": "text", "O": "objects", "c": "complex numbers"}
            found.append(
                error(
                    rows.file,
                    column.key,
                    None,
                    f"holds {what.get(kind, f'values of type {column.values.dtype}')}, not numbers",
                    "Store it as float32, and flags as bool",
                )
            )
    found += _shape_findings(rows)
    if not found and len(rows) == 0:
        found.append(
            error(rows.file, rows.states.key, None, "has no rows", "Record at least one episode")
        )
    return found


def _shape_findings(rows: Rows) -> list[Finding]:
    found = []
    for column in rows.columns:
        shape = column.values.shape
        if column is rows.states or column is rows.next_states:
            fits, wanted = len(shape) == 2 and shape[1] > 0, "(rows, state size)"
        elif column is rows.actions:
            fits = len(shape) == 1 or (len(shape) == 2 and shape[1] > 0)
            wanted = "(rows, action size), or (rows,) for discrete actions"
        else:
            fits, wanted = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1), "(rows,)"
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


def task_findings(rows: Rows, task: Task) -> list[Finding]:
    """Where the task's sizes contradict the data's."""
    found = []
    remedy = "Name the right task, or none to take the sizes from the data"
    if rows.states.width != task.state_size:
        found.append(
            error(
                rows.file,
                rows.states.key,
                None,
                f"has states of size {rows.states.width}, task '{task.name}' has {task.state_size}",
                remedy,
            )
        )
    wanted = 1 if isinstance(task.actions, DiscreteActions) else task.actions.size
    if rows.actions.width != wanted:
        kind = "action numbers" if isinstance(task.actions, DiscreteActions) else "actions of size"
        found.append(
            error(
                rows.file,
                rows.actions.key,
                None,
                f"has actions of size {rows.actions.width}, task '{task.name}' has {kind} "
                f"{task.actions.size}",
                remedy,
            )
        )
    return found


def refuse(found: list[Finding]) -> None:
    """Raise the first finding, if there is one."""
    for finding in found:
        raise finding.as_error()


# --- values --------------------------------------------------------------------------------


def not_finite(values: np.ndarray) -> int | None:
    """The first row with a NaN or infinite value, or none."""
    # A sum is finite only if its terms are, and is many times faster than looking at each;
    # it may also overflow, so that only the slow look decides.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=values.dtype)):
            return None
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return int(np.argmax(bad)) if bad.any() else None


def as_float32(values: np.ndarray) -> np.ndarray:
    """As float32; what is too large for it becomes infinite, and is found by `not_finite`."""
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def read_flags(rows: Rows, column: Column) -> Bool[np.ndarray, " rows"]:
    """A whole column of flags: false and true, or the numbers 0 and 1."""
    flags = np.empty(len(column), dtype=bool)
    for begin, end in spans(len(column), rows.block_rows):
        values = column.read(begin, end).reshape(-1)
        flags[begin:end] = values != 0
        if values.dtype != bool:
            odd = (values != 0) & (values != 1)
            if odd.any():
                row = int(np.argmax(odd))
                raise error(
                    rows.file,
                    column.key,
                    begin + row,
                    f"is {values[row]}, neither 0 nor 1",
                    "Store flags as bool",
                ).as_error()
    return flags


def spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    """0 .. count in pieces of at most `step`: (begin, end)."""
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


# --- blocks: rows with their episode ends --------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive rows as stored, flags read and ends decided."""

    begin: int
    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray | None
    terminals: Bool[np.ndarray, " rows"]
    ends: Bool[np.ndarray, " rows"]
    """This row is the last of its episode."""
    starts: Bool[np.ndarray, " rows"]
    """This row is the first of its episode."""
    jumps: Int[np.ndarray, " jumps"]
    """Rows inside an episode, by the flags, whose stored successor is not the next row."""


@dataclass(frozen=True, eq=False)
class Flags:
    """The flags of a source, read whole, and the ends of episodes as far as they tell."""

    terminals: Bool[np.ndarray, " rows"]
    ends: Bool[np.ndarray, " rows"]
    has_timeouts: bool


def read_all_flags(rows: Rows, task: Task) -> Flags:
    """Terminals and timeouts end an episode; timeouts alone where the task says so."""
    terminals = read_flags(rows, rows.terminals)
    ends = np.zeros(len(rows), dtype=bool) if task.split_by_timeouts_only else terminals.copy()
    if rows.timeouts is not None:
        ends |= read_flags(rows, rows.timeouts)
    ends[-1] = True
    return Flags(terminals, ends, rows.timeouts is not None)


def blocks(rows: Rows, task: Task, flags: Flags) -> Iterator[Block]:
    """Read everything once, and decide where episodes end.

    Flags end an episode, and so does a stored successor that is not the next row's state:
    whatever the flags say, what follows there is another episode. Where there are no timeouts,
    an episode ends at the horizon T at the latest.
    """
    previous_ended = True
    steps = 0  # rows of the running episode in earlier blocks
    for begin, end in spans(len(rows), rows.block_rows):
        # One row more than the block: the successor of its last row.
        states = rows.states.read(begin, min(end + 1, len(rows)))
        next_states = None if rows.next_states is None else rows.next_states.read(begin, end)
        ends = flags.ends[begin:end].copy()
        jumps = np.zeros(0, dtype=np.int64)
        if next_states is not None:
            candidates = _jumps(next_states[: len(states) - 1], states[1:])
            jumps = candidates[~ends[candidates]]
            ends[jumps] = True
        if not flags.has_timeouts:
            _cut_at_horizon(ends, steps, task.horizon)
        last = np.flatnonzero(ends)
        steps = steps + len(ends) if len(last) == 0 else len(ends) - 1 - int(last[-1])
        starts = np.concatenate([[previous_ended], ends[:-1]])
        previous_ended = bool(ends[-1])
        yield Block(
            begin=begin,
            states=states[: end - begin],
            actions=rows.actions.read(begin, end),
            rewards=rows.rewards.read(begin, end).reshape(-1),
            next_states=next_states,
            terminals=flags.terminals[begin:end],
            ends=ends,
            starts=starts,
            jumps=jumps + begin,
        )


def _jumps(successors: np.ndarray, following: np.ndarray) -> Int[np.ndarray, " jumps"]:
    """Rows whose stored successor is not the state of the following row."""
    # Equal but for an episode's last row, in good data: a flat comparison finds the few others.
    different = np.flatnonzero(successors.reshape(-1) != following.reshape(-1))
    candidates = np.unique(different // max(successors.shape[1], 1))
    a, b = as_float32(successors[candidates]), as_float32(following[candidates])
    with np.errstate(invalid="ignore", over="ignore"):  # values are checked by who uses them
        close = np.isclose(a, b, rtol=SUCCESSOR_TOLERANCE, atol=SUCCESSOR_TOLERANCE)
    return candidates[~close.all(axis=1)]


def _cut_at_horizon(ends: Bool[np.ndarray, " rows"], steps: int, horizon: int) -> None:
    """Mark, in place, every `horizon`-th row of an episode; `steps` rows came before."""
    last = np.append(np.flatnonzero(ends), len(ends))
    first = np.concatenate([[-steps], last[:-1] + 1])
    long = last - first >= horizon
    for begin, end in zip(first[long].tolist(), last[long].tolist(), strict=True):
        cuts = np.arange(begin + horizon - 1, end, horizon)
        ends[cuts[cuts >= 0]] = True


# --- the tape ------------------------------------------------------------------------------


@runtime_checkable
class TapeWriter(Protocol):
    """Where a tape is put together: memory, or a folder of files."""

    def extend(self, rows: int) -> Tape:
        """The next `rows` rows, to be filled in before the next call."""
        ...

    def finish(self) -> Tape:
        """The whole tape, read-only."""
        ...


class MemoryWriter:
    """A tape in memory, allocated once for the rows expected and grown if there are more."""

    def __init__(self, expected_rows: int, task: Task) -> None:
        self._tape = allocate(expected_rows, task.state_size, task.actions.size)
        self._rows = 0

    def extend(self, rows: int) -> Tape:
        begin, self._rows = self._rows, self._rows + rows
        capacity = len(self._tape.start)
        if self._rows > capacity:
            grown = allocate(
                self._rows + capacity // 4, self._tape.state.shape[1], self._tape.action.shape[1]
            )
            for new, old in zip(fields(grown), fields(self._tape), strict=True):
                new[:begin] = old[:begin]
            self._tape = grown
        return Tape(*(field[begin : self._rows] for field in fields(self._tape)))

    def finish(self) -> Tape:
        tape = Tape(*(field[: self._rows] for field in fields(self._tape)))
        for field in fields(tape):
            field.flags.writeable = False
        return tape


def allocate(rows: int, state_size: int, action_size: int) -> Tape:
    """A tape of real rows whose other fields are yet to be filled in."""
    return Tape(
        state=np.empty((rows, state_size), dtype=np.float32),
        action=np.empty((rows, action_size), dtype=np.float32),
        reward=np.empty(rows, dtype=np.float32),
        terminated=np.empty(rows, dtype=bool),
        start=np.empty(rows, dtype=bool),
        real=np.ones(rows, dtype=bool),
    )


def fields(tape: Tape) -> list[np.ndarray]:
    """The fields that data has: all but the penalty, which belongs to imagined rows."""
    return [np.asarray(field) for field in tape if field is not None]


def expected_rows(rows: Rows, flags: Flags) -> int:
    """Rows of the tape, if the flags tell all ends."""
    return len(rows) + (int(flags.ends.sum()) if rows.next_states is not None else 0)


def lay_out(rows: Rows, task: Task, flags: Flags, writer: TapeWriter) -> Tape:
    """Read the rows, check every value, and write them as a tape of the task."""
    for block in blocks(rows, task, flags):
        _write(block, rows, task, writer)
    tape = writer.finish()
    if not len(tape.start):
        raise error(
            rows.file,
            rows.states.key,
            None,
            "has no step with a successor: every episode is a single row",
            f"Store the successors under 'next_observations', or longer episodes than in "
            f"'{rows.terminals.key}'",
        ).as_error()
    return tape


def _write(block: Block, rows: Rows, task: Task, writer: TapeWriter) -> None:
    states = checked(block.states, rows, rows.states, block.begin)
    rewards = checked(block.rewards, rows, rows.rewards, block.begin)
    actions = unit_actions(block.actions, rows, task, block.begin)
    ends = np.flatnonzero(block.ends)
    if rows.next_states is not None and block.next_states is not None:
        successors = checked(block.next_states, rows, rows.next_states, block.begin)
        # Row j moves down by one for every episode that ended before it.
        place = np.arange(len(states)) + np.concatenate([[0], np.cumsum(block.ends[:-1])])
        final = place[ends] + 1
        out = writer.extend(len(states) + len(ends))
        out.state[final] = successors[ends]
        kept: Any = slice(None)
    else:
        # An episode of one row has no step at all, and is left out.
        kept = ~(block.ends & block.starts)
        if kept.all():
            kept = slice(None)
        final = np.flatnonzero(block.ends[kept])
        place = np.arange(len(states[kept]))
        out = writer.extend(len(place))
    out.state[place] = states[kept]
    out.action[place] = actions[kept]
    out.reward[place] = rewards[kept] + np.float32(task.reward_shift)
    out.terminated[place] = block.terminals[kept]
    out.start[place] = block.starts[kept]
    if rows.next_states is not None:
        out.start[final] = False
    out.action[final] = 0
    out.reward[final] = 0
    out.terminated[final] = False
    out.real[:] = True


def checked(values: np.ndarray, rows: Rows, column: Column, begin: int) -> np.ndarray:
    """The values as float32, refused if one is not finite."""
    result = as_float32(values)
    row = not_finite(result)
    if row is not None:
        raise error(
            rows.file,
            column.key,
            begin + row,
            f"holds {_odd_value(values[row], result[row])}",
            "Remove or repair the episode it belongs to",
        ).as_error()
    return result


def _odd_value(original: np.ndarray, converted: np.ndarray) -> str:
    value = np.atleast_1d(original)[int(np.argmax(~np.isfinite(np.atleast_1d(converted))))]
    return str(value) if not np.isfinite(value) else f"{value}, too large for float32"


def unit_actions(
    values: np.ndarray, rows: Rows, task: Task, begin: int
) -> Float[np.ndarray, "rows a"]:
    """Actions of the environment as actions of the tape, refused if outside the task's."""
    if isinstance(task.actions, DiscreteActions):
        flat = values.reshape(-1)
        with np.errstate(invalid="ignore"):
            bad = ~((flat >= 0) & (flat < task.actions.n) & (flat == np.floor(flat)))
        if bad.any():
            row = int(np.argmax(bad))
            raise error(
                rows.file,
                rows.actions.key,
                begin + row,
                f"is {flat[row]}, not an action number from 0 to {task.actions.n - 1}",
                "Number the actions from 0, or give a task with more of them",
            ).as_error()
        return task.to_unit(flat.astype(np.int64)).astype(np.float32, copy=False)
    actions = checked(values.reshape(len(values), -1), rows, rows.actions, begin)
    low, high = (np.asarray(b, dtype=np.float32) for b in (task.actions.low, task.actions.high))
    slack = BOUNDS_TOLERANCE * (high - low)
    if (actions < low - slack).any() or (actions > high + slack).any():
        outside = ((actions < low - slack) | (actions > high + slack)).any(axis=1)
        row = int(np.argmax(outside))
        worst = actions[row, int(np.argmax(np.maximum(low - actions[row], actions[row] - high)))]
        raise error(
            rows.file,
            rows.actions.key,
            begin + row,
            f"holds {worst:g}, outside the bounds {_bounds(low, high)}",
            "Give a task with the right bounds, or clip the actions",
        ).as_error()
    # Rounding may carry the image of a bound a little beyond 1.
    return np.clip(task.to_unit(actions), -1, 1).astype(np.float32, copy=False)


def _bounds(low: np.ndarray, high: np.ndarray) -> str:
    if (low == low[0]).all() and (high == high[0]).all():
        return f"[{low[0]:g}, {high[0]:g}]"
    return f"{low.tolist()} to {high.tolist()}"


# --- a task made from the data -------------------------------------------------------------


def anonymous_task(rows: Rows, name: str, bounds: tuple[Bound, Bound] | None = None) -> Task:
    """A task with the data's sizes and nothing else: no environment, no termination rule.

    Its horizon is an upper bound until the episodes are known: see `with_longest_episode`.
    """
    discrete = _discrete_actions(rows) if bounds is None else None
    actions = discrete or _box(rows, (-1.0, 1.0) if bounds is None else bounds)
    return Task(name=name, state_size=rows.states.width, actions=actions, horizon=max(len(rows), 1))


def _box(rows: Rows, bounds: tuple[Bound, Bound]) -> ContinuousActions:
    size = rows.actions.width
    try:
        low, high = (
            np.broadcast_to(np.asarray(bound, dtype=np.float32), (size,)) for bound in bounds
        )
    except (ValueError, TypeError):
        low = high = np.zeros(size, dtype=np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise error(
            rows.file,
            rows.actions.key,
            None,
            f"cannot be scaled from the bounds {bounds}",
            f"Give two finite numbers, low below high, or two arrays of {size} of them",
        ).as_error()
    return ContinuousActions(low=low, high=high)


def _discrete_actions(rows: Rows) -> DiscreteActions | None:
    """Integers, one per row, number discrete actions; anything else is continuous."""
    column = rows.actions
    if np.dtype(column.values.dtype).kind not in "iub" or column.width != 1:
        return None
    highest = 0
    for begin, end in spans(len(column), rows.block_rows):
        values = column.read(begin, end).reshape(-1)
        highest = max(highest, int(values.max()))
        if values.min() < 0 or highest >= MOST_DISCRETE_ACTIONS:
            wrong = (values < 0) | (values >= MOST_DISCRETE_ACTIONS)
            row = int(np.argmax(wrong))
            raise error(
                rows.file,
                column.key,
                begin + row,
                f"is {values[row]}: integers are taken for the numbers of discrete actions, "
                f"from 0 to at most {MOST_DISCRETE_ACTIONS - 1}",
                "Store continuous actions as float32, or give a task",
            ).as_error()
    return DiscreteActions(n=highest + 1)


def with_longest_episode(task: Task, tape: Tape) -> Task:
    """The anonymous task with the longest episode as its horizon T."""
    first = np.flatnonzero(tape.start)
    longest = int(np.diff(np.append(first, len(tape.start))).max()) - 1
    return replace(task, horizon=longest)
