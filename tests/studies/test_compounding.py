"""Compounding errors, in worlds whose errors can be worked out by hand."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.known_worlds import TRUTH, ZERO, fitted, linear_world, random_walk
from neubay import world
from neubay.data import Dataset
from neubay.studies import compounding
from neubay.studies.trajectories import draw_trajectories

# --- Replay --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_biased_world_drifts_away_by_its_bias_at_every_step() -> None:
    """With s' = s + a + bias and hardly any noise, RMSE is t * bias, and r̂ - r its own bias."""
    dataset = random_walk([30, 30, 10], sigma=0.0)
    bias = np.array([0.3, 0.3, -0.5])
    of = linear_world([TRUTH], [bias], sigma=math.exp(-4.9))
    recorded = draw_trajectories(dataset, 3, None, seed=0)
    played = compounding.replay_actions(of, recorded, seed=0)
    steps = np.arange(1, 31)[:, None]
    np.testing.assert_array_equal(played.live, steps <= recorded.length)
    expected = np.broadcast_to(0.3 * steps, played.live.shape)
    np.testing.assert_allclose(
        played.state_error[played.live], expected[played.live], rtol=0.03, atol=0.05
    )
    np.testing.assert_allclose(played.reward_bias[played.live], -0.5, atol=0.05)
    assert not played.overflowed.any()


@pytest.mark.slow
def test_replay_is_the_plain_loop_in_one_member_per_rollout() -> None:
    dataset = random_walk([5, 3])
    rng = np.random.default_rng(3)
    of = linear_world(
        [TRUTH + 0.1 * rng.standard_normal((3, 4)) for _ in range(3)], 3 * [ZERO], sigma=0.1
    )
    recorded = draw_trajectories(dataset, 4, None, seed=0)
    played = compounding.replay_actions(of, recorded, seed=7)
    keys = jax.random.split(jax.random.key(7), 4)
    one_step = eqx.filter_jit(world.World.step)
    state, member = jnp.asarray(recorded.state[0]), jnp.asarray([0, 1, 2, 0])
    for t in range(5):
        now = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)
        step = one_step(of, state, jnp.asarray(recorded.action[t]), member, now)
        state = step.next_state
        error = np.sqrt(((np.asarray(state) - recorded.state[t + 1]) ** 2).mean(axis=1))
        norm = np.sqrt((np.asarray(state) ** 2).mean(axis=1))
        live = played.live[t]
        np.testing.assert_allclose(played.state_error[t, live], error[live], rtol=1e-4)
        np.testing.assert_allclose(played.state_norm[t, live], norm[live], rtol=1e-4)
        np.testing.assert_allclose(played.uncertainty[t], step.uncertainty, rtol=1e-4)


def test_overflow_ends_a_rollout_and_keeps_its_last_finite_error() -> None:
    growing = TRUTH.copy()
    growing[:2, :2] = 1e9 * np.eye(2)  # passes 3e38 at the fifth step
    dataset = random_walk(3 * [12])
    of = linear_world([TRUTH, growing, 2 * growing], 3 * [ZERO], sigma=0.1)
    recorded = draw_trajectories(dataset, 3, None, seed=0)
    played = compounding.replay_actions(of, recorded, seed=0)
    assert played.overflowed.tolist() == [False, True, True]
    assert played.live[:, 0].all()
    assert 3 <= played.live[:, 1].sum() <= 5
    assert np.isfinite(played.state_error[played.live]).all()
    filled = compounding.forward_fill(played.state_error, played.live)
    assert np.isfinite(filled).all()
    assert filled[-1, 1] > 1e25
    # The members' spread overflows before the states do, and is then beyond every threshold.
    assert np.isposinf(played.uncertainty[played.live]).any()


@given(
    values=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6), min_size=1, max_size=5),
    lengths=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_forward_fill_repeats_the_last_live_value(
    values: list[list[float]], lengths: list[int]
) -> None:
    table = np.array(values).T
    length = np.array(lengths[: table.shape[1]])
    live = np.arange(6)[:, None] < length
    expected = []
    for column, steps in zip(table.T, length, strict=True):
        filled, last = [], None
        for t, value in enumerate(column):
            last = value if t < steps else last
            filled.append(last)
        if last is not None:
            expected.append(filled)
    result = compounding.forward_fill(table, live)
    np.testing.assert_array_equal(result, np.array(expected).reshape(-1, 6).T)


# --- Compounding ---------------------------------------------------------------------------------


def exploding_pair(dataset: Dataset) -> dict[str, world.FittedWorld]:
    """A calm world as if with LayerNorm, and one whose members double the state at each step."""
    doubling = TRUTH.copy()
    doubling[:2, :2] = np.eye(2)
    offsets = [ZERO, ZERO + 0.05, ZERO + 0.1]
    return {
        "calm": fitted(linear_world(3 * [TRUTH], offsets, 0.1), dataset),
        "wild": fitted(linear_world(3 * [doubling], offsets, 0.1), dataset, layer_norm=False),
    }


@pytest.mark.slow
def test_compounding_tells_the_step_at_which_errors_explode() -> None:
    dataset = random_walk(20 * [12], sigma=0.1)
    worlds = exploding_pair(dataset)
    result = compounding.compounding(worlds, dataset, rollouts=20)
    calm, wild = result.worlds
    recorded = draw_trajectories(dataset, 20, None, seed=0)
    high = [
        np.percentile(compounding.replay_actions(each.world, recorded, 0).state_error, 95, axis=1)
        for each in worlds.values()
    ]
    ratio = high[1] / high[0]
    expected = next(t + 1 for t, value in enumerate(ratio) if value > 10)
    assert result.comparison is not None
    assert result.comparison.passes_at == expected
    assert result.comparison.explodes and result.comparison.median_explodes
    assert result.comparison.largest_ratio == pytest.approx(ratio.max())
    assert [calm.last_error_p95, wild.last_error_p95] == pytest.approx([h[-1] for h in high])
    assert calm.diverges_at is None
    assert wild.diverges_at is not None
    states = recorded.state.reshape(-1, 2)
    distances = (states[:, None] - states[None]) ** 2  # each with itself too, as in a variance
    assert result.spread == pytest.approx(math.sqrt(distances.mean()), rel=1e-4)


@pytest.mark.slow
def test_cuts_do_what_a_loop_over_rollouts_does() -> None:
    dataset = random_walk(20 * [12], sigma=0.1)  # sizes as above, to share a compilation
    slopes = [TRUTH + np.pad(scale * np.eye(2), ((0, 1), (0, 2))) for scale in (0.05, 0.1, 0.2)]
    of = fitted(linear_world(slopes, 3 * [ZERO], 0.05), dataset)
    result = compounding.compounding({"w": of}, dataset, rollouts=20)
    recorded = draw_trajectories(dataset, 20, None, seed=0)
    played = compounding.replay_actions(of.world, recorded, seed=0)
    assert result.comparison is None
    for cut in result.worlds[0].cuts:
        horizons, kept = [], []
        for k in range(20):
            for t in range(12):
                kept.append(played.state_error[t, k])
                if played.uncertainty[t, k] > of.threshold(cut.zeta) or t == 11:
                    horizons.append(t + 1)
                    break
        severe = played.state_error > result.spread
        beyond = played.uncertainty > cut.threshold
        assert cut.horizon_median == np.median(horizons)
        assert cut.kept_error_max == pytest.approx(max(kept))
        assert cut.kept_error_p95 == pytest.approx(np.percentile(kept, 95))
        assert cut.kept_severe == pytest.approx(np.mean(np.array(kept) > result.spread))
        assert cut.beyond == pytest.approx(beyond.mean())
        if severe.any():
            assert cut.false_safe == pytest.approx(np.mean(~beyond[severe]))
