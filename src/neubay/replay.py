"""Replay: the trajectories that were imagined, and batches of them: whole trajectories end to end
on a tape, or windows of many trajectories, as tapes of a few rows side by side.

A trajectory is t rows of real history followed by L + 1 imagined rows, the first of them at the
branching state s_t. The real part is a reference into the dataset; only imagined rows are stored.
When it is full, the oldest trajectories are dropped.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.imagination import Rollouts
from neubay.tape import Prefix, Tape


class BatchShape(NamedTuple):
    """Rows of a training batch."""

    rows: int  # of the tape, or of each window
    slots: int | None = None  # windows side by side; none for one tape of whole trajectories
    burn_in: int = 0  # the first rows of each window, which are read without loss

    @property
    def size(self) -> int:
        """All rows of a batch."""
        return self.rows * (self.slots or 1)


class Replay:
    """The buffer B of Algorithm 1.

    Args:
        dataset: what the histories refer to.
        capacity: rows held before the oldest trajectories are dropped; real and imagined ones
            both count, as in the paper.
        penalised: imagined rows carry a penalty.
    """

    def __init__(self, dataset: Dataset, capacity: int, penalised: bool = False) -> None:
        task = dataset.task
        if capacity <= task.horizon:
            raise ConfigError(
                f"agent.buffer is {capacity} rows, but a trajectory of task '{task.name}' can have "
                f"{task.horizon + 1}: set --agent.buffer to several times that"
            )
        self.dataset, self.capacity, self.penalised = dataset, capacity, penalised
        self._imagined = _Queue(
            capacity,
            state=(np.float32, task.state_size),
            action=(np.float32, task.actions.size),
            reward=(np.float32,),
            terminated=(np.bool_,),
            **({"penalty": (np.float32,)} if penalised else {}),
        )
        self._trajectories = _Queue(
            capacity,
            first=(np.int64,),  # row of the dataset's tape where the history begins
            real=(np.int64,),  # t, rows of history
            imagined=(np.int64,),  # L + 1
            row=(np.int64,),  # number of its first imagined row
        )
        self.rows = 0
        """Rows held, real and imagined."""

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self._trajectories)

    @property
    def nbytes(self) -> int:
        """Bytes taken; the dataset is not counted."""
        return self._imagined.nbytes + self._trajectories.nbytes

    @property
    def bytes_per_row(self) -> int:
        """Bytes of an imagined row; a real one takes none."""
        return self._imagined.bytes_per_row

    def add(self, prefix: Prefix, rollouts: Rollouts) -> None:
        """Add K trajectories: histories of the dataset, and what was imagined from them."""
        rows, imagined = rollouts.rows, rollouts.length + 1
        if (rows.penalty is not None) != self.penalised:
            raise ValueError("rows carry a penalty if and only if the replay is penalised")
        first, real = np.asarray(prefix.first), np.asarray(prefix.length)
        sizes = real + imagined
        # Of more than there is room for, the last ones; and then nothing older.
        fit = int(np.searchsorted(np.cumsum(sizes[::-1]), self.capacity, side="right"))
        kept = slice(len(sizes) - fit, None)
        self._make_room(min(int(sizes.sum()), self.capacity))
        number = self._imagined.end + np.cumsum(imagined[kept]) - imagined[kept]
        skipped = int(imagined[: kept.start].sum())
        self._imagined.append(
            {name: getattr(rows, name)[skipped:] for name in self._imagined.columns}
        )
        self._trajectories.append(
            {"first": first[kept], "real": real[kept], "imagined": imagined[kept], "row": number}
        )
        self.rows += int(sizes[kept].sum())

    def _make_room(self, rows: int) -> None:
        while self.rows + rows > self.capacity:
            oldest = self._trajectories.begin
            real = int(self._trajectories.take("real", oldest))
            imagined = int(self._trajectories.take("imagined", oldest))
            self._trajectories.drop(1)
            self._imagined.drop(imagined)
            self.rows -= real + imagined

    def sample(self, rng: np.random.Generator, batches: int, rows: int) -> Tape:
        """Tapes of whole trajectories, each as likely as any other; leaves (batches, rows, ...).

        Trajectories are laid end to end until a tape is full; what exceeds it is dropped.
        """
        if not len(self):
            raise ValueError("the replay is empty: add trajectories before sampling")
        trajectories = self._trajectories

        def sizes(number: np.ndarray) -> np.ndarray:
            index = trajectories.begin + number
            return trajectories.take("real", index) + trajectories.take("imagined", index)

        number, offset = _lay_end_to_end(
            rng, len(self), self.rows / len(self), sizes, batches, rows
        )
        tape = self._take(number, offset)
        return jax.tree.map(lambda leaf: leaf.reshape(batches, rows, *leaf.shape[1:]), tape)

    def _take(self, number: Int[np.ndarray, " n"], offset: Int[np.ndarray, " n"]) -> Tape:
        """Rows by the number of their trajectory, from the oldest, and their place in it."""
        index = self._trajectories.begin + number
        beyond = offset - self._trajectories.take("real", index)  # rows since the branching state
        is_real = beyond < 0
        real, imagined = np.flatnonzero(is_real), np.flatnonzero(~is_real)
        data = self.dataset.take(self._trajectories.take("first", index[real]) + offset[real])
        stored = self._trajectories.take("row", index[imagined]) + beyond[imagined]

        def merged(name: str) -> np.ndarray:
            values = self._imagined.take(name, stored)
            column = np.empty((len(number), *values.shape[1:]), values.dtype)
            column[imagined] = values
            column[real] = 0 if name == "penalty" else getattr(data, name)
            return column

        columns = {name: merged(name) for name in self._imagined.columns}
        return Tape(start=offset == 0, real=is_real, **columns)

    def sample_windows(
        self, rng: np.random.Generator, batches: int, shape: BatchShape, kappa: float
    ) -> Tape:
        """Windows of many trajectories, leaves (batches, rows, slots, ...).

        A share kappa of the windows shows the data, every transition as likely as any other, ends
        of episodes among them; the others show what was imagined, likewise.
        """
        assert shape.slots is not None
        held = self._trajectories.begin + np.arange(len(self))
        real = self._trajectories.take("real", held)
        steps = self._trajectories.take("imagined", held) - 1  # L
        imagined_slots = min(math.ceil((1 - kappa) * shape.slots), shape.slots - (kappa > 0))
        if not steps.any():  # every rollout ended before its first step
            imagined_slots = 0
        parts = []
        if imagined_slots:
            windows = _windows(rng, real, steps, batches * imagined_slots, shape)
            tape = self._take(windows.trajectory.ravel(), windows.offset.ravel())
            parts.append(windows.batches(tape, batches))
        if imagined_slots < shape.slots:
            slots = shape.slots - imagined_slots
            data = sample_data(self.dataset, rng, batches, shape._replace(slots=slots))
            if self.penalised:
                data = data._replace(penalty=np.zeros_like(data.reward))
            parts.append(data)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=2), *parts)

    def slices(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """All that is held, oldest first, as plain arrays of at most about `size` bytes together;
        they are views, which the next `add` may change."""
        rows = self._imagined.slices(size // 2)
        for columns, trajectories in zip_longest(rows, self._trajectories.slices(size // 2)):
            part = {f"imagined.{name}": column for name, column in (columns or {}).items()}
            for name, column in (trajectories or {}).items():
                if name != "row":  # follows from the others
                    part[f"trajectories.{name}"] = column
            yield part

    def load(self, slices: Iterable[dict[str, np.ndarray]]) -> None:
        """Restore what `slices` returned, of a replay with the same dataset and settings; all or
        nothing."""
        if self._imagined.end:
            raise ValueError("trajectories can be loaded into an empty replay only")
        other = Replay(self.dataset, self.capacity, self.penalised)
        row = 0
        for part in slices:
            kinds: dict[str, dict[str, np.ndarray]] = {"imagined": {}, "trajectories": {}}
            for name, column in part.items():
                kind, _, of_kind = name.partition(".")
                kinds[kind][of_kind] = column
            if kinds["imagined"]:
                other._imagined.append(kinds["imagined"])
            if trajectories := kinds["trajectories"]:
                ends = row + np.cumsum(trajectories["imagined"])
                other._trajectories.append(trajectories | {"row": ends - trajectories["imagined"]})
                other.rows += int(trajectories["real"].sum() + trajectories["imagined"].sum())
                row = int(ends[-1]) if len(ends) else row
        self._imagined, self._trajectories = other._imagined, other._trajectories
        self.rows = other.rows


def discounted_returns(dataset: Dataset, gamma: float) -> Float[np.ndarray, " rows"]:
    """What followed every step of the data, discounted, its own reward included.

    Where an episode was cut, by a timeout or by the log's end, it is taken to have continued with
    its own mean reward.
    """
    first, length = (np.asarray(leaf) for leaf in dataset.histories)
    returns = np.zeros(len(dataset.tape.start), np.float32)
    for begin, steps in zip(first.tolist(), length.tolist(), strict=True):
        if not steps:
            continue
        episode = dataset.take(np.arange(begin, begin + steps))
        reward = np.asarray(episode.reward, np.float64)
        after = 0.0 if episode.terminated[-1] else reward.mean() / (1 - gamma)
        # A linear recurrence, run backwards: G_t = r_{t+1} + gamma G_{t+1}.
        backwards, _ = scipy.signal.lfilter([1.0], [1.0, -gamma], reward[::-1], zi=[gamma * after])
        returns[begin : begin + steps] = backwards[::-1]
    return returns


def sample_data(
    dataset: Dataset,
    rng: np.random.Generator,
    batches: int,
    shape: BatchShape,
    returns: Float[np.ndarray, " rows"] | None = None,
    parts: Prefix | None = None,
) -> Tape:
    """Batches of the data alone in the replay's layout: whole episodes, each as likely as any
    other, or windows, every transition as likely as any other.

    An episode goes as far as it may be a history: to its first terminal, and to T at most; or only
    some `parts` of episodes are drawn from. With the `returns` of its rows, a step's value to learn
    is its return, after which nothing follows.
    """
    first, length = (np.asarray(leaf) for leaf in parts or dataset.histories)

    def take(episode: Int[np.ndarray, " n"], offset: Int[np.ndarray, " n"]) -> Tape:
        rows = first[episode] + offset
        tape = dataset.take(rows)
        last = offset == length[episode]  # carries s_L only
        reward = np.where(last, np.float32(0), tape.reward)
        return Tape(
            state=tape.state,
            action=np.where(last[:, None], np.float32(0), tape.action),
            reward=reward,
            terminated=(tape.terminated | (returns is not None)) & ~last,
            start=offset == 0,
            real=np.ones_like(last),
            penalty=None if returns is None else reward - returns[rows],
        )

    if shape.slots is not None:
        nothing = np.zeros_like(length)
        windows = _windows(rng, nothing, length, batches * shape.slots, shape)
        return windows.batches(take(windows.trajectory.ravel(), windows.offset.ravel()), batches)
    sizes = length + 1
    tape = take(
        *_lay_end_to_end(
            rng, len(sizes), float(sizes.mean()), sizes.__getitem__, batches, shape.rows
        )
    )
    return jax.tree.map(lambda leaf: leaf.reshape(batches, shape.rows, *leaf.shape[1:]), tape)


class _Windows(NamedTuple):
    """Where the rows of windows come from."""

    trajectory: Int[np.ndarray, "windows rows"]
    offset: Int[np.ndarray, "windows rows"]  # place in the trajectory
    start: Bool[np.ndarray, "windows rows"]  # the first row of a piece: memory begins anew
    burn_in: Bool[np.ndarray, "windows rows"]

    def batches(self, tape: Tape, batches: int) -> Tape:
        """The rows, taken from wherever they are, as batches of windows side by side."""
        tape = tape._replace(start=self.start.ravel(), burn_in=self.burn_in.ravel())
        slots, rows = len(self.start) // batches, self.start.shape[1]

        def side_by_side(leaf: np.ndarray) -> np.ndarray:
            return np.swapaxes(leaf.reshape(batches, slots, rows, *leaf.shape[1:]), 1, 2)

        return jax.tree.map(side_by_side, tape)


def _windows(
    rng: np.random.Generator,
    before: Int[np.ndarray, " n"],
    steps: Int[np.ndarray, " n"],
    count: int,
    shape: BatchShape,
) -> _Windows:
    """Draw windows from trajectories of which `steps` transitions, after `before` others, are to
    be shown, each as likely as any other.

    So many transitions in a row as a window has room for may begin anywhere such that one of them
    is to be shown: each is then in as many windows as any other. The first of them is at row
    `burn_in` of the window, after as many rows of its past as there are; what is above those
    repeats the first and counts for nothing. A window with rows to spare below continues with a
    piece of another trajectory, as far as there is room.
    """
    room = shape.rows - 1 - shape.burn_in  # transitions
    places = np.where(steps > 0, steps + room - 1, 0)
    ends = np.cumsum(places)
    row = np.arange(shape.rows)
    blank = np.zeros((count, shape.rows), np.int64)
    windows = _Windows(blank, blank.copy(), blank.astype(bool), np.ones_like(blank, bool))
    filled = np.zeros(count, np.int64)
    while len(still := np.flatnonzero(filled < shape.rows)):
        draw = rng.integers(ends[-1], size=len(still))
        drawn = np.searchsorted(ends, draw, side="right")
        where = draw - (ends - places)[drawn] - (room - 1)  # of `room` transitions, the first
        shown = before[drawn] + np.maximum(where, 0)  # the first to learn from, and after the last:
        beyond = before[drawn] + np.minimum(where + room, steps[drawn])
        past = np.minimum(shown, shape.burn_in)
        first = np.where(filled[still] == 0, shape.burn_in - past, filled[still])
        end = np.minimum(first + past + beyond - shown + 1, shape.rows)
        place = row - first[:, None]  # of every row in the piece
        mine = (row >= filled[still, None]) & (row < end[:, None])
        piece, column = np.nonzero(mine)
        at, place = (still[piece], column), place[mine]
        windows.trajectory[at] = drawn[piece]
        windows.offset[at] = (shown - past)[piece] + np.maximum(place, 0)
        windows.start[at] = place <= 0
        windows.burn_in[at] = place < past[piece]
        filled[still] = end
    return windows


def _lay_end_to_end(
    rng: np.random.Generator,
    count: int,
    mean_size: float,
    sizes: Callable[[np.ndarray], np.ndarray],
    batches: int,
    rows: int,
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Draw from `count` trajectories until each batch has its rows, n = batches * rows in all.

    Returns, for every row, the number of its trajectory and its place in it.
    """
    drawn = np.empty((batches, 0), np.int64)
    ends = np.zeros((batches, 0), np.int64)
    while not ends.size or ends[:, -1].min() < rows:
        more = rng.integers(count, size=(batches, int(rows / mean_size) + 1))
        drawn = np.concatenate([drawn, more], axis=1)
        ends = np.cumsum(sizes(drawn), axis=1)
    ends = np.minimum(ends, rows)
    laid = np.diff(ends, axis=1, prepend=0).ravel()  # rows laid of each: 0 once a batch is full
    begin = np.cumsum(laid) - laid
    return np.repeat(drawn.ravel(), laid), np.arange(batches * rows) - np.repeat(begin, laid)


class _Queue:
    """A first-in, first-out queue of rows, held as columns, that grows as it fills.

    Rows are numbered in the order they were added and keep their number: `begin` is the oldest one
    held, `end` the next one to be added. Row i is at place (i - origin) modulo the rows allocated.
    """

    def __init__(self, limit: int, **columns: Any) -> None:
        self.limit = limit
        """The most rows it will be asked to hold."""
        self.columns = {
            name: np.empty((0, *shape), dtype) for name, (dtype, *shape) in columns.items()
        }
        self.origin = self.begin = self.end = 0

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def allocated(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    @property
    def bytes_per_row(self) -> int:
        return sum(
            column.itemsize * math.prod(column.shape[1:]) for column in self.columns.values()
        )

    def append(self, values: dict[str, Any]) -> None:
        count = len(next(iter(values.values())))
        if len(self) + count > self.allocated:
            self._grow(len(self) + count)
        begin = self._place(self.end)
        fit = min(count, self.allocated - begin)  # the rest wraps around to the first place
        for name, column in self.columns.items():
            column[begin : begin + fit] = values[name][:fit]
            column[: count - fit] = values[name][fit:]
        self.end += count

    def take(self, name: str, rows: Any) -> Any:
        return self.columns[name][self._place(rows)]

    def drop(self, count: int) -> None:
        self.begin += count

    def slices(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """What is held, oldest first, as views of at most `size` bytes together, or of one row."""
        rows = max(size // self.bytes_per_row, 1)
        pieces = {name: self._pieces(column) for name, column in self.columns.items()}
        for number in range(2):
            held = {name: both[number] for name, both in pieces.items()}
            for begin in range(0, len(next(iter(held.values()))), rows):
                yield {name: column[begin : begin + rows] for name, column in held.items()}

    def _place(self, rows: Any) -> Any:
        return (rows - self.origin) % max(self.allocated, 1)

    def _pieces(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is held of a column: up to its last place, and on from its first."""
        begin = self._place(self.begin)
        end = begin + len(self)
        return column[begin:end], column[: max(end - len(column), 0)]

    def _grow(self, rows: int) -> None:
        """Move to columns of at least `rows` rows.

        They double, the last time to the limit from half of it or less: as memory that was never
        written to takes no space, old and new ones together take no more than the new ones will.
        """
        size = max(rows, 2 * self.allocated, 1024)
        if 2 * size > self.limit:
            size = max(rows, self.limit)
        grown = {}
        for name, column in self.columns.items():
            grown[name] = np.empty((size, *column.shape[1:]), column.dtype)
            first, second = self._pieces(column)
            grown[name][: len(first)] = first
            grown[name][len(first) : len(self)] = second
        self.columns, self.origin = grown, self.begin
