"""Evaluation counts every started episode once, whatever its length."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from neubay.errors import TaskError
from neubay.evaluation import evaluate
from neubay.tasks import ContinuousActions, Reference, Task


class Countdown(gymnasium.Env):
    """Ends after as many steps as its seed says; pays 1 a step; refuses to be stepped after."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        assert not hasattr(self, "left"), "an environment is reset once only"
        self.left = 1 + seed % 5
        self.actions = []
        return np.array([self.left, 0.0]), {}

    def step(self, action):
        assert self.left > 0, "stepped after its end"
        self.actions.append(float(action[0]))
        self.left -= 1
        return np.array([self.left, action[0]]), 1.0, self.left == 0, False, {}


class Remembering:
    """Acts 0.5; its memory counts the rewards it has been shown."""

    def initial(self, batch):
        return jnp.zeros(batch)

    def act(self, memory, inputs, keys):
        assert keys.shape == inputs.last_reward.shape
        memory = jnp.where(inputs.start, 0, memory) + inputs.last_reward
        return memory, jnp.full((len(inputs.state), 1), 0.5) + 0 * memory[:, None]


def countdown_task(**changes) -> Task:
    settings = {
        "name": "countdown",
        "state_size": 2,
        "actions": ContinuousActions(np.array([-2.0]), np.array([2.0])),
        "horizon": 100,
        "make_env": Countdown,
        "env_name": "Countdown",
        "reward_shift": -1.0,
        "reference": Reference(0.0, 10.0, "by hand"),
    }
    return Task(**(settings | changes))


def test_each_episode_counts_once() -> None:
    result = evaluate(countdown_task(), Remembering(), episodes=7, seed=10)
    expected = np.array([1 + (10 + i) % 5 for i in range(7)])
    np.testing.assert_array_equal(result.lengths, expected)
    np.testing.assert_array_equal(result.returns, expected)  # raw: the shift is undone
    np.testing.assert_allclose(result.scores, 10.0 * expected)
    np.testing.assert_array_equal(result.discounted, 0)  # 1 - 1 at every step
    assert result.record()["episodes"] == 7
    np.testing.assert_array_equal(result.opening.state[:, 0], np.stack([expected, 0 * expected], 1))
    np.testing.assert_array_equal(result.opening.action, np.full((7, 1, 1), 0.5))


def test_the_horizon_ends_an_episode() -> None:
    result = evaluate(countdown_task(horizon=2), Remembering(), episodes=5, seed=0)
    np.testing.assert_array_equal(result.lengths, [1, 2, 2, 2, 2])


def test_actions_reach_the_environment_in_its_own_units() -> None:
    made = []

    def make():
        made.append(Countdown())
        return made[-1]

    evaluate(countdown_task(make_env=make), Remembering(), episodes=2, seed=0)
    assert {action for env in made for action in env.actions} == {1.0}


def test_no_environment_is_said_plainly() -> None:
    with pytest.raises(TaskError, match="no environment"):
        evaluate(countdown_task(make_env=None), Remembering(), episodes=1, seed=0)
