"""Replay: whole trajectories, of which only the imagined rows are stored.

A trajectory is a real prefix h_t and the rows imagined from s_t on. The prefix is a reference into
the dataset's tape; the imagined rows lie in a ring, each trajectory in one piece. A training batch
is a tape cut from whole trajectories drawn uniformly, laid end to end, the overflow dropped.

Everything is NumPy on the host: a draw is a few index operations and one copy of the rows.
"""

import numpy as np
from jaxtyping import Int

from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.imagination import Rollouts
from neubay.tape import Prefix, Tape


class Replay:
    """The buffer B of Algorithm 1.

    `capacity` counts rows as the paper does, prefixes included: when it is exceeded, the oldest
    trajectories are dropped.
    """

    def __init__(self, dataset: Dataset, capacity: int, penalised: bool = False) -> None:
        longest = int(dataset.histories.length.max()) + dataset.task.horizon + 1
        if capacity < longest:
            raise ConfigError(
                f"agent.buffer is {capacity} rows, but one trajectory of {dataset.name} can have "
                f"{longest}: give it room for many"
            )
        self.dataset, self.capacity = dataset, capacity
        states, actions = dataset.task.state_size, dataset.task.actions.size
        # Not touched yet, so that memory is used as rows come in.
        self._ring = Tape(
            state=np.empty((capacity, states), np.float32),
            action=np.empty((capacity, actions), np.float32),
            reward=np.empty(capacity, np.float32),
            terminated=np.empty(capacity, bool),
            start=np.empty(0, bool),  # derived when sampled, as is `real`
            real=np.empty(0, bool),
            penalty=np.empty(capacity, np.float32) if penalised else None,
        )
        self._next = 0  # where the ring is written
        # First row and length of the prefix, first row in the ring and rows there.
        self._trajectories = np.empty((1024, 4), np.int64)
        self._oldest, self._newest = 0, 0  # the span of `_trajectories` in use

    def __len__(self) -> int:
        """Trajectories held."""
        return self._newest - self._oldest

    @property
    def rows(self) -> int:
        """Rows held, prefixes included."""
        return int(self._held[:, 1].sum() + self._held[:, 3].sum())

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one imagined row; a real row costs none."""
        return sum(
            field.nbytes // self.capacity for field in self._ring if field is not None and field.size
        )

    @property
    def _held(self) -> Int[np.ndarray, "trajectories 4"]:
        return self._trajectories[self._oldest : self._newest]

    def add(self, prefix: Prefix, rollouts: Rollouts) -> None:
        """Append K trajectories: histories of the dataset and what was imagined from them."""
        counts = rollouts.length + 1
        ends = np.cumsum(counts)
        for k in range(len(counts)):
            rows = slice(int(ends[k] - counts[k]), int(ends[k]))
            self._append(int(prefix.first[k]), int(prefix.length[k]), rows, rollouts.rows)
        excess = self.rows - self.capacity
        if excess > 0:
            held = np.cumsum(self._held[:, 1] + self._held[:, 3])
            self._oldest += int(np.searchsorted(held, excess)) + 1

    def _append(self, first: int, length: int, rows: slice, imagined: Tape) -> None:
        count = rows.stop - rows.start
        place = self._next if self._next + count <= self.capacity else 0
        self._free(place, place + count)
        there = slice(place, place + count)
        for name in ("state", "action", "reward", "terminated", "penalty"):
            field = getattr(self._ring, name)
            if field is not None:
                field[there] = getattr(imagined, name)[rows]
        if self._newest == len(self._trajectories):
            room = np.empty((max(2 * len(self), 1024), 4), np.int64)
            room[: len(self)] = self._held
            self._trajectories, self._oldest, self._newest = room, 0, len(self)
        self._trajectories[self._newest] = first, length, place, count
        self._newest += 1
        self._next = place + count

    def _free(self, begin: int, end: int) -> None:
        """Drop the oldest trajectories until rows begin .. end - 1 of the ring are free."""
        held = self._held
        overlapping = (held[:, 2] < end) & (held[:, 2] + held[:, 3] > begin)
        if overlapping.any():
            self._oldest += int(np.flatnonzero(overlapping)[-1]) + 1

    def sample(self, rng: np.random.Generator, batches: int, rows: int) -> Tape:
        """Training tapes with leaves (batches, rows, ...)."""
        held = self._held
        trajectory, position = _lay_out(rng, held[:, 1] + held[:, 3], batches, rows)
        first, length, place, _ = held[trajectory].T
        real = position < length
        data, ours = np.flatnonzero(real), np.flatnonzero(~real)
        recorded = self.dataset.take((first + position)[data])
        imagined = (place + position - length)[ours]
        total, ring = batches * rows, self._ring

        def merged(name: str) -> np.ndarray:
            stored = getattr(ring, name)
            out = np.empty((total, *stored.shape[1:]), stored.dtype)
            out[data] = getattr(recorded, name)
            out[ours] = stored[imagined]
            return out.reshape(batches, rows, *stored.shape[1:])

        penalty = None
        if ring.penalty is not None:
            penalty = np.zeros(total, np.float32)
            penalty[ours] = ring.penalty[imagined]
            penalty = penalty.reshape(batches, rows)
        return Tape(
            state=merged("state"),
            action=merged("action"),
            reward=merged("reward"),
            terminated=merged("terminated"),
            start=(position == 0).reshape(batches, rows),
            real=real.reshape(batches, rows),
            penalty=penalty,
        )


def sample_data(dataset: Dataset, rng: np.random.Generator, batches: int, rows: int) -> Tape:
    """Training tapes of whole episodes of the data alone, as far as they may be histories."""
    histories = dataset.histories
    episode, position = _lay_out(rng, np.asarray(histories.length) + 1, batches, rows)
    tape = dataset.take(np.asarray(histories.first)[episode] + position)
    tape = tape._replace(start=position == 0, real=np.ones(len(position), bool))
    return Tape(
        *(None if leaf is None else leaf.reshape(batches, rows, *leaf.shape[1:]) for leaf in tape)
    )


def _lay_out(
    rng: np.random.Generator, counts: Int[np.ndarray, " trajectories"], batches: int, rows: int
) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
    """Fill tapes with trajectories drawn uniformly: for each row, which one and where in it."""
    typical = int(1.3 * rows / counts.mean()) + 8
    drawn = rng.integers(len(counts), size=(batches, typical))
    while (counts[drawn].sum(axis=1) < rows).any():
        more = rng.integers(len(counts), size=(batches, typical))
        drawn = np.concatenate([drawn, more], axis=1)
    ends = np.minimum(np.cumsum(counts[drawn], axis=1), rows)  # cut what overflows
    kept = np.diff(ends, axis=1, prepend=0).ravel()
    trajectory = np.repeat(drawn.ravel(), kept)
    begin = np.repeat(np.cumsum(kept) - kept, kept)
    return trajectory, np.arange(len(trajectory)) - begin
