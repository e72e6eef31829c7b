"""Films of evaluation episodes: frames where the environment renders, paths where it is a maze.

Nothing is scored here: `evaluation.py` does that. The same seed gives the same episode.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from jaxtyping import Float, UInt8

from neubay.errors import NeubayError, TaskError
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


def record(policy_file: Path, task: Task | str, seed: int = 0) -> Film:
    """Play one episode with the saved policy and render it. The task may be named; one of a file,
    whose name nobody knows, is played by the id of its environment."""
    policy, task = _actor(policy_file, task)
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


def maze_paths(
    policy_file: Path, task: Task | str, episodes: int, seed: int = 0
) -> MazePaths | None:
    """Play episodes of an AntMaze and record their paths; none for other tasks."""
    policy, task = _actor(policy_file, task)
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


def _actor(policy_file: Path, task: Task | str) -> tuple[Policy, Task]:
    if not policy_file.is_file():
        raise FilmError("There is no saved policy yet, so no episode can be shown.")
    policy = load_policy(policy_file)
    known = _known(task, policy.task) if isinstance(task, str) else task
    if known.make_env is None:
        raise FilmError(f"The task '{known.name}' has no environment, so no episode can be shown.")
    return policy, known


def _known(name: str, saved: Task) -> Task:
    """The task of that name, or as much of one from a file as its policy remembers."""
    with contextlib.suppress(TaskError):
        return get_task(name)
    if saved.env_name is None:
        return saved
    try:
        if ":" in saved.env_name:  # Gymnasium would import what stands before it
            raise TaskError("is an id that imports a module")
        task = replace(saved, env_id=saved.env_name)
        _make(task).close()
    except TaskError:
        raise FilmError(
            f"The task '{name}' is of a file, which a page does not run, and its environment "
            f"{saved.env_name} is not one of Gymnasium's. To show an episode: "
            "neubay report RUN --task-file FILE"
        ) from None
    return task


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
