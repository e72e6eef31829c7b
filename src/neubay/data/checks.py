"""The checks of a dataset's rows: each looks at every block once, and reports at the end."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.data.findings import Finding, Severity, Tally, error
from neubay.data.layout import as_float32, not_action_numbers, outside_bounds
from neubay.data.plausibility import ActionUse, FarValues, Repeats
from neubay.data.rows import (
    BLOCK_ROWS,
    HOW_TO_SET_HORIZON,
    Block,
    Flags,
    Rows,
    unseen_horizon,
    unseen_said,
)
from neubay.tasks import DiscreteActions, Task

TOLERATED_CONTRADICTIONS = 1e-4
"""Share of steps whose terminal flag may contradict the task's rule: a state on the edge of the
rule, rounded to float32, may fall to either side."""


@runtime_checkable
class Check(Protocol):
    """Looks at the rows block by block, and reports at the end."""

    def see(self, block: Block) -> None: ...

    def findings(self) -> Iterator[Finding]: ...


def checks_for(rows: Rows, task: Task, flags: Flags, *, horizon_known: bool) -> list[Check]:
    """Every check that applies; `horizon_known` is false for a task made from the data."""
    checks: list[Check] = [
        NotFinite(rows),
        ActionsOutOfRange(rows, task),
        ActionUse(rows, task, task_known=horizon_known),
        ConstantFeatures(rows),
        FarValues(rows),
        Jumps(rows),
        Episodes(rows, task, horizon_known=horizon_known),
        Ends(rows, task, flags),
    ]
    if not task.reward_only:
        checks.append(Repeats(rows))
    if task.termination is not None:
        checks.append(TerminationRule(rows, task))
    return checks


class NotFinite:
    """NaN, infinite values, and values that float32 cannot hold."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        columns = ("states", "actions", "rewards", "next_states")
        self._tallies = {name: Tally() for name in columns if getattr(rows, name) is not None}

    def see(self, block: Block) -> None:
        for name, tally in self._tallies.items():
            values = getattr(block, name)
            finite = np.isfinite(as_float32(values))
            if not finite.all():
                bad = ~finite.reshape(len(values), -1).all(axis=1)
                tally.add(np.flatnonzero(bad) + block.begin)

    def findings(self) -> Iterator[Finding]:
        for name, tally in self._tallies.items():
            if tally.count:
                yield error(
                    self._rows.file,
                    getattr(self._rows, name).key,
                    tally.first,
                    f"{tally} with NaN, infinite or too large values (this is the first)",
                    "Remove or repair the episodes they belong to",
                )


class ActionsOutOfRange:
    """Actions outside the task's."""

    def __init__(self, rows: Rows, task: Task) -> None:
        self._rows, self._space = rows, task.actions
        self._tally = Tally()
        self._worst = ""

    def see(self, block: Block) -> None:
        if isinstance(self._space, DiscreteActions):
            odd = not_action_numbers(block.actions.reshape(-1), self._space)
            worst = f"numbers from 0 to {self._space.n - 1} are allowed"
        else:
            actions = as_float32(block.actions.reshape(len(block.actions), -1))
            outside = outside_bounds(np.nan_to_num(actions, posinf=0, neginf=0), self._space)
            if outside is None:
                return
            odd, worst = outside.rows, f"{outside.value:g} is outside {outside.bounds}"
        self._worst = self._worst or worst
        self._tally.add(np.flatnonzero(odd) + block.begin)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            yield error(
                self._rows.file,
                self._rows.actions.key,
                self._tally.first,
                f"{self._tally} with actions out of range (in the first, {self._worst})",
                "Give a task or action bounds that hold for the data, or clip the actions",
            )


class ConstantFeatures:
    """Features of states and actions that never change."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def see(self, block: Block) -> None:
        for column, values in (
            (self._rows.states, block.states),
            (self._rows.actions, block.actions),
        ):
            # Transposed, the reduction runs along memory; several times faster.
            features = np.ascontiguousarray(as_float32(values).reshape(len(values), -1).T)
            low, high = features.min(axis=1), features.max(axis=1)
            if column.key in self._ranges:
                lowest, highest = self._ranges[column.key]
                low, high = np.minimum(low, lowest), np.maximum(high, highest)
            self._ranges[column.key] = (low, high)

    def findings(self) -> Iterator[Finding]:
        for key, (low, high) in self._ranges.items():
            constant = np.flatnonzero(low == high)
            if len(constant) and len(self._rows) > 1:
                listed = ", ".join(str(index) for index in constant[:10])
                more = ", ..." if len(constant) > 10 else ""
                yield Finding(
                    "warning",
                    self._rows.file,
                    key,
                    None,
                    f"{len(constant)} of {len(low)} features never change: {listed}{more}",
                    "Nothing can be learnt about them; check how they were recorded",
                )


class Jumps:
    """Stored successors that are not the next row's state, inside what the flags call one
    episode."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._tally = Tally()

    def see(self, block: Block) -> None:
        self._tally.add(block.jumps + block.begin)

    def findings(self) -> Iterator[Finding]:
        if self._rows.next_states is None or not self._tally.count:
            return
        has_timeouts = self._rows.timeouts is not None
        yield Finding(
            "error" if has_timeouts else "note",
            self._rows.file,
            self._rows.next_states.key,
            self._tally.first,
            f"{self._tally} whose successor is not the next row's state, though no flag ends an "
            "episode there",
            "It is taken for the end of an episode; mark it as a timeout"
            if has_timeouts
            else "Each is taken for the end of an episode; store 'timeouts' to say so",
        )


class Ends:
    """Episodes that no flag ends, and terminal steps that lead nowhere."""

    def __init__(self, rows: Rows, task: Task, flags: Flags) -> None:
        self._rows = rows
        # Where episodes run on after a terminal, the last row's is one of many.
        self._unknown_ends = rows.next_states is None and not task.split_by_timeouts_only
        self._terminals = Tally()
        self._flagged = any(
            bool(column.read(len(rows) - 1, len(rows)).reshape(-1)[0])
            for column in (rows.terminals, rows.timeouts)
            if column is not None
        )
        self._any_flag = bool(flags.terminals.any() or flags.ends[:-1].any())

    def see(self, block: Block) -> None:
        if self._unknown_ends:
            self._terminals.add(np.flatnonzero(block.terminals & block.ends) + block.begin)

    def findings(self) -> Iterator[Finding]:
        file, last = self._rows.file, len(self._rows) - 1
        key = (self._rows.timeouts or self._rows.terminals).key
        if not self._any_flag and not self._flagged and self._rows.next_states is None:
            yield Finding(
                "warning",
                file,
                key,
                None,
                "no flag ends any episode, and there are no successors to tell them apart",
                "Store 'timeouts', or resets in the middle will count as steps",
            )
        elif not self._flagged:
            yield Finding(
                "warning",
                file,
                key,
                last,
                "no flag ends the last episode",
                "It is taken as cut off there; mark its last row as a timeout",
            )
        if self._terminals.count:
            yield Finding(
                "note",
                file,
                self._rows.terminals.key,
                self._terminals.first,
                f"{self._terminals} terminal, but without a stored successor: the agent learns "
                "that episodes end there, the world does not learn what leads there",
                "Store the successors under 'next_observations'",
            )


class Episodes:
    """Lengths and duplicates."""

    def __init__(self, rows: Rows, task: Task, *, horizon_known: bool) -> None:
        self._rows, self._task, self._horizon_known = rows, task, horizon_known
        self._ends: list[np.ndarray] = []
        self._prints: list[np.ndarray] = []
        self._terminal: list[np.ndarray] = []
        self._kept: list[np.ndarray] = []  # ends whose step is kept without a stored successor
        self._open = (np.uint64(0), 0)  # fingerprint and rows of the episode that is running
        width = rows.states.width + rows.actions.width + 1
        self._weights = np.random.default_rng(0).integers(1, 2**63, width, dtype=np.uint64) * 2 + 1

    def see(self, block: Block) -> None:
        ends = np.flatnonzero(block.ends)
        fingerprint, rows = self._open
        first = np.maximum.accumulate(np.where(block.starts, np.arange(len(block.starts)), -rows))
        step = (np.arange(len(block.starts)) - first).astype(np.uint64)
        prints = self._row_prints(block, step)
        begins = np.unique(np.append(0, np.flatnonzero(block.starts)))
        sums = np.add.reduceat(prints, begins)
        if not block.starts[0]:
            sums[:1] += fingerprint  # as an array: a scalar would warn that it wraps around
        self._ends.append(ends + block.begin)
        self._terminal.append(block.terminals[ends])
        self._kept.append(np.isin(ends, block.cuts) | block.terminals[ends])
        self._prints.append(sums[: len(ends)])
        running = not block.ends[-1]
        self._open = (sums[-1], int(step[-1]) + 1) if running else (np.uint64(0), 0)

    def _row_prints(self, block: Block, step: np.ndarray) -> np.ndarray:
        """A number per row that depends on its content and its place in the episode; their sum
        is the fingerprint of an episode, the same for equal episodes and, but for chance in
        2^64, for no others."""
        content = np.concatenate(
            [
                as_float32(values).reshape(len(values), -1)
                for values in (block.states, block.actions, block.rewards)
            ],
            axis=1,
        )
        mixed = content.view(np.uint32).astype(np.uint64) @ self._weights
        mixed ^= mixed >> np.uint64(29)
        mixed *= (step * np.uint64(2) + np.uint64(1)) * self._weights[0]
        return mixed ^ (mixed >> np.uint64(32))

    def findings(self) -> Iterator[Finding]:
        last = np.concatenate(self._ends)
        prints = np.concatenate(self._prints)
        lengths = np.diff(last, prepend=-1)
        first = last - lengths + 1
        stored = self._rows.next_states is not None
        terminal = np.concatenate(self._terminal)
        steps = lengths - ~(stored | np.concatenate(self._kept))  # the others' last is dropped
        if not stored and lengths.max() == 1:  # no step of them leads to anywhere known
            steps = lengths - 1
        yield from self._short(first, steps)
        if self._horizon_known:
            yield from self._long(first, steps)
        else:
            yield from self._unclear_horizon(first, steps, terminal)
        yield from self._duplicates(first, lengths, prints)

    def _short(self, first: np.ndarray, steps: np.ndarray) -> Iterator[Finding]:
        empty, single = first[steps == 0], first[steps == 1]
        if len(empty):
            yield self._finding(
                "error" if len(empty) == len(first) else "warning",
                int(empty[0]),
                f"{len(empty)} of {len(first)} episodes have no step: a single row without a "
                "successor",
                "They are left out; store the successors under 'next_observations'",
            )
        if len(single):
            yield self._finding(
                "note",
                int(single[0]),
                f"{len(single)} of {len(first)} episodes have a single step",
                "If that is most of them, rows may be out of order",
            )

    def _long(self, first: np.ndarray, steps: np.ndarray) -> Iterator[Finding]:
        horizon = self._task.horizon
        rows = first[steps > horizon]
        if len(rows):
            yield self._finding(
                "note",
                int(rows[0]),
                f"{len(rows)} of {len(first)} episodes are longer than the horizon {horizon} (the "
                f"longest has {int(steps.max())} steps)",
                "The world model uses them whole, the agent's histories stop at the horizon",
            )

    def _unclear_horizon(
        self, first: np.ndarray, steps: np.ndarray, terminal: np.ndarray
    ) -> Iterator[Finding]:
        """Episodes that were cut at many lengths, or a single one, tell nothing of T."""
        unseen = unseen_horizon(steps, terminal)
        if unseen is not None:
            said = unseen_said(int(steps.max()), unseen)
            yield self._finding("note", int(first[steps.argmax()]), said, HOW_TO_SET_HORIZON)
            return
        cut = steps[~terminal]
        longest = int(steps.max())
        reaching = int((cut == longest).sum())
        enough = len(cut) >= 3 or len(cut) == len(steps)
        if enough and reaching < max(2, len(cut) / 2):
            yield self._finding(
                "note",
                int(first[int(steps.argmax())]),
                f"T is taken to be the longest episode, {longest} steps, but only {reaching} of "
                f"{len(cut)} episodes without a terminal are that long (the median has "
                f"{np.median(cut):.0f})",
                HOW_TO_SET_HORIZON,
            )

    def _duplicates(
        self, first: np.ndarray, lengths: np.ndarray, prints: np.ndarray
    ) -> Iterator[Finding]:
        long = lengths > 1  # single rows repeat by chance, in bandits and in small worlds
        first, prints = first[long], prints[long]
        _, earliest, inverse = np.unique(prints, return_index=True, return_inverse=True)
        copies = np.flatnonzero(earliest[inverse] != np.arange(len(prints)))
        if len(copies):
            original = int(first[earliest[inverse[copies[0]]]])
            yield self._finding(
                "warning",
                int(first[copies[0]]),
                f"{len(copies)} of {len(lengths)} episodes repeat an earlier one (here, the one "
                f"from row {original})",
                "Remove the copies, unless they are to count more",
            )

    def _finding(self, severity: Severity, row: int, message: str, remedy: str) -> Finding:
        return Finding(severity, self._rows.file, self._rows.states.key, row, message, remedy)


class TerminationRule:
    """Terminal flags against the task's rule."""

    def __init__(self, rows: Rows, task: Task) -> None:
        self._rows, self._task = rows, task
        self._flag_only, self._rule_only = Tally(), Tally()
        self._last: list[np.ndarray] = []  # the row before the block: state, action, flag, number

    def see(self, block: Block) -> None:
        states, numbers = as_float32(block.states), np.arange(len(block.states)) + block.begin
        steps = [states, self._unit(block.actions), block.terminals, numbers]
        if block.next_states is not None:
            self._compare(as_float32(block.next_states), *steps)
            return
        # Without stored successors: the steps into the rows of this block.
        into = ~block.starts if self._last else ~block.starts[1:]
        if self._last:
            steps = [np.concatenate(both) for both in zip(self._last, steps, strict=True)]
        self._last = [column[-1:] for column in steps]
        self._compare(steps[0][1:][into], *(column[:-1][into] for column in steps))

    def _unit(self, actions: np.ndarray) -> Float[np.ndarray, "rows a"]:
        space = self._task.actions
        if isinstance(space, DiscreteActions):
            numbers = actions.reshape(-1)
            numbers = np.where(not_action_numbers(numbers, space), 0, numbers)
            return self._task.to_unit(numbers.astype(np.int64))
        return as_float32(self._task.to_unit(as_float32(actions.reshape(len(actions), -1))))

    def _compare(
        self,
        successors: Float[np.ndarray, "n s"],
        states: Float[np.ndarray, "n s"],
        actions: Float[np.ndarray, "n a"],
        flagged: Bool[np.ndarray, " n"],
        numbers: Int[np.ndarray, " n"],
    ) -> None:
        rule = self._rule(states, actions, successors)
        finite = np.isfinite(states).all(axis=1) & np.isfinite(successors).all(axis=1)
        self._flag_only.add(numbers[finite & flagged & ~rule])
        self._rule_only.add(numbers[finite & ~flagged & rule])

    def _rule(self, *arguments: np.ndarray) -> Bool[np.ndarray, " n"]:
        """The task's rule, on arrays of one size only, so that it is compiled once."""
        assert self._task.termination is not None
        rows = len(arguments[0])
        size = max(BLOCK_ROWS, rows)
        padded = [
            np.concatenate([values, np.zeros((size - rows, values.shape[1]), np.float32)])
            for values in arguments
        ]
        return np.asarray(self._task.termination(*padded))[:rows]

    def findings(self) -> Iterator[Finding]:
        total = self._flag_only.count + self._rule_only.count
        if not total:
            return
        rows = [tally.first for tally in (self._flag_only, self._rule_only) if tally.count]
        # Where an episode runs on after a terminal, the flag means success, by the logger's
        # own measure of it; the task's rule is for imagined steps.
        serious = total > TOLERATED_CONTRADICTIONS * len(self._rows)
        serious = serious and not self._task.split_by_timeouts_only
        yield Finding(
            "error" if serious else "warning",
            self._rows.file,
            self._rows.terminals.key,
            min(row for row in rows if row is not None),
            f"{self._flag_only} flagged where the rule of task '{self._task.name}' sees no "
            f"terminal, {self._rule_only} not flagged where it sees one",
            "Check that the task is the right one, and that flags and states are of the same step",
        )
