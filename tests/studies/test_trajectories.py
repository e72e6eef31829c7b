"""Recorded trajectories: drawn, padded, judged and replayed, against slow references."""

import math

import numpy as np
import pytest

from helpers.known_worlds import TRUTH, ZERO, linear_world, random_walk
from neubay import world
from neubay.errors import DatasetError
from neubay.studies import trajectories
from neubay.studies.exploitation import Compounded
from neubay.studies.trajectories import draw_trajectories

DRIFTS = [[0.0, 0.1, 0.5], [0.3, 0.0, 0.5], [0.0, -0.4, 0.5]]  # of two states and the reward
UNIT = np.array([0.5, 2.0])


def test_trajectories_are_whole_episodes_and_none_comes_thrice_before_all_came_twice() -> None:
    dataset = random_walk([4, 1, 6])
    drawn = draw_trajectories(dataset, 7, None, seed=1)
    assert sorted(np.bincount(drawn.episode)) == [2, 2, 3]
    first, length = dataset.bounds
    np.testing.assert_array_equal(drawn.length, length[drawn.episode])
    for k, episode in enumerate(drawn.episode):
        rows = slice(first[episode], first[episode] + length[episode])
        np.testing.assert_array_equal(drawn.action[: length[episode], k], dataset.tape.action[rows])
        np.testing.assert_array_equal(drawn.reward[: length[episode], k], dataset.tape.reward[rows])
        states = dataset.tape.state[first[episode] : first[episode] + length[episode] + 1]
        np.testing.assert_array_equal(drawn.state[: length[episode] + 1, k], states)


def test_trajectories_are_cut_to_the_steps_asked_for() -> None:
    drawn = draw_trajectories(random_walk([4, 1, 6]), 3, 2, seed=0)
    assert sorted(drawn.length) == [1, 2, 2]
    assert drawn.state.shape == (3, 3, 2)


def test_more_steps_than_any_episode_has_is_an_error_that_says_so() -> None:
    with pytest.raises(DatasetError, match="no episode has 7 steps to replay, the longest has 6"):
        draw_trajectories(random_walk([4, 1, 6]), 3, 7, seed=0)


def test_padding_changes_neither_steps_nor_lengths() -> None:
    recorded = draw_trajectories(random_walk([5, 3]), 2, None, 0)
    longer, shorter = trajectories.padded(recorded, 8), trajectories.padded(recorded, 4)
    assert longer.state.shape == (9, 2, 2) and longer.length.tolist() == recorded.length.tolist()
    np.testing.assert_array_equal(longer.state[:6], recorded.state)
    np.testing.assert_array_equal(longer.state[6:], recorded.state[[5, 5, 5]])
    assert shorter.action.shape == (4, 2, 2) and sorted(shorter.length) == [3, 4]


# --- Judged and replayed -------------------------------------------------------------------------


def drifting(shaky: float = 0.2) -> world.World:
    """Members that drift apart, the more so the further out the first state is."""
    matrices = []
    for number in range(3):
        matrix = TRUTH.copy()
        matrix[1, 0] = shaky * (number - 1)
        matrices.append(matrix)
    return linear_world(matrices, [np.array(drift) for drift in DRIFTS], 0.01)


def member_step(number: int, state: np.ndarray, action: np.ndarray, shaky: float = 0.2):
    """E[s'] of a member, by hand."""
    following = state + action + np.array(DRIFTS[number][:2])
    following[1] += shaky * (number - 1) * state[0]
    return following


@pytest.mark.slow
def test_steps_are_judged_as_one_by_one() -> None:
    recorded = draw_trajectories(random_walk([9, 4, 14], sigma=0.3), 3, None, 0)
    found = trajectories.judge_steps(drifting(), UNIT, recorded)
    assert found.live.sum() == 27
    for t in range(14):
        for k, length in enumerate(recorded.length):
            if t >= length:
                assert not found.live[t, k] and found.error[t, k] == 0
                continue
            state, action = recorded.state[t, k], recorded.action[t, k]
            each = np.array([member_step(n, state, action) for n in range(3)])
            apart = (each - recorded.state[t + 1, k]) / UNIT
            spread = np.append((each - state).var(axis=0), 0.0)  # they agree about the reward
            error, members = (apart.mean(axis=0) ** 2).mean(), (apart**2).mean()
            np.testing.assert_allclose(found.error[t, k], math.sqrt(error), rtol=1e-4)
            np.testing.assert_allclose(found.member_error[t, k], math.sqrt(members), rtol=1e-4)
            np.testing.assert_allclose(found.uncertainty[t, k], np.sqrt(spread.mean()), rtol=1e-4)


@pytest.mark.slow
def test_actions_are_replayed_in_every_member_from_the_same_starts() -> None:
    recorded = draw_trajectories(random_walk([9, 4, 14], sigma=0.3), 3, None, 0)
    replayed = trajectories.replay(drifting(), recorded, seed=0)
    errors = trajectories.path_errors(replayed, recorded, UNIT)
    assert errors.shape == (14, 3, 3)
    for n in range(3):
        for k, length in enumerate(recorded.length):
            state = recorded.state[0, k].astype(np.float64)
            for t in range(14):
                state = member_step(n, state, recorded.action[t, k])
                np.testing.assert_allclose(replayed.state[t, n, k], state, atol=0.25)  # its noise
                if t >= length:
                    assert np.isnan(errors[t, n, k])
                    continue
                apart = (replayed.state[t, n, k] - recorded.state[t + 1, k]) / UNIT
                np.testing.assert_allclose(errors[t, n, k], np.sqrt((apart**2).mean()), rtol=1e-5)
    np.testing.assert_allclose(replayed.reward, 0.5, atol=0.05)
    compounded = Compounded.of(errors)
    here = np.sort(errors[9][~np.isnan(errors[9])])  # one episode is so long, in three members
    assert compounded.median == (pytest.approx(np.nanmedian(errors[0])), here[1], None, None)
    assert compounded.high[1] == here[2]
    alone = trajectories.in_one_member(replayed, recorded)
    np.testing.assert_array_equal(alone.state[1:, 2], replayed.state[:, 2, 2])
    np.testing.assert_array_equal(alone.state[0], recorded.state[0])


@pytest.mark.slow
def test_what_overflows_is_infinitely_wrong_and_infinitely_unsure() -> None:
    recorded = draw_trajectories(random_walk([30]), 1, None, 0)
    growing = TRUTH.copy()
    growing[:2, :2] = 1e12 * np.eye(2)
    wild = linear_world([growing, TRUTH], [ZERO, ZERO], 0.1)
    errors = trajectories.path_errors(trajectories.replay(wild, recorded, 0), recorded, UNIT)
    assert np.isinf(errors[-1, 0]) and np.isfinite(errors[:, 1]).all()
    assert Compounded.of(np.full((1, 2, 2), np.inf)).record()["median"][0] is None
    far = recorded._replace(state=np.full_like(recorded.state, np.inf))
    assert np.isinf(trajectories.judge_steps(wild, UNIT, far).uncertainty).all()


def test_horizons_keep_the_step_that_crosses() -> None:
    live = np.arange(5)[:, None] < np.array([5, 3])
    uncertainty = np.array([[0, 0], [0, 0], [2, 0], [0, 9], [0, 9]], float)  # 9: after its end
    judged = trajectories.Steps(uncertainty, uncertainty, uncertainty, live)
    assert trajectories.horizons(judged, 1.0).tolist() == [3, 3]
    assert trajectories.median_kept(judged, 1.0) == pytest.approx((3 / 5 + 1) / 2)
