"""Members and their ensemble: gradients, bounds, uncertainty, standardisation."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neubay.config import WorldConfig
from neubay.world.model import (
    Gaussian,
    Member,
    Scaler,
    World,
    normalised_block,
    quantify,
    soft_clamp,
)

STATES, ACTIONS, MEMBERS = 3, 2, 5
CONFIG = WorldConfig(width=24, depth=2, pool=MEMBERS, members=MEMBERS)
SCALER = Scaler(
    state_mean=jnp.array([1.0, -2.0, 0.5]),
    state_std=jnp.array([0.5, 3.0, 1.0]),
    action_mean=jnp.array([0.1, 0.0]),
    action_std=jnp.array([0.3, 1.0]),
    reward_mean=jnp.array(5.0),
    reward_std=jnp.array(2.0),
)


def make_world(config: WorldConfig = CONFIG, reward_only: bool = False) -> World:
    outputs = 1 if reward_only else STATES + 1
    build = jax.vmap(lambda key: Member(STATES + ACTIONS, outputs, config, key=key))
    members = jax.jit(build)(jax.random.split(jax.random.key(0), MEMBERS))
    return World(members, SCALER, reward_only, config.quantifier)


@eqx.filter_jit
def outputs(member: Member, x: jax.Array) -> tuple[jax.Array, Gaussian]:
    """The last hidden layer and the prediction, compiled as one."""
    return member.features(x), member(x)


@eqx.filter_jit
def make_member(seed: int, inputs: int, config: WorldConfig) -> Member:
    return Member(inputs, STATES + 1, config, key=jax.random.key(seed))


def states_and_actions(rows: int, seed: int = 1) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    state = SCALER.state_mean + SCALER.state_std * rng.normal(size=(rows, STATES))
    action = rng.uniform(-1, 1, (rows, ACTIONS))
    return jnp.asarray(state, jnp.float32), jnp.asarray(action, jnp.float32)


def plain_block(x, weight, bias, scale, offset):  # type: ignore[no-untyped-def]
    z = x @ weight + bias
    centred = z - z.mean(-1, keepdims=True)
    normalised = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return jax.nn.leaky_relu(normalised * scale + offset, 0.01)


def test_the_written_out_gradient_is_the_gradient() -> None:
    rng = np.random.default_rng(0)
    shapes = [(4, 7, 5), (4, 5, 9), (4, 9), (4, 9), (4, 9)]  # four members side by side
    arguments = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    weights = rng.normal(size=(4, 7, 9)).astype(np.float32)

    def value(block):  # type: ignore[no-untyped-def]
        return lambda *arguments: jnp.sum(jax.vmap(block)(*arguments) * weights)

    ours, theirs = (
        jax.jit(jax.value_and_grad(value(block), argnums=range(5)))(*arguments)
        for block in (normalised_block, plain_block)
    )
    for mine, reference in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=2e-4, atol=2e-5)


def test_soft_clamp_is_the_two_softplus_of_pets() -> None:
    x = jnp.concatenate([jnp.linspace(-12, 12, 101), jnp.array([-300.0, 300.0])])
    upper = 0.25 - jax.nn.softplus(0.25 - x)
    np.testing.assert_allclose(soft_clamp(x), -5 + jax.nn.softplus(upper + 5), atol=2e-6)
    slope = jax.vmap(jax.grad(lambda x: soft_clamp(x[None])[0]))(x)
    assert jnp.all(jnp.isfinite(slope)) and jnp.all(slope >= 0)


@pytest.mark.parametrize("magnitude", [1.0, 1e3, 1e6])
def test_layer_norm_bounds_how_far_a_step_goes(magnitude: float) -> None:
    """||E[s'] - s|| <= sqrt(k) ||W|| in standardised units, for LayerNorm without affine map and
    a head without bias; with them, (sqrt(k) max|scale| + ||offset||) ||W|| + ||bias||."""
    k = CONFIG.width
    rng = np.random.default_rng(2)
    member = make_member(1, STATES + ACTIONS, CONFIG)
    x = jnp.asarray(magnitude * rng.normal(size=(200, STATES + ACTIONS)), jnp.float32)
    bare = eqx.tree_at(lambda m: m.head.bias, member, jnp.zeros_like(member.head.bias))
    features, prediction = outputs(bare, x)
    assert np.all(np.linalg.norm(features, axis=-1) <= math.sqrt(k) * (1 + 1e-4))
    spectral = np.linalg.norm(member.head.weight[:, :STATES], ord=2)
    step = np.linalg.norm(prediction.mean[:, :STATES], axis=-1)
    assert np.all(step <= math.sqrt(k) * spectral)

    scale, offset = (1 + rng.normal(size=k)).astype("f4"), rng.normal(size=k).astype("f4")
    trained = eqx.tree_at(
        lambda m: (m.affines[-1].scale, m.affines[-1].offset),
        member,
        (jnp.asarray(scale), jnp.asarray(offset)),
    )
    reach = math.sqrt(k) * np.abs(scale).max() + np.linalg.norm(offset)
    step = np.linalg.norm(outputs(trained, x)[1].mean[:, :STATES], axis=-1)
    assert np.all(step <= reach * spectral + np.linalg.norm(member.head.bias[:STATES]))


def test_without_layer_norm_nothing_bounds_a_step() -> None:
    config = CONFIG.model_copy(update={"layer_norm": False})
    member = make_member(1, STATES + ACTIONS, config)
    x = np.random.default_rng(2).normal(size=(50, STATES + ACTIONS)).astype(np.float32)
    near, far = (
        np.linalg.norm(outputs(member, jnp.asarray(m * x))[1].mean[:, :STATES], axis=-1)
        for m in (np.float32(1e3), np.float32(1e6))
    )
    np.testing.assert_allclose(far / near, 1000, rtol=0.1)


@pytest.mark.slow
def test_members_start_uniform_in_one_over_root_fan_in() -> None:
    member = make_member(0, 9, WorldConfig(width=400, depth=2, pool=1, members=1))
    for linear in (*member.linears, member.head):
        bound = 1 / math.sqrt(linear.weight.shape[0])
        for leaf in (linear.weight, linear.bias):
            assert np.abs(leaf).max() <= bound
        np.testing.assert_allclose(np.std(linear.weight), bound / math.sqrt(3), rtol=0.1)


def reference_uncertainty(mean: np.ndarray, log_sigma: np.ndarray, quantifier: str) -> list[float]:
    values = []
    for row in range(mean.shape[1]):
        if quantifier == "aleatoric":
            norms = [np.linalg.norm(np.exp(log_sigma[n, row])) for n in range(len(mean))]
            values.append(max(norms))
            continue
        variances = []
        for d in range(mean.shape[2]):
            variance = np.var([mean[n, row, d] for n in range(len(mean))])
            if quantifier == "total":
                variance += np.mean([np.exp(log_sigma[n, row, d]) ** 2 for n in range(len(mean))])
            variances.append(variance)
        values.append(np.sqrt(np.mean(variances)))
    return values


@pytest.mark.parametrize("quantifier", ["disagreement", "aleatoric", "total"])
def test_uncertainty_against_loops(quantifier: str) -> None:
    world = make_world(CONFIG.model_copy(update={"quantifier": quantifier}))
    state, action = states_and_actions(6)
    prediction, uncertainty = eqx.filter_jit(
        lambda world: (world.predict(state, action), world.uncertainty(state, action))
    )(world)
    mean, log_sigma = (np.asarray(leaf, np.float64) for leaf in prediction)
    expected = reference_uncertainty(mean, log_sigma, quantifier)
    np.testing.assert_allclose(uncertainty, expected, rtol=1e-5)


@given(st.integers(0, 10**6))
def test_disagreement_of_equal_members_is_zero(seed: int) -> None:
    mean = np.random.default_rng(seed).normal(size=(1, 4, 3)) * np.ones((6, 1, 1))
    prediction = Gaussian(jnp.asarray(mean, jnp.float32), jnp.zeros((6, 4, 3)))
    np.testing.assert_allclose(quantify(prediction, "disagreement"), 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, 0.25])
def test_a_step_is_a_draw_from_the_rollouts_own_member_in_the_datas_units(
    share: float | None,
) -> None:
    """With all of the member's noise, or with a share of it."""
    world = make_world() if share is None else make_world().with_noise(jnp.float32(share))
    state, action = states_and_actions(7)
    member = jnp.arange(7) % MEMBERS
    keys = jax.random.split(jax.random.key(9), 7)
    step = eqx.filter_jit(World.step)(world, state, action, member, keys)
    noise = jax.jit(jax.vmap(lambda key: jax.random.normal(key, (STATES + 1,))))(keys)
    standardised = (np.asarray(state) - SCALER.state_mean) / SCALER.state_std
    actions = (np.asarray(action) - SCALER.action_mean) / SCALER.action_std
    predict = jax.jit(lambda members, n, x: jax.tree.map(lambda leaf: leaf[n], members)(x[None]))
    for row in range(7):
        x = np.concatenate([standardised[row], actions[row]])
        mean, log_sigma = (np.asarray(leaf[0]) for leaf in predict(world.members, member[row], x))
        draw = mean + (share or 1.0) * np.exp(log_sigma) * noise[row]
        expected = SCALER.state_mean + SCALER.state_std * (standardised[row] + draw[:STATES])
        np.testing.assert_allclose(step.next_state[row], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(step.reward[row], 5.0 + 2.0 * draw[STATES], rtol=1e-4)
    measured = eqx.filter_jit(World.uncertainty)(world, state, action)
    np.testing.assert_allclose(step.uncertainty, measured, rtol=1e-5)


def test_worlds_beyond_the_members_lie_further_apart_by_a_known_factor() -> None:
    """m + k (m - m') over all pairs: the members' mean, and sqrt((1 + k)^2 + k^2) times their
    spread, less what the mean over pairs of different members takes off."""
    k = 0.6
    world = make_world().with_noise(jnp.float32(0))
    one, other = np.nonzero(~np.eye(MEMBERS, dtype=bool))
    pairs = len(one)
    state, action = (jnp.tile(leaf, (pairs, 1)) for leaf in states_and_actions(1))
    keys = jax.random.split(jax.random.key(0), pairs)

    @eqx.filter_jit
    def sample(world: World, one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
        return world.select(one).beyond(world.select(other), k).sample(state, action, keys)

    next_state, reward = sample(world, jnp.asarray(one), jnp.asarray(other))
    found = np.column_stack([(next_state - state) / SCALER.state_std, (reward - 5.0) / 2.0])
    mean = np.asarray(eqx.filter_jit(World.predict)(world, state[:1], action[:1]).mean[:, 0])
    np.testing.assert_allclose(found, mean[one] + k * (mean[one] - mean[other]), atol=1e-4)
    np.testing.assert_allclose(found.mean(axis=0), mean.mean(axis=0), atol=1e-4)
    wider = (1 + k) ** 2 + k**2 + 2 * k * (1 + k) / (MEMBERS - 1)
    np.testing.assert_allclose(found.var(axis=0), wider * mean.var(axis=0), rtol=1e-3)


@pytest.mark.slow
def test_a_bandit_has_rewards_and_no_dynamics() -> None:
    world = make_world(reward_only=True)
    state, action = states_and_actions(4)
    keys = jax.random.split(jax.random.key(0), 4)
    step = eqx.filter_jit(World.step)(world, state, action, jnp.zeros(4, jnp.int32), keys)
    assert eqx.filter_eval_shape(World.predict, world, state, action).mean.shape == (MEMBERS, 4, 1)
    np.testing.assert_array_equal(step.next_state, state)
    assert jnp.all(jnp.isfinite(step.reward))
