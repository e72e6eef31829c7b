"""Environments that match the data: Gymnasium's own, corrected where the data says otherwise.

Importing this module registers with Gymnasium

| id | what differs from the environment it is built on |
|---|---|
| `neubay/NeoRLHalfCheetah-v4`, `...Hopper-v4`, `...Walker2d-v4` | x is part of the observation |
| `neubay/SafetyHalfCheetah-v4` | NeoRL-2: x is observed; a speed above 3.2096 costs 100 |
| `neubay/AdroitDoor-v1`, `...Hammer-v1` | D4RL's reward, whose reach term is a cost |
| `neubay/AdroitPen-v1` | 100 steps; dropping the pen is terminal |
| `neubay/AntMazeUmaze-v4`, `...Medium-v4`, `...Large-v4` | D4RL's ant, mazes, goals and ending |
| `neubay/Bandit-v1` | the paper's two-armed bandit, of our own making |

D4RL's locomotion data (v2) is evaluated in Gymnasium's v4 environments, Minari's in v5, both
unchanged. `catalogue.py` says which environment belongs to which data.
"""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, Literal, SupportsFloat

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco.ant_v4 import AntEnv
from gymnasium.envs.registration import WrapperSpec
from gymnasium.utils import RecordConstructorArgs
from jaxtyping import Float

from neubay.errors import TaskError

Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


def make(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """One environment by id, with its time limit; `options` go to `gymnasium.make`.

    Never by a spec that came with data: a spec may name any function to call.
    """
    try:
        with _expected_warnings_silenced(), _advice_of_robotics_silenced():
            return gymnasium.make(env_id, disable_env_checker=True, **options)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("gymnasium_robotics"):
            raise TaskError(f"environment '{env_id}' cannot be made: {error}") from None
        raise TaskError(
            f"environment '{env_id}' needs Gymnasium-Robotics; "
            'install it with: pip install "neubay[robotics]"'
        ) from None
    except gymnasium.error.Error as error:
        raise TaskError(f"environment '{env_id}' cannot be made: {error}") from None


@contextmanager
def _expected_warnings_silenced() -> Iterator[None]:
    """Two warnings that say nothing to a user: that v4 is out of date (it is what the data was
    recorded in), and that Gymnasium's half-cheetah sets its mass in a way MuJoCo will drop.
    MuJoCo would also write the latter to a log file in the current directory."""

    def pass_on(message: str) -> None:
        if "settotalmass" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(pass_on)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
            yield
    finally:
        mujoco.set_mju_user_warning(before)


@contextmanager
def _advice_of_robotics_silenced() -> Iterator[None]:
    """On import Gymnasium-Robotics advises users of the hand to use another release, for rewards
    that have changed. Ours are stated in full, in this file."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
    finally:
        others = [line for line in said.getvalue().splitlines() if "AdroitHand" not in line]
        print(*others, sep="\n", end="\n" if others else "", file=sys.stderr)


def describe(env_id: str) -> tuple[int, dict[str, Any], int | None]:
    """What can be read off an environment without stepping it: the size of its states, its actions
    as `action_space` takes them, and T where it states it; `TaskError` where its spaces do not
    fit."""
    env = make(env_id)
    try:
        states, actions, spec = env.observation_space, env.action_space, env.spec
    finally:
        env.close()
    if not isinstance(states, gymnasium.spaces.Box) or len(states.shape) != 1:
        raise TaskError(
            f"environment '{env_id}': observations must be vectors (a 1-dimensional Box), "
            f"got {states}; wrap it with gymnasium.wrappers.FlattenObservation"
        )
    size, horizon = states.shape[0], None if spec is None else spec.max_episode_steps
    if isinstance(actions, gymnasium.spaces.Discrete) and actions.start == 0:
        return size, {"discrete": int(actions.n)}, horizon
    if isinstance(actions, gymnasium.spaces.Box) and len(actions.shape) == 1:
        return size, {"low": actions.low, "high": actions.high}, horizon
    raise TaskError(
        f"environment '{env_id}': actions must be a 1-dimensional Box or Discrete from 0, "
        f"got {actions}"
    )


class Correction(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A change to what one step returns; recorded in the environment's spec, so that data
    collected in it can name it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)


class SpeedLimit(Correction):
    """NeoRL-2's SafetyHalfCheetah: running faster than the limit costs 100 instead of paying."""

    LIMIT = 3.2096

    def step(self, action: Any) -> Step:
        state, reward, terminated, truncated, info = self.env.step(action)
        if info["x_velocity"] > self.LIMIT:
            reward = -100.0
        return state, reward, terminated, truncated, info


class PenDrop(Correction):
    """D4RL's pen: a pen that has fallen off the hand ends the episode.

    The step's penalty of 5 is in the reward already.
    """

    HEIGHT = 26  # of the pen, in the observation

    def step(self, action: Any) -> Step:
        state, reward, terminated, truncated, info = self.env.step(action)
        return state, reward, terminated or bool(state[self.HEIGHT] < 0.075), truncated, info


class DoorReward(Correction):
    """D4RL's dense reward of the door.

    Stated in full rather than as a correction: releases of Gymnasium-Robotics under one id
    differ in the sign of the reach term, and this holds for all of them.
    """

    HINGE = 28  # in the observation
    PALM_TO_HANDLE = slice(35, 38)

    def step(self, action: Any) -> Step:
        state, _, terminated, truncated, info = self.env.step(action)
        reward = self.reward(state, self.get_wrapper_attr("data").qvel)
        return state, reward, terminated, truncated, info

    @classmethod
    def reward(
        cls, state: Float[np.ndarray, "39"], velocity: Float[np.ndarray, " joints"]
    ) -> float:
        """r(s') and the velocities of the hand and the door."""
        angle = state[cls.HINGE]
        reach_cost = 0.1 * np.linalg.norm(state[cls.PALM_TO_HANDLE])
        opening_cost = 0.1 * (angle - 1.57) ** 2
        speed_cost = 1e-5 * np.square(velocity).sum()
        bonus = 2 * (angle > 0.2) + 8 * (angle > 1.0) + 10 * (angle > 1.35)
        return float(bonus - reach_cost - opening_cost - speed_cost)


class HammerReward(Correction):
    """D4RL's dense reward of the hammer, in full for the reason given at `DoorReward`."""

    def step(self, action: Any) -> Step:
        state, _, terminated, truncated, info = self.env.step(action)
        data = self.get_wrapper_attr("data")
        reward = self.reward(
            palm=data.site("S_grasp").xpos,
            hammer=data.body("Object").xpos,
            head=data.site("tool").xpos,
            nail=data.site("S_target").xpos,
            goal=data.site("nail_goal").xpos,
            velocity=data.qvel,
        )
        return state, reward, terminated, truncated, info

    @staticmethod
    def reward(
        palm: Float[np.ndarray, "3"],
        hammer: Float[np.ndarray, "3"],
        head: Float[np.ndarray, "3"],
        nail: Float[np.ndarray, "3"],
        goal: Float[np.ndarray, "3"],
        velocity: Float[np.ndarray, " joints"],
    ) -> float:
        """Positions in the world, and the velocities of the hand and the hammer."""
        to_goal = np.linalg.norm(nail - goal)
        reach_cost = 0.1 * np.linalg.norm(palm - hammer)
        aim_cost = np.linalg.norm(head - nail)
        speed_cost = 1e-2 * np.linalg.norm(velocity)
        lifted = hammer[2] > 0.04 and head[2] > 0.04
        bonus = 2 * lifted + 25 * (to_goal < 0.02) + 75 * (to_goal < 0.01)
        return float(bonus - reach_cost - aim_cost - 10 * to_goal - speed_cost)


MazeName = Literal["umaze", "medium", "large"]

# D4RL's mazes, a row of cells per line: '#' wall, 'S' start, 'G' goal. Cells measure 4 x 4.
MAZES: dict[MazeName, tuple[str, ...]] = {
    "umaze": (
        "#####",
        "#S  #",
        "### #",
        "#G  #",
        "#####",
    ),
    "medium": (
        "########",
        "#S ##  #",
        "#  #   #",
        "##   ###",
        "#  #   #",
        "# #  # #",
        "#   # G#",
        "########",
    ),
    "large": (
        "############",
        "#S   #     #",
        "# ## # # # #",
        "#      #   #",
        "# #### ### #",
        "#  # #     #",
        "## # # # ###",
        "#  #   # G #",
        "############",
    ),
}


class AntMaze(AntEnv):
    """D4RL's AntMaze on Gymnasium's ant.

    The state is the whole qpos and qvel (29): x, y, z, quaternion, joints, velocities. Each
    episode starts in the start cell, at the origin, and draws a goal near the centre of the goal
    cell that the agent does not see. Coming within 0.5 of it gives reward 1 and ends the episode.
    """

    CELL = 4.0
    RADIUS = 0.5
    metadata = {**AntEnv.metadata, "render_fps": 10}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(self, maze: MazeName = "umaze", **options: Any) -> None:
        self.maze = MAZES[maze]
        self.goal = self.goal_cell
        super().__init__(exclude_current_positions_from_observation=False, **options)

    @property
    def goal_cell(self) -> Float[np.ndarray, "2"]:
        """xy of the goal cell's centre."""
        return next(
            self.centre(row, column)
            for row, cells in enumerate(self.maze)
            for column, cell in enumerate(cells)
            if cell == "G"
        )

    @classmethod
    def centre(cls, row: int, column: int) -> Float[np.ndarray, "2"]:
        """xy of a cell's centre: the start cell (1, 1) is the origin, rows run along y."""
        return cls.CELL * np.array([column - 1.0, row - 1.0])

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Gymnasium's ant among walls, with the physics that the data was recorded with."""
        ant = mujoco.MjSpec.from_file(self.fullpath)
        half = self.CELL / 2
        for row, cells in enumerate(self.maze):
            for column, cell in enumerate(cells):
                if cell == "#":
                    ant.worldbody.add_geom(
                        name=f"wall_{row}_{column}",
                        type=mujoco.mjtGeom.mjGEOM_BOX,
                        pos=[*self.centre(row, column), half / 2],
                        size=[half, half, half / 2],
                        contype=1,
                        conaffinity=1,
                        rgba=[0.7, 0.5, 0.3, 1.0],
                    )
        ant.worldbody.add_site(
            name="goal",
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            pos=[*self.goal_cell, 0.0],
            size=[self.RADIUS, 0, 0],
            rgba=[1.0, 0.0, 0.0, 0.7],
        )
        model = ant.compile()
        model.opt.timestep = 0.02  # Gymnasium's ant: 0.01
        model.actuator_gear[:, 0] = 30  # 150
        model.geom_solimp[:, :3] = (0.8, 0.8, 0.01)  # 0.9, 0.95, 0.001
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def reset_model(self) -> Float[np.ndarray, "29"]:
        """Gymnasium's reset noise is D4RL's: U(-0.1, 0.1) on qpos, 0.1 N(0, 1) on qvel."""
        noise = self.np_random.uniform(0, 1, 2) + self.np_random.uniform(0, 0.5, 2)
        self.goal = self.goal_cell + noise
        self.model.site("goal").pos[:2] = self.goal
        state: np.ndarray = super().reset_model()
        return state

    def step(self, action: Any) -> tuple[np.ndarray, np.float64, bool, bool, dict[str, Any]]:
        self.do_simulation(action, self.frame_skip)
        state = self._get_obs()
        success = bool(np.linalg.norm(state[:2] - self.goal) <= self.RADIUS)
        if self.render_mode == "human":
            self.render()
        info = {"success": success, "goal": self.goal.copy()}
        return state, np.float64(success), success, False, info


class Bandit(gymnasium.Env[Any, Any]):
    """The paper's sequential bandit: arm 0 pays 1 with probability 0.5, arm 1 with p1.

    Unless `p1` is given, each episode is one of the paper's test bandits, chosen by the seed of
    the reset: consecutive seeds give equally many of each. There is no state: the observation is
    a constant zero.
    """

    P0 = 0.5
    TEST_P1 = (0.01, 0.3, 0.55, 0.7, 0.99)

    def __init__(self, p1: float | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 0.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.choices = self.TEST_P1 if p1 is None else (p1,)
        self.means = (self.P0, self.choices[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(len(self.choices))) if seed is None else seed
        self.means = (self.P0, self.choices[number % len(self.choices)])
        return np.zeros(1, np.float32), {"p1": self.means[1]}

    def step(self, action: Any) -> Step:
        paid = self.np_random.random() < self.means[int(action)]
        return np.zeros(1, np.float32), float(paid), False, False, {"p1": self.means[1]}


_MUJOCO, _HAND = "gymnasium.envs.mujoco", "gymnasium_robotics.envs.adroit_hand"
_CHEETAH = f"{_MUJOCO}.half_cheetah_v4:HalfCheetahEnv"
_POSITIONS = {"exclude_current_positions_from_observation": False}

# id -> steps, what makes it, its correction, options
_ENVIRONMENTS: dict[str, tuple[int, str, str | None, dict[str, Any] | None]] = {
    "NeoRLHalfCheetah-v4": (1000, _CHEETAH, None, _POSITIONS),
    "NeoRLHopper-v4": (1000, f"{_MUJOCO}.hopper_v4:HopperEnv", None, _POSITIONS),
    "NeoRLWalker2d-v4": (1000, f"{_MUJOCO}.walker2d_v4:Walker2dEnv", None, _POSITIONS),
    "SafetyHalfCheetah-v4": (1000, _CHEETAH, "SpeedLimit", _POSITIONS),
    "AdroitPen-v1": (100, f"{_HAND}.adroit_pen:AdroitHandPenEnv", "PenDrop", None),
    "AdroitDoor-v1": (200, f"{_HAND}.adroit_door:AdroitHandDoorEnv", "DoorReward", None),
    "AdroitHammer-v1": (200, f"{_HAND}.adroit_hammer:AdroitHandHammerEnv", "HammerReward", None),
    **{
        f"AntMaze{maze.title()}-v4": (steps, f"{__name__}:AntMaze", None, {"maze": maze})
        for maze, steps in (("umaze", 700), ("medium", 1000), ("large", 1000))
    },
    "Bandit-v1": (100, f"{__name__}:Bandit", None, None),
}

for _name, (_steps, _entry, _correction, _options) in _ENVIRONMENTS.items():
    gymnasium.register(
        f"neubay/{_name}",
        _entry,
        max_episode_steps=_steps,
        additional_wrappers=()
        if _correction is None
        else (WrapperSpec(_correction, f"{__name__}:{_correction}", {}),),
        kwargs=_options,
    )
