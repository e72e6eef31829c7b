"""Collected data is what the environment did: replayed step by step, deterministic for a seed,
every episode run to its end."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from neubay.data.collect import RandomActions, StickyActions, collect, provenance, reset_seed
from neubay.errors import DatasetError, TaskError
from neubay.tape import AgentInput, episodes
from neubay.tasks import Task, get_task, task_from_env


@pytest.fixture(scope="module")
def cartpole() -> Task:
    return get_task("cartpole")


@pytest.fixture(scope="module")
def pendulum() -> Task:
    return get_task("pendulum")


def inputs(last_action: np.ndarray, start: bool) -> AgentInput:
    count = len(last_action)
    return AgentInput(
        np.zeros((count, 3), np.float32),
        last_action,
        np.zeros(count, np.float32),
        np.full(count, start),
    )


def test_equal_seeds_give_equal_data_and_others_do_not(cartpole: Task) -> None:
    runs = [collect(cartpole, RandomActions(cartpole), episodes=20, seed=s) for s in (3, 3, 4)]
    assert runs[0].hash == runs[1].hash != runs[2].hash


@pytest.mark.parametrize("name", ["pendulum", "cartpole", "d4rl/hopper"])
def test_the_environment_replays_every_step(name: str) -> None:
    """A fresh environment, reset with the recorded seed and given the recorded actions, goes
    through the recorded states, rewards and ends."""
    task = get_task(name)
    data = collect(task, StickyActions(task), episodes=3, seed=5)
    assert task.make_env is not None
    with closing(task.make_env()) as env:
        for number, episode in enumerate(episodes(data.tape)):
            state, _ = env.reset(seed=reset_seed(5, number))
            actions = task.from_unit(np.asarray(episode.action[:-1]))
            ended = False
            for step, action in enumerate(actions):
                assert not ended
                np.testing.assert_array_equal(np.float32(state), episode.state[step])
                state, reward, terminated, truncated, _ = env.step(action)
                assert np.float32(reward) == episode.reward[step]
                assert terminated == episode.terminated[step]
                ended = terminated or truncated
            assert ended
            np.testing.assert_array_equal(np.float32(state), episode.state[-1])


def test_more_episodes_than_run_at_once_are_each_started_once(cartpole: Task) -> None:
    data = collect(cartpole, RandomActions(cartpole), episodes=37, seed=0)
    assert data.episodes == 37
    assert len(np.unique(data.tape.state[data.bounds[0]], axis=0)) == 37
    first, length = data.bounds
    assert data.tape.terminated[first + length - 1].all()


def test_steps_are_exact_and_only_the_last_episode_is_cut(cartpole: Task) -> None:
    by_steps = collect(cartpole, RandomActions(cartpole), steps=500, seed=1)
    assert by_steps.transitions == 500
    first, length = by_steps.bounds
    ends = by_steps.tape.terminated[first + length - 1]
    assert ends[:-1].all()
    # A wave is 16 episodes whatever is asked for: what was recorded is the same.
    by_episodes = collect(cartpole, RandomActions(cartpole), episodes=48, seed=1)
    np.testing.assert_array_equal(by_steps.tape.state[:400], by_episodes.tape.state[:400])


def test_sticky_actions_hold_with_the_given_probability(pendulum: Task) -> None:
    rng = np.random.default_rng(0)
    last = np.full((20_000, 1), 0.25, np.float32)
    _, action = StickyActions(pendulum, 0.7)(None, inputs(last, start=False), rng)
    assert abs((action == last).mean() - 0.7) < 0.02
    _, action = StickyActions(pendulum, 0.7)(None, inputs(last, start=True), rng)
    assert not (action == last).any()
    assert np.abs(action).max() <= 1 and action.dtype == np.float32


def test_discrete_actions_are_uniform_and_one_hot(cartpole: Task) -> None:
    rng = np.random.default_rng(0)
    last = np.tile(np.float32([1, 0]), (10_000, 1))
    _, action = RandomActions(cartpole)(None, inputs(last, start=False), rng)
    np.testing.assert_array_equal(action.sum(axis=1), 1)
    assert abs(action[:, 0].mean() - 0.5) < 0.02


def test_a_behaviour_sees_what_an_agent_would_and_keeps_its_memory(pendulum: Task) -> None:
    short = replace(pendulum, name="short", horizon=4)
    seen: list[AgentInput] = []

    def behaviour(memory: int | None, inputs: AgentInput, rng: np.random.Generator) -> tuple:
        seen.append(inputs)
        step = (memory or 0) + 1
        return step, np.full((2, 1), 0.1 * step, np.float32)

    data = collect(short, behaviour, episodes=2, seed=0)
    assert data.transitions == 8
    tape = next(episodes(data.tape))
    assert [bool(step.start.all()) for step in seen] == [True, False, False, False]
    for step, given in enumerate(seen):
        np.testing.assert_array_equal(given.state[0], tape.state[step])
        expected = 0.0 if step == 0 else tape.reward[step - 1]
        assert given.last_reward[0] == np.float32(expected)
        np.testing.assert_allclose(given.last_action[0], 0.1 * step, atol=1e-6)


def test_provenance_says_what_made_the_data(pendulum: Task) -> None:
    about = provenance(pendulum, "random", 7)
    assert about["environment"] == "Pendulum-v1" and about["seed"] == 7
    assert {"neubay", "gymnasium", "mujoco", "numpy", "python"} <= about["versions"].keys()


def test_what_cannot_be_collected_is_said(pendulum: Task) -> None:
    random = RandomActions(pendulum)
    for numbers in ({}, {"episodes": 1, "steps": 1}):
        with pytest.raises(DatasetError, match="either a number of episodes or"):
            collect(pendulum, random, **numbers)
    for numbers in ({"episodes": 0}, {"steps": -5}):
        with pytest.raises(DatasetError, match="not a positive number"):
            collect(pendulum, random, **numbers)
    with pytest.raises(DatasetError, match="seed -1 is negative"):
        collect(pendulum, random, episodes=1, seed=-1)
    for repeat in (1.0, -0.1, float("nan")):
        with pytest.raises(DatasetError, match="expected a probability"):
            StickyActions(pendulum, repeat)
    nowhere = replace(pendulum, name="nowhere", env_id=None, make_env=None, env_name=None)
    with pytest.raises(TaskError, match="has no environment"):
        collect(nowhere, random, episodes=1)


def test_any_gymnasium_environment_can_be_collected_from() -> None:
    task = task_from_env("MountainCarContinuous-v0", horizon=30)
    data = collect(task, StickyActions(task, 0.9), steps=100, seed=0)
    assert data.transitions == 100 and data.bounds[1].max() == 30
