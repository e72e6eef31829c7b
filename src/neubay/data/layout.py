"""From rows to a tape: every value is checked, scaled and written to its row.

Where a source stores successors, an episode of L rows has L steps. Where it does not, the last row
of an episode has no successor. If it ended in a terminal, no value depends on what that state was:
the step is kept, and the state before stands in for it, on a row that is not `real`. Else the row
becomes the tape's s_L row, and its action, reward and flags are dropped; an episode of a single
such row has no step at all and is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.data.findings import error
from neubay.data.rows import (
    HOW_TO_MARK_RESETS,
    HOW_TO_SET_HORIZON,
    Block,
    Flags,
    Keys,
    Rows,
    blocks,
    cut_said,
    read_flags,
    refuse,
    resets_said,
    spans,
    structure_findings,
    task_findings,
    unseen_horizon,
    unseen_said,
)
from neubay.data.store import MEMORY_LIMIT, TapeWriter, build_tape, fields
from neubay.tape import Tape, episode_bounds
from neubay.tasks import ContinuousActions, DiscreteActions, Task
from neubay.tasks.task import MOST_DISCRETE_ACTIONS

BOUNDS_TOLERANCE = 1e-4
"""How far beyond its bounds, as a share of their width, an action is clipped, not refused."""

LONG_RUN = 64
"""Rows from which on a run is faster copied by itself than row by row."""

Bound = int | float | Sequence[int | float] | np.ndarray
"""The low or high end of actions: one for all dimensions, or one each."""


class Laid(NamedTuple):
    """Rows as a tape, and the task that it belongs to."""

    tape: Tape
    task: Task
    horizon_said: str | None
    """What is worth saying about T: that the data does not show it, or that logs are longer."""


def tape_of(
    rows: Rows,
    task: Task | None,
    name: str,
    *,
    action_bounds: tuple[Bound, Bound] | None = None,
    horizon: int | None = None,
    origin: dict[str, Any] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Laid:
    """The rows as a tape, and the task that it belongs to.

    Args:
        task: none makes one from the data, called `name`.
        action_bounds: low and high of continuous actions where there is no task.
        horizon: T where there is no task; none: as the data shows it.
        origin: what identifies the rows; with it, a tape larger than `memory_limit` is put into
            the cache and memory-mapped.
    """
    refuse(structure_findings(rows))
    chosen = anonymous_task(rows, name, action_bounds) if task is None else task
    chosen = chosen if horizon is None else replace(chosen, horizon=horizon)
    refuse(task_findings(rows, chosen))
    known = task is not None or horizon is not None
    flags = read_flags(rows, chosen, horizon_known=known)
    tape = build_tape(
        lambda writer: lay_out(rows, chosen, flags, writer),
        rows=expected_rows(rows, flags),
        sizes=(chosen.state_size, chosen.actions.size),
        origin=None
        if origin is None
        else {**origin, "meaning": meaning(chosen), "cuts": sha256(flags.cuts.data).hexdigest()},
        memory_limit=memory_limit,
    )
    laid = with_horizon(tape, chosen, name, flags.longest_cut, known=known)
    if chosen.cuts_long_logs and flags.resets_assumed:
        said = f"{name}: {resets_said(chosen.horizon)}. {HOW_TO_MARK_RESETS}"
        return laid._replace(horizon_said=said)
    return laid


def meaning(task: Task) -> list[Any]:
    """What a tape depends on besides its rows."""
    actions = task.actions
    if isinstance(actions, ContinuousActions):
        scale: Any = [actions.low.tolist(), actions.high.tolist()]
    else:
        scale = actions.n
    return [scale, task.horizon, task.reward_shift, task.split_by_timeouts_only]


def lay_out(rows: Rows, task: Task, flags: Flags, writer: TapeWriter) -> None:
    """Read the rows, check every value, and write them as a tape of the task."""
    steps = sum(write_block(block, rows.keys, task, writer) for block in blocks(rows, flags))
    if not steps:
        raise error(
            rows.file,
            rows.states.key,
            None,
            "has no step with a successor: every episode is a single row",
            "Store the successors under 'next_observations', or record longer episodes",
        ).as_error()


def write_block(block: Block, keys: Keys, task: Task, writer: TapeWriter) -> int:
    """Check one block and write it. Returns the steps whose successor is known."""
    numbers = range(block.begin, block.begin + len(block.states))
    states = _finite(block.states, keys.file, keys.states, numbers)
    rewards = _finite(block.rewards, keys.file, keys.rewards, numbers)
    if task.reward_shift:
        rewards = rewards + np.float32(task.reward_shift)
    actions = _unit_actions(block.actions, task, keys, numbers)
    # The last row of an episode is on the tape twice where its step is kept, whose successor is put
    # into the copy, and not at all where it is the only one and its step is not kept.
    stored = block.next_states is not None
    kept = block.ends & (stored | block.terminals)
    kept[block.cuts] = True
    ends = np.flatnonzero(block.ends & (kept | ~block.starts))
    odd = np.flatnonzero(kept | (block.ends & block.starts))
    copies = np.where(kept[odd], 2, 0)
    shifts = np.append(0, np.cumsum(copies - 1))
    out = writer.extend(len(states) + int(shifts[-1]))
    copy = _copier(len(states), odd, copies)
    for field, values in zip(
        fields(out), (states, actions, rewards, block.terminals, block.starts), strict=False
    ):
        copy(values, field)
    out.real[:] = True
    final = ends + shifts[np.searchsorted(odd, ends)] + kept[ends]
    if block.next_states is not None:
        # The other successors are the next row's state, and are checked as such.
        out.state[final] = _finite(
            block.next_states[ends], keys.file, keys.next_states, ends + block.begin
        )
    else:
        unknown = final[kept[ends]]
        out.state[unknown], out.real[unknown] = out.state[unknown - 1], False
        cut = final[np.searchsorted(ends, block.cuts)]
        out.state[cut], out.real[cut] = as_float32(block.following), True
    out.action[final] = 0
    out.reward[final] = 0
    out.terminated[final] = False
    out.start[final] = False
    return len(out.start) - len(final) - int((~out.real).sum())


def _copier(
    rows: int, odd: Int[np.ndarray, " odd"], copies: Int[np.ndarray, " odd"]
) -> Callable[[np.ndarray, np.ndarray], object]:
    """A function that copies rows in their order, once each, but the odd ones `copies` times
    (2, of which the second is left to be filled in, or 0)."""
    if len(odd) * LONG_RUN > rows:
        counts = np.ones(rows, dtype=np.int64)
        counts[odd] = copies
        row = np.repeat(np.arange(rows), counts)
        # The mode "raise" would copy twice.
        return lambda values, out: np.take(values, row, axis=0, out=out, mode="clip")
    begins = np.append(0, odd + 1)
    ends = np.append(odd + copies // 2, rows)
    places = begins + np.append(0, np.cumsum(copies - 1))
    runs = list(zip(begins.tolist(), ends.tolist(), places.tolist(), strict=True))

    def copy(values: np.ndarray, out: np.ndarray) -> None:
        for begin, end, place in runs:
            out[place : place + end - begin] = values[begin:end]

    return copy


def expected_rows(rows: Rows, flags: Flags) -> int:
    """Rows of the tape, if the flags mark all episode ends."""
    stored = rows.next_states is not None
    return len(rows) + int((flags.ends & (stored | flags.terminals)).sum()) + len(flags.cuts)


# --------------------------------------------------------------------------------- values


def as_float32(values: np.ndarray) -> Float[np.ndarray, "..."]:
    """As float32; what is too large for it becomes infinite, to be found as such."""
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def _finite(
    values: np.ndarray, file: str, key: str, numbers: Sequence[int] | np.ndarray
) -> Float[np.ndarray, "..."]:
    """The values as float32, refused if one is not finite; `numbers` are those of the rows."""
    result = as_float32(values)
    if not np.isfinite(result).all():
        row = int(np.argmax(~np.isfinite(result).reshape(len(result), -1).all(axis=1)))
        entries, converted = np.atleast_1d(values[row]), np.atleast_1d(result[row])
        value = entries[int(np.argmax(~np.isfinite(converted)))]
        limit = ", too large for float32" if np.isfinite(value) else ""
        raise error(
            file, key, int(numbers[row]), f"holds {value}{limit}", "Remove or repair its episode"
        ).as_error()
    return result


def _unit_actions(
    values: np.ndarray, task: Task, keys: Keys, numbers: range
) -> Float[np.ndarray, "rows a"]:
    """Actions of the environment as actions of the tape, refused if outside the task's."""
    if isinstance(task.actions, DiscreteActions):
        chosen = values.reshape(-1)
        odd = not_action_numbers(chosen, task.actions)
        if odd.any():
            row = int(np.argmax(odd))
            raise error(
                keys.file,
                keys.actions,
                numbers[row],
                f"is {chosen[row]}, not an action number from 0 to {task.actions.n - 1}",
                "Number the actions from 0, or give a task with more of them",
            ).as_error()
        return task.to_unit(chosen.astype(np.int64))
    actions = _finite(values.reshape(len(values), -1), keys.file, keys.actions, numbers)
    outside = outside_bounds(actions, task.actions)
    if outside is not None:
        raise error(
            keys.file,
            keys.actions,
            numbers[int(np.argmax(outside.rows))],
            f"holds {outside.value:g}, outside the bounds {outside.bounds}",
            "Give a task or action bounds that hold for the data, or clip the actions",
        ).as_error()
    unit = as_float32(task.to_unit(actions))
    # Rounding, in the data or in the scaling, may lead a little beyond 1.
    beyond = len(unit) and max(unit.max(), -unit.min()) > 1
    return np.clip(unit, -1, 1) if beyond else unit


def not_action_numbers(numbers: np.ndarray, actions: DiscreteActions) -> np.ndarray:
    """Where the values do not number one of the discrete actions."""
    with np.errstate(invalid="ignore"):
        return ~((numbers >= 0) & (numbers < actions.n) & (numbers == np.floor(numbers)))


class Outside(NamedTuple):
    """Actions outside their bounds."""

    rows: Bool[np.ndarray, " rows"]
    value: float
    """The worst value of the first of the rows."""
    bounds: str


def outside_bounds(
    actions: Float[np.ndarray, "rows a"], space: ContinuousActions
) -> Outside | None:
    """The rows that are outside by more than rounding; none if all are inside."""
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    slack = BOUNDS_TOLERANCE * (high - low)
    least, most = low - slack, high + slack
    if not len(actions) or (actions.min() >= least.max() and actions.max() <= most.min()):
        return None  # the usual case, without a look at each dimension
    rows = np.any((actions < least) | (actions > most), axis=1)
    if not rows.any():
        return None
    first = actions[int(np.argmax(rows))]
    value = first[int(np.argmax(np.maximum(low - first, first - high)))]
    return Outside(rows, float(value), describe_bounds(low, high))


def describe_bounds(low: np.ndarray, high: np.ndarray) -> str:
    """Such as [-1, 1], or one pair per action."""
    if (low == low[0]).all() and (high == high[0]).all():
        return f"[{low[0]:g}, {high[0]:g}]"
    return f"{low.tolist()} to {high.tolist()}"


# ------------------------------------------------------------------ whose rows these may be


def misfit(rows: Rows, task: Task) -> str | None:
    """Why the rows are not of a task: other sizes, or actions outside its bounds; none if they
    may be. What has no sound structure is left to those who read it."""
    if structure_findings(rows):
        return None
    for finding in task_findings(rows, task):
        return f"'{finding.key}' {finding.message}"
    for begin, end in spans(len(rows), rows.block_rows):
        values = rows.actions.read(begin, end)
        if isinstance(task.actions, DiscreteActions):
            numbers = values.reshape(-1)
            odd = not_action_numbers(numbers, task.actions)
            value, allowed = numbers[odd][:1], f"the numbers 0 to {task.actions.n - 1}"
        else:
            outside = outside_bounds(as_float32(values.reshape(len(values), -1)), task.actions)
            value, allowed = ([], "") if outside is None else ([outside.value], outside.bounds)
        if len(value):
            return f"'{rows.actions.key}' holds {value[0]:g}, outside {allowed}"
    return None


# --------------------------------------------------------------- a task made from the data


def anonymous_task(rows: Rows, name: str, bounds: tuple[Bound, Bound] | None = None) -> Task:
    """A task with the data's sizes and nothing else: no environment, no termination rule.

    The bounds of its actions are those given, those stored with the data, or else [-1, 1].

    Its horizon is a placeholder until the episodes are known: see `with_horizon`.
    """
    actions: ContinuousActions | DiscreteActions | None = rows.recorded_actions
    if bounds is not None:
        actions = box(bounds, rows.actions.width, rows.file, rows.actions.key)
    if actions is None:
        actions = _discrete_actions(rows) or ContinuousActions.symmetric(rows.actions.width)
    return Task(name=name, state_size=rows.states.width, actions=actions, horizon=len(rows))


def box(bounds: tuple[Bound, Bound], size: int, file: str, key: str) -> ContinuousActions:
    """`size` continuous actions between bounds that a user gave."""
    try:
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), (size,)) for bound in bounds)
    except (ValueError, TypeError):
        low = high = np.zeros(size)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise error(
            file,
            key,
            None,
            f"cannot be scaled from the bounds {bounds}",
            f"Give two finite numbers, low below high, or two arrays of {size} of them",
        ).as_error()
    return ContinuousActions(low=low, high=high)


def _discrete_actions(rows: Rows) -> DiscreteActions | None:
    """Integers, one per row, number discrete actions; anything else is continuous."""
    column = rows.actions
    if column.kind not in "iub" or column.width != 1:
        return None
    highest = 0
    for begin, end in spans(len(column), rows.block_rows):
        values = column.read(begin, end).reshape(-1)
        odd = (values < 0) | (values >= MOST_DISCRETE_ACTIONS)
        if odd.any():
            row = int(np.argmax(odd))
            raise error(
                rows.file,
                column.key,
                begin + row,
                f"is {values[row]}; integers are taken for the numbers of discrete actions, "
                f"from 0 to at most {MOST_DISCRETE_ACTIONS - 1}",
                "Store continuous actions as float32, or name a task",
            ).as_error()
        highest = max(highest, int(values.max()))
    return DiscreteActions(n=highest + 1)


def with_horizon(tape: Tape, task: Task, name: str, longest_cut: int, *, known: bool) -> Laid:
    """The tape with its task, whose horizon T may not be known yet: that is the longest episode,
    unless it does not show T."""
    if known:
        said = f"{name}: {cut_said(longest_cut, task.horizon)}" if longest_cut else None
        return Laid(tape, task, said)
    first, length = episode_bounds(np.asarray(tape.start))
    longest = int(length.max())
    unseen = unseen_horizon(length, np.asarray(tape.terminated)[first + length - 1])
    task = replace(task, horizon=unseen or longest)
    if longest_cut:
        said = cut_said(longest_cut, task.horizon)
    elif unseen:
        said = unseen_said(longest, unseen)
    else:
        return Laid(tape, task, None)
    return Laid(tape, task, f"{name}: {said}. {HOW_TO_SET_HORIZON}")
