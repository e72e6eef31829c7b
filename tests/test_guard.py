"""The guard: what it tells, what it replaces, what it counts, and what it costs."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neubay
from helpers.known_worlds import fitted, linear_world, random_walk
from helpers.policies import some_policy
from helpers.small_runs import swings, tiny
from neubay import agents, world
from neubay.data.dataset import Dataset, Ranges
from neubay.errors import NeubayError
from neubay.policy import Policy, load_policy, one_or_each
from neubay.tasks import get_task
from neubay.world import FittedWorld


@pytest.fixture(scope="module")
def data() -> Dataset:
    return swings(get_task("pendulum"), horizon=20)


def policy_of(data: Dataset, seed: int = 0) -> Policy:
    config = tiny().agent
    agent = agents.make(3, 1, "continuous", config)
    return Policy(agent, agent.init(jax.random.key(seed)), data.task, config, data.ranges)


@pytest.fixture(scope="module")
def policy(data: Dataset) -> Policy:
    return policy_of(data)


@pytest.fixture(scope="module")
def posterior(data: Dataset) -> FittedWorld:
    """Two members that disagree in proportion to the third state."""
    turn = np.zeros((4, 4))
    turn[2, 2] = 0.1
    return fitted(linear_world([turn, -turn], 2 * [np.zeros(4)], 0.1), data)


def test_it_tells_what_the_data_never_held(policy: Policy, data: Dataset) -> None:
    guard = neubay.Guard(policy)
    inside = data.tape.state[0]
    action, state, check = guard.predict(inside)
    np.testing.assert_array_equal(action, policy.predict(inside)[0])
    assert not check.outside and not check.fell_back and np.isnan(check.unsure)
    action, _, check = guard.predict(np.array([1e9, 0, 0]), state, reward=0.0)
    assert check.outside is True and np.isfinite(action).all()
    assert guard.counts == {"steps": 2, "unsure": 0, "outside": 1, "broken": 0, "fell_back": 0}


def test_unsureness_is_a_share_of_the_threshold(policy: Policy, posterior: FittedWorld) -> None:
    guard = neubay.Guard(policy, posterior, margin=None, zeta=0.5)
    seen = np.array([[1.0, 0.0, 0.2], [1.0, 0.0, 40.0]], np.float32)
    _, state, check = guard.predict(seen)
    uncertainty = posterior.world.uncertainty(
        jnp.asarray(seen), jnp.asarray(state.policy.last_action)
    )
    expected = np.asarray(uncertainty) / posterior.threshold(0.5)
    np.testing.assert_allclose(check.unsure, expected, rtol=1e-5)
    assert expected[1] > 1 and guard.counts["unsure"] == int((expected > 1).sum())
    assert not np.asarray(check.outside).any()


def test_the_fall_back_acts_where_a_limit_is_crossed(policy: Policy, data: Dataset) -> None:
    far = np.stack([data.tape.state[0], [50.0, 0.0, 0.0]]).astype(np.float32)
    near, _ = policy.predict(far)
    for fallback in (0.5, np.array([0.5]), lambda seen: np.full((len(seen), 1), 0.5)):
        guard = neubay.Guard(policy, fallback=fallback)
        action, state, check = guard.predict(far)
        np.testing.assert_allclose(action, [near[0], [0.5]])
        np.testing.assert_array_equal(check.fell_back, [False, True])
        # The policy's memory is of what was done: half a newton metre of at most two.
        np.testing.assert_allclose(state.policy.last_action[1], 0.25)
    clone = policy_of(data, seed=1)
    guard = neubay.Guard(policy, fallback=clone)
    action, state, _ = guard.predict(far)
    np.testing.assert_allclose(action[1], clone.predict(far)[0][1])
    assert state.fallback is not None
    np.testing.assert_allclose(
        state.fallback.last_action, state.policy.last_action, rtol=0, atol=1e-6
    )
    guard.predict(far, state, reward=np.zeros(2))
    assert guard.counts["fell_back"] == 2
    with pytest.raises(NeubayError, match="fall-back returned an action that is not finite"):
        neubay.Guard(policy, fallback=lambda seen: np.full((2, 1), np.nan)).predict(far)
    with pytest.raises(NeubayError, match=r"returned actions of shape \(3,\) for 2 obs.* \(2, 1\)"):
        neubay.Guard(policy, fallback=lambda seen: np.zeros(3)).predict(far)


def test_what_a_function_commands_beyond_the_bounds_becomes_the_bound(policy: Policy) -> None:
    guard = neubay.Guard(policy, fallback=lambda seen: np.full((len(seen), 1), 500.0))
    action, state, check = guard.predict(np.array([50.0, 0, 0]))
    assert check.fell_back and action == [2.0] and state.policy.last_action == 1


def test_a_broken_sensor_is_the_fall_backs(policy: Policy, data: Dataset) -> None:
    guard = neubay.Guard(policy, fallback=0.5)
    _, state, _ = guard.predict(data.tape.state[0])
    action, state, check = guard.predict(np.array([np.nan, 0, 0]), state, reward=0.0)
    assert check.outside and check.fell_back and action == [0.5]
    assert np.isfinite(state.observation).all()
    np.testing.assert_array_equal(state.observation[0, 1:], 0)  # other sensors are as they are
    with pytest.raises(NeubayError, match="not finite"):
        neubay.Guard(policy).predict(np.array([np.nan, 0, 0]))


@pytest.mark.parametrize("reward", [np.nan, np.inf, None])
def test_a_broken_reward_is_the_fall_backs(
    policy: Policy, data: Dataset, reward: float | None
) -> None:
    """It is held at its last value, and so is what the memory reads."""
    seen = data.tape.state[0]
    guard, whole = neubay.Guard(policy, fallback=0.5), neubay.Guard(policy)
    _, state, _ = guard.predict(seen)
    _, known, _ = whole.predict(seen)
    _, state, check = guard.predict(seen, state, reward=-3.0)
    _, known, _ = whole.predict(seen, known, reward=-3.0)
    assert not check.broken
    action, state, check = guard.predict(seen, state, reward=reward)
    _, known, _ = whole.predict(seen, known, reward=-3.0)
    assert check.broken and check.fell_back and not check.outside and action == [0.5]
    for ours, theirs in zip(
        jax.tree.leaves(state.policy.memory), jax.tree.leaves(known.policy.memory), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    _, state, check = guard.predict(seen, state, reward=-3.0)
    assert not check.broken
    assert guard.counts == {"steps": 4, "unsure": 0, "outside": 0, "broken": 1, "fell_back": 1}
    with pytest.raises(NeubayError, match="reward"):
        whole.predict(seen, known, reward=reward)


def test_a_history_begins_with_the_first_whole_observation(policy: Policy, data: Dataset) -> None:
    seen, other = data.tape.state[:2], data.tape.state[5]
    broken = np.array([seen[0], [np.nan, 0, 0]], np.float32)
    guard = neubay.Guard(policy, fallback=policy_of(data, seed=1))
    _, state, check = guard.predict(broken)
    np.testing.assert_array_equal(check.broken, [False, True])
    np.testing.assert_array_equal(check.fell_back, check.broken)
    again = np.array([other, [np.nan, 0, 0]], np.float32)
    _, state, check = guard.predict(again, state, reward=np.array([1.0, np.nan]))
    np.testing.assert_array_equal(check.broken, [False, True])
    actions, state, check = guard.predict(seen, state, reward=np.array([1.0, np.nan]))
    assert not check.broken.any()
    np.testing.assert_allclose(actions[1], policy.predict(seen[1])[0], rtol=1e-5)
    _, first = policy.predict(seen[0])
    _, first = policy.predict(other, first, reward=1.0)
    np.testing.assert_allclose(
        actions[0], policy.predict(seen[0], first, reward=1.0)[0], rtol=1e-4, atol=1e-5
    )
    # Without any reward so far there is no history to continue.
    _, state, check = guard.predict(seen)
    actions, state, check = guard.predict(seen, state, reward=np.array([np.nan, 1.0]))
    np.testing.assert_array_equal(check.broken, [True, False])
    assert np.isnan(state.reward[0]) and state.reward[1] == 1


def test_an_unsureness_that_is_no_number_is_an_alarm(
    policy: Policy, posterior: FittedWorld, data: Dataset
) -> None:
    guard = neubay.Guard(policy, posterior, fallback=0.5)
    guard._uncertainty = lambda observations, actions: np.full(len(observations), np.nan)
    _, _, check = guard.predict(data.tape.state[0])
    assert check.fell_back and guard.counts["unsure"] == 1


def test_margins_widen_the_ranges(policy: Policy, data: Dataset) -> None:
    low, high = data.ranges.observation_low, data.ranges.observation_high
    beyond = high + 0.05 * (high - low)
    assert neubay.Guard(policy).predict(beyond)[2].outside
    assert not neubay.Guard(policy, margin=0.1).predict(beyond)[2].outside


def test_ranges_travel_with_the_policy(policy: Policy, data: Dataset, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.npz")
    again = load_policy(tmp_path / "policy.npz")
    for ours, theirs in zip(data.ranges, again.ranges or (), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(data.ranges.observation_high, data.tape.state.max(axis=0))
    bare = Policy.__new__(Policy)
    bare.__dict__ |= policy.__dict__ | {"ranges": None}  # of an earlier version
    with pytest.raises(NeubayError, match="holds no ranges"):
        neubay.Guard(bare)
    assert isinstance(data.ranges, Ranges)
    neubay.Guard(bare, ranges=data.ranges)


def test_a_guard_without_a_world_says_so_once(
    policy: Policy, posterior: FittedWorld, data: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    guard = neubay.Guard(policy)
    for _ in range(2):
        guard.predict(data.tape.state[0])
    assert caplog.messages == ["the guard has no world: it watches the ranges of the data only"]
    caplog.clear()
    neubay.Guard(policy, posterior)
    assert not caplog.messages


def test_a_world_of_other_data_is_refused(policy: Policy, posterior: FittedWorld) -> None:
    def known_as(digest: str | None) -> Policy:
        told = None if digest is None else {"name": "mine", "hash": digest}
        again = Policy.__new__(Policy)
        again.__dict__ |= policy.__dict__ | {"dataset": told}
        return again

    with pytest.raises(NeubayError, match=r"of other data \('swings', hash .*'mine', hash beef"):
        neubay.Guard(known_as("beef"), posterior)
    for digest in (posterior.dataset_hash, None):  # the same, or not known: of an earlier version
        neubay.Guard(known_as(digest), posterior)


def test_a_world_of_other_sizes_is_refused(policy: Policy, data: Dataset) -> None:
    small = linear_world(2 * [np.zeros((3, 4))], 2 * [np.zeros(3)], 0.1)
    other = fitted(small, random_walk([5, 5]))
    with pytest.raises(NeubayError, match="2 states and 2 actions, the policy 3 and 1"):
        neubay.Guard(policy, other)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"limit": np.nan}, "limit is nan: give a finite number of at least 0, or None for no"),
        ({"limit": "x"}, "limit is 'x'"),
        ({"limit": -1.0}, r"limit is -1\.0"),
        ({"margin": np.nan}, "margin is nan"),
        ({"margin": None}, "neither a world nor a margin, and would check nothing"),
        ({"zeta": 5.0}, r"zeta is 5\.0: give a number from 0 to 1"),
        ({"zeta": None}, "zeta is None"),
        ({"fallback": 500.0}, r"\[500\.0\] is outside the bounds .* 'pendulum', \[-2\.0\] to"),
        ({"fallback": np.nan}, "outside the bounds"),
        ({"fallback": [0.0, 0.0]}, "is no action of 'pendulum', which has shape"),
        ({"fallback": object()}, "is no action of 'pendulum'"),
        ({"fallback": "clone"}, "clone: "),
        ({"world": "nowhere"}, "nowhere: not a world"),
        ({"world": 3}, "world is of type int: give a path, or what neubay.load_world returns"),
        ({"policy": 3}, "policy is of type int"),
        ({"policy": "nowhere.npz"}, "nowhere.npz"),
        ({"ranges": Ranges(*4 * [np.zeros(2, np.float32)])}, "each of the 3 observations"),
        ({"ranges": Ranges(*4 * [np.full(3, np.nan, np.float32)])}, "each of the 3 observations"),
    ],
)
def test_what_would_switch_the_guard_off_is_refused(
    policy: Policy, options: dict[str, Any], complaint: str
) -> None:
    unchecked = inspect.unwrap(neubay.Guard.__init__)  # by the types, as it is for a user
    with pytest.raises(NeubayError, match=complaint):
        unchecked(object.__new__(neubay.Guard), **{"policy": policy, **options})


def test_discrete_fall_backs_and_those_of_other_data_are_refused(policy: Policy) -> None:
    discrete = some_policy("DQN", 3, 4)
    for wrong in (4, 1.5, -1):
        with pytest.raises(NeubayError, match="0 to 3, whole numbers"):
            neubay.Guard(discrete, fallback=wrong)
    action, _, _ = neubay.Guard(discrete, fallback=2).predict(np.full(3, 9.0))
    assert action == 2 and np.asarray(action).dtype.kind == "i"
    with pytest.raises(NeubayError, match="has 3 states and 4 discrete actions, the policy 3 and"):
        neubay.Guard(policy, fallback=discrete)


def test_an_observation_of_another_size_is_said(policy: Policy, data: Dataset) -> None:
    guard = neubay.Guard(policy, fallback=0.5)
    _, state, _ = guard.predict(data.tape.state[0])
    for wrong in (np.zeros(2), np.full(2, np.nan)):
        with pytest.raises(NeubayError, match="has 3 values, got shape"):
            guard.predict(wrong, state, reward=0.0)
    with pytest.raises(NeubayError, match="got 2 observations with the state of 1 episodes"):
        guard.predict(np.zeros((2, 3)), state, reward=0.0)


@pytest.mark.parametrize("returned", [None, "brake", [[0.0], [0.0, 1.0]], [None]])
def test_a_fall_back_that_returns_no_actions_is_said(policy: Policy, returned: Any) -> None:
    guard = neubay.Guard(policy, fallback=lambda seen: returned)
    with pytest.raises(NeubayError, match=r"fall-back returned .* no actions: .* shape \(1, 1\)"):
        guard.predict(np.array([50.0, 0, 0]))


@pytest.mark.parametrize("fallback", [None, 0.5])
def test_a_reward_that_is_no_number_is_said(
    policy: Policy, data: Dataset, monkeypatch: pytest.MonkeyPatch, fallback: float | None
) -> None:
    for of, names in ((neubay.Guard, ("predict", "_heard")), (Policy, ("predict", "_last_reward"))):
        for name in names:  # unchecked by the types, as it is for a user
            monkeypatch.setattr(of, name, inspect.unwrap(getattr(of, name)))
    guard, seen = neubay.Guard(policy, fallback=fallback), data.tape.state[0]
    _, state, _ = guard.predict(seen)
    with pytest.raises(NeubayError, match="reward is 'x': expected one number, or one for each"):
        guard.predict(seen, state, reward="x")
    with pytest.raises(NeubayError, match="episode_start is 'x'"):
        guard.predict(seen, state, "x", reward=0.0)


def test_a_state_of_another_kind_is_said(policy: Policy, data: Dataset) -> None:
    guard, seen = neubay.Guard(policy), data.tape.state[0]
    _, other = policy.predict(seen)
    predict = inspect.unwrap(neubay.Guard.predict)
    with pytest.raises(NeubayError, match="state is of type PolicyState: pass what the guard's"):
        predict(guard, seen, other, reward=0.0)


def test_a_reward_that_is_missing_in_a_batch_is_not_a_number() -> None:
    assert np.isnan(one_or_each("reward", [1.0, None], 2)).tolist() == [False, True]


def test_all_of_it_is_read_from_files(policy: Policy, data: Dataset, tmp_path: Path) -> None:
    policy.save(tmp_path / "policy.npz")
    turn = np.zeros((4, 4))
    found = fitted(
        linear_world(2 * [turn], 2 * [np.zeros(4)], 0.1), data, layer_norm=False, width=8, depth=1,
        unit="state",
    )  # fmt: skip
    world.save(found, tmp_path / "world")
    path = str(tmp_path / "policy.npz")
    guard = neubay.Guard(path, str(tmp_path / "world"), fallback=path)
    action, _, check = guard.predict(data.tape.state[0])
    np.testing.assert_array_equal(action, policy.predict(data.tape.state[0])[0])
    assert np.isfinite(check.unsure)


MEASURE = """
import time
import jax
import numpy as np
import neubay
from helpers.known_worlds import fitted
from helpers.small_runs import swings
from neubay import agents
from neubay.config import preset, settle
from neubay.tasks import get_task
from neubay.world import Member, World
from neubay.world.transitions import fit_scaler

data = swings(get_task("pendulum"), horizon=20)
sizes = settle(preset("cpu"), data.facts)
agent = agents.make(3, 1, "continuous", sizes.agent)
policy = neubay.Policy(agent, agent.init(jax.random.key(0)), data.task, sizes.agent, data.ranges)
keys = jax.random.split(jax.random.key(0), sizes.world.members)
members = jax.jit(jax.vmap(lambda key: Member(4, 4, sizes.world, key=key)))(keys)
guard = neubay.Guard(policy, fitted(World(members, fit_scaler(data), False, "disagreement"), data))
_, state, _ = guard.predict(np.zeros(3))
guard.predict(np.zeros(3), state, reward=0.0)
spent = []
for _ in range(30):
    begun = time.process_time()
    for _ in range(10):
        _, state, _ = guard.predict(np.zeros(3), state, reward=0.0)
    spent.append((time.process_time() - begun) / 10)
print(min(spent))
"""


@pytest.mark.slow
@pytest.mark.timing
def test_a_step_takes_less_than_two_milliseconds() -> None:
    """With the reduced preset's policy and posterior; in a process that checks no types."""
    tests = str(Path(__file__).parent)
    command = [sys.executable, "-c", MEASURE]
    environment = os.environ | {"PYTHONPATH": tests}
    measured = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(measured.stdout) < 2e-3
