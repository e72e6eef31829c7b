"""A prior where the data says nothing: members differ there, and the data stays what it says."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.linear_system import CONFIG, Linear, assert_same
from neubay import world as worlds
from neubay.config import TrainConfig, WorldConfig, prior_of, resolve, settle, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.world import World
from neubay.world.fitting import world_directory
from neubay.world.model import Scaler
from neubay.world.prior import SHARE, Prior, pseudo_observations
from neubay.world.transitions import Batch

NARROW = CONFIG.model_copy(update={"unit": "change", "max_epochs": 30})
uncertainty = eqx.filter_jit(World.uncertainty)


def controlled(rows: int = 2000) -> Dataset:
    """A log of one controller, whose actions lie within 0.05 of a function of the state."""
    system, rng = Linear(), np.random.default_rng(0)
    state = rng.normal(size=(rows, 3))
    action = followed(state) + 0.05 * rng.normal(size=(rows, 1))
    following = state @ system.a.T + action @ system.b.T
    nothing, every = np.zeros(rows, bool), np.ones(rows, bool)
    return Dataset.from_arrays(state, action, state @ system.c, nothing, every, following)


def followed(state: np.ndarray) -> np.ndarray:
    return 0.4 * np.tanh(state[:, :1] - state[:, 1:2])


def test_a_prior_is_as_wide_as_the_outputs_and_each_of_its_own() -> None:
    keys = jax.random.split(jax.random.key(0), 400)
    priors = jax.jit(jax.vmap(lambda key: Prior(3, 2, key=key)))(keys)
    x = jax.random.normal(jax.random.key(1), (50, 3))
    values = np.asarray(jax.jit(jax.vmap(Prior.__call__, (0, None)))(priors, x))
    assert values.shape == (400, 50, 2)
    np.testing.assert_allclose(values.std(axis=0), 1.0, atol=0.2)
    np.testing.assert_allclose(values.mean(axis=0), 0.0, atol=0.25)


@pytest.mark.parametrize("discrete", [False, True])
def test_it_is_asked_for_random_actions_in_states_of_the_data(discrete: bool) -> None:
    rng = np.random.default_rng(0)
    ones = [jnp.ones(size) for size in (2, 2, 3, 3)]
    scaler = Scaler(0 * ones[0], ones[1], 0.5 * ones[2], 2 * ones[3], jnp.zeros(()), jnp.ones(()))
    inputs = jnp.asarray(rng.normal(size=(8, 5)), jnp.float32)
    batch = Batch(inputs, jnp.zeros((8, 3)), jnp.arange(8) != 1)
    prior = Prior(5, 3, key=jax.random.key(0))

    def asked(shuffle: int, number: int) -> Batch:
        keys = jnp.full(8, shuffle, jnp.uint32)
        return pseudo_observations(prior, batch, scaler, keys, jnp.int32(number), discrete=discrete)

    found = asked(1, 0)
    assert len(found.inputs) == 8 // SHARE
    np.testing.assert_array_equal(found.inputs[:, :2], inputs[: 8 // SHARE, :2])
    np.testing.assert_array_equal(found.counts, [True, False, True, True])
    np.testing.assert_allclose(found.targets, prior(found.inputs), rtol=1e-5)
    actions = np.concatenate([asked(2, n).inputs[:, 2:] * 2 + 0.5 for n in range(30)])
    if discrete:
        np.testing.assert_allclose(np.sort(actions, axis=1), np.tile([0, 0, 1], (120, 1)))
        assert (actions.mean(axis=0) > 0.15).all()
    else:
        assert np.abs(actions).max() <= 1 + 1e-6 and actions.std() > 0.5
    again = asked(1, 0).inputs
    np.testing.assert_array_equal(found.inputs, again)  # so that a resumed training sees the same
    for other in (asked(1, 1), asked(2, 0)):
        assert not np.allclose(other.inputs, again)


@pytest.mark.slow
def test_members_are_unsure_of_what_was_never_tried_and_right_about_the_rest() -> None:
    data, rng = controlled(), np.random.default_rng(1)
    state = rng.normal(size=(400, 3))
    near, far = followed(state), rng.uniform(-1, 1, (400, 1))
    far = far[np.abs(far - near).ravel() > 0.4]
    states = state[: len(far)], state
    said = {}
    for weight in (0.0, 0.5):
        fitted = worlds.fit(data, updated(NARROW, {"prior": weight}), seed=0)
        asked = ((states[0], far), (states[1], near))
        said[weight] = [
            float(np.median(uncertainty(fitted.world, *(jnp.float32(x) for x in pair))))
            for pair in asked
        ]
    # Members that know it from one controller alone agree, whatever is done; with a prior they
    # differ by about as much as steps do, and hardly where the controller was.
    assert said[0.0][0] < 0.15 and said[0.5][0] > 0.4
    assert said[0.5][1] < 0.15


@pytest.mark.slow
def test_a_fit_with_a_prior_repeats() -> None:
    data = controlled(300)
    config = updated(NARROW, {"prior": 0.5, "max_epochs": 2})
    assert_same(worlds.fit(data, config, seed=3), worlds.fit(data, config, seed=3))


def test_left_to_the_data_it_is_for_logs_of_one_controller() -> None:
    asked = updated(NARROW, {"prior": None})
    for data, weight in ((controlled(400), 0.5), (Linear().dataset(400), 0.0)):
        assert prior_of(asked, data.facts) == weight
        assert prior_of(updated(asked, {"prior": 0.1}), data.facts) == 0.1
        assert settle(TrainConfig(world=asked), data.facts).world.prior == weight
        # It is the same world as one that was asked for by number.
        same = updated(asked, {"prior": weight})
        assert world_directory(data, asked, 0) == world_directory(data, same, 0)
    plain = updated(asked, {"unit": "state"})
    assert prior_of(plain, controlled(400).facts) == 0.0
    for relative in ("mbpo", "mopo", "morel", "maple"):
        assert resolve(None, "cpu", relative).world.prior == 0.0


def test_a_prior_needs_steps_as_units() -> None:
    with pytest.raises(ConfigError, match="prior needs unit change"):
        updated(WorldConfig(), {"prior": 0.5})
    assert "prior" not in WorldConfig().record()  # worlds of before are found again
