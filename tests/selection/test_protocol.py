"""One protocol for every candidate: what is estimated, and what follows a cut."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.judges import Quadratic, linear_policy, logged, numbers, quadratic, trial
from neubay.data.dataset import Dataset
from neubay.selection import DataRecord, Trial
from neubay.selection.protocol import FEWEST_STARTS, Reproduced, draw_starts
from neubay.tasks import ContinuousActions, OfNextState, Task

GAINS = ([0.0, 0.0], [0.3, 0.8], [-0.1, -0.2], [0.5, 1.5], [-0.2, -0.2])


def test_a_linear_quadratic_world_gives_the_true_returns_and_ranking() -> None:
    world = quadratic(sigma=0.01)
    tried = trial(world, logged(40 * [25]))
    near = replace(tried.record, start=0.2 * tried.record.start)  # no action reaches a bound
    tried, start = replace(tried, record=near), near.start[tried.episode]
    truth = [world.truth(np.array([gain]), start, 25) for gain in GAINS]
    found = [tried.roll(linear_policy(gain)) for gain in GAINS]
    estimates = [float(rollouts.estimate.mean()) for rollouts in found]
    np.testing.assert_allclose(estimates, truth, rtol=0.02)
    assert np.argsort(estimates).tolist() == np.argsort(truth).tolist()
    assert not any(rollouts.cut.any() for rollouts in found)


def test_a_judge_replays_the_recorded_actions() -> None:
    """In the true system without its noise, excerpts pay what was paid, other actions do not."""
    data = logged(8 * [40], gain=0.5)
    true = quadratic(members=1, sigma=0.0)
    system = np.array([[[0.95, 0.2], [-0.1, 0.9]]], np.float32)
    tried = trial(eqx.tree_at(lambda world: world.a, true, jnp.asarray(system)), data)
    found = tried.reproduce()
    assert found is not None and found.judged.shape == (1, 100)
    assert np.corrcoef(found.judged[0], found.recorded)[0, 1] > 0.95
    assert abs(found.judged.mean() - found.recorded.mean()) < 0.1 * found.recorded.std()
    assert not found.judged_ended.any() and not found.recorded_ended.any()
    still = replace(tried.record, excerpt_action=np.zeros_like(tried.record.excerpt_action))
    other = replace(tried, record=still).reproduce()
    assert other is not None and not np.allclose(other.judged, found.judged)
    assert replace(tried, record=replace(still, excerpt_state=None)).reproduce() is None


@pytest.mark.parametrize(
    ("own", "said", "least", "most"),
    [
        (0.05, 0.05, 0.75, 1.0),  # the system's own noise is kept
        (0.0, 0.05, 0.0, 0.0),  # what only the judge calls noise is not
        (0.05, 0.15, 0.25, 0.5),  # and too much of it is scaled down: a third is right
        (0.05, 0.01, 1.0, 1.0),  # never up
    ],
)
def test_noise_is_scaled_to_what_the_log_leaves_for_it(
    own: float, said: float, least: float, most: float
) -> None:
    data = logged(20 * [50], gain=0.5, sigma=own)
    tried = trial(quadratic(members=6, sigma=said), data)
    found = tried.calibrated()
    assert least <= found.noise <= most
    # What is rolled then is the same world with less noise, from the same starts and keys.
    other = trial(quadratic(members=6, sigma=found.noise * said), data)
    policy = linear_policy([0.3, 0.8])
    np.testing.assert_allclose(found.roll(policy).estimate, other.roll(policy).estimate, rtol=1e-5)
    # Its excerpts are not replayed once more, and those of other noise are.
    anew = tried.with_noise(found.noise).reproduce()
    assert found.replayed is found.reproduce() is not anew
    jax.tree.map(np.testing.assert_array_equal, found.replayed, anew)
    assert found.with_noise(0.5).replayed is None


def test_a_forecast_is_best_with_the_spread_of_the_truth() -> None:
    def foretold(judged: np.ndarray, recorded: np.ndarray) -> float:
        never = np.zeros_like(recorded, bool)
        return Reproduced(recorded, judged, never, judged < -np.inf, 25.0).crps()

    # |1 - 2| and |4 - 2| in the mean, less half of |1 - 4|
    assert foretold(np.array([[1.0], [4.0]]), np.array([2.0])) == 0.0
    rng = np.random.default_rng(0)
    truth, members = rng.normal(size=2000), rng.normal(size=(9, 2000))
    scores = {spread: foretold(spread * members, truth) for spread in (0.0, 0.5, 1.0, 2.0)}
    assert min(scores, key=scores.__getitem__) == 1.0
    np.testing.assert_allclose(scores[1.0], 1 / np.sqrt(np.pi), rtol=0.05)  # of two normals


def test_noise_stays_as_it_is_where_the_log_cannot_tell() -> None:
    data = logged(8 * [40])
    lonely = trial(quadratic(members=1), data)
    assert lonely.calibrated() is lonely  # nobody knows how much members would disagree
    silent = trial(quadratic(sigma=0.0), data)
    assert silent.calibrated().noise == 1.0  # there is none to scale
    tried = trial(quadratic(), data)
    before = replace(tried, record=replace(tried.record, excerpt_state=None))
    assert before.calibrated() is before  # a record of before excerpts were kept


def test_a_reward_of_one_everywhere_beats_nothing() -> None:
    """Regression: imagined episodes are longer than those of a log that was cut."""
    dataset = logged(10 * [5, 12, 30, 20], pay=1.0, cost=0.0)
    tried = trial(quadratic(pay=1.0, cost=0.0), dataset)
    got = tried.roll(linear_policy([0.3, 0.8]))
    np.testing.assert_array_equal(got.estimate, np.broadcast_to(tried.data_returns, (3, 40)))
    np.testing.assert_array_equal(got.floor, got.estimate)
    assert got.length.max() == 30


def test_nothing_after_a_cut_is_free() -> None:
    """Regression: with costs, a rollout that was cut looked better than one that was not."""
    dataset = logged(40 * [40])
    whole = trial(quadratic(), dataset).roll(linear_policy([-0.3, -0.5]))
    cut = trial(quadratic(known=1.0), dataset).roll(linear_policy([-0.3, -0.5]))
    assert cut.cut.mean() > 0.5 and not whole.cut.any()
    low, _ = DataRecord.of(dataset).reward_range
    assert (cut.estimate >= 40 * low).all()  # clipped to the data's range, and not cut short
    assert (cut.length == 40).all()
    assert (cut.floor <= cut.estimate).all()
    lost = cut.estimate - cut.floor
    assert (lost[~cut.cut] == 0).all() and (lost[cut.cut] >= 0).all()
    # A policy whose cost the world knows is ranked above it, cut or not.
    calm = trial(quadratic(known=1.0), dataset).roll(linear_policy([0.3, 0.8]))
    assert calm.estimate.mean() > cut.estimate.mean()


def test_a_world_that_overflows_pays_the_lowest_reward() -> None:
    exploding = trial(quadratic(blow=1e20), logged(40 * [50]))
    got = exploding.roll(linear_policy([0.0, 0.0]))
    assert np.isfinite(got.estimate).all() and got.cut.all() and (got.length == 50).all()
    low, _ = exploding.record.reward_range
    assert got.estimate.min() >= 50 * low * 1.01


def falls(limit: float) -> OfNextState:
    return OfNextState(lambda following: following[..., 0] > limit)


def test_terminal_states_end_a_rollout_and_a_hidden_reward_is_paid_there() -> None:
    rule = falls(0.5)
    task = Task(
        "steps",
        1,
        ContinuousActions.symmetric(1),
        horizon=9,
        termination=rule,
        reward_shift=-1.0,
        world_skips_terminals=True,
    )
    states = np.array([[0.0], [0.3], [0.0], [0.2], [0.4]], np.float32)
    dataset = Dataset.from_arrays(
        states,
        np.zeros((5, 1)),
        np.array([0.0, 1.0, 0.0, 0.0, 1.0]),
        np.array([0, 1, 0, 0, 1], bool),
        np.zeros(5, bool),
        np.array([[0.3], [0.6], [0.2], [0.4], [0.7]], np.float32),
        task=task,
    )
    still = numbers(sigma=0.0, cost=0.0, pay=-1.0)
    world = Quadratic(jnp.ones((2, 1, 1)), jnp.full((1, 1), 0.2), **still)
    tried = Trial.of(world, 1.0, DataRecord.of(dataset), task, seed=0)
    assert tried.record.terminal_reward == 1.0
    got = tried.roll(lambda observations: np.ones((len(observations), 1)))
    assert (got.length == 3).all() and (got.estimate == 1.0).all()  # 0.2, 0.4, 0.6: arrived
    resting = tried.roll(lambda observations: np.zeros((len(observations), 1)))
    assert (resting.length == 9).all() and (resting.estimate == 0.0).all()


def test_starts_are_spread_over_the_returns_and_drawn_once() -> None:
    record = DataRecord.of(logged(200 * [4]))
    chosen = draw_starts(record, 40, seed=3)
    assert len(set(chosen.tolist())) == 40
    error = abs(record.returns[chosen].mean() - record.returns.mean())
    assert error < 0.5 * record.returns.std() / np.sqrt(40)
    assert sorted(draw_starts(record, 999, seed=0).tolist()) == list(range(200))
    many = trial(quadratic(members=30), logged(50 * [2]))
    assert len(many.episode) == FEWEST_STARTS


def test_a_policy_with_a_memory_is_called_as_policies_elsewhere_are() -> None:
    class Counting:
        def predict(self, observations, state=None, episode_start=None):
            assert episode_start.all() == (state is None)
            count = 0 if state is None else state + 1
            return np.full((len(observations), 1), 0.01 * count), count

    tried = trial(quadratic(), logged(40 * [6]))
    ours = Counting()
    got = tried.roll(ours)
    calls = iter(range(6))
    plain = tried.roll(lambda observations: np.full((len(observations), 1), 0.01 * next(calls)))
    np.testing.assert_array_equal(got.estimate, plain.estimate)
    assert got.estimate.shape == (3, 40)


def test_what_is_commanded_beyond_the_bounds_becomes_the_bound() -> None:
    dataset = logged(40 * [6])
    wide = replace(dataset.task, actions=ContinuousActions(np.array([-0.5]), np.array([1.5])))
    for task, bounds in ((dataset.task, (-1.0, 1.0)), (wide, (-0.5, 1.5))):
        tried = replace(trial(quadratic(), dataset), task=task)
        for beyond, bound in zip((-500.0, 500.0), bounds, strict=True):
            got, same = (
                tried.roll(lambda seen, value=value: np.full((len(seen), 1), value))
                for value in (beyond, bound)
            )
            np.testing.assert_array_equal(got.estimate, same.estimate)


@pytest.mark.parametrize("seed", [0, 1])
def test_candidates_share_starts_members_and_keys(seed: int) -> None:
    dataset = logged(40 * [8])
    record = DataRecord.of(dataset)
    one, other = (Trial.of(quadratic(), 1.0, record, dataset.task, seed=seed) for _ in range(2))
    first, second = (each.roll(linear_policy([0.3, 0.8])) for each in (one, other))
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
