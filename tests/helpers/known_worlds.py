"""Worlds and data whose errors can be worked out by hand."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from neubay import world
from neubay.config import WorldConfig
from neubay.data import Dataset
from neubay.world.model import LOG_SIGMA_MAX, LOG_SIGMA_MIN
from neubay.world.transitions import fit_scaler

SLOPE = 0.01  # of the leaky ReLU


def linear_world(
    matrices: Sequence[np.ndarray],
    offsets: Sequence[np.ndarray],
    sigma: float,
) -> world.World:
    """Members that are exactly linear: (s' - s, r) = M (s, a) + b + sigma noise, unstandardised.

    One hidden layer holds x and -x, and leaky_relu(x) - leaky_relu(-x) = (1 + slope) x.
    """
    outputs, inputs = matrices[0].shape
    config = WorldConfig(width=2 * inputs, depth=1, layer_norm=False, pool=1, members=1)
    count = len(matrices)
    keys = jax.ShapeDtypeStruct((count,), jax.random.key(0).dtype)
    build = jax.vmap(lambda key: world.Member(inputs, outputs, config, key=key))
    members = jax.eval_shape(build, keys)  # every leaf is replaced below
    hidden = np.concatenate([np.eye(inputs), -np.eye(inputs)], axis=1)
    halves = [np.concatenate([m.T, -m.T]) / (1 + SLOPE) for m in matrices]
    log_sigma = _before_soft_clamp(math.log(sigma))
    parts = (
        jnp.asarray(np.stack(count * [hidden]), jnp.float32),
        jnp.zeros((count, 2 * inputs)),
        jnp.asarray(
            np.stack([np.concatenate([half, 0 * half], axis=1) for half in halves]), jnp.float32
        ),
        jnp.asarray(
            np.stack([np.append(offset, outputs * [log_sigma]) for offset in offsets]), jnp.float32
        ),
    )
    members = eqx.tree_at(
        lambda m: (m.linears[0].weight, m.linears[0].bias, m.head.weight, m.head.bias),
        members,
        parts,
    )
    states, actions = outputs - 1, inputs - outputs + 1
    scaler = world.Scaler(
        jnp.zeros(states),
        jnp.ones(states),
        jnp.zeros(actions),
        jnp.ones(actions),
        jnp.zeros(()),
        jnp.ones(()),
    )
    return world.World(members, scaler, reward_only=False, quantifier="disagreement")


def _before_soft_clamp(log_sigma: float) -> float:
    """The inverse: sigma = e^min + e^max sigmoid(x - max)."""
    share = (math.exp(log_sigma) - math.exp(LOG_SIGMA_MIN)) / math.exp(LOG_SIGMA_MAX)
    return LOG_SIGMA_MAX + math.log(share / (1 - share))


def fitted(
    of: world.World, dataset: Dataset, *, layer_norm: bool = True, **sizes: int
) -> world.FittedWorld:
    return world.FittedWorld(
        world=of,
        scores=np.zeros(of.size, np.float32),
        kept=np.arange(of.size),
        data_uncertainty=world.uncertainty_over(of, dataset),
        history=[],
        seconds=1.0,
        config=WorldConfig(layer_norm=layer_norm, pool=of.size, members=of.size, **sizes),
        seed=0,
        dataset_name=dataset.name,
        dataset_hash=dataset.hash,
        provenance={},
    )


def untrained(dataset: Dataset, *, layer_norm: bool) -> world.FittedWorld:
    """Random members of the usual make."""
    config = WorldConfig(width=8, depth=2, pool=2, members=2, layer_norm=layer_norm)
    keys = jax.random.split(jax.random.key(0), 2)
    members = eqx.filter_jit(jax.vmap(lambda key: world.Member(4, 3, config, key=key)))(keys)
    of = world.World(members, fit_scaler(dataset), False, "disagreement")
    return fitted(of, dataset, layer_norm=layer_norm, width=8, depth=2)


def random_walk(
    lengths: Sequence[int],
    *,
    drift: float = 0.0,
    sigma: float = 1.0,
    seed: int = 0,
    name: str = "walk",
) -> Dataset:
    """s' = s + a + drift + sigma noise, r = noise: two states, two actions."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    actions = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    states, following = np.zeros((2, rows, 2), np.float32)
    ends = np.cumsum(lengths) - 1
    state = np.zeros(2)
    for row in range(rows):
        states[row] = state
        state = states[row] + actions[row] + drift + sigma * rng.standard_normal(2)
        following[row] = state
        if row in ends:
            state = rng.standard_normal(2)
    return Dataset.from_arrays(
        states,
        actions,
        (sigma * rng.standard_normal(rows)).astype(np.float32),
        np.zeros(rows, bool),
        np.isin(np.arange(rows), ends),
        following,
        name=name,
    )


TRUTH = np.concatenate([np.concatenate([np.zeros((2, 2)), np.eye(2)], axis=1), np.zeros((1, 4))])
ZERO = np.zeros(3)


def true_world(members: int = 2, sigma: float = 1.0) -> world.World:
    return linear_world(members * [TRUTH], members * [ZERO], sigma)
