"""Where rollouts begin: histories h_t of the data, and the policy's memory of them."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from neubay.data.dataset import Dataset
from neubay.imagination.protocols import HistoryPolicy, Memory
from neubay.tape import AgentInput, Prefix, agent_input

RECALL_GROUPS = 4
"""Histories are read in this many groups of similar length."""


class Branches(NamedTuple):
    """K histories h_t read from the data: where rollouts branch off."""

    history: AgentInput  # rows 0 .. t - 1, padded: leaves (rows, k, ...)
    inputs: AgentInput  # the input at t, with the branching state s_t: leaves (k, ...)
    length: Int[np.ndarray, " k"]  # t
    whole: Bool[np.ndarray, " k"]  # h_t is a whole episode: the data ended there


def draw_histories(
    rng: np.random.Generator, histories: Prefix, count: int, initial_share: float = 0.0
) -> Prefix:
    """Draw h_t uniformly over every time step of every episode; a share of them at s_0 of a random
    episode.

    The longest come first: reading them back then costs less.
    """
    initial = round(initial_share * count)
    ends = np.cumsum(histories.length + 1)  # h_t exists for every t in 0 .. length
    draw = rng.integers(ends[-1], size=count - initial)
    episode = np.searchsorted(ends, draw, side="right")
    length = draw - (ends - histories.length - 1)[episode]
    order = np.argsort(-length, kind="stable")
    from_start = rng.integers(len(histories.first), size=initial)
    return Prefix(
        histories.first[np.append(episode[order], from_start)],
        np.append(length[order], np.zeros(initial, length.dtype)),
    )


def draw_members(rng: np.random.Generator, count: int, members: int) -> Int[np.ndarray, " k"]:
    """A member for each rollout, spread evenly: no member is used twice more than another."""
    return rng.permutation(np.resize(rng.permutation(members), count)).astype(np.int32)


def branch(dataset: Dataset, prefix: Prefix) -> Branches:
    """Read the histories, padded to the dataset's longest so that their shape does not change."""
    first, length = np.asarray(prefix.first), np.asarray(prefix.length)
    longest = int(dataset.histories.length.max()) if length.any() else 0
    row = np.arange(longest + 1)[:, None]
    tape = dataset.take(first + np.minimum(row, length))
    inputs = agent_input(tape._replace(start=np.broadcast_to(row == 0, tape.start.shape)))
    here = length, np.arange(len(length))
    episode = np.searchsorted(dataset.histories.first, first)
    return Branches(
        history=jax.tree.map(lambda leaf: leaf[:longest], inputs),
        inputs=jax.tree.map(lambda leaf: leaf[here], inputs),
        length=length.astype(np.int32),
        whole=length >= dataset.histories.length[episode],
    )


def recall(policy: HistoryPolicy, branches: Branches) -> Memory:
    """Memory at the branching points. The histories come longest first, and each group of them
    is read no further than its own longest."""
    length = jnp.asarray(branches.length)
    if not len(branches.history.start):
        return policy.initial(len(length))
    groups = math.gcd(len(length), RECALL_GROUPS)

    def grouped(leaf: Array) -> Array:  # (rows, k, ...) -> (groups, rows, k / groups, ...)
        return jnp.moveaxis(leaf.reshape(len(leaf), groups, -1, *leaf.shape[2:]), 1, 0)

    memory = lax.map(
        lambda group: policy.recall(*group),
        (jax.tree.map(grouped, branches.history), length.reshape(groups, -1)),
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), memory)
