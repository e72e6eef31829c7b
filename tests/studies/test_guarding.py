"""What guards say before falls: alarms and falls by hand, and episodes that nobody changed."""

import dataclasses

import numpy as np
import pytest

import neubay
from helpers.policies import some_policy
from neubay.data.dataset import Ranges
from neubay.errors import TaskError
from neubay.evaluation import evaluate
from neubay.policy import Policy
from neubay.studies.guarding import Alarms, Watched, falls_of, onsets, watch
from neubay.tasks import get_task

STEPS = 12


def watched(falls: list[int], alarms: list[int], length: int = STEPS) -> tuple[Watched, np.ndarray]:
    """One episode with falls and alarms at some steps."""
    at = [np.isin(np.arange(STEPS), steps)[:, None] for steps in (falls, alarms)]
    alive = (np.arange(STEPS) < length)[:, None]
    nothing = np.zeros((STEPS, 1))
    found = Watched(alive, nothing, at[1], nothing.astype(bool), at[0], np.zeros(1))
    return found, found.alarms("light")


def test_an_alarm_announces_a_fall_that_follows_in_time() -> None:
    found, alarms = watched(falls=[8], alarms=[2, 6, 7], length=9)
    told = Alarms.of(alarms, found, ahead=4)
    assert (told.falls, told.announced, told.per_episode) == (1, 1, 3.0)
    assert told.ahead == 3  # seen before step 6; the fall is at the end of step 8
    # Steps 0 to 4 are calm; of them step 2 has an alarm. Windows: 0-3 and 1-4, both with it.
    assert told.false_per_thousand == 200 and told.by_chance == 1
    late, alarms = watched(falls=[8], alarms=[2], length=9)
    told = Alarms.of(alarms, late, ahead=4)
    assert (told.announced, told.ahead, told.false_per_thousand) == (0, None, 200)


def test_what_lasts_is_one_fall_and_no_alarm_in_it_is_false() -> None:
    found, alarms = watched(falls=[5, 6, 7, 11], alarms=[6, 7])
    assert np.flatnonzero(onsets(found.falls, 4)) == [5]  # 11 is four steps after 7: the same one
    assert np.flatnonzero(onsets(found.falls, 3)).tolist() == [5, 11]
    told = Alarms.of(alarms, found, ahead=4)
    assert (told.falls, told.announced, told.false_per_thousand) == (1, 0, 0)


def test_without_falls_every_alarm_is_false_and_nothing_beyond_the_end_counts() -> None:
    found, alarms = watched(falls=[], alarms=[1, 11], length=10)
    told = Alarms.of(alarms, found, ahead=4)
    assert (told.falls, told.ahead, told.per_episode) == (0, None, 1)
    assert told.false_per_thousand == 100
    assert told.by_chance == pytest.approx(2 / 7)  # windows 0-3 to 6-9; those from 0 and 1 on


def pole(seed: int = 0) -> Policy:
    policy = some_policy("DQN", states=4, actions=2, seed=seed)
    policy.task = get_task("cartpole")
    wide = np.full(4, 1e9, np.float32)
    policy.ranges = Ranges(-wide, wide, np.zeros(2, np.float32), np.ones(2, np.float32))
    return policy


@pytest.mark.slow
def test_watching_changes_nothing_and_a_fall_back_acts() -> None:
    policy, task = pole(), get_task("cartpole")
    alone = watch(task, neubay.Guard(policy), episodes=3, seed=5)
    # The same episodes as an evaluation's: a pole pays 1 a step, and each of them falls once.
    truth = evaluate(dataclasses.replace(task), policy.mode, episodes=3, seed=5)
    np.testing.assert_array_equal(alone.returns, truth.returns)
    np.testing.assert_array_equal(alone.alive.sum(axis=0), truth.lengths)
    np.testing.assert_array_equal(alone.falls.argmax(axis=0) + 1, truth.lengths)
    assert not alone.alarms("full").any() and np.isnan(alone.unsure).all()
    nowhere = Ranges(*(np.zeros_like(bound) for bound in policy.ranges))
    always = neubay.Guard(policy, fallback=1, ranges=nowhere)
    pushed = watch(task, always, episodes=3, seed=5)
    assert (pushed.fell_back == pushed.alive).all() and pushed.alarms("light").sum() > 20
    assert (pushed.returns < 15).all()  # a push to one side topples it at once


def test_what_a_fall_is() -> None:
    assert falls_of(get_task("d4rl/hopper")) == ("terminal state", None)
    for name, pitch in (("d4rl/halfcheetah", 1), ("neorl2/safetyhalfcheetah", 2)):
        task = get_task(name)
        _, fallen = falls_of(task)
        state, slow = np.full(task.state_size, 9.0), {"x_velocity": 1.0}
        for angle, lies in ((0.3, False), (3.0, True), (-2.0, True), (2 * np.pi, False)):
            state[pitch] = angle
            assert fallen(state, slow) is lies
    assert fallen(state, {"x_velocity": 3.3}) is True
    assert falls_of(get_task("d4rl/halfcheetah"))[1](state[:17] * 0, {"x_velocity": 9.0}) is False


def test_no_environment_no_guard() -> None:
    bare = some_policy("Markov")
    with pytest.raises(TaskError, match="no environment"):
        watch(bare.task, neubay.Guard(bare), episodes=1)
