"""Policies with random weights and constants, of any kind and size."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from neubay import agents
from neubay.config import AgentConfig
from neubay.data.dataset import Ranges
from neubay.data.rows import ColumnNames
from neubay.policy import Policy
from neubay.tasks import ContinuousActions, DiscreteActions, Task

KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {"algorithm": "redq", "memory": "lru", "standardise": True},
    "gated": {"algorithm": "redq", "memory": "gated", "standardise": True},
    "Markov": {"algorithm": "redq", "memory": "none", "standardise": True},
    "cloned": {"algorithm": "bc", "memory": "gated", "standardise": True},
    "DQN": {"algorithm": "dqn", "memory": "lru", "standardise": True},
    "gated DQN": {"algorithm": "dqn", "memory": "gated", "standardise": False},
    "Markov DQN": {"algorithm": "dqn", "memory": "none", "standardise": True},
    "cloned, discrete": {"algorithm": "bc", "memory": "lru", "standardise": True},
}
DISCRETE = {"DQN", "gated DQN", "Markov DQN", "cloned, discrete"}
SIZES = {"width": 8, "memory_size": 4, "memory_layers": 1, "head_depth": 1, "heads": 2}


def some_policy(
    kind: str, states: int = 3, actions: int = 2, seed: int = 0, **sizes: int
) -> Policy:
    """A policy nobody trained: every weight is random, also those that begin as 0 or 1."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(-3, 0, actions)
    space = (
        DiscreteActions(actions)
        if kind in DISCRETE
        else ContinuousActions(low, low + rng.uniform(1, 5, actions))
    )
    task = Task("toy", states, space, horizon=100, reward_shift=-1.0)
    config = AgentConfig(**KINDS[kind], **{**SIZES, **sizes})
    agent = agents.make(states, actions, space.kind, config)
    into = states + actions + 1
    constants = agents.Standardiser(
        jax.device_put(rng.normal(size=into).astype(np.float32)),
        jax.device_put(rng.uniform(0.5, 2, into).astype(np.float32)),
    )
    state = agent.init(jax.random.key(seed), constants if config.standardise else None)
    span = [np.full(states, -1), np.full(states, 2), np.full(actions, -1), np.full(actions, 1)]
    ranges = Ranges(*(bound.astype(np.float32) for bound in span))
    identity = {"name": "toy data", "hash": "0" * 32}
    commands = ["valve"] if kind in DISCRETE else [f"pump {i} (l/min)" for i in range(actions)]
    names = ColumnNames(
        tuple(f"sensor {i} [bar]" for i in range(states)), tuple(commands), "-abs(`sensor 0 [bar]`)"
    )
    policy = Policy(agent, state, task, config, ranges, identity, names)

    def shaken(leaf: Any) -> Any:
        """In NumPy, as every shape would be compiled."""
        noise = rng.normal(size=leaf.shape, scale=0.2).astype(leaf.dtype)
        return jax.device_put(np.asarray(leaf) + noise)

    arrays, static = eqx.partition(policy.mode, eqx.is_array)
    standardise = arrays.encoder.standardise
    arrays = jax.tree.map(shaken, arrays)
    mode = eqx.combine(arrays, static)
    if standardise is not None:
        mode = eqx.tree_at(lambda mode: mode.encoder.standardise, mode, constants)
    policy.mode, policy._sample = mode, dataclasses.replace(mode, deterministic=False)
    return policy
