"""A system whose truth is known, and worlds that are fitted to it."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.world import FittedWorld

CONFIG = WorldConfig(width=32, depth=2, pool=4, members=3, batch=64, max_epochs=8)


class Linear(NamedTuple):
    """s' ~ N(A s + B a, diag(noise)^2), r ~ N(c s, 0.2^2)."""

    a: np.ndarray = np.array([[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1], [0.0, 0.0, 0.7]])
    b: np.ndarray = np.array([[0.0], [0.3], [0.5]])
    c: np.ndarray = np.array([1.0, 0.0, -0.5])
    noise: np.ndarray = np.array([0.1, 0.2, 0.4])
    reward_noise: float = 0.2
    scale: np.ndarray = np.array([1.0, 10.0, 0.1])  # units of the states as stored

    def dataset(self, rows: int, seed: int = 0, name: str = "linear") -> Dataset:
        """Transitions from independent states, each an episode of one step."""
        rng = np.random.default_rng(seed)
        state, action = rng.normal(size=(rows, 3)), rng.uniform(-1, 1, (rows, 1))
        following = state @ self.a.T + action @ self.b.T + self.noise * rng.normal(size=(rows, 3))
        reward = state @ self.c + self.reward_noise * rng.normal(size=rows)
        arrays = (state * self.scale, action, reward, np.zeros(rows, bool), np.ones(rows, bool))
        return Dataset.from_arrays(*arrays, following * self.scale, name=name)

    def mean(self, state: np.ndarray, action: np.ndarray) -> Float[np.ndarray, "b 4"]:
        """E[(s', r)], the states in units of `scale`."""
        following = state @ self.a.T + action @ self.b.T
        return np.concatenate([following, (state @ self.c)[:, None]], axis=1)


def assert_same(first: FittedWorld, second: FittedWorld) -> None:
    for one, other in zip(
        jax.tree.leaves((first.world, first.scores, first.kept, first.data_uncertainty)),
        jax.tree.leaves((second.world, second.scores, second.kept, second.data_uncertainty)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert first.history == second.history
