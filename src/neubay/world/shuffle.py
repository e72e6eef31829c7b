"""Shuffles as keyed bijections, and bootstraps as keyed counts: computed where they are needed
instead of stored as tables."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

_POISSON = [math.exp(-1) / math.factorial(count) for count in range(9)]  # P(0), P(1), ...
_POISSON_LEVELS = np.array(
    [int(2**24 * sum(_POISSON[: count + 1])) for count in range(9)], np.uint32
)
_ROUNDS = 8  # six leave neighbours correlated; eight pass the tests of randomness


def shuffle_keys(key: Key[Array, ""]) -> UInt32[Array, " rounds"]:
    """The round keys of one shuffle."""
    return jax.random.bits(key, (_ROUNDS,), jnp.uint32)


def shuffled(
    position: Int[Array, " b"], count: Int[Array, ""], keys: UInt32[Array, " rounds"]
) -> Int[Array, " b"]:
    """What a shuffle of 0 .. count - 1 has at `position`; count may be up to 2^31.

    A Feistel network on the cells (row, column) of the near-square that holds `count` cells: each
    round adds a keyed hash of one coordinate to the other, modulo its side, and so is a bijection.
    The few cells beyond `count` are walked through: a position that lands there is sent on until
    it comes back, which leaves a bijection on the others.
    """
    count = count.astype(jnp.uint32)
    columns = jnp.ceil(jnp.sqrt(count.astype(jnp.float32))).astype(jnp.uint32)
    rows = (count + columns - 1) // columns

    def send(cell: UInt32[Array, " b"]) -> UInt32[Array, " b"]:
        row, column = cell // columns, cell % columns
        for round_, key in enumerate(keys):
            if round_ % 2:
                row = _add_hash(row, column, key, rows)
            else:
                column = _add_hash(column, row, key, columns)
        return row * columns + column

    cells = jax.lax.while_loop(
        lambda cells: jnp.any(cells >= count),
        lambda cells: jnp.where(cells >= count, send(cells), cells),
        send(position.astype(jnp.uint32)),
    )
    return cells.astype(jnp.int32)


def times_drawn(episode: Int[Array, " b"], key: UInt32[Array, ""]) -> Float[Array, " b"]:
    """How often a bootstrap has an episode: Poisson(1), which a count among many draws with
    replacement comes to, by a keyed hash of the episode's number."""
    uniform = _mixed(_mixed(episode.astype(jnp.uint32), key), key) >> 8
    return (uniform[:, None] >= _POISSON_LEVELS).sum(axis=-1).astype(jnp.float32)


def _add_hash(
    coordinate: UInt32[Array, " b"],
    other: UInt32[Array, " b"],
    key: UInt32[Array, ""],
    side: UInt32[Array, ""],
) -> UInt32[Array, " b"]:
    """coordinate + hash(other, key) modulo side, which is at most 2^16."""
    mixed = _mixed(other, key)
    moved = coordinate + (((mixed >> 16) * side) >> 16)  # scaled to the side: no division
    return jnp.where(moved >= side, moved - side, moved)


def _mixed(number: UInt32[Array, " b"], key: UInt32[Array, ""]) -> UInt32[Array, " b"]:
    """A keyed hash, of which the upper bits are the better ones."""
    mixed = (number ^ key) * jnp.uint32(0x9E3779B1)  # odd constants with well-spread bits
    mixed = (mixed ^ (mixed >> 15) ^ key) * jnp.uint32(0x85EBCA77)
    return (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE3D)
