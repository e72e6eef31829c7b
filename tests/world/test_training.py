"""Gradient steps of a pool: members never meet, whatever device they are on."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.linear_system import CONFIG, Linear
from helpers.small_runs import swings
from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.world import FittedWorld, training, transitions
from neubay.world.model import Member
from neubay.world.shuffle import times_drawn
from neubay.world.training import Recipe
from neubay.world.transitions import Batch


def test_flops_of_a_step_are_those_of_its_matrix_products() -> None:
    """The compiler counts them too, and a little for everything else."""
    config = WorldConfig(width=48, depth=3, batch=64, pool=1, members=1)
    shaped = jax.ShapeDtypeStruct
    member = jax.eval_shape(lambda: Member(7, 5, config, key=jax.random.key(0)))
    batch = Batch(shaped((64, 7), "f4"), shaped((64, 5), "f4"), shaped((64,), bool))
    compiled = jax.jit(jax.grad(training.loss)).lower(member, batch).compile()
    counted = training.training_flops(7, 5, config)
    assert counted <= compiled.cost_analysis()["flops"] <= 1.35 * counted


@pytest.mark.slow
def test_beta_turns_the_likelihood_into_the_squared_error() -> None:
    """sigma^(2 beta) cancels the weight 1/sigma^2 of an error at beta = 1, and nothing at 0."""
    config = WorldConfig(width=8, depth=1, pool=1, members=1)
    member = Member(3, 2, config, key=jax.random.key(0))
    draw = jax.random.normal(jax.random.key(1), (16, 5))
    batch = Batch(draw[:, :3], 3 * draw[:, 3:], jnp.arange(16) < 12)

    def half_squared(member: Member) -> jax.Array:
        return 0.5 * training.errors(member, batch).squared[:12].mean()

    def weighed(member: Member, beta: float) -> jax.Array:
        """By the formula, with the weights as numbers."""
        sigma = np.exp(np.asarray(training.errors(fixed, batch).log_sigma))
        return (sigma ** (2 * beta) * training.errors(member, batch).likelihood)[:12].mean()

    fixed = member
    for beta in (0.0, 0.5):
        got = jax.grad(training.loss)(member, batch, beta)
        wanted = jax.grad(weighed)(member, beta)
        for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    of_mean = jax.grad(training.loss)(member, batch, 1.0).head.bias[:2]
    np.testing.assert_allclose(of_mean, jax.grad(half_squared)(member).head.bias[:2], rtol=1e-4)


def test_a_pool_that_never_was_finite_is_an_error() -> None:
    with pytest.raises(WorldError, match="only 1 of 3 members have a finite"):
        training.select(np.array([np.inf, 0.3, np.inf], np.float32), members=2)


@pytest.mark.slow
def test_a_member_trains_alone_as_it_does_in_the_pool(dataset: Dataset) -> None:
    rows, _ = transitions.split_rows(dataset.world_rows, CONFIG, seed=0)
    epochs = transitions.Epochs(dataset, rows, batch=64, batches_per_call=16, seed=0)
    scaler = transitions.fit_scaler(dataset)

    def trained(places: list[int]) -> training.Learner:
        alone = CONFIG.model_copy(update={"pool": 1, "members": 1})
        recipe = Recipe.of(dataset.task, CONFIG if len(places) == CONFIG.pool else alone)
        keys = training.member_keys(CONFIG.pool, seed=0)[jnp.asarray(places)]
        learner, _ = training.initialise(keys, recipe)
        lanes = training.spread(learner, recipe.layout)
        for epoch in range(2):
            share = next(epochs.shares(epoch, 0))
            shuffles = training.epoch_shuffles(keys, epoch, share.chunk)
            lanes = training.train(lanes, shuffles, share, scaler, recipe)
        return training.joined(lanes)

    pool = trained([0, 1, 2, 3])
    for place in (0, 2):
        alone = trained([place])
        for leaf, one in zip(jax.tree.leaves(pool), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(leaf[place], one[0], rtol=1e-4, atol=1e-5)
    first, second = (pool.members.head.weight[n] for n in (0, 1))
    assert np.abs(first - second).max() > 0.1


@pytest.mark.slow
def test_a_member_learns_nothing_from_an_episode_that_it_did_not_draw() -> None:
    config = CONFIG.model_copy(update={"resample": True})
    dataset = Linear().dataset(150)  # an episode a row
    recipe, keys = Recipe.of(dataset.task, config), training.member_keys(config.pool, seed=0)
    scaler = transitions.fit_scaler(dataset)
    bootstrap = training.initialise(keys, recipe)[0].bootstrap
    assert bootstrap is not None
    times = np.asarray(jax.vmap(lambda key: times_drawn(jnp.arange(150), key))(bootstrap))
    odd = int(np.flatnonzero((times[0] == 0) & (times[1] > 0))[0])

    def trained(paid: float) -> training.Learner:
        reward = np.array(dataset.tape.reward)
        reward[dataset.bounds[0][odd]] += paid
        changed = dataclasses.replace(dataset, tape=dataset.tape._replace(reward=reward))
        epochs = transitions.Epochs(
            changed, changed.world_rows, batch=64, batches_per_call=16, seed=0, resample=True
        )
        lanes = training.spread(training.initialise(keys, recipe)[0], recipe.layout)
        shuffles, share = training.epoch_shuffles(keys, 0, 0), next(epochs.shares(0, 0))
        return training.joined(training.train(lanes, shuffles, share, scaler, recipe))

    before, after = (trained(paid).members.head.weight for paid in (0.0, 50.0))
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[1] - after[1]).max() > 1e-4


def test_a_streamed_epoch_knows_its_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut into blocks and dealt anew still tells which episode each transition is of."""
    dataset = swings(episodes=5, horizon=60)
    rows = dataset.world_rows
    monkeypatch.setattr(transitions, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(transitions, "BLOCK", 16)
    epochs = transitions.Epochs(
        dataset, rows, batch=8, batches_per_call=1000, seed=0, resample=True
    )
    data = next(epochs.shares(0, 0)).data
    assert data.episode is not None
    found = {tuple(state) for state in np.asarray(data.state[data.row])}
    for episode in range(5):
        mine = np.asarray(data.state[data.row])[np.asarray(data.episode) == episode]
        first, length = (int(bound[episode]) for bound in dataset.bounds)
        own = {tuple(state) for state in np.asarray(dataset.tape.state)[first : first + length]}
        assert {tuple(state) for state in mine} == own & found


@pytest.mark.slow
def test_the_average_is_the_running_mean_of_the_weights(dataset: Dataset) -> None:
    """It is what the training comes to, and changes nothing in it."""
    rows, _ = transitions.split_rows(dataset.world_rows, CONFIG, seed=0)
    epochs = transitions.Epochs(dataset, rows, batch=64, batches_per_call=1, seed=0)
    scaler, forget = transitions.fit_scaler(dataset), 0.75

    def steps(average: float) -> list[training.Learner]:
        config = CONFIG.model_copy(update={"average": average})
        recipe = Recipe.of(dataset.task, config)
        keys = training.member_keys(CONFIG.pool, seed=0)
        learner, _ = training.initialise(keys, recipe)
        seen, lanes = [jax.tree.map(np.asarray, learner)], training.spread(learner, recipe.layout)
        shuffles = training.epoch_shuffles(keys, 0, 0)
        for share in itertools.islice(epochs.shares(0, 0), 3):
            lanes = training.train(lanes, shuffles, share, scaler, recipe)
            seen.append(jax.tree.map(np.asarray, training.joined(lanes)))
        return seen

    averaged = steps(forget)
    mean = averaged[0].members.head.weight
    for learner in averaged[1:]:
        mean = forget * mean + (1 - forget) * learner.members.head.weight
    np.testing.assert_allclose(averaged[-1].result.head.weight, mean, rtol=1e-4, atol=1e-6)
    plain = steps(0.0)[-1]
    assert plain.average is None
    np.testing.assert_allclose(
        plain.result.head.weight, averaged[-1].members.head.weight, rtol=1e-4, atol=1e-6
    )


SHARDED = """
import json, sys
from pathlib import Path
import jax
from neubay import world
sys.path.insert(0, sys.argv[1])
from helpers.linear_system import CONFIG, Linear
fitted = world.fit(Linear().dataset(4000), CONFIG, seed=0)
from neubay.world.training import best_layout
print(json.dumps({
    "devices": best_layout(CONFIG.pool).mesh.size,
    "scores": fitted.scores.tolist(),
    "uncertainty": fitted.data_uncertainty[:200].tolist(),
}))
"""


@pytest.mark.slow
def test_a_pool_over_four_devices_is_the_pool_on_one(fitted: FittedWorld) -> None:
    flags = "--xla_force_host_platform_device_count=4"
    result = subprocess.run(
        [sys.executable, "-c", SHARDED, str(Path(__file__).parents[1])],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    sharded = json.loads(result.stdout)
    assert sharded["devices"] == 4
    np.testing.assert_allclose(sharded["scores"], fitted.scores, atol=1e-5)
    np.testing.assert_allclose(sharded["uncertainty"], fitted.data_uncertainty[:200], atol=1e-5)
