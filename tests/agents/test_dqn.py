"""DQN: its loss against a slow restatement, its schedule, its dueling sum, and what it learns in a
world whose values are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.optimisers import copy_of, with_rates_at
from neubay.agents import dqn
from neubay.config import AgentConfig
from neubay.imagination import HistoryPolicy
from neubay.tape import AgentInput, Tape, agent_input, slice_rows

CONFIG = AgentConfig(
    algorithm="dqn", width=8, memory_size=4, memory_layers=1, steps=100, kappa=0.3, tape=12
)
AGENT = dqn.Agent(2, 3, CONFIG)


def random_tape(seed: int, rows: int = 12, penalised: bool = False) -> Tape:
    """Three episodes, the last cut off; the first two steps of each are real; one terminal."""
    rng = np.random.default_rng(seed)
    start = np.zeros(rows, bool)
    start[[0, 5, 9]] = True
    position = np.arange(rows) - np.maximum.accumulate(np.where(start, np.arange(rows), 0))
    terminated = np.zeros(rows, bool)
    terminated[3] = True
    return Tape(
        state=rng.normal(size=(rows, 2)).astype(np.float32),
        action=np.eye(3, dtype=np.float32)[rng.integers(3, size=rows)],
        reward=rng.normal(size=rows).astype(np.float32),
        terminated=terminated,
        start=start,
        real=position < 2,
        penalty=rng.random(rows).astype(np.float32) if penalised else None,
    )


def q_values(network: dqn.QNetwork, tape: Tape) -> np.ndarray:
    """Q(h_t, .) by stepping the policy's own memory through the tape, row by row."""
    inputs = agent_input(tape)
    memory, rows = network.encoder.initial(1), []
    for t in range(len(tape.start)):
        row = AgentInput(*(jnp.asarray(leaf[t : t + 1]) for leaf in inputs))
        seen = jnp.concatenate([row.state, row.last_action, row.last_reward[:, None]], axis=-1)
        memory, features = network.encoder.step(memory, seen, row.start)
        v_and_a = np.asarray(network.head(features))[0]
        rows.append(v_and_a[0] + v_and_a[1:] - v_and_a[1:].mean())
    return np.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("penalised", [False, True])
def test_the_loss_is_its_slow_restatement(penalised: bool) -> None:
    tape = random_tape(1, penalised=penalised)
    state = AGENT.init(jax.random.key(0))
    state = state._replace(target=AGENT.init(jax.random.key(1)).network)
    q, target_q = q_values(state.network, tape), q_values(state.target, tape)
    assert (q.argmax(1) != target_q.argmax(1)).any(), "or double Q-learning would not show"
    losses: dict[bool, list[float]] = {True: [], False: []}
    for t in range(len(tape.start) - 1):
        if tape.start[t + 1]:
            continue  # the last row of an episode is no transition
        reward = tape.reward[t] - (tape.penalty[t] if penalised else 0)
        bootstrap = 0.0 if tape.terminated[t] else target_q[t + 1, np.argmax(q[t + 1])]
        error = q[t, np.argmax(tape.action[t])] - (reward + CONFIG.gamma * bootstrap)
        huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
        losses[bool(tape.real[t])].append(huber)
    expected = 0.3 * np.mean(losses[True]) + 0.7 * np.mean(losses[False])
    tapes = jax.tree.map(lambda leaf: leaf[None], tape)
    after, metrics = AGENT.update(copy_of(state), tapes)
    assert metrics["critic_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["rows_real"] == len(losses[True]) and after.step == 1


@pytest.mark.slow
def test_the_network_learns_and_the_target_follows() -> None:
    state = AGENT.init(jax.random.key(0))
    before = jax.tree.map(np.array, (state.network, state.target))
    after, _ = AGENT.update(state, jax.tree.map(lambda leaf: leaf[None], random_tape(1)))
    network, target = jax.tree.map(np.array, (after.network, after.target))
    assert not np.array_equal(network.head.out.weight, before[0].head.out.weight)
    jax.tree.map(
        lambda new, old, followed: np.testing.assert_allclose(
            followed, 0.995 * old + 0.005 * new, rtol=1e-5, atol=1e-7
        ),
        network,
        before[1],
        target,
    )


@pytest.mark.slow
def test_the_networks_rates_fall_only_where_the_critics_are_told_to() -> None:
    """Adam's first step moves a weight by its rate, or by nothing."""

    def largest_step(decay_critic: bool, at: int) -> float:
        agent = dqn.Agent(2, 3, CONFIG.model_copy(update={"decay_critic": decay_critic}))
        state = agent.init(jax.random.key(0))
        state = state._replace(optimiser=with_rates_at(state.optimiser, at))
        before = np.array(state.network.head.out.weight)
        after, _ = agent.update(state, jax.tree.map(lambda leaf: leaf[None], random_tape(1)))
        return float(np.abs(np.array(after.network.head.out.weight) - before).max())

    full = pytest.approx(CONFIG.head_lr, rel=0.01)
    assert largest_step(False, 0) == full == largest_step(False, CONFIG.steps)
    falling = [largest_step(True, at) / CONFIG.head_lr for at in (0, 50, 100)]
    assert falling == pytest.approx([1, 0.5, 0], rel=0.01, abs=1e-6)


@pytest.mark.slow
def test_what_is_kept_is_an_average_that_changes_nothing_of_the_training() -> None:
    """The network learns and explores as it does without one; the average alone is kept."""
    tapes = [jax.tree.map(lambda leaf: leaf[None], random_tape(seed)) for seed in range(3)]
    averaging = dqn.Agent(2, 3, CONFIG.model_copy(update={"average_share": 0.5}))
    plain, state = (agent.init(jax.random.key(0)) for agent in (AGENT, averaging))
    seen = []
    for tape in tapes:
        plain, state = AGENT.update(plain, tape)[0], averaging.update(state, tape)[0]
        seen.append(copy_of(plain.network))
    jax.tree.map(np.testing.assert_array_equal, state._replace(average=None), plain)
    expected = jax.tree.map(lambda a, b, c: (a + 3 * b + 6 * c) / 10, *seen)  # t (t + 1) / 2
    kept = averaging.policy(state, deterministic=True).network
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), kept, expected)
    jax.tree.map(np.testing.assert_array_equal, averaging.behaviour(state), AGENT.behaviour(plain))
    assert not np.allclose(kept.head.out.weight, state.network.head.out.weight, rtol=1e-6)


@pytest.mark.slow
def test_updates_of_many_tapes_are_updates_one_by_one() -> None:
    tapes = [random_tape(seed) for seed in range(3)]
    together, _ = AGENT.update(
        AGENT.init(jax.random.key(0)), jax.tree.map(lambda *leaves: np.stack(leaves), *tapes)
    )
    apart = AGENT.init(jax.random.key(0))
    for tape in tapes:
        apart, _ = AGENT.update(apart, jax.tree.map(lambda leaf: leaf[None], tape))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), together, apart
    )


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8), st.floats(-5, 5, width=32))
def test_dueling_identity(features: list[float], shift: float) -> None:
    """The mean of Q is V, and a constant added to all advantages changes nothing."""
    network = AGENT.init(jax.random.key(2)).network
    x = jnp.asarray(features)
    raw, q = network.head(x), network.values(x)
    assert q.mean() == pytest.approx(float(raw[0]), abs=1e-4)
    moved = eqx.tree_at(
        lambda network: network.head.out.bias,
        network,
        network.head.out.bias.at[1:].add(shift),
    )
    np.testing.assert_allclose(moved.values(x), q, atol=1e-4)


def test_epsilon_falls_from_one_to_its_end_over_its_share_of_the_steps() -> None:
    config = AgentConfig(steps=1000, epsilon_final=0.1, epsilon_share=0.1)
    steps = [0, 25, 50, 100, 101, 1000, 5000]
    measured = [float(dqn.epsilon(config, jnp.int32(step))) for step in steps]
    assert measured == pytest.approx([1.0, 0.775, 0.55, 0.1, 0.1, 0.1, 0.1])


@pytest.mark.slow
def test_the_policy_explores_as_often_as_epsilon_says_and_uniformly() -> None:
    state = AGENT.init(jax.random.key(0))._replace(step=jnp.int32(5))  # epsilon 0.55
    count = 6000
    inputs = AgentInput(
        jnp.ones((count, 2)), jnp.zeros((count, 3)), jnp.zeros(count), jnp.ones(count, bool)
    )
    keys = jax.random.split(jax.random.key(1), count)
    shares = {}
    for deterministic in (True, False):
        policy = AGENT.policy(state, deterministic)
        assert isinstance(policy, HistoryPolicy)
        _, action = policy.act(policy.initial(count), inputs, keys)
        assert set(np.unique(action)) <= {0.0, 1.0} and (action.sum(axis=1) == 1).all()
        shares[deterministic] = np.asarray(action).mean(axis=0)
    best = int(shares[True].argmax())
    assert shares[True][best] == 1
    expected = np.full(3, 0.55 / 3) + 0.45 * shares[True]
    np.testing.assert_allclose(shares[False], expected, atol=0.03)


@pytest.mark.slow
def test_a_row_acts_the_same_whoever_stands_beside_it() -> None:
    policy = AGENT.policy(AGENT.init(jax.random.key(0)), deterministic=False)
    rng = np.random.default_rng(0)
    inputs = AgentInput(
        rng.normal(size=(6, 2)).astype(np.float32),
        np.zeros((6, 3), np.float32),
        np.zeros(6, np.float32),
        np.ones(6, bool),
    )
    keys = jax.random.split(jax.random.key(3), 6)
    _, together = policy.act(policy.initial(6), inputs, keys)
    part = jax.tree.map(lambda leaf: leaf[2:5], inputs)
    _, apart = policy.act(policy.initial(3), part, keys[2:5])
    np.testing.assert_array_equal(together[2:5], apart)


@pytest.mark.slow
def test_recalling_a_history_is_stepping_through_it() -> None:
    tape = slice_rows(random_tape(4), 0, 5)
    policy = AGENT.policy(AGENT.init(jax.random.key(0)), deterministic=True)
    history = jax.tree.map(lambda leaf: leaf[:, None], agent_input(tape))
    memory = policy.initial(1)
    for t in range(3):
        row = jax.tree.map(lambda leaf, t=t: leaf[t], history)
        memory, _ = policy.act(memory, row, jax.random.split(jax.random.key(0), 1))
    recalled = policy.recall(history, jnp.array([3]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), memory, recalled)


@pytest.mark.slow
def test_it_learns_the_known_values_of_a_tiny_problem() -> None:
    """One state, two actions: 1 ends the episode with reward 1, 0 pays 0 and goes on. With
    gamma = 0.5 the optimum is Q(end) = 1, Q(go on) = 0.5."""
    config = AgentConfig(
        algorithm="dqn",
        width=16,
        memory_size=4,
        memory_layers=1,
        head_lr=3e-3,
        encoder_lr=3e-4,
        polyak=0.05,
        gamma=0.5,
        kappa=0.0,
        steps=400,
        tape=32,
    )
    agent = dqn.Agent(1, 2, config)
    rng = np.random.default_rng(0)

    def tape() -> Tape:
        rows: list[tuple[int, bool, bool]] = []  # action, terminated, start
        while len(rows) < 32:
            position, over = 0, False
            while not over and position < 6:
                action = int(rng.integers(2))
                over = action == 1
                rows.append((action, over, position == 0))
                position += 1
            rows.append((-1, False, False))  # the final state
        action, terminated, start = map(np.array, zip(*rows[:32], strict=True))
        return Tape(
            state=np.zeros((32, 1), np.float32),
            action=(action[:, None] == np.arange(2)).astype(np.float32),
            reward=terminated.astype(np.float32),
            terminated=terminated,
            start=start,
            real=np.zeros(32, bool),
        )

    tapes = jax.tree.map(lambda *leaves: np.stack(leaves), *(tape() for _ in range(400)))
    state, metrics = agent.update(agent.init(jax.random.key(0)), tapes)
    assert metrics["nonfinite_gradients"] == 0
    encoder = state.network.encoder
    _, features = encoder.step(encoder.initial(1), jnp.zeros((1, 4)), jnp.ones(1, bool))
    np.testing.assert_allclose(state.network.values(features)[0], [0.5, 1.0], atol=0.1)
