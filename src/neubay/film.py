"""Films of evaluation episodes: frames where the environment renders, paths where it is a maze.

Nothing is scored here: `evaluation.py` does that. The same seed gives the same episode.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from jaxtyping import Float, UInt8

from neubay.errors import NeubayError
from neubay.policy import Policy, load_policy
from neubay.tasks import Task, get_task
from neubay.tasks.environments import AntMaze

FRAMES = 30
"""A film has at least so many frames, if the episode has the steps, and at most twice as many."""


class FilmError(NeubayError):
    """There is nothing to show, and the message says why."""


@dataclass(frozen=True)
class Film:
    """One episode in the task's environment."""

    frames: list[UInt8[np.ndarray, "height width 3"]]
    total: float
    """Its raw return."""
    steps: int
    environment: str


@dataclass(frozen=True)
class MazePaths:
    """Where episodes went in a maze of square cells."""

    maze: tuple[str, ...]
    cell: float
    paths: list[Float[np.ndarray, "_ 2"]]
    goals: Float[np.ndarray, "episodes 2"]
    reached: int


def record(policy_file: Path, task_name: str, seed: int = 0) -> Film:
    """Play one episode with the saved policy and render it."""
    policy, task = _actor(policy_file, task_name)
    with _renderer(), contextlib.closing(_make(task, render_mode="rgb_array")) as env:
        _follow(env)
        frames: list[Any] = []
        total, steps, stride = 0.0, 0, 1
        for number, reward in enumerate(_rewards(env, policy, task, seed)):
            total, steps = total + reward, number
            if number % stride == 0:
                frames.append(_frame(env, task))
            if len(frames) == 2 * FRAMES:  # how long it lasts is known only at its end
                frames, stride = frames[::2], 2 * stride
    return Film(frames, total, steps, str(task.env_name))


def maze_paths(policy_file: Path, task_name: str, episodes: int, seed: int = 0) -> MazePaths | None:
    """Play episodes of an AntMaze and record their paths; none for other tasks."""
    policy, task = _actor(policy_file, task_name)
    with contextlib.closing(_make(task)) as env:
        maze = env.unwrapped
        if not isinstance(maze, AntMaze):
            return None
        paths, goals, reached = [], [], 0
        for number in range(episodes):
            path, total = [], 0.0
            for reward in _rewards(env, policy, task, seed + number):
                path.append(maze.data.qpos[:2].copy())
                total += reward
            paths.append(np.array(path, np.float64))
            goals.append(maze.goal.copy())
            reached += total > 0
        return MazePaths(maze.maze, maze.CELL, paths, np.array(goals, np.float64), reached)


def _rewards(env: Any, policy: Policy, task: Task, seed: int) -> Iterator[float]:
    """Step through an episode; 0 at its start, then each reward after its step."""
    observation, _ = env.reset(seed=seed)
    yield 0.0
    state, reward = None, None
    for _ in range(task.horizon):
        flat = np.asarray(observation, np.float32).reshape(-1)
        action, state = policy.predict(flat, state, reward=reward)
        observation, paid, terminated, truncated, _ = env.step(action)
        reward = float(paid)
        yield reward
        if terminated or truncated:
            return


def _actor(policy_file: Path, task_name: str) -> tuple[Policy, Task]:
    if not policy_file.is_file():
        raise FilmError("There is no saved policy yet, so no episode can be shown.")
    task = get_task(task_name)
    if task.make_env is None:
        raise FilmError(f"The task '{task_name}' has no environment, so no episode can be shown.")
    return load_policy(policy_file), task


def _make(task: Task, **options: Any) -> Any:
    assert task.make_env is not None
    try:
        return task.make_env(**options)
    except TypeError:  # a user's environment without a render mode
        raise FilmError(f"{task.env_name} does not render, so there is nothing to show.") from None


def _follow(env: Any) -> None:
    """Use the model's own tracking camera, where it has one: Gymnasium's does not move along."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        kind = mujoco.mjtObj.mjOBJ_CAMERA
        renderer.camera_id = mujoco.mj_name2id(renderer.model, kind, "track")  # -1: there is none


def _frame(env: Any, task: Task) -> UInt8[np.ndarray, "height width 3"]:
    try:
        frame = env.render()
    except gymnasium.error.DependencyNotInstalled:
        raise FilmError(
            f"{task.env_name} draws with pygame, which is not installed: pip install 'neubay[film]'"
        ) from None
    except Exception as error:  # graphics fail in as many ways as there are drivers
        raise FilmError(
            f"{task.env_name} cannot be drawn on this machine ({type(error).__name__}: "
            f"{str(error)[:200]}). With MuJoCo, MUJOCO_GL=egl or MUJOCO_GL=osmesa may help."
        ) from None
    picture = np.asarray(frame)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise FilmError(f"{task.env_name} renders no picture, so there is nothing to show.")
    return picture


@contextlib.contextmanager
def _renderer() -> Iterator[None]:
    """Without a screen MuJoCo draws through EGL and pygame into memory, unless set otherwise."""
    headless = "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ
    wanted = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}
    if not headless or sys.platform != "linux":
        wanted = {}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
