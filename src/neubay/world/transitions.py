"""What members learn from: transitions on the device, their scaler, split and epochs."""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.tape import Tape
from neubay.world.model import Scaler

RESIDENT_BYTES = 2 << 30
"""A tape beyond this size is streamed to the device in chunks instead of being held there."""
BLOCK = 1 << 8
"""Consecutive transitions that stay together when an epoch is streamed."""
BLOCKS_PER_CHUNK = 1 << 10
"""Random blocks on the device at once when an epoch is streamed."""
_PIECE = 1 << 18  # transitions read at once


class Transitions(NamedTuple):
    """Transitions (s, a, r, s') as an index of rows: s' is the state of the row after."""

    state: Float[Array, "rows s"]
    action: Float[Array, "rows a"]
    reward: Float[Array, " rows"]
    row: Int[Array, " n"]
    episode: Int[Array, " n"] | None = None
    """Which episode each is of, where members see some more often than others."""

    @staticmethod
    def view(tape: Tape, rows: Int[np.ndarray, " n"]) -> "Transitions":
        """The whole tape on the device, and an index."""
        fields = (tape.state, tape.action, tape.reward, rows.astype(np.int32))
        return Transitions(*map(jnp.asarray, fields))

    @staticmethod
    def copy(dataset: Dataset, rows: Int[np.ndarray, " n"]) -> "Transitions":
        """The wanted rows alone, each followed by its successor."""
        pairs = dataset.take(np.stack([rows, rows + 1], axis=1).ravel())
        return Transitions.view(pairs, np.arange(0, 2 * len(rows), 2))

    def of_episodes(self, dataset: Dataset, rows: Int[np.ndarray, " n"]) -> "Transitions":
        """The same with the episodes of the rows that they are."""
        return self._replace(episode=jnp.asarray(dataset.episode_of(rows).astype(np.int32)))


class Batch(NamedTuple):
    """Standardised inputs (s, a) and targets (s' - s, r), and which rows count."""

    inputs: Float[Array, "b inputs"]
    targets: Float[Array, "b d"]
    counts: Bool[Array, " b"]
    times: Float[Array, " b"] | None = None
    """How often each is in the bootstrap of the member that sees it, if that has one."""


def gather(
    data: Transitions,
    index: Int[Array, " b"],
    counts: Bool[Array, " b"],
    scaler: Scaler,
    reward_only: bool,
) -> Batch:
    """The transitions at `index`, standardised."""
    row = data.row[index]
    state, action = data.state[row], data.action[row]
    targets = ((data.reward[row] - scaler.reward_mean) / scaler.reward_std)[:, None]
    if not reward_only:
        delta = (data.state[row + 1] - state) / scaler.change_unit
        targets = jnp.concatenate([delta, targets], axis=-1)
    return Batch(scaler.inputs(state, action), targets, counts)


def fit_scaler(dataset: Dataset, unit: Literal["state", "change"] = "state") -> Scaler:
    """Means and stds of the transitions' states (each once), actions and rewards; the std of what
    they change too, where that is the unit of it."""
    rows = dataset.world_rows
    states = _mean_and_std(lambda piece: dataset.take(piece).state, np.union1d(rows, rows + 1))
    actions = _mean_and_std(lambda piece: dataset.take(piece).action, rows)
    rewards = _mean_and_std(lambda piece: dataset.take(piece).reward, rows)
    found = [*states, *actions, *rewards]
    if unit == "change":
        found.append(_mean_and_std(lambda piece: _changes(dataset, piece), rows)[1])
    return Scaler(*(jax.device_put(np.array(value, np.float32)) for value in found))


def _changes(dataset: Dataset, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n s"]:
    """s' - s."""
    return np.asarray(dataset.take(rows + 1).state) - np.asarray(dataset.take(rows).state)


def _mean_and_std(
    take: Callable[[np.ndarray], np.ndarray | Array], rows: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "*d"], Float[np.ndarray, "*d"]]:
    """Mean and std of `take(rows)` in float64, piece by piece; a std of about zero becomes one.

    Differences to the first row are summed, so that a constant has a std of exactly zero.
    """
    origin = np.asarray(take(rows[:1])[0], np.float64)
    total, squares = np.zeros_like(origin), np.zeros_like(origin)
    for piece in np.array_split(rows, math.ceil(len(rows) / _PIECE)):
        shifted = np.asarray(take(piece)) - origin
        total += shifted.sum(axis=0)
        squares += (shifted**2).sum(axis=0)
    mean = total / len(rows)
    std = np.sqrt(np.maximum(squares / len(rows) - mean**2, 0.0))
    return np.asarray(origin + mean), np.where(std < 1e-12, 1.0, std)


def split_rows(
    rows: Int[np.ndarray, " n"], config: WorldConfig, seed: int
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " validation"]]:
    """Training and validation rows: a split fixed by the seed. A row that is there several times is
    on one side only."""
    held_out = max(int(config.validation_fraction * len(rows)), 1)
    held_out = min(held_out, config.validation_max or held_out)
    chosen = np.zeros(len(rows), bool)
    chosen[np.random.default_rng(seed).choice(len(rows), held_out, replace=False)] = True
    return rows[~np.isin(rows, rows[chosen])], rows[chosen]


class Share(NamedTuple):
    """What one call does of an epoch: batches first .. last - 1 of a chunk of transitions."""

    data: Transitions
    chunk: int
    transitions: int  # of the chunk
    first: int
    last: int


class Epochs:
    """The training transitions, epoch by epoch, in shares for one call each.

    With `resample`, transitions come with their episodes. A tape that fits lies on the device as
    one chunk. A larger one is cut anew for every epoch into chunks of random blocks, the same for
    all members, and each member shuffles within them.
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: Int[np.ndarray, " n"],
        *,
        batch: int,
        batches_per_call: int,
        seed: int,
        resample: bool = False,
    ):
        self._dataset, self._rows, self._seed, self._resample = dataset, rows, seed, resample
        tape = dataset.tape
        size = tape.state.nbytes + tape.action.nbytes + tape.reward.nbytes
        self._resident = None
        if size <= RESIDENT_BYTES:
            self._resident = self._with_episodes(Transitions.view(tape, rows), rows)
        self._chunk = len(rows) if self._resident else BLOCKS_PER_CHUNK * BLOCK
        self._plan: list[tuple[int, int, int, int]] = []  # the shares without their data
        for chunk in range(math.ceil(len(rows) / self._chunk)):
            count = min(self._chunk, len(rows) - chunk * self._chunk)
            batches = math.ceil(count / batch)
            for first in range(0, batches, batches_per_call):
                self._plan.append((chunk, count, first, min(first + batches_per_call, batches)))

    def __len__(self) -> int:
        """Shares of an epoch."""
        return len(self._plan)

    @property
    def steps(self) -> int:
        """Gradient steps of an epoch."""
        return sum(last - first for _, _, first, last in self._plan)

    def shares(self, epoch: int, done: int) -> Iterator[Share]:
        """The shares of an epoch in order, but the first `done` of them."""
        loaded, data = None, self._resident
        for chunk, *span in self._plan[done:]:
            if self._resident is None and loaded != chunk:
                loaded, data = chunk, self._load(epoch, chunk)
            assert data is not None
            yield Share(data, chunk, *span)

    def _load(self, epoch: int, chunk: int) -> Transitions:
        """A chunk of random blocks of transitions; all chunks have one size."""
        whole, rest = divmod(len(self._rows), BLOCK)
        order = np.random.default_rng([self._seed, epoch]).permutation(whole)
        order = np.append(order, whole) if rest else order  # a short block comes last
        chosen = order[chunk * BLOCKS_PER_CHUNK : (chunk + 1) * BLOCKS_PER_CHUNK]
        position = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        position = position[position < len(self._rows)]
        # The last chunk is filled up with a row that is beyond its count.
        position = np.pad(position, (0, self._chunk - len(position)), mode="edge")
        rows = self._rows[position]
        return self._with_episodes(Transitions.copy(self._dataset, rows), rows)

    def _with_episodes(self, data: Transitions, rows: Int[np.ndarray, " n"]) -> Transitions:
        return data.of_episodes(self._dataset, rows) if self._resample else data
