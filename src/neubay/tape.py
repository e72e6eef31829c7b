"""The tape: the one layout of experience between the dataset and the agent.

A tape is whole episodes laid end to end, row by row. Row t of an episode holds

    s_t, a_t, r_{t+1}, terminated_{t+1}

and `start` marks row 0. An episode of L steps has L + 1 rows: its last row carries s_L only,
with a zero action, a zero reward and `terminated` false. `real` tells data rows from imagined ones,
and from the s_L of an episode that ended in a terminal state which its source did not store.
Conservative ablations penalise imagined rewards: `penalty` (absent on data) counts in what values
are learnt from, `Tape.target_reward`, and never in what the agent sees.

A batch may also be windows: pieces of episodes, tapes of a few rows side by side, their leaves
(rows, slots, ...). A window's first row has `start` set wherever its episode stands, and
the rows that `burn_in` marks only bring the memory up to date.

Nothing derived is stored. The agent's input (s_t, a_{t-1}, r_t) is the tape shifted by one row;
the transitions (s_t, a_t, r_{t+1}, s_{t+1}) are an index of the rows that have a successor; the
history h_t of an episode is a reference (first row, t).

Actions are continuous in [-1, 1] or one-hot: both are `(rows, a)` float32.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

AnyArray = Array | np.ndarray


class Tape(NamedTuple):
    """Episodes end to end; a pytree whose leaves share their leading axis, the rows."""

    state: Float[AnyArray, "*rows s"]  # s_t
    action: Float[AnyArray, "*rows a"]  # a_t, zero on an episode's last row
    reward: Float[AnyArray, "*rows"]  # r_{t+1}, zero on an episode's last row
    terminated: Bool[AnyArray, "*rows"]  # d_{t+1}: the step from this row ended in a terminal
    start: Bool[AnyArray, "*rows"]  # this row is an episode's s_0
    real: Bool[AnyArray, "*rows"]  # the step from this row is data, not imagined
    penalty: Float[AnyArray, "*rows"] | None = None  # taken off r_{t+1} in the target only
    burn_in: Bool[AnyArray, "*rows"] | None = None  # read for the memory's sake, without loss

    @property
    def target_reward(self) -> Float[AnyArray, "*rows"]:
        """What values are learnt from: r_{t+1} less its penalty, which the agent never sees."""
        return self.reward if self.penalty is None else self.reward - self.penalty


class AgentInput(NamedTuple):
    """What the agent sees at t, and where its memory is reset."""

    state: Float[AnyArray, "*rows s"]  # s_t
    last_action: Float[AnyArray, "*rows a"]  # a_{t-1}, zero at a start
    last_reward: Float[AnyArray, "*rows"]  # r_t, zero at a start
    start: Bool[AnyArray, "*rows"]


class Prefix(NamedTuple):
    """Histories h_t as references into the dataset tape: rows first .. first + length.

    `length` is t, the number of real steps before the branching state s_t; the branching
    state itself is row first + length.
    """

    first: Int[AnyArray, "*batch"]
    length: Int[AnyArray, "*batch"]


def _numerical_library(array: AnyArray) -> Any:
    return np if isinstance(array, np.ndarray) else jnp


def agent_input(tape: Tape) -> AgentInput:
    """Derive (s_t, a_{t-1}, r_t) by one shift along the first axis (one tape, or several)."""
    xp = _numerical_library(tape.state)
    last_action = xp.concatenate([xp.zeros_like(tape.action[:1]), tape.action[:-1]])
    last_reward = xp.concatenate([xp.zeros_like(tape.reward[:1]), tape.reward[:-1]])
    return AgentInput(
        state=tape.state,
        last_action=xp.where(tape.start[..., None], 0, last_action),
        last_reward=xp.where(tape.start, 0, last_reward),
        start=tape.start,
    )


def has_successor(start: Bool[AnyArray, "rows *slots"]) -> Bool[AnyArray, "rows *slots"]:
    """Rows whose next row belongs to the same episode: the rows that are transitions.

    Of one tape, or of several side by side."""
    xp = _numerical_library(start)
    return xp.concatenate([~start[1:], xp.zeros_like(start[:1])])


def transition_rows(start: Bool[np.ndarray, " rows"]) -> Int[np.ndarray, " transitions"]:
    """Index of the rows with a successor: row i and row i + 1 are a transition."""
    return np.flatnonzero(has_successor(start))


def episode_bounds(
    start: Bool[np.ndarray, " rows"],
) -> tuple[Int[np.ndarray, " episodes"], Int[np.ndarray, " episodes"]]:
    """First row and length in steps L (rows minus one) of every episode."""
    first = np.flatnonzero(start)
    rows = np.diff(np.append(first, len(start)))
    return first, rows - 1


def episodes(tape: Tape) -> Iterator[Tape]:
    """The episodes of a NumPy tape one by one, as views."""
    first, length = episode_bounds(np.asarray(tape.start))
    for begin, steps in zip(first.tolist(), length.tolist(), strict=True):
        yield slice_rows(tape, begin, begin + steps + 1)


def slice_rows(tape: Tape, begin: int, end: int | None = None) -> Tape:
    """Rows begin .. end - 1, or to the last."""
    return jax.tree.map(lambda field: field[begin:end], tape)


def tape_length(horizon: int) -> int:
    """Rows of a training tape: the smallest multiple of 512 that holds an episode of T steps."""
    return 512 * math.ceil((horizon + 1) / 512)
