"""Behaviour cloning: it imitates the data, all of it and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.optimisers import copy_of, steps_made
from neubay import agents
from neubay.agents.bc import Agent, AgentState, DiscreteAgent
from neubay.agents.networks import read
from neubay.config import AgentConfig
from neubay.errors import ConfigError
from neubay.tape import AgentInput, Tape

CONFIG = AgentConfig(
    algorithm="bc",
    width=16,
    memory_size=8,
    memory_layers=1,
    encoder_lr=3e-3,
    head_lr=3e-3,
    steps=600,
)
BATCHES, EPISODES, STEPS = 100, 12, 4
NOISE = 0.3


def tapes(seed: int, imagined: float = 0.0) -> Tape:
    """Episodes in which the action follows the first state, which is seen once: u = +-0.5 + noise.

    Where a row is no data, because it is the last or imagined, the action is 0.9 or `imagined`.
    """
    rng = np.random.default_rng(seed)
    shape = BATCHES, EPISODES, STEPS + 1
    cue = rng.choice([-1.0, 1.0], shape[:2])
    row = np.broadcast_to(np.arange(STEPS + 1), shape)
    u = 0.5 * cue[..., None] + NOISE * rng.normal(size=shape)
    real = np.broadcast_to((np.arange(EPISODES) % 4 != 0)[:, None], shape)
    last = row == STEPS
    action = np.where(last, 0.9, np.where(real, np.tanh(u), imagined))
    fields = (
        np.where(row == 0, cue[..., None], 0.0).astype(np.float32)[..., None],
        action.astype(np.float32)[..., None],
        np.zeros(shape, np.float32),
        np.zeros(shape, bool),
        row == 0,
        real & ~last,
    )
    return Tape(*(field.reshape(BATCHES, -1, *field.shape[3:]) for field in fields))


@pytest.fixture(scope="module")
def learned() -> tuple[Agent, AgentState]:
    agent = Agent(1, 1, CONFIG)
    state = agent.init(jax.random.key(0))
    for call in range(6):
        state, metrics = agent.update(state, tapes(call))
    assert steps_made(state.optimiser) == CONFIG.steps
    assert float(metrics["nonfinite_gradients"]) == 0
    return agent, state


@pytest.mark.slow
def test_the_mode_is_the_datas_mean_action_and_sigma_its_spread(learned: tuple) -> None:
    _, state = learned
    tape = jax.tree.map(lambda leaf: leaf[0], tapes(99))
    policy = state.actor(read(tape, 0)[0])
    rows = np.append(~tape.start[1:], False) & tape.real
    cue = np.repeat(tape.state[tape.start][:, 0], STEPS + 1)
    expected = np.tanh(0.5 + NOISE * np.random.default_rng(0).normal(size=100_000)).mean()
    error = (policy.mode()[:, 0] - expected * cue)[rows]
    assert np.abs(error).mean() < 0.08
    assert float(jnp.exp(policy.log_sigma[rows]).mean()) == pytest.approx(NOISE, rel=0.2)


def test_imagined_rows_teach_nothing(learned: tuple) -> None:
    agent, _ = learned

    def after(imagined: float) -> AgentState:
        # An imagined action is an input of the rows after it, which are imagined too.
        return agent.update(agent.init(jax.random.key(0)), tapes(0, imagined))[0]

    for a, b in zip(*map(jax.tree.leaves, (after(0.0), after(0.7))), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_actors_rate_falls_to_zero(learned: tuple) -> None:
    agent, state = learned  # at its last step
    kept = copy_of(state)
    after, _ = agent.update(kept, tapes(1))
    for a, b in zip(*map(jax.tree.leaves, (state.actor, after.actor)), strict=True):
        np.testing.assert_array_equal(a, b)


SHARES = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
"""How often each of three actions follows either cue."""


@pytest.mark.slow
def test_of_discrete_actions_the_shares_are_learned_and_the_most_frequent_is_the_mode() -> None:
    agent = DiscreteAgent(1, 3, CONFIG)
    state, rng = agent.init(jax.random.key(0)), np.random.default_rng(0)
    for call in range(6):
        seen = tapes(call)
        # The cue is in the first state of an episode: what the later rows do asks for memory.
        cue = np.maximum.accumulate(np.where(seen.start, np.arange(seen.start.shape[1]), 0), axis=1)
        cue = np.take_along_axis(seen.state[..., 0], cue, axis=1) > 0
        drawn = (rng.random((*cue.shape, 1)) > SHARES.cumsum(axis=1)[cue.astype(int)]).sum(axis=-1)
        action = np.eye(3, dtype=np.float32)[drawn]
        state, metrics = agent.update(state, seen._replace(action=action))
    entropy = -(SHARES * np.log(SHARES)).sum(axis=1).mean()
    assert float(metrics["log_likelihood"]) == pytest.approx(-entropy, abs=0.05)
    assert float(metrics["accuracy"]) == pytest.approx(0.75, abs=0.03)

    count, keys = 2000, jax.random.split(jax.random.key(1), 2000)
    inputs = AgentInput(
        jnp.ones((count, 1)), jnp.zeros((count, 3)), jnp.zeros(count), jnp.ones(count, bool)
    )
    mode, sampled = (agent.policy(state, deterministic) for deterministic in (True, False))
    assert (np.asarray(mode.act(mode.initial(count), inputs, keys)[1]).argmax(axis=1) == 2).all()
    often = np.asarray(sampled.act(sampled.initial(count), inputs, keys)[1]).mean(axis=0)
    np.testing.assert_allclose(often, SHARES[1], atol=0.06)


def test_every_algorithm_is_made_for_its_kind_of_actions() -> None:
    assert isinstance(agents.make(3, 1, "continuous", CONFIG), Agent)
    assert isinstance(agents.make(3, 1, "continuous", AgentConfig()), agents.redq.Agent)
    assert isinstance(agents.make(3, 2, "discrete", CONFIG), DiscreteAgent)
    with pytest.raises(ConfigError, match=r"discrete actions: .*--agent\.algorithm bc or dqn"):
        agents.make(3, 2, "discrete", AgentConfig())
