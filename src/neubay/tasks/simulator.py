"""A task's environment as a function: put into any state, it says what a step from there gives."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from neubay.errors import TaskError
from neubay.tasks.task import AnyArray, Task


class Simulator:
    """(s, a) -> (s', r), where a state can be read off its observation: MuJoCo's environments whose
    observation is positions and velocities, the pendulum and the cart-pole."""

    def __init__(self, task: Task) -> None:
        if task.make_env is None:
            raise TaskError(f"task '{task.name}' has no simulator")
        self.task, self.env = task, task.make_env()
        self.env.reset(seed=0)
        self._place = _placing(task, self.env.unwrapped)

    def step(
        self, state: Float[AnyArray, "k s"], action: Float[AnyArray, "k a"]
    ) -> tuple[Float[np.ndarray, "k s"], Float[np.ndarray, " k"]]:
        """One step from each state; actions and rewards are as on a tape. What is not finite stays
        as it is, and is paid nothing; and so are all steps where worlds learn nothing of goals
        (AntMaze, which draws one for each episode that no observation shows)."""
        state, action = np.asarray(state), np.asarray(action)
        after, reward = np.array(state, np.float32), np.zeros(len(state), np.float32)
        executed = self.task.from_unit(np.clip(action, -1, 1))
        for row in np.flatnonzero(np.isfinite(state).all(axis=1) & np.isfinite(action).all(axis=1)):
            self._place(np.asarray(state[row], np.float64))
            after[row], paid, *_ = self.env.step(executed[row])
            reward[row] = 0.0 if self.task.world_skips_terminals else paid
        return after, reward + np.float32(self.task.reward_shift)


def _placing(task: Task, env: Any) -> Any:
    """What puts an environment into the state of an observation."""
    # Here, as they bring MuJoCo and its windows, and most processes never make a simulator.
    from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
    from gymnasium.envs.mujoco import MujocoEnv

    if isinstance(env, PendulumEnv):

        def place_pendulum(state: Float[np.ndarray, "3"]) -> None:
            env.state = np.array([math.atan2(state[1], state[0]), state[2]])

        return place_pendulum
    if isinstance(env, CartPoleEnv):

        def place_cart_pole(state: Float[np.ndarray, "4"]) -> None:
            env.state, env.steps_beyond_terminated = state, None

        return place_cart_pole
    sizes = (env.model.nq, env.model.nv) if isinstance(env, MujocoEnv) else (0, 0)
    left_out = sum(sizes) - task.state_size  # where the body is, of which nothing depends
    if not 0 <= left_out <= 2:
        raise TaskError(
            f"task '{task.name}': the state of {task.env_name} cannot be read off its observation, "
            "so that it cannot be continued from states of the data"
        )

    def place_body(state: Float[np.ndarray, " s"]) -> None:
        whole = np.concatenate([np.zeros(left_out), state])
        env.data.qacc_warmstart[:] = 0.0  # the same answer whatever was asked before
        env.set_state(whole[: sizes[0]], whole[sizes[0] :])

    return place_body
