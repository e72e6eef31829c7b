"""Checks for what is allowed and yet rarely meant: bounds that the data does not use, numbers that
begin at 1, sensors that stand still, one value far away from all others."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from neubay.data.findings import Finding, Severity, Tally
from neubay.data.layout import as_float32, describe_bounds
from neubay.data.rows import Block, Rows
from neubay.tasks import ContinuousActions, DiscreteActions, Task

FEWEST_ROWS = 20
"""Below this, what the data uses and repeats says nothing."""

USED_SHARE = 0.55
"""An action that uses no more than this share of its range uses half of it."""

MOST_REPEATS = 0.01
"""Share of rows that may repeat the one before without being suspicious."""

HELD_SHARE = 0.3
"""A sensor that keeps its value in more than this share of the steps is slower than the log."""

ALONE_SHARE = 0.6
"""A slow sensor stands still after most of its changes; what rests and then moves does not."""

FEWEST_VALUES = 20
"""A feature with fewer different values is a switch or a counter, which may well stand still."""

FAR = 1000.0
"""How many times the middle 98 % of the values an outlier is away from their median."""

MOST_OUTLIERS = 1e-3
"""Share of rows above which values far away are another part of the data, not outliers."""


class ActionUse:
    """How much of the actions' range is used, or which of their numbers; actions that are one-hot
    and yet taken for continuous ones."""

    def __init__(self, rows: Rows, task: Task, *, task_known: bool) -> None:
        self._rows, self._space, self._task_known = rows, task.actions, task_known
        self._low = np.full(rows.actions.width, np.inf)
        self._high = -self._low
        self._counts = np.zeros(task.actions.size, np.int64)
        self._one_hot = rows.actions.width > 1

    def see(self, block: Block) -> None:
        if isinstance(self._space, DiscreteActions):
            numbers = block.actions.reshape(-1)
            numbers = numbers[(numbers >= 0) & (numbers < self._space.n)].astype(np.int64)
            self._counts += np.bincount(numbers, minlength=self._space.n)
            return
        actions = as_float32(block.actions.reshape(len(block.actions), -1))
        self._low = np.fmin(self._low, actions.min(axis=0))
        self._high = np.fmax(self._high, actions.max(axis=0))
        if self._one_hot:
            ones = actions == 1
            self._one_hot = bool((ones.sum(axis=1) == 1).all() and (ones | (actions == 0)).all())

    def findings(self) -> Iterator[Finding]:
        if len(self._rows) < FEWEST_ROWS:
            return
        if isinstance(self._space, DiscreteActions):
            yield from self._numbers(np.flatnonzero(self._counts == 0))
        elif self._one_hot:
            yield self._finding(
                "warning",
                f"all {len(self._rows)} rows are one-hot: one entry is 1, the others 0, and yet "
                "they are taken for continuous actions",
                "Store the number of the action, from 0, as an integer",
            )
        else:
            yield from self._ranges(self._space)

    def _numbers(self, unused: Int[np.ndarray, " unused"]) -> Iterator[Finding]:
        n = len(self._counts)
        if self._counts.sum() == 0 or not len(unused):
            return
        if not self._task_known and unused.tolist() == list(range(len(unused))):
            yield self._finding(
                "warning",
                f"numbers begin at {len(unused)}: {n} actions are assumed, "
                f"{_listed(unused)} never taken",
                f"Number the actions from 0: subtract {len(unused)}",
            )
            return
        yield self._finding(
            "note",
            f"{len(unused)} of {n} actions are never taken: {_listed(unused)}",
            "What they do cannot be learnt from this data",
        )

    def _ranges(self, space: ContinuousActions) -> Iterator[Finding]:
        share = (self._high - self._low) / (space.high - space.low)
        half = np.flatnonzero((share <= USED_SHARE) & (self._high > self._low))
        if not len(half):
            return
        shown = ", ".join(
            f"{index} uses {self._low[index]:.3g} to {self._high[index]:.3g}" for index in half[:5]
        )
        more = ", ..." if len(half) > 5 else ""
        remedy = "The policy may command all of it; " + (
            "beyond the data it can only be guessed what that does"
            if self._task_known
            else "give the true bounds with --action-low and --action-high if these are not"
        )
        yield self._finding(
            "note" if self._task_known else "warning",
            f"{len(half)} of {len(share)} actions use half of their bounds or less, "
            f"{describe_bounds(space.low, space.high)}: {shown}{more}",
            remedy,
        )

    def _finding(self, severity: Severity, message: str, remedy: str) -> Finding:
        rows = self._rows
        return Finding(severity, rows.file, rows.actions.key, None, message, remedy)


class Repeats:
    """Rows that repeat the one before, and sensors that keep their value."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._same = Tally()
        self._steps = 0
        self._held = np.zeros(rows.states.width, np.int64)
        self._changes, self._alone = np.zeros_like(self._held), np.zeros_like(self._held)
        self._first_held = np.full(rows.states.width, -1)
        self._varied = np.zeros(rows.states.width, bool)
        self._moves = False
        self._last: np.ndarray | None = None

    def see(self, block: Block) -> None:
        states = as_float32(block.states)
        rest = [as_float32(block.actions.reshape(len(states), -1)), block.rewards[:, None]]
        content = np.concatenate([states, *map(as_float32, rest)], axis=1)
        starts = block.starts
        if self._last is None:
            many = [len(np.unique(column)) >= FEWEST_VALUES for column in states[:5000].T]
            self._varied = np.array(many, bool)
            before, after, inside = content[:-1], content[1:], ~starts[1:]
        else:
            before = np.concatenate([self._last, content[:-1]])
            after, inside = content, ~starts
        self._last = content[-1:]
        first = block.begin + len(content) - len(after)
        equal = (before == after) & inside[:, None]
        held = equal[:, : states.shape[1]]
        self._steps += int(inside.sum())
        self._same.add(np.flatnonzero(equal.all(axis=1)) + first)
        self._moves = self._moves or bool((inside & ~held.all(axis=1)).any())
        new = (self._first_held < 0) & held.any(axis=0)
        if new.any():
            self._first_held[new] = held[:, new].argmax(axis=0) + first
        self._held += held.sum(axis=0)
        changed = ~held[:-1] & (inside[:-1] & inside[1:])[:, None]
        self._changes += changed.sum(axis=0)
        self._alone += (changed & held[1:]).sum(axis=0)

    def findings(self) -> Iterator[Finding]:
        if not self._moves or self._steps < FEWEST_ROWS:
            return  # where the state never changes, as in a bandit, equal rows are no surprise
        rows, key = self._rows, self._rows.states.key
        if self._same.count:
            yield Finding(
                "warning" if self._same.count > MOST_REPEATS * self._steps else "note",
                rows.file,
                key,
                self._same.first,
                f"{self._same} equal to the one before, in state, action and reward",
                "If the logger wrote rows twice, remove the copies",
            )
        share = self._held / self._steps
        alone = self._alone > ALONE_SHARE * self._changes
        slow = np.flatnonzero((share > HELD_SHARE) & alone & self._varied)
        if len(slow):
            yield Finding(
                "warning",
                rows.file,
                key,
                int(self._first_held[slow].min()),
                f"{len(slow)} of {len(share)} features keep their value over many steps: "
                + ", ".join(f"{index} in {share[index]:.0%}" for index in slow[:10]),
                "Sensors that are rounded, or read more slowly than rows are logged, look as if "
                "they stood still; log a row per reading, or leave them out",
            )


class FarValues:
    """Values far away from all others, and rewards that do not vary."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._centre: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._far = {column.key: Tally() for column in (rows.states, rows.rewards)}
        self._example: dict[str, str] = {}
        self._rewards = (np.inf, -np.inf)

    def see(self, block: Block) -> None:
        low, high = self._rewards
        self._rewards = (min(low, block.rewards.min()), max(high, block.rewards.max()))
        for key, values in (
            (self._rows.states.key, as_float32(block.states)),
            (self._rows.rewards.key, as_float32(block.rewards)[:, None]),
        ):
            if key not in self._centre:
                self._centre[key] = _centre(values)
            median, width = self._centre[key]
            with np.errstate(invalid="ignore"):  # what is not finite is another check's
                far = np.isfinite(values) & (np.abs(values - median) > FAR * width)
            rows = np.flatnonzero(far.any(axis=1))
            if len(rows) and key not in self._example:
                index = int(far[rows[0]].argmax())
                self._example[key] = (
                    f"{values[rows[0], index]:.3g}, where the median is {median[index]:.3g} and 98 "
                    f"% lie within {width[index]:.3g}"
                )
            self._far[key].add(rows + block.begin)

    def findings(self) -> Iterator[Finding]:
        rows = self._rows
        for key, tally in self._far.items():
            if 0 < tally.count <= max(1, MOST_OUTLIERS * len(rows)) and len(rows) >= FEWEST_ROWS:
                yield Finding(
                    "warning",
                    rows.file,
                    key,
                    tally.first,
                    f"{tally} far away from all others (this one holds {self._example[key]})",
                    "Errors are scaled by the spread of the data: repair it, or remove its episode",
                )
        low, high = self._rewards
        if low == high and len(rows) > 1:
            yield Finding(
                "warning",
                rows.file,
                rows.rewards.key,
                None,
                f"all {len(rows)} rewards are {low:.6g}",
                "Where no reward differs, no policy is better than another; check the column",
            )


def _centre(
    values: Float[np.ndarray, "rows d"],
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """The median and the width of the middle 98 % of each feature; where that is zero, as that of
    a sparse reward, the usual distance of what differs, or the size of the value itself."""
    sample = np.where(np.isfinite(values), values, 0).astype(np.float64)
    low, median, high = np.quantile(sample, [0.01, 0.5, 0.99], axis=0)
    width = high - low
    for index in np.flatnonzero(width == 0):
        away = np.abs(sample[:, index] - median[index])
        away = away[away > 0]
        typical = float(np.median(away)) if len(away) >= 10 else 0.0
        width[index] = max(typical, abs(median[index]), 1.0)
    return median, width


def _listed(numbers: Int[np.ndarray, " n"]) -> str:
    """The first of them, with commas."""
    return ", ".join(map(str, numbers[:10].tolist())) + (", ..." if len(numbers) > 10 else "")
