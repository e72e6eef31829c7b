"""Shuffles: bijections that differ by key and are as random as they should be; bootstraps too."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from neubay.world import training
from neubay.world.shuffle import shuffle_keys, shuffled, times_drawn


def shuffle_of(count: int, seed: int) -> np.ndarray:
    """A whole shuffle; positions are padded to one size, so that one is compiled."""
    positions = np.minimum(np.arange(max(count, 5000)), count - 1)
    return np.asarray(_shuffled(positions, count, jax.random.key(seed)))[:count]


@jax.jit
def _shuffled(positions: jax.Array, count: jax.Array, key: jax.Array) -> jax.Array:
    return shuffled(positions, count, shuffle_keys(key))


@settings(max_examples=40)
@given(st.integers(1, 5000), st.integers(0, 1000))
def test_a_shuffle_is_a_permutation(count: int, seed: int) -> None:
    np.testing.assert_array_equal(np.sort(shuffle_of(count, seed)), np.arange(count))


def test_a_shuffle_of_a_large_odd_count_is_a_permutation() -> None:
    np.testing.assert_array_equal(np.sort(shuffle_of(1_000_003, 0)), np.arange(1_000_003))


def test_shuffles_differ_by_member_epoch_and_chunk() -> None:
    keys = training.member_keys(3, seed=0)
    drawn = [training.epoch_shuffles(keys, epoch, chunk) for epoch in (0, 1) for chunk in (0, 1)]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == 12


def test_a_bootstrap_has_each_episode_as_often_as_draws_with_replacement_would() -> None:
    """Counts are Poisson(1) for every member and episode, and tell nothing of each other."""
    members, episodes = 400, 500
    keys = jax.random.bits(jax.random.key(0), (members,), jnp.uint32)
    drawn = jax.vmap(lambda key: times_drawn(jnp.arange(episodes), key))(keys)
    counts = np.asarray(drawn)
    share = np.bincount(counts.ravel().astype(int), minlength=10) / counts.size
    expected = [math.exp(-1) / math.factorial(count) for count in range(10)]
    np.testing.assert_allclose(share, expected, atol=4e-3)
    # Means over members, and over episodes, spread as those of independent counts do.
    assert counts.mean(axis=0).std() == pytest.approx(1 / math.sqrt(members), rel=0.15)
    assert counts.mean(axis=1).std() == pytest.approx(1 / math.sqrt(episodes), rel=0.15)
    pairs = np.corrcoef(counts)[np.triu_indices(members, 1)]
    assert np.abs(pairs).max() < 6 / math.sqrt(episodes)
    neighbours = np.corrcoef(counts[:, :-1].ravel(), counts[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 0.01


def test_shuffles_look_random() -> None:
    """Every position is uniform, and so are pairs of neighbours and their differences."""
    count, draws = 53, 4000
    keys = jax.vmap(shuffle_keys)(jax.random.split(jax.random.key(0), draws))
    many = jax.vmap(lambda keys: shuffled(jnp.arange(count), jnp.asarray(count), keys))
    orders = np.asarray(jax.jit(many)(keys))
    places = np.stack([np.bincount(orders[:, place], minlength=count) for place in range(count)])
    statistic = ((places - draws / count) ** 2 / (draws / count)).sum()
    assert stats.chi2.sf(statistic, (count - 1) ** 2) > 1e-3
    differences = np.bincount(((orders[:, 1:] - orders[:, :-1]) % count).ravel())[1:]
    assert stats.chisquare(differences).pvalue > 1e-3
    fixed = (orders == np.arange(count)).sum(axis=1)
    np.testing.assert_allclose((fixed.mean(), fixed.var()), 1, atol=0.1)
