"""A warm start: what the data tells before anything is imagined, and nothing that lasts."""

import jax
import numpy as np
import pytest

from helpers.optimisers import copy_of
from neubay.agents import dqn, redq
from neubay.agents.networks import read
from neubay.config import AgentConfig
from neubay.tape import Tape

SIZES = {
    "width": 16,
    "memory": "none",
    "heads": 2,
    "head_depth": 1,
    "window": 1,
    "value_unit": 5.0,
    "huber": 10.0,
    "steps": 100,
}
ROWS, SLOTS, BATCHES = 2, 128, 400


def data_with_returns(one_hot: bool) -> Tape:
    """Steps with a = 0.6 sign(s), or the action numbered by the sign; the return is 10 sign(s)."""
    rng = np.random.default_rng(0)
    shape = BATCHES, ROWS, SLOTS
    state = rng.uniform(-1, 1, (*shape, 1)).astype(np.float32)
    right = state > 0
    action = np.concatenate([~right, right], axis=-1) if one_hot else np.where(right, 0.6, -0.6)
    reward = np.full(shape, 0.5, np.float32)
    start = np.zeros(shape, bool)
    start[:, 0] = True
    return Tape(
        state=state,
        action=action.astype(np.float32),
        reward=reward,
        terminated=np.ones(shape, bool),
        start=start,
        real=np.ones(shape, bool),
        penalty=reward - 10 * np.sign(state[..., 0]),
    )


@pytest.mark.slow
def test_the_actor_clones_and_the_critic_learns_returns() -> None:
    agent = redq.Agent(1, 1, AgentConfig(**SIZES))
    before = agent.init(jax.random.key(0))
    fresh = copy_of(before.actor_optimiser)
    tapes = data_with_returns(one_hot=False)
    state, _ = agent.warm_update(agent.warm(before), tapes)
    state = agent.warmed(state)
    tape = jax.tree.map(lambda leaf: leaf[0], tapes)
    chosen = state.actor(read(tape, 0)[0]).mode()
    far = np.abs(tape.state) > 0.2
    assert np.abs(chosen[far] - tape.action[far]).mean() < 0.2  # 0.6 without learning
    assert (np.sign(chosen[far]) == np.sign(tape.action[far])).all()
    values = agent.values(state, tapes)[0]
    np.testing.assert_allclose(values[far[..., 0]], 10 * np.sign(tape.state[far]), atol=1.5)
    # The training begins with optimisers as new, and with the target at the critic.
    jax.tree.map(np.testing.assert_array_equal, state.actor_optimiser, fresh)
    jax.tree.map(np.testing.assert_array_equal, state.target, state.critic)


@pytest.mark.slow
def test_a_q_learner_learns_the_returns_of_the_datas_actions() -> None:
    agent = dqn.Agent(1, 2, AgentConfig(algorithm="dqn", **SIZES))
    tapes = data_with_returns(one_hot=True)
    state, _ = agent.warm_update(agent.warm(agent.init(jax.random.key(0))), tapes)
    state = agent.warmed(state)
    values, states = agent.values(state, tapes)[0], tapes.state[0, ..., 0]
    far = np.abs(states) > 0.2
    np.testing.assert_allclose(values[far], 10 * np.sign(states[far]), atol=1.5)
    jax.tree.map(np.testing.assert_array_equal, state.target, state.network)
