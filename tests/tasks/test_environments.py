"""Environments that match the data: a test per correction, and replays of recorded data."""

import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import mujoco
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from neubay import tasks
from neubay.errors import TaskError
from neubay.tasks import ContinuousActions, environments
from neubay.tasks.environments import MAZES, AntMaze, DoorReward, HammerReward

ROBOTICS = "gymnasium_robotics"


def made(task_name: str, **options: Any) -> Any:
    make_env = tasks.get_task(task_name).make_env
    assert make_env is not None
    return make_env(**options)


# ------------------------------------------------------------------------------- every family


@pytest.mark.parametrize("task", tasks.list_tasks(), ids=lambda task: task.name)
def test_the_environment_has_the_tasks_sizes_and_horizon(task: tasks.Task) -> None:
    env = made(task.name)
    state, _ = env.reset(seed=0)
    assert state.shape == (task.state_size,) and np.isfinite(state).all()
    assert env.spec.max_episode_steps == task.horizon
    env.action_space.seed(0)
    action = env.action_space.sample()
    if isinstance(task.actions, ContinuousActions):
        np.testing.assert_array_equal(env.action_space.low, task.actions.low)
        np.testing.assert_array_equal(env.action_space.high, task.actions.high)
    else:
        assert env.action_space.n == task.actions.n
    state, reward, terminated, truncated, _ = env.step(action)
    assert np.isfinite(state).all() and np.isfinite(reward)
    assert not terminated and not truncated
    env.close()


@pytest.mark.parametrize("task", tasks.list_tasks(), ids=lambda task: task.name)
def test_a_spec_that_travels_with_data_makes_the_same_environment(task: tasks.Task) -> None:
    """Minari stores the spec as JSON: corrections must survive that."""
    env = made(task.name)
    with environments._expected_warnings_silenced():
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()), disable_env_checker=True)
    env.action_space.seed(1)
    action = env.action_space.sample()
    state, _ = env.reset(seed=3)
    np.testing.assert_array_equal(state, again.reset(seed=3)[0])
    one, other = env.step(action), again.step(action)
    np.testing.assert_array_equal(one[0], other[0])
    assert one[1] == other[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "d4rl/hopper",
        "d4rl/walker2d",
        "neorl/hopper",
        "neorl/walker2d",
        "mujoco/hopper-v5",
        "mujoco/walker2d-v5",
        "adroit/pen",
        "antmaze/umaze",
        "cartpole",
    ],
)
def test_the_environment_terminates_by_the_tasks_rule(name: str) -> None:
    """In AntMaze the rules differ on purpose (0.25 of the mean goal against 0.5 of the drawn
    one), but neither holds near the start."""
    task, env = tasks.get_task(name), made(name)
    assert task.termination is not None
    state, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(task.horizon):
        next_state, _, terminated, truncated, _ = env.step(env.action_space.sample())
        unit = np.zeros(task.actions.size, np.float32)
        rule = task.termination(state.astype(np.float32), unit, next_state.astype(np.float32))
        assert bool(rule) == terminated
        state = next_state
        if terminated or truncated:
            break
    assert terminated or name == "antmaze/umaze"


def test_nothing_is_printed_warned_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Gymnasium deprecates v4, and MuJoCo logs a complaint about the half-cheetah to a file."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("d4rl/halfcheetah")
        made("neorl2/safetyhalfcheetah")
        made("d4rl/hopper")
    assert list(tmp_path.iterdir()) == []
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.slow
def test_the_hand_is_made_without_advice_to_take_another_release() -> None:
    script = (
        "import sys; from neubay import tasks; tasks.get_task('adroit/door').make_env().close(); "
        "from neubay.tasks import environments as e\n"
        "with e._advice_of_robotics_silenced(): print('something else', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "something else\n")


def test_other_warnings_of_mujoco_are_passed_on() -> None:
    with (
        pytest.warns(UserWarning, match="something else"),
        environments._expected_warnings_silenced(),
    ):
        mujoco.get_mju_user_warning()("something else")
    assert mujoco.get_mju_user_warning() is None


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == ROBOTICS]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, ROBOTICS, None)
    with pytest.raises(TaskError, match=r'pip install "neubay\[robotics\]"'):
        made("adroit/door")
    made("antmaze/umaze")  # needs Gymnasium alone


def test_an_environment_from_nowhere_is_refused() -> None:
    with pytest.raises(TaskError, match="no_such_module"):
        environments.make("no_such_module:Thing-v0")


def test_unsupported_spaces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.MultiDiscrete([2, 2])

    class Endless(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(3)

    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("neubay-test/Odd-v0", Odd)
    gymnasium.register("neubay-test/Endless-v0", Endless)
    with pytest.raises(TaskError, match="MultiDiscrete"):
        tasks.task_from_env("neubay-test/Odd-v0")
    with pytest.raises(TaskError, match="pass horizon"):
        tasks.task_from_env("neubay-test/Endless-v0")
    assert tasks.task_from_env("neubay-test/Endless-v0", horizon=7).horizon == 7


# ------------------------------------------------------------------------------ v4 and v5


@pytest.mark.parametrize("body", ["halfcheetah", "hopper", "walker2d"])
def test_d4rl_data_is_scored_in_v4_and_minaris_in_v5(body: str) -> None:
    for name, version in ((f"d4rl/{body}", 4), (f"mujoco/{body}-v5", 5)):
        task, env = tasks.get_task(name), made(name)
        assert task.env_name == env.spec.id and env.spec.version == version


def test_v4_is_not_v5_a_fall_is_paid_in_one_of_them() -> None:
    paid = {}
    for name in ("d4rl/hopper", "mujoco/hopper-v5"):
        env = made(name)
        env.reset(seed=0)
        qpos, qvel = env.unwrapped.init_qpos.copy(), env.unwrapped.init_qvel.copy()
        qpos[2] = 0.5  # leaning far beyond what counts as upright
        env.unwrapped.set_state(qpos, qvel)
        _, reward, terminated, _, info = env.step(np.zeros(3, np.float32))
        assert terminated
        paid[name] = reward - info["x_velocity"]
    assert paid == pytest.approx({"d4rl/hopper": 1.0, "mujoco/hopper-v5": 0.0}, abs=1e-6)


# ------------------------------------------------------------------------ NeoRL and NeoRL-2


@pytest.mark.parametrize("body", ["halfcheetah", "hopper", "walker2d"])
def test_neorl_observes_x_first_and_is_otherwise_the_same(body: str) -> None:
    plain, neorl = made(f"d4rl/{body}"), made(f"neorl/{body}")
    for env in (plain, neorl):
        env.reset(seed=5)
    neorl.action_space.seed(0)
    for _ in range(10):
        action = neorl.action_space.sample()
        state, reward, *_ = plain.step(action)
        with_x, same_reward, *_ = neorl.step(action)
        np.testing.assert_array_equal(with_x[1:], state)
        assert with_x[0] == neorl.unwrapped.data.qpos[0] and same_reward == reward


@pytest.mark.parametrize("speed", [-2.0, 0.0, 2.5, 2.925, 2.9255, 5.0])
def test_safety_half_cheetah_pays_for_speed_up_to_the_limit(speed: float) -> None:
    env = made("neorl2/safetyhalfcheetah")
    env.reset(seed=0)
    qpos, qvel = env.unwrapped.init_qpos.copy(), env.unwrapped.init_qvel.copy()
    qpos[1], qvel[0] = 2.0, speed  # in the air, where nothing brakes
    env.unwrapped.set_state(qpos, qvel)
    action = np.full(6, 0.3, np.float32)
    state, reward, terminated, _, _ = env.step(action)
    velocity = (state[0] - qpos[0]) / 0.05
    rule = -100.0 if velocity > 3.2096 else velocity - 0.1 * np.square(action).sum()
    assert reward == pytest.approx(rule, abs=1e-9) and not terminated
    assert (velocity > 3.2096) == (speed > 2.925), "the cases lie on both sides of the limit"


# -------------------------------------------------------------------------------------- Adroit


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("adroit/door", lambda s: np.linalg.norm(s[35:38])),
        ("adroit/hammer", lambda s: np.linalg.norm(s[33:36] - s[36:39])),
    ],
)
def test_reaching_is_a_cost_whatever_sign_the_release_gives_it(name: str, reach: Any) -> None:
    """Gymnasium-Robotics adds or subtracts 0.1 |palm - object| depending on the release; D4RL
    subtracts it. All else agrees, so the rewards differ by 0 or by 0.2 |palm - object|."""
    env = made(name)
    release = env.unwrapped  # beneath our wrapper
    env.reset(seed=0)
    env.action_space.seed(0)
    factors = []
    for _ in range(30):
        before = release.get_env_state()
        before.pop("target_pos", None)
        action = env.action_space.sample()
        state, reward, *_ = env.step(action)
        after = release.get_env_state()
        after.pop("target_pos", None)
        # The release's own reward of the same step: rewind, forget the solver's warm start.
        release.set_env_state(before)
        release_state, release_reward, *_ = release.step(action)
        release.set_env_state(after)
        np.testing.assert_allclose(release_state, state, atol=1e-3)
        factors.append((release_reward - reward) / reach(state))
    np.testing.assert_allclose(factors, np.round(np.mean(factors), 1), atol=2e-3)
    adds_it = metadata.version("gymnasium-robotics") == "1.4.2"  # of the releases that are known
    assert np.round(np.mean(factors), 1) in ((0.2,) if adds_it else (0.0, 0.2))


def test_door_bonuses() -> None:
    def reward(angle: float) -> float:
        state = np.zeros(39)
        state[28] = angle
        return DoorReward.reward(state, np.zeros(30)) + 0.1 * (angle - 1.57) ** 2

    got = [reward(angle) for angle in (0.0, 0.2, 0.21, 1.0, 1.01, 1.35, 1.36)]
    np.testing.assert_allclose(got, [0, 0, 2, 2, 10, 10, 20])
    far = np.zeros(39)
    far[35:38] = (0.3, 0.0, 0.4)
    assert DoorReward.reward(far, np.zeros(30)) == pytest.approx(-0.05 - 0.1 * 1.57**2)
    still = DoorReward.reward(np.zeros(39), np.zeros(30))
    assert still - DoorReward.reward(np.zeros(39), np.full(30, 10.0)) == pytest.approx(0.03)


def test_hammer_bonuses() -> None:
    def reward(distance: float, height: float, palm: float = 0.0) -> float:
        lifted = np.array([0.0, 0.0, height])
        nail = lifted.copy()
        goal = nail + np.array([distance, 0.0, 0.0])
        return HammerReward.reward(
            palm=lifted + np.array([palm, 0.0, 0.0]),
            hammer=lifted,
            head=lifted,
            nail=nail,
            goal=goal,
            velocity=np.zeros(33),
        )

    assert reward(0.1, height=0.0) == pytest.approx(-1.0)
    assert reward(0.1, height=0.05) == pytest.approx(-1.0 + 2)
    assert reward(0.015, height=0.0) == pytest.approx(-0.15 + 25)
    assert reward(0.005, height=0.05) == pytest.approx(-0.05 + 2 + 25 + 75)
    assert reward(0.1, height=0.0, palm=0.5) == pytest.approx(-1.0 - 0.05)


def test_the_pen_has_100_steps() -> None:
    """With the drop looked away from, so that the episode lasts."""
    env = made("adroit/pen")
    env.reset(seed=0)
    time_limit = env.env  # beneath the correction
    for step in range(100):
        _, _, terminated, truncated, _ = time_limit.step(np.zeros(24, np.float32))
        assert not terminated and truncated == (step == 99)


def test_a_dropped_pen_ends_the_episode_at_its_penalty() -> None:
    env = made("adroit/pen")
    env.reset(seed=0)
    held = env.step(np.zeros(24, np.float32))
    state = env.unwrapped.get_env_state()
    state["qpos"][-6:-4] += (0.2, -0.4)  # the pen: down (its x axis points there) and off the hand
    env.unwrapped.set_env_state(state)
    dropped = env.step(np.zeros(24, np.float32))
    assert held[0][26] > 0.075 > dropped[0][26]
    assert (held[2], dropped[2]) == (False, True)
    assert dropped[1] < -4, "the penalty of 5 is in the reward of that step"


# ------------------------------------------------------------------------------------- AntMaze


@pytest.fixture(params=list(MAZES))
def maze(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_maze_is_d4rls(maze: str) -> None:
    maps = pytest.importorskip(f"{ROBOTICS}.envs.maze.maps")
    layout = {"umaze": maps.U_MAZE, "medium": maps.MEDIUM_MAZE, "large": maps.LARGE_MAZE}[maze]
    assert [[int(cell == "#") for cell in row] for row in MAZES[maze]] == layout
    assert MAZES[maze][1][1] == "S" and sum(row.count("G") for row in MAZES[maze]) == 1


def test_physics_of_the_ant(maze: str) -> None:
    model = made(f"antmaze/{maze}").unwrapped.model
    assert model.opt.timestep == 0.02
    np.testing.assert_array_equal(model.actuator_gear[:, 0], 30)
    np.testing.assert_array_equal(model.actuator_ctrlrange, [[-1, 1]] * 8)
    np.testing.assert_allclose(model.geom_solimp[:, :3], [[0.8, 0.8, 0.01]] * model.ngeom)
    np.testing.assert_allclose(model.geom_solref, [[0.02, 1]] * model.ngeom)


def robotics_maze(maze: str) -> Any:
    """Gymnasium-Robotics' AntMaze with D4RL's physics: an independent way to the same thing.
    Its rows run downwards, so the map is flipped; D4RL's xy is its xy plus the shift."""
    module = pytest.importorskip(f"{ROBOTICS}.envs.maze.ant_maze_v4")
    flipped = [[int(cell == "#") for cell in row] for row in MAZES[maze][::-1]]
    module.AntMazeEnv.metadata["render_fps"] = 20
    env = module.AntMazeEnv(maze_map=flipped)
    Path(env.tmp_xml_file_path).unlink()
    model = env.ant_env.model
    model.opt.timestep = 0.02
    model.actuator_gear[:, 0] = 30
    model.geom_solimp[:, :3] = (0.8, 0.8, 0.01)
    extent = 4 * np.array([len(flipped[0]), len(flipped)])
    return env.ant_env, extent / 2 - 6


def test_geometry_equals_gymnasium_robotics_flipped_and_shifted(maze: str) -> None:
    ours = made(f"antmaze/{maze}").unwrapped
    theirs, shift = robotics_maze(maze)

    def walls(model: mujoco.MjModel, moved: np.ndarray) -> list[tuple[float, ...]]:
        boxes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_BOX)
        columns = (
            model.geom_pos[boxes] + np.append(moved, 0),
            model.geom_size[boxes],
            model.geom_friction[boxes],
            model.geom_margin[boxes, None],
            model.geom_contype[boxes, None],
            model.geom_conaffinity[boxes, None],
            model.geom_condim[boxes, None],
        )
        return sorted(map(tuple, np.concatenate(columns, axis=1).tolist()))

    assert walls(ours.model, np.zeros(2)) == walls(theirs.model, shift)
    assert ours.model.nq == theirs.model.nq == 15 and ours.model.nv == theirs.model.nv == 14
    np.testing.assert_array_equal(ours.model.body_mass, theirs.model.body_mass)
    np.testing.assert_array_equal(ours.model.dof_damping, theirs.model.dof_damping)


def test_steps_equal_those_of_gymnasium_robotics(maze: str) -> None:
    """From the start cell and from against a wall, ten steps each."""
    env = made(f"antmaze/{maze}")
    theirs, shift = robotics_maze(maze)
    for x in (0.0, -1.3):
        env.reset(seed=1)
        qpos, qvel = env.unwrapped.init_qpos.copy(), env.unwrapped.init_qvel.copy()
        qpos[0] += x
        env.unwrapped.set_state(qpos, qvel)
        qpos[:2] -= shift
        theirs.reset(seed=1)
        theirs.set_state(qpos, qvel)
        env.action_space.seed(2)
        for _ in range(10):
            action = env.action_space.sample()
            state, *_ = env.step(action)
            other, *_ = theirs.step(action)
            other[:2] += shift
            np.testing.assert_allclose(state, other, atol=1e-5)


def test_start_and_goal_are_drawn_as_in_d4rl(maze: str) -> None:
    env = made(f"antmaze/{maze}")
    cell = {"umaze": (0, 8), "medium": (20, 20), "large": (32, 24)}[maze]
    resting = np.concatenate([env.unwrapped.init_qpos, env.unwrapped.init_qvel])
    np.testing.assert_array_equal(resting[:3], (0, 0, 0.75))
    states, goals = [], []
    for seed in range(400):
        state, _ = env.reset(seed=seed)
        states.append(state - resting)
        goals.append(env.unwrapped.goal - cell)
    positions, velocities = np.array(states)[:, :15], np.array(states)[:, 15:]
    assert np.abs(positions).max() <= 0.1
    np.testing.assert_allclose(positions.std(0), 0.2 / np.sqrt(12), rtol=0.15)
    np.testing.assert_allclose(velocities.std(0), 0.1, rtol=0.15)
    assert np.min(goals) >= 0 and np.max(goals) <= 1.5
    np.testing.assert_allclose(np.mean(goals, 0), 0.75, atol=0.06)
    np.testing.assert_allclose(np.std(goals, 0), np.sqrt((1 + 0.25) / 12), rtol=0.12)
    assert env.reset(seed=7)[0] == pytest.approx(env.reset(seed=7)[0], abs=0)


def test_the_rule_of_imagined_rollouts_is_around_the_mean_goal(maze: str) -> None:
    task = tasks.get_task(f"antmaze/{maze}")
    assert task.termination is not None
    mean_goal = made(task.name).unwrapped.goal_cell + 0.75
    state = np.zeros((3, 29), np.float32)
    state[:, :2] = mean_goal
    state[1, 0] += 0.24
    state[2, 0] += 0.26
    got = task.termination(state, np.zeros((3, 8), np.float32), state)
    np.testing.assert_array_equal(got, [True, True, False])


@pytest.mark.parametrize(("distance", "success"), [(0.49, True), (0.51, False)])
def test_success_within_half_a_metre_pays_one_and_ends_the_episode(
    distance: float, success: bool
) -> None:
    env = made("antmaze/umaze")
    env.reset(seed=0)
    env.unwrapped.set_state(env.unwrapped.init_qpos, env.unwrapped.init_qvel)
    state, *_ = env.step(np.zeros(8, np.float32))
    env.unwrapped.set_state(env.unwrapped.init_qpos, env.unwrapped.init_qvel)
    env.unwrapped.goal = state[:2] + np.array([distance, 0.0])
    _, reward, terminated, truncated, info = env.step(np.zeros(8, np.float32))
    assert (reward, terminated, truncated) == (float(success), success, False)
    assert info["success"] == success


def test_an_ant_on_its_back_goes_on_until_the_time_is_up() -> None:
    env = made("antmaze/umaze", max_episode_steps=5)
    env.reset(seed=0)
    qpos = env.unwrapped.init_qpos.copy()
    qpos[3:7] = (0, 1, 0, 0)
    env.unwrapped.set_state(qpos, env.unwrapped.init_qvel)
    ends = [env.step(np.zeros(8, np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_cells_are_four_apart_from_the_origin() -> None:
    np.testing.assert_array_equal(AntMaze.centre(1, 1), (0, 0))
    np.testing.assert_array_equal(AntMaze.centre(3, 1), (0, 8))
    np.testing.assert_array_equal(AntMaze.centre(1, 3), (8, 0))


def test_render_shows_the_goal() -> None:
    env = made("antmaze/umaze", render_mode="rgb_array")
    env.reset(seed=0)
    np.testing.assert_allclose(env.unwrapped.data.site("goal").xpos[:2], env.unwrapped.goal)


# ------------------------------------------------------------------------ replays of real data

ROWS = 150


def sampled_rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).choice(count, ROWS, replace=False)


@pytest.mark.parametrize(
    ("file", "task", "positions"),
    [
        ("hopper_random", "d4rl/hopper", 5),
        ("hopper_medium_replay", "d4rl/hopper", 5),
        ("hopper_medium", "d4rl/hopper", 5),
        ("hopper_medium_expert", "d4rl/hopper", 5),
        ("halfcheetah_random", "d4rl/halfcheetah", 8),
        ("halfcheetah_medium_replay", "d4rl/halfcheetah", 8),
        ("halfcheetah_medium_expert", "d4rl/halfcheetah", 8),
    ],
)
def test_recorded_locomotion_replays(
    shared_data: Path, file: str, task: str, positions: int
) -> None:
    """Each recorded row, put back into the simulator with x = 0, leads to the recorded next
    state (to 1.6e-3; 1e-5 in the median), reward (to 1e-5) and end."""
    with h5py.File(shared_data / f"{file}.hdf5") as data:
        states, actions, rewards, next_states, terminals = (
            data[key][:]
            for key in ("observations", "actions", "rewards", "next_observations", "terminals")
        )
    env, errors = made(task), []
    env.reset(seed=0)
    for row in sampled_rows(len(states)):
        state = states[row].astype(np.float64)
        if task == "d4rl/hopper" and (np.abs(state[positions:]) >= 10).any():
            continue  # Hopper's observation clips velocities: the true one is not on record
        env.reset()
        env.unwrapped.set_state(np.append(0.0, state[:positions]), state[positions:])
        next_state, reward, terminated, _, _ = env.step(actions[row])
        errors.append(np.abs(next_state - next_states[row]).max())
        assert abs(reward - rewards[row]) < 1e-5
        assert terminated == terminals[row]
    assert len(errors) > ROWS / 2
    assert max(errors) < 1.6e-3 and np.median(errors) < 1e-5


@pytest.mark.parametrize("part", ["train", "val"])
def test_recorded_safety_half_cheetah_replays(shared_data: Path, part: str) -> None:
    path = shared_data / f"neorl2_SafetyHalfCheetah_{part}.npz"
    with np.load(path, allow_pickle=False) as data:
        states, actions, rewards, next_states = (
            data[key] for key in ("obs", "action", "reward", "next_obs")
        )
    env, errors = made("neorl2/safetyhalfcheetah"), []
    for row in sampled_rows(len(states)):
        env.reset(seed=0)
        state = states[row].astype(np.float64)
        env.unwrapped.set_state(state[:9], state[9:])
        next_state, reward, *_ = env.step(actions[row])
        errors.append(np.abs(next_state - next_states[row]).max())
        assert abs(reward - rewards[row]) < 1.5e-4
    assert max(errors) < 7e-4 and np.median(errors) < 1e-5
    assert rewards.min() > -100, "no row has the penalty: only the rule tells of it"


def test_recorded_antmaze_replays(shared_data: Path) -> None:
    """With the evaluation goal of the recording, which is the mean goal; a third of the rows are
    successes, where reward and end of the *next* state are recorded."""
    with h5py.File(shared_data / "antmaze_umaze_diverse.hdf5") as data:
        states, actions, rewards, terminals, timeouts = (
            data[key][:] for key in ("observations", "actions", "rewards", "terminals", "timeouts")
        )
    inside = np.flatnonzero(~timeouts)  # a timeout's row has no successor on record
    wins = inside[rewards[inside] == 1]
    env, errors = made("antmaze/umaze"), []
    picked = np.append(inside[sampled_rows(len(inside))], wins[sampled_rows(len(wins))[:50]])
    for row in picked:
        env.reset(seed=0)
        state = states[row].astype(np.float64)
        env.unwrapped.set_state(state[:15], state[15:])
        env.unwrapped.goal = np.array([0.75, 8.75])
        next_state, reward, terminated, _, _ = env.step(actions[row])
        errors.append(np.abs(next_state - states[row + 1]).max())
        assert (reward, terminated) == (rewards[row], terminals[row])
    assert max(errors) < 1e-5 and np.median(errors) < 1e-6


class RecordedDoor:
    """Puts recorded observations of the door back into the simulator. The arm's slide and the
    door's place are not observed, but follow from the palm's and the handle's positions."""

    SLIDE = 1  # it moves the palm along y

    def __init__(self) -> None:
        self.env = made("adroit/door")
        self.env.reset(seed=0)
        self.door = self.env.unwrapped

    def solve(self, recorded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """qpos and the door's place, whose observation this is."""
        qpos, place = np.zeros(30), np.zeros(3)
        qpos[1:28], qpos[29], qpos[28] = recorded[:27], recorded[27], recorded[28]
        for _ in range(2):
            observed = self.observe(qpos, place)
            qpos[0] += recorded[29 + self.SLIDE] - observed[29 + self.SLIDE]
            place = place + recorded[32:35] - observed[32:35]
        return qpos, place

    def observe(self, qpos: np.ndarray, place: np.ndarray) -> np.ndarray:
        self.set(qpos, np.zeros(30), place)
        observed: np.ndarray = self.door._get_obs()
        return observed

    def set(self, qpos: np.ndarray, qvel: np.ndarray, place: np.ndarray) -> None:
        self.door.set_env_state({"qpos": qpos, "qvel": qvel, "door_body_pos": place})


def test_recorded_door_states_are_states_of_this_door(shared_data: Path) -> None:
    """Every observation is that of a state here. Positions are read one simulator step (2 ms)
    before the joints, hence 5 mm."""
    with h5py.File(shared_data / "door_human.hdf5") as data:
        states = data["observations"][:].astype(np.float64)
    simulator = RecordedDoor()
    for row in sampled_rows(len(states)):
        observed = simulator.observe(*simulator.solve(states[row]))
        np.testing.assert_allclose(observed, states[row], atol=5e-3)


def test_recorded_door_replays(shared_data: Path) -> None:
    """One step from a recorded state, with the recorded action, leads to the recorded next state
    and reward, as far as the record tells: velocities are not observed and are taken from the
    states before and after, and actions were clipped. So joints are met to 0.05 rad (in the median
    0.005, a sixth of what they move), the palm and the handle to 6 mm, rewards to 5e-3
    (in the median 2e-4)."""
    with h5py.File(shared_data / "door_human.hdf5") as data:
        states = data["observations"][:].astype(np.float64)
        actions, rewards, last = (data[key][:] for key in ("actions", "rewards", "timeouts"))
    inside = np.flatnonzero(~last[:-2] & ~last[1:-1]) + 1  # with a row before and one after
    simulator = RecordedDoor()
    misses, moves, surprises = [], [], []
    for row in inside[sampled_rows(len(inside))]:
        before, (qpos, place), after = (simulator.solve(states[row + i]) for i in (-1, 0, 1))
        velocity = (after[0] - before[0]) / (2 * simulator.door.dt)
        simulator.set(qpos, velocity, place)
        next_state, reward, *_ = simulator.env.step(actions[row])
        misses.append(np.abs(next_state - states[row + 1]))
        moves.append(np.abs(states[row] - states[row + 1]).max())
        surprises.append(abs(reward - rewards[row]))
    joints, positions = np.array(misses)[:, :29].max(1), np.array(misses)[:, 29:38]
    assert joints.max() < 0.05 and np.median(joints) < 0.005 < np.median(moves) / 6
    assert positions.max() < 6e-3
    assert max(surprises) < 5e-3 and np.median(surprises) < 2e-4


def test_recorded_door_rewards_confirm_the_sign(shared_data: Path) -> None:
    """Velocities are not observed but follow from the joints before and after (the arm's slide,
    unobserved, is slow). With reaching as a cost the recorded rewards are met; as a gain, not."""
    with h5py.File(shared_data / "door_human.hdf5") as data:
        states = data["observations"][:].astype(np.float64)
        rewards, last = data["rewards"][:], data["timeouts"][:]
    rows = np.flatnonzero(~last[:-2] & ~last[1:-1])
    velocity = (states[rows + 2] - states[rows])[:, :29] / 0.02
    ours = np.array(
        [DoorReward.reward(s, v) for s, v in zip(states[rows + 1], velocity, strict=True)]
    )
    reach = np.linalg.norm(states[rows + 1, DoorReward.PALM_TO_HANDLE], axis=1)
    as_cost = np.abs(rewards[rows] - ours)
    as_gain = np.abs(rewards[rows] - (ours + 0.2 * reach))
    assert np.median(as_cost) < 1e-4 and as_cost.max() < 1e-2
    assert np.median(as_gain) > 5e-3 and as_gain.max() > 0.1
