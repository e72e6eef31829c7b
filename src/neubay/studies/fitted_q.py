"""Fitted Q evaluation (Le, Voloshin and Yue, 2019): a policy's value from the data alone.

Q(s, a) is fitted to r + gamma Q'(s', pi(h')) on the transitions of the data, Q' a slow copy of Q;
the value is its mean over the data's s_0 at the policy's actions there. The policy reads each
episode's history as it was logged, in one pass over the tape. Q itself sees (s, a) alone: of a
policy that remembers more than the state, it is the value averaged over what was remembered.

Rewards are shifted and discounted, as the critic's are. The budget is fixed, the same for all.
"""

import hashlib
import json
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from neubay.agents.layers import LARGEST_INPUT
from neubay.agents.networks import Head, RecurrentPolicy, observe
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError
from neubay.runs.cache import cache_directory
from neubay.runs.files import atomic_write_json, read_json
from neubay.runs.values import is_number
from neubay.tape import AgentInput, agent_input

WIDTH, DEPTH = 64, 2
BATCH = 256
FIRST_STEPS, STEPS = 2_000, 10_000
"""Gradient steps on the returns of the data, where Q begins, and on targets of its own."""
LEARNING_RATE = 1e-3
"""At the beginning; it falls to zero along a cosine."""
POLYAK = 0.05
"""Share of Q that its slow copy takes over at each step."""


class Transitions(NamedTuple):
    """The data as Q reads it; values are in units of the data's returns."""

    inputs: Float[Array, "n into"]  # (s, a), standardised
    following: Float[Array, "n into"]  # (s', pi(h'))
    opening: Float[Array, "episodes into"]  # (s_0, pi(s_0))
    first_target: Float[Array, " n"]  # the data's own return from there on
    reward: Float[Array, " n"]
    discount: Float[Array, " n"]  # 0 after a terminal step
    low: Float[Array, ""]  # no policy is paid less,
    high: Float[Array, ""]  # or more


class FittedQ:
    """Fitted Q evaluation on one dataset, for any number of policies: one program for all."""

    def __init__(
        self,
        dataset: Dataset,
        gamma: float,
        *,
        seed: int = 0,
        steps: tuple[int, int] = (FIRST_STEPS, STEPS),
    ) -> None:
        if not 0 <= gamma < 1:
            raise NeubayError(f"fitted Q evaluation needs a discount below 1, got {gamma}")
        self.dataset, self.gamma, self.seed, self.steps = dataset, gamma, seed, steps
        first, length = dataset.histories
        self.rows = np.concatenate(
            [np.arange(f, f + n) for f, n in zip(first, length, strict=True)]
        )
        if not len(self.rows):
            raise NeubayError(f"{dataset.name}: has no transitions to fit Q to")

    def value(self, policy: RecurrentPolicy) -> float:
        """What the policy is worth at the data's s_0, discounted."""
        return self.value_of(actions_of(policy, self.dataset))

    def value_of(self, actions: Float[np.ndarray, "rows a"]) -> float:
        """The same of the policy's action at every row of the tape."""
        mean, std = self._unit
        rng = np.random.default_rng(self.seed)
        head = Head(self._scaled(actions[:1], 0).shape[-1], WIDTH, DEPTH, 1, rng=rng)
        opening = self.dataset.bounds[0]
        following = self.rows + 1
        data = self._shared._replace(
            following=self._scaled(actions[following], following),
            opening=self._scaled(actions[opening], opening),
        )
        keys = [
            jax.random.split(jax.random.key(self.seed + i), n) for i, n in enumerate(self.steps)
        ]
        return mean + std * float(_fit(head, data, *keys))

    def of_data(self) -> tuple[float, float]:
        """The value of the data's own actions, and what they earned: the two should agree. Where a
        log was cut, both are guesses."""
        opening = np.searchsorted(self.rows, self.dataset.bounds[0])
        found = self.value_of(np.asarray(self.dataset.tape.action))
        return found, float(self._returns[opening].mean())

    @cached_property
    def _shared(self) -> Transitions:
        """What is the same for every policy."""
        mean, std = self._unit
        tape, rows = self.dataset.tape, self.rows
        inputs = self._scaled(np.asarray(tape.action)[rows], rows)
        reward = np.asarray(tape.reward, np.float64)[rows]
        discount = np.where(np.asarray(tape.terminated)[rows], 0.0, self.gamma)
        # With values v = mean + std q, q = (r + discount mean - mean) / std + discount q'.
        paid = (reward + discount * mean - mean) / std
        ends = [0.0] if (discount == 0).any() else []  # an early end pays nothing more
        bounds = [bound / (1 - self.gamma) for bound in (reward.min(), reward.max())]
        low, high = ((bound - mean) / std for bound in (min(bounds + ends), max(bounds + ends)))
        return Transitions(
            inputs,
            following=inputs,
            opening=inputs,
            first_target=_float32((self._returns - mean) / std),
            reward=_float32(paid),
            discount=_float32(discount),
            low=_float32(low),
            high=_float32(high),
        )

    @cached_property
    def _returns(self) -> Float[np.ndarray, " n"]:
        """The discounted return of the data from each transition on. Where a log was cut, it goes
        on at the mean reward."""
        tape, (first, length) = self.dataset.tape, self.dataset.histories
        reward = np.asarray(tape.reward, np.float64)
        terminated = np.asarray(tape.terminated)
        tail = reward[self.rows].mean() / (1 - self.gamma)
        returns = np.zeros(len(reward))
        for begin, end in zip(first, first + length, strict=True):
            rest = 0.0 if end == begin or terminated[end - 1] else tail
            for row in range(end - 1, begin - 1, -1):
                rest = returns[row] = reward[row] + self.gamma * rest
        return returns[self.rows]

    @cached_property
    def _unit(self) -> tuple[float, float]:
        """Mean and spread of the data's returns."""
        return float(self._returns.mean()), float(self._returns.std()) or 1.0

    @cached_property
    def _constants(self) -> tuple[Float[np.ndarray, " into"], Float[np.ndarray, " into"]]:
        tape = self.dataset.tape
        both = np.concatenate([tape.state[self.rows], tape.action[self.rows]], axis=1)
        std = both.std(axis=0)
        return both.mean(axis=0), np.where(std > 1e-6, std, 1.0)

    def _scaled(
        self, actions: Float[np.ndarray, "n a"], rows: int | Int[np.ndarray, " n"]
    ) -> Float[Array, "n into"]:
        """(s, a) as Q reads them, s those of rows of the tape."""
        mean, std = self._constants
        both = np.concatenate([np.atleast_2d(self.dataset.tape.state[rows]), actions], axis=1)
        return _float32(np.clip((both - mean) / std, -LARGEST_INPUT, LARGEST_INPUT))

    def kept_value(self, policy: RecurrentPolicy, digest: str) -> float:
        """The same as `value`, from the user's cache if it is known there; `digest` tells which
        policy it is."""
        settings = [WIDTH, DEPTH, BATCH, LEARNING_RATE, POLYAK, *self.steps]
        identity = [settings, self.dataset.hash, self.gamma, self.seed, digest]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
        path = cache_directory() / "fitted_q" / f"{name}.json"
        if path.exists():
            try:
                known = read_json(path).get("value")
            except NeubayError:  # damaged: found again
                known = None
            if is_number(known):
                return float(known)
        value = self.value(policy)
        atomic_write_json(path, {"value": value})
        return value


def actions_of(policy: RecurrentPolicy, dataset: Dataset) -> Float[np.ndarray, "rows a"]:
    """What the policy does at every row of the data, after its episode's history up to there."""
    inputs = jax.tree.map(np.asarray, agent_input(dataset.tape))
    return np.asarray(_act_along(policy, inputs))


@eqx.filter_jit
def _act_along(policy: RecurrentPolicy, inputs: AgentInput) -> Float[Array, "rows a"]:
    features = policy.encoder(observe(inputs), jnp.asarray(inputs.start))
    none = jnp.broadcast_to(jax.random.key(0), (len(inputs.start),))  # nothing is drawn
    return policy.choose(features, none)


@eqx.filter_jit
def _fit(
    head: Head, data: Transitions, first_keys: Key[Array, " first"], keys: Key[Array, " steps"]
) -> Float[Array, ""]:
    """The whole of it: Q on the data's returns, then on its own targets; its value at s_0."""
    rate = optax.cosine_decay_schedule(LEARNING_RATE, len(first_keys) + len(keys))
    optimiser = optax.adam(rate)

    def q(head: Head, inputs: Float[Array, "b into"]) -> Float[Array, " b"]:
        return head(inputs)[..., 0]

    def descend(carry: tuple, target: Float[Array, " b"], inputs: Float[Array, "b into"]) -> tuple:
        head, slow, state = carry
        gradient = jax.grad(lambda head: jnp.mean((q(head, inputs) - target) ** 2))(head)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats
            change, state = optimiser.update(gradient, state)
        head = optax.apply_updates(head, change)
        slow = jax.tree.map(lambda old, new: old + POLYAK * (new - old), slow, head)
        return head, slow, state

    def rows(key: PRNGKeyArray) -> Int[Array, " b"]:
        return jax.random.randint(key, (BATCH,), 0, len(data.reward))

    def first(carry: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
        i = rows(key)
        return descend(carry, data.first_target[i], data.inputs[i]), None

    def step(carry: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
        i = rows(key)
        target = data.reward[i] + data.discount[i] * q(carry[1], data.following[i])
        return descend(carry, jnp.clip(target, data.low, data.high), data.inputs[i]), None

    carry = (head, head, optimiser.init(head))
    carry, _ = lax.scan(first, carry, first_keys)
    carry, _ = lax.scan(step, carry, keys)
    return q(carry[1], data.opening).mean()


def _float32(values: np.ndarray | float) -> Float[Array, "*shape"]:
    return jnp.asarray(np.asarray(values, np.float32))
