"""Fitting a world: what it learns, when it stops, what it keeps, and that it can be interrupted."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.linear_system import CONFIG, Linear, assert_same
from neubay import world as worlds
from neubay.config import WorldConfig, preset, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, WorldError
from neubay.runs import checkpoints
from neubay.tasks import DiscreteActions, Task
from neubay.world import FittedWorld, Member, Progress, World, pool, training
from neubay.world.training import Snapshots

# --- A system whose truth is known ---------------------------------------------------------------


predict = eqx.filter_jit(World.predict)
uncertainty = eqx.filter_jit(World.uncertainty)
take_step = eqx.filter_jit(World.step)


def fresh_points(rows: int = 500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(99)
    return rng.normal(size=(rows, 3)), rng.uniform(-1, 1, (rows, 1))


def as_stored(state: np.ndarray, action: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(state * Linear().scale, jnp.float32), jnp.asarray(action, jnp.float32)


def test_means_and_sigmas_approach_the_truth(fitted: FittedWorld) -> None:
    truth, (state, action) = Linear(), fresh_points()
    prediction = predict(fitted.world, *as_stored(state, action))
    scaler = fitted.world.scaler
    std = np.append(scaler.state_std / truth.scale, scaler.reward_std)
    mean = np.asarray(prediction.mean).mean(axis=0) * std
    mean[:, :3] += state
    mean[:, 3] += scaler.reward_mean
    error = np.sqrt(((mean - truth.mean(state, action)) ** 2).mean(axis=0))
    noise = np.append(truth.noise, truth.reward_noise)
    assert np.all(error < 0.6 * noise), error / noise
    sigma = np.median(np.exp(prediction.log_sigma), axis=(0, 1)) * std
    np.testing.assert_allclose(sigma, noise, rtol=0.25)


@pytest.mark.slow
def test_uncertainty_shrinks_with_data_and_grows_off_it(fitted: FittedWorld) -> None:
    state, action = fresh_points()
    little = worlds.fit(Linear().dataset(300), CONFIG, seed=0).world
    near = uncertainty(fitted.world, *as_stored(state, action))
    assert np.mean(near) < 0.7 * np.mean(uncertainty(little, *as_stored(state, action)))
    far = uncertainty(fitted.world, *as_stored(6 * state, action))
    assert np.median(far) > 3 * np.median(near)
    assert np.mean(far > fitted.threshold(0.99)) > 0.8


def test_thresholds_are_quantiles_of_the_data_and_one_is_the_maximum(
    fitted: FittedWorld, dataset: Dataset
) -> None:
    rows = dataset.world_rows
    measured = uncertainty(
        fitted.world, jnp.asarray(dataset.tape.state[rows]), jnp.asarray(dataset.tape.action[rows])
    )
    np.testing.assert_allclose(fitted.data_uncertainty, measured, rtol=1e-5)
    assert fitted.threshold(1.0) == fitted.data_uncertainty.max()
    assert fitted.threshold(0.0) == fitted.data_uncertainty.min()
    np.testing.assert_allclose(
        np.mean(fitted.data_uncertainty <= fitted.threshold(0.9)), 0.9, atol=1e-3
    )
    np.testing.assert_allclose(fitted.mean_uncertainty, np.mean(measured), rtol=1e-5)


@pytest.mark.slow
def test_a_bandit_is_unsure_about_the_arm_it_never_saw() -> None:
    task = Task("bandit", state_size=1, actions=DiscreteActions(2), horizon=100, reward_only=True)
    rewards = np.random.default_rng(0).integers(0, 2, 2000).astype(float)
    ends = np.arange(1, 2001) % 100 == 0
    data = Dataset.from_arrays(
        np.zeros((2000, 1)),
        np.zeros(2000, int),
        rewards,
        np.zeros(2000, bool),
        ends,
        np.zeros((2000, 1)),
        task=task,
    )
    config = CONFIG.model_copy(
        update={
            "width": 16,
            "selection": "nll",
            "improvement_kind": "absolute",
            "improvement": 0.001,
            "validation_max": None,
        }
    )
    world = worlds.fit(data, config, seed=0).world
    arms = jnp.eye(2)
    seen, unseen = uncertainty(world, jnp.zeros((2, 1)), arms)
    assert unseen > 5 * seen
    keys = jax.random.split(jax.random.key(0), 2)
    step = take_step(world, jnp.zeros((2, 1)), arms, jnp.zeros(2, jnp.int32), keys)
    np.testing.assert_array_equal(step.next_state, 0)
    known = predict(world, jnp.zeros((2, 1)), arms).mean[:, 0]
    probability = known.mean() * world.scaler.reward_std
    np.testing.assert_allclose(probability + world.scaler.reward_mean, rewards.mean(), atol=0.05)


# --- Unpleasant data -----------------------------------------------------------------------------


def episodes(state: np.ndarray, reward: np.ndarray, name: str = "odd") -> Dataset:
    rows = len(state)
    following = np.roll(state, -1, axis=0)
    ends = np.ones(rows, bool)
    action = np.linspace(-1, 1, rows)[:, None]
    return Dataset.from_arrays(
        state, action, reward, np.zeros(rows, bool), ends, following, name=name
    )


def assert_finite(fitted: FittedWorld, data: Dataset) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fitted.world))
    assert np.isfinite(fitted.data_uncertainty).all() and np.isfinite(fitted.scores).all()
    state, action = data.tape.state[:4], data.tape.action[:4]
    keys = jax.random.split(jax.random.key(0), 4)
    member = jnp.zeros(4, jnp.int32)
    step = take_step(fitted.world, jnp.asarray(state), jnp.asarray(action), member, keys)
    assert all(np.isfinite(leaf).all() for leaf in step)


@pytest.mark.slow
def test_constant_and_barely_varying_features() -> None:
    rng = np.random.default_rng(0)
    constant, barely = np.full(300, 1e8), 1 + 1e-7 * rng.integers(0, 3, 300)
    state = np.stack([constant, barely, rng.normal(size=300)], axis=1)
    data = episodes(state, np.full(300, -1.0))
    fitted = worlds.fit(data, CONFIG, seed=0)
    assert_finite(fitted, data)
    scaler = fitted.world.scaler
    assert scaler.state_std[0] == 1 and scaler.reward_std == 1
    assert scaler.state_mean[0] == 1e8 and scaler.reward_mean == -1
    assert 1e-9 < scaler.state_std[1] < 1e-6
    np.testing.assert_allclose(scaler.state_std[2], state[:, 2].std(), rtol=1e-4)


@pytest.mark.slow
def test_ten_transitions_give_a_sane_world_and_one_gives_an_error() -> None:
    data = Linear().dataset(10)
    assert_finite(worlds.fit(data, CONFIG, seed=0), data)
    with pytest.raises(WorldError, match="1 transitions"):
        worlds.fit(Linear().dataset(1), CONFIG, seed=0)


# --- Stopping and selection against a slow restatement -------------------------------------------


class Outcome(NamedTuple):
    epochs: int
    kept_from: list[int]  # the epoch of each member's snapshot, -1 where there is none
    best: list[float]


def reference(scores: np.ndarray, config: WorldConfig) -> Outcome:
    """Early stopping as the paper has it, one member and one epoch at a time."""
    pool = scores.shape[1]
    best, kept_from = [np.inf] * pool, [-1] * pool
    waited = 0
    for epoch, row in enumerate(scores):
        anyone = False
        for member, score in enumerate(row):
            if not np.isfinite(score):
                continue
            if np.isinf(best[member]):
                improved = True
            else:
                fall = np.float32(best[member]) - score
                unit = abs(best[member]) if config.improvement_kind == "relative" else 1.0
                improved = fall > np.float32(config.improvement) * np.float32(unit)
            if improved:
                best[member], kept_from[member], anyone = score, epoch, True
        waited = 0 if anyone else waited + 1
        if waited == config.patience or epoch + 1 == config.max_epochs:
            return Outcome(epoch + 1, kept_from, best)
    return Outcome(len(scores), kept_from, best)


score_values = st.one_of(
    st.floats(0.125, 4.0, width=32), st.sampled_from([1.0, 0.99, 0.995, np.nan, np.inf])
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.lists(score_values, min_size=3, max_size=3), min_size=12, max_size=12),
    st.sampled_from(["relative", "absolute"]),
    st.integers(1, 4),
)
def test_stopping_and_snapshots_against_loops(
    rows: list[list[float]], kind: str, patience: int
) -> None:
    scores = np.asarray(rows, np.float32)
    config = WorldConfig(
        width=2,
        depth=1,
        pool=3,
        members=1,
        max_epochs=10,
        patience=patience,
        improvement_kind=kind,
    )
    expected = reference(scores, config)

    def marked(epoch: int) -> Member:
        """Members whose parameters tell their epoch."""
        return jax.tree.map(lambda leaf: np.full(leaf.shape, epoch, np.float32), blank)

    keys = jax.ShapeDtypeStruct((3,), jax.random.key(0).dtype)
    blank = jax.eval_shape(jax.vmap(lambda key: Member(1, 1, config, key=key)), keys)
    best = Snapshots(marked(-1), jnp.full(3, jnp.inf, jnp.float32))
    state = pool.Course(most_epochs=pool.most_epochs(config, 5))
    while not state.ended(config):
        score = jnp.asarray(scores[state.epoch])
        best, improved = training.keep_best(best, marked(state.epoch), score, config)
        state.end_epoch(np.asarray(score), np.asarray(improved))
    assert state.epoch == expected.epochs
    for leaf in jax.tree.leaves(best.members):
        marks = np.asarray(leaf).reshape(3, -1)
        np.testing.assert_array_equal(marks.min(axis=1), expected.kept_from)
        np.testing.assert_array_equal(marks.max(axis=1), expected.kept_from)
    np.testing.assert_array_equal(best.score, np.asarray(expected.best, np.float32))


@pytest.mark.parametrize(
    ("changes", "medians", "ended"),
    [
        ({}, [0.5, 9e-5], True),
        ({}, [0.5, 2e-4], False),
        ({}, [], False),
        ({}, [None], False),  # no member is finite
        ({"unit": "state"}, [9e-5], False),  # the published unit, and the published stop
        ({"selection": "nll"}, [-2.0], False),  # a likelihood has no such level
        ({"decay": True, "max_epochs": 9}, [9e-5], True),  # sooner than the rate's end
        ({"decay": True, "max_epochs": 9}, [2e-4], False),
    ],
)
def test_a_fit_ends_once_its_error_is_a_hundredth_of_a_step(
    changes: dict, medians: list[float | None], ended: bool
) -> None:
    config = updated(CONFIG, {"unit": "change", **changes})
    history = [worlds.EpochRecord(median, median, 3) for median in medians]
    assert pool.Course(most_epochs=9, history=history).ended(config) is ended


@pytest.mark.parametrize(
    ("max_epochs", "max_steps", "epoch_steps", "cap"),
    [
        (None, None, 7, None),
        (30, None, 7, 30),
        (None, 11_700, 387, 30),  # 99,000 transitions in batches of 256
        (None, 11_700, 67, 174),
        (30, 11_700, 67, 30),
        (None, 3, 7, 1),
    ],
)
def test_the_lower_of_both_caps_holds(
    max_epochs: int | None, max_steps: int | None, epoch_steps: int, cap: int | None
) -> None:
    config = CONFIG.model_copy(update={"max_epochs": max_epochs, "max_steps": max_steps})
    assert pool.most_epochs(config, epoch_steps) == cap


def test_a_cap_of_steps_ends_a_fit_after_whole_epochs(dataset: Dataset) -> None:
    epoch = math.ceil((len(dataset.world_rows) - 800) / CONFIG.batch)  # a fifth validates
    config = CONFIG.model_copy(update={"max_epochs": None, "max_steps": 2 * epoch + epoch // 2})
    shown: list[Progress] = []
    assert len(worlds.fit(dataset, config, seed=0, progress=shown.append).history) == 2
    assert {progress.most_epochs for progress in shown} == {2}


@pytest.mark.slow
def test_a_decaying_rate_ends_nearer_to_the_truth_and_where_its_cap_is(dataset: Dataset) -> None:
    """At equal steps: what a constant rate leaves is mostly the noise of its last steps."""
    state, action = fresh_points()
    truth, error = Linear().mean(state, action), {}
    for decay in (False, True):
        fast = {"learning_rate": 1e-2, "patience": CONFIG.max_epochs}
        config = updated(CONFIG, {"decay": decay, **fast})
        fitted = worlds.fit(dataset, config, seed=0)
        error[decay] = float(((_means(fitted, state, action) - truth) ** 2).mean())
    assert error[True] < 0.85 * error[False]
    stalled = updated(CONFIG, {"decay": True, "patience": 1, "improvement": 0.99})
    assert len(worlds.fit(dataset, stalled, seed=0).history) == CONFIG.max_epochs


def _means(fitted: FittedWorld, state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """E[(s', r)] of the ensemble, the states in units of the system."""
    mean = np.asarray(predict(fitted.world, *as_stored(state, action)).mean).mean(axis=0)
    scaler = fitted.world.scaler
    following = state + mean[:, :-1] * np.asarray(scaler.state_std) / Linear().scale
    reward = float(scaler.reward_mean) + mean[:, -1:] * float(scaler.reward_std)
    return np.concatenate([following, reward], axis=1)


def test_the_reduced_preset_learns_from_few_rows() -> None:
    """An epoch of 300 rows is two gradient steps. A fit that stops once some epochs bring nothing,
    or keeps a mean over the last thousand steps, would leave members as they began: an error of 1,
    in units of a step."""
    small = {"pool": 2, "members": 2, "width": 16, "depth": 2, "max_steps": 200}
    config = updated(preset("cpu").world, small)
    fitted = worlds.fit(Linear().dataset(300), config, seed=0)
    assert np.median(fitted.scores) < 0.4  # 0.2 of it is the noise of the system


def test_a_decay_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="decay needs a cap"):
        updated(WorldConfig(), {"decay": True})


def test_the_best_are_kept_best_first_and_come_from_their_best_epoch(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [[5.0, 4.0, 3.0, 2.0], [1.0, 3.99, 2.9, 2.5], [1.5, 0.5, 9.0, 9.0]]
    scores += 5 * [[9.0, 9.0, 9.0, 9.0]]
    seen: list[Any] = []

    def scripted(members: Any, *_: Any) -> jax.Array:
        seen.append(np.asarray(members.head.bias))
        return jnp.asarray(scores[len(seen) - 1])

    monkeypatch.setattr(pool, "validate", scripted)
    fitted = worlds.fit(dataset, CONFIG, seed=0)
    assert len(fitted.history) == 8  # three epochs with improvements, then five without
    assert fitted.history[1] == worlds.EpochRecord(best=1.0, median=pytest.approx(2.7), improved=2)
    np.testing.assert_array_equal(fitted.scores, np.asarray([1.0, 0.5, 2.9, 2.0], np.float32))
    np.testing.assert_array_equal(fitted.kept, [1, 0, 3])
    expected = [seen[2][1], seen[1][0], seen[0][3]]
    np.testing.assert_array_equal(fitted.world.members.head.bias, expected)


# --- Interruption --------------------------------------------------------------------------------


def interrupting(after: int, by: Callable[[], None]) -> Callable[[Progress], None]:
    reports = 0

    def report(progress: Progress) -> None:
        nonlocal reports
        reports += 1
        if reports == after:
            by()

    return report


def by_exception() -> None:
    raise KeyboardInterrupt


def by_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [by_exception, by_signal])
def test_interrupted_twice_and_resumed_ends_where_the_uninterrupted_fit_ends(
    dataset: Dataset,
    fitted: FittedWorld,
    tmp_path: Path,
    stop: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "FLOPS_PER_CALL", 0)  # a call for every gradient step
    for after in (70, 101):  # in the second epoch, and in the one after
        with pytest.raises(KeyboardInterrupt):
            worlds.fit(
                dataset, CONFIG, seed=0, directory=tmp_path, progress=interrupting(after, stop)
            )
        assert checkpoints.found(tmp_path / "checkpoints")
    resumed = worlds.fit(dataset, CONFIG, seed=0, directory=tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    assert_same(resumed, fitted)


@pytest.mark.slow
def test_a_streamed_fit_is_sane_and_resumes_too(
    dataset: Dataset, fitted: FittedWorld, streaming: None, tmp_path: Path
) -> None:
    whole = worlds.fit(dataset, CONFIG, seed=0)
    assert np.median(whole.scores) < 1.3 * np.median(fitted.scores)
    with pytest.raises(KeyboardInterrupt):
        worlds.fit(
            dataset, CONFIG, seed=0, directory=tmp_path, progress=interrupting(12, by_exception)
        )
    assert_same(worlds.fit(dataset, CONFIG, seed=0, directory=tmp_path), whole)


def test_a_checkpoint_of_another_fit_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        worlds.fit(
            dataset, CONFIG, seed=0, directory=tmp_path, progress=interrupting(2, by_exception)
        )
    with pytest.raises(WorldError, match="its seed is 0, asked for is 1"):
        worlds.fit(dataset, CONFIG, seed=1, directory=tmp_path)
    wider = CONFIG.model_copy(update={"width": 33})
    with pytest.raises(WorldError, match="its width is 32, asked for is 33"):
        worlds.fit(dataset, wider, seed=0, directory=tmp_path)
    (checkpoint,) = checkpoints.found(tmp_path / "checkpoints")
    (checkpoint / "0001.npz").write_bytes((checkpoint / "0001.npz").read_bytes()[:-200])
    with pytest.raises(WorldError, match=r"remove .* to train from the start"):
        worlds.fit(dataset, CONFIG, seed=0, directory=tmp_path)
