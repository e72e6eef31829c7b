"""Films of episodes: what is shown is what the policy did, and what cannot be shown is said."""

import inspect
import io
import os
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from PIL import Image

from helpers.report_runs import make_run
from neubay import agents, film
from neubay.cli import main
from neubay.commands import report
from neubay.config import AgentConfig
from neubay.evaluation import evaluate
from neubay.policy import Policy, load_policy
from neubay.report.runs import figures, page, records, reel
from neubay.tasks import ContinuousActions, Task, get_task

TINY = AgentConfig(width=8, memory_size=4, memory_layers=1, heads=2, head_depth=1)


class Lamp(gymnasium.Env[np.ndarray, np.ndarray]):
    """Draws its state as a shade of grey; ends after five steps, paying 1 each."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, size: int = 30) -> None:
        self.size, self.steps = size, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray):
        self.steps += 1
        state = np.full(1, self.steps, np.float32)
        return state, 1.0, self.steps == 5, False, {}

    def render(self) -> np.ndarray:
        return np.full((self.size, self.size, 3), 40 * self.steps, np.uint8)


def saved_policy(task: Task, path: Path) -> Path:
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, TINY)
    Policy(agent, agent.init(jax.random.key(0)), task, TINY).save(path)
    return path


@pytest.fixture
def lamp(monkeypatch: pytest.MonkeyPatch) -> Task:
    task = Task(
        "lamp", state_size=1, actions=ContinuousActions.symmetric(1), horizon=50, make_env=Lamp,
        env_name="Lamp-v0",
    )  # fmt: skip
    monkeypatch.setattr(film, "get_task", lambda name: task)
    return task


@pytest.mark.slow
def test_every_step_of_a_short_episode_is_a_frame(lamp: Task, tmp_path: Path) -> None:
    episode = film.record(saved_policy(lamp, tmp_path / "policy.npz"), "lamp")
    assert (episode.steps, episode.total) == (5, 5.0)
    assert [frame[0, 0, 0] for frame in episode.frames] == [0, 40, 80, 120, 160, 200]


@pytest.mark.slow
def test_a_film_shows_what_evaluation_scores(tmp_path: Path) -> None:
    """The pendulum, which needs no graphics to be played: same seed, same return."""
    task = get_task("pendulum")
    path = saved_policy(task, tmp_path / "policy.npz")
    scored = evaluate(task, load_policy(path).mode, episodes=1, seed=3).returns[0]
    with film._renderer():
        env = film._make(task)
        played = sum(film._rewards(env, load_policy(path), task, 3))
        env.close()
    assert played == pytest.approx(scored, rel=1e-5)
    pytest.importorskip("pygame", reason="the pendulum draws with pygame: neubay[film]")
    episode = film.record(path, "pendulum", seed=3)
    assert episode.total == pytest.approx(scored, rel=1e-5) and episode.steps == 200
    assert film.FRAMES <= len(episode.frames) <= 2 * film.FRAMES


def test_what_cannot_be_shown_is_said(
    lamp: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(film.FilmError, match="no saved policy yet"):
        film.record(tmp_path / "policy.npz", "lamp")
    policy = saved_policy(lamp, tmp_path / "policy.npz")

    def fails(self: Lamp) -> np.ndarray:
        raise RuntimeError("no display")

    monkeypatch.setattr(Lamp, "render", fails)
    with pytest.raises(film.FilmError, match=r"cannot be drawn on this machine.*no display"):
        film.record(policy, "lamp")
    monkeypatch.setattr(Lamp, "render", lambda self: None)
    with pytest.raises(film.FilmError, match="renders no picture"):
        film.record(policy, "lamp")
    missing = gymnasium.error.DependencyNotInstalled("pygame")
    monkeypatch.setattr(Lamp, "render", lambda self: (_ for _ in ()).throw(missing))
    with pytest.raises(film.FilmError, match=r"pip install 'neubay\[film\]'"):
        film.record(policy, "lamp")
    assert "SDL_VIDEODRIVER" not in os.environ, "the surroundings are left as they were"


def test_reels() -> None:
    frames = [np.full((30, 60, 3), shade, np.uint8) for shade in range(0, 250, 10)]
    made = reel.reel(frames, "text")
    assert made.strip is not None and made.film is not None
    with Image.open(io.BytesIO(made.film)) as moving:
        assert moving.n_frames == len(frames) and moving.size == (200, 100)
    with Image.open(io.BytesIO(made.strip)) as strip:
        assert strip.size == (6 * 206 - 6, 100)


@pytest.mark.slow
def test_mazes_are_seen_from_above(tmp_path: Path) -> None:
    task = get_task("antmaze/umaze")
    path = saved_policy(task, tmp_path / "policy.npz")
    short = film.maze_paths(path, "antmaze/umaze", episodes=1, seed=0)
    assert short is not None and short.maze[0] == "#####" and len(short.paths) == 1
    assert np.linalg.norm(short.paths[0][0]) < 0.3, "episodes start at the origin"
    assert np.all(np.linalg.norm(short.goals - [0, 8], axis=1) < 2.2)
    figures.maze_figure(short.maze, short.cell, short.paths, short.goals)
    assert film.maze_paths(
        saved_policy(get_task("pendulum"), tmp_path / "other.npz"), "pendulum", episodes=1
    ) is None  # fmt: skip


@pytest.mark.slow
def test_the_report_holds_the_film(lamp: Task, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", environment="Lamp-v0", extra={"task": "lamp"}, rows=20)
    saved_policy(lamp, run / "policy.npz")
    with pytest.raises(SystemExit) as end:
        main(["report", str(run), "--out", str(tmp_path / "out")])
    assert not end.value.code
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Seed 0 in Lamp-v0: 5 steps, return 5.0." in text and "data:image/gif;base64," in text
    assert (tmp_path / "out" / "figures" / "film.gif").stat().st_size > 100


def test_the_page_of_a_maze_shows_where_episodes_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = film.MazePaths(
        maze=("#####", "#...#", "###.#", "#...#", "#####"),
        cell=4.0,
        paths=[np.array([[0.0, 0.0], [8.0, 0.0], [8.0, 8.0]]), np.array([[0.0, 0.0], [3.0, 0.5]])],
        goals=np.array([[0.0, 8.0], [0.3, 8.2]]),
        reached=1,
    )
    monkeypatch.setattr(film, "maze_paths", lambda *_: walked)
    directory = make_run(tmp_path / "run", extra={"task": "antmaze/umaze"}, rows=20)
    run = records.read(directory)
    made, maze = report._episode(run)
    shown = page.one_run(run, reel=made, maze=maze)
    assert "2 episodes from above; 1 arrived." in shown.html and "Film strip" not in shown.html
    assert [picture.name for picture in shown.pictures][-1] == "maze"
    axes = shown.pictures[-1].figure.axes[0]
    assert len(axes.patches) == 18, "a square per wall"
    assert sum(len(line.get_xdata()) == 3 for line in axes.lines) == 1, "the path that arrived"


def test_the_page_says_why_there_is_no_film(
    lamp: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lamp, "render", lambda self: None)
    directory = make_run(tmp_path / "run", environment="Lamp-v0", extra={"task": "lamp"}, rows=20)
    saved_policy(lamp, directory / "policy.npz")
    run = records.read(directory)
    text = page.one_run(run, reel=report._episode(run)[0]).html
    assert "Lamp-v0 renders no picture, so there is nothing to show." in text


@pytest.mark.slow
def test_a_task_of_a_file_is_played_by_the_id_of_its_environment(tmp_path: Path) -> None:
    """Its name is known to nobody, and a page runs no file and imports no module."""
    ours = replace(get_task("pendulum"), name="my swing")
    path = saved_policy(ours, tmp_path / "policy.npz")
    assert film._known("my swing", load_policy(path).task).make_env is not None
    for environment in ("Nowhere-v0", "os:Pendulum-v1"):
        foreign = replace(ours, env_id=None, make_env=None, env_name=environment)
        with pytest.raises(film.FilmError, match="--task-file FILE"):
            film.record(saved_policy(foreign, path), "my swing")
    none = replace(ours, env_id=None, make_env=None, env_name=None)
    with pytest.raises(film.FilmError, match="'my swing' has no environment"):
        film.record(saved_policy(none, path), "my swing")


@pytest.mark.slow
def test_a_report_is_given_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "lamp.py").write_text(
        "import gymnasium, numpy as np\n"
        + inspect.getsource(Lamp)
        + "from neubay.tasks import ContinuousActions, Task\n"
        "task = Task('my lamp', 1, ContinuousActions.symmetric(1), 50, make_env=Lamp,\n"
        "    env_name='Lamp-v0')\n",
        encoding="utf-8",
    )
    run = make_run(tmp_path / "run", environment="Lamp-v0", extra={"task": "my lamp"}, rows=20)
    task = Task("my lamp", 1, ContinuousActions.symmetric(1), 50, env_name="Lamp-v0")
    saved_policy(task, run / "policy.npz")
    read = records.read(run)
    assert "neubay report RUN --task-file FILE" in report._episode(read)[0].text
    shown = report._episode(read, tmp_path / "lamp.py")[0]
    assert shown.text == "Seed 0 in Lamp-v0: 5 steps, return 5.0." and shown.film is not None
