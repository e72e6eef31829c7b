"""Judges and data whose truth can be worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from neubay.data.dataset import Dataset
from neubay.selection import DataRecord, Trial
from neubay.world import WorldStep


class Quadratic(eqx.Module):
    """A linear-quadratic world: s' = A s + B a + sigma noise, r = pay - (s' Q s + R a^2), a member
    for each A. U is |s| / `known`: beyond `known` the members are unsure."""

    a: jax.Array  # (members, s, s)
    b: jax.Array  # (s, 1)
    sigma: jax.Array  # numbers on the device: one program for all of them
    cost: jax.Array
    pay: jax.Array
    known: jax.Array

    @property
    def size(self) -> int:
        return len(self.a)

    def step(self, state, action, member, keys):
        noise = jax.vmap(lambda key: jax.random.normal(key, state.shape[1:]))(keys)
        following = jnp.einsum("kij,kj->ki", self.a[member], state) + action @ self.b.T
        reward = self.pay - self.cost * ((state**2).sum(-1) + 0.1 * (action**2).sum(-1))
        unsure = jnp.linalg.norm(state, axis=-1) / self.known
        return WorldStep(following + self.sigma * noise, reward, unsure)

    def with_noise(self, scale):
        return eqx.tree_at(lambda world: world.sigma, self, scale * self.sigma)

    def truth(self, gain: np.ndarray, start: np.ndarray, steps: int) -> float:
        """E[sum of rewards] of a = -K s, the mean over starts and members, by the covariance."""
        totals = []
        for a in np.asarray(self.a, np.float64):
            closed = a - np.asarray(self.b, np.float64) @ gain
            price = np.eye(len(a)) + 0.1 * gain.T @ gain
            spread = np.mean([np.outer(s, s) for s in start.astype(np.float64)], axis=0)
            total = 0.0
            for _ in range(steps):
                total += float(self.pay) - float(self.cost) * np.trace(price @ spread)
                spread = closed @ spread @ closed.T + float(self.sigma) ** 2 * np.eye(len(a))
            totals.append(total)
        return float(np.mean(totals))


def quadratic(members: int = 3, blow: float = 1.0, **changes: float) -> Quadratic:
    base = np.array([[0.95, 0.2], [-0.1, 0.9]])
    rng = np.random.default_rng(0)
    perturbed = [base + 0.02 * rng.normal(size=(2, 2)) for _ in range(members)]
    return Quadratic(
        jnp.asarray(blow * np.stack(perturbed), jnp.float32),
        jnp.asarray([[0.0], [0.3]], jnp.float32),
        **numbers(**changes),
    )


def numbers(
    sigma: float = 0.05, cost: float = 1.0, pay: float = 0.0, known: float = 1e9
) -> dict[str, jax.Array]:
    given = {"sigma": sigma, "cost": cost, "pay": pay, "known": known}
    return {name: jnp.asarray(value, jnp.float32) for name, value in given.items()}


def logged(
    lengths: list[int],
    *,
    terminal: bool = False,
    pay: float = 0.0,
    cost: float = 1.0,
    gain: float = 0.0,
    sigma: float = 0.05,
    name: str = "logged",
    seed: int = 0,
) -> Dataset:
    """Episodes of the linear-quadratic system, whose own noise is sigma, under a = -gain s_1 +
    noise. They end in a terminal state, or because the log was cut."""
    rng = np.random.default_rng(seed)
    system = np.array([[0.95, 0.2], [-0.1, 0.9]])
    states, actions, rewards, following = [], [], [], []
    for length in lengths:
        state = rng.normal(size=2)
        for _ in range(length):
            action = np.clip(-gain * state[1] + 0.3 * rng.normal(size=1), -1, 1)
            after = system @ state + np.array([0.0, 0.3]) * action + sigma * rng.normal(size=2)
            states.append(state)
            actions.append(action)
            rewards.append(pay - cost * ((state**2).sum() + 0.1 * (action**2).sum()))
            following.append(after)
            state = after
    ends = np.isin(np.arange(sum(lengths)), np.cumsum(lengths) - 1)
    return Dataset.from_arrays(
        np.asarray(states, np.float32),
        np.asarray(actions, np.float32),
        np.asarray(rewards, np.float32),
        ends & terminal,
        ends & (not terminal),
        np.asarray(following, np.float32),
        action_bounds=(-1, 1),
        name=name,
    )


def trial(world: Quadratic, dataset: Dataset, threshold: float = 1.0) -> Trial:
    return Trial.of(world, threshold, DataRecord.of(dataset), dataset.task, seed=0)


def linear_policy(gain: list[float]):
    """a = -K s, in NumPy."""
    return lambda observations: -observations @ np.asarray([gain], np.float32).T
