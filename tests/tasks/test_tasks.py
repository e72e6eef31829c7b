"""Tasks: what is known of each environment family, and how a dataset's name is read."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from neubay import published, tasks
from neubay.config import preset
from neubay.errors import TaskError
from neubay.tasks import ContinuousActions, DiscreteActions, Reference, Task, catalogue


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(catalogue, "_TASKS", dict(catalogue._TASKS))


# --------------------------------------------------------------------------------------- facts

# states, actions, T, random, expert: typed from the sheet of facts.
FACTS = {
    "d4rl/halfcheetah": (17, 6, 1000, -280.178953, 12135.0),
    "d4rl/hopper": (11, 3, 1000, -20.272305, 3234.3),
    "d4rl/walker2d": (17, 6, 1000, 1.629008, 4592.3),
    "neorl/halfcheetah": (18, 6, 1000, -298, 12284),
    "neorl/hopper": (12, 3, 1000, 5, 3294),
    "neorl/walker2d": (18, 6, 1000, 1, 5143),
    "neorl2/safetyhalfcheetah": (18, 6, 1000, -283, 2507),
    "adroit/pen": (45, 24, 100, 96.262799, 3076.8331017826877),
    "adroit/door": (39, 28, 200, -56.512833, 2880.5693087298737),
    "adroit/hammer": (46, 26, 200, -274.856578, 12794.134825156867),
    "antmaze/umaze": (29, 8, 700, 0, 1),
    "antmaze/medium": (29, 8, 1000, 0, 1),
    "antmaze/large": (29, 8, 1000, 0, 1),
}


@pytest.mark.parametrize("name", FACTS)
def test_sizes_horizons_and_references(name: str) -> None:
    task = tasks.get_task(name)
    states, actions, horizon, random, expert = FACTS[name]
    assert (task.state_size, task.actions.size, task.horizon) == (states, actions, horizon)
    assert task.reference is not None
    assert (task.reference.random, task.reference.expert) == (random, expert)
    np.testing.assert_allclose(task.score(np.array([random, expert])), [0, 100], atol=1e-9)


def test_only_antmaze_shifts_rewards_and_runs_on_after_a_terminal() -> None:
    for task in tasks.list_tasks():
        is_antmaze = task.name.startswith("antmaze/")
        assert task.reward_shift == (-1.0 if is_antmaze else 0.0)
        assert task.split_by_timeouts_only == is_antmaze
        assert task.world_skips_terminals == is_antmaze
        assert task.world_skips_timeouts == task.name.startswith(("d4rl/", "neorl/"))


def test_without_a_reference_there_is_no_score() -> None:
    assert tasks.get_task("pendulum").score(np.array([-1000.0])) is None


def test_v4_and_v5_are_two_tasks() -> None:
    assert tasks.get_task("d4rl/hopper").env_name == "Hopper-v4"
    assert tasks.get_task("mujoco/hopper-v5").env_name == "Hopper-v5"


@pytest.mark.slow
def test_importing_tasks_does_not_import_gymnasium() -> None:
    code = "import sys, neubay.tasks; sys.exit('gymnasium' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ------------------------------------------------------------------------------- termination


def terminal(name: str, next_state: np.ndarray) -> np.ndarray:
    task = tasks.get_task(name)
    assert task.termination is not None
    batch = next_state.shape[:-1]
    state = jnp.zeros((*batch, task.state_size))
    action = jnp.zeros((*batch, task.actions.size))
    return np.asarray(jax.jit(task.termination)(state, action, jnp.asarray(next_state)))


def slow_terminal(name: str, s: np.ndarray) -> bool:
    """The sheet of facts, one state at a time, in plain Python."""
    f32 = np.float32
    if name in ("d4rl/hopper", "neorl/hopper"):
        i = 1 if name.startswith("neorl") else 0
        healthy = all(np.isfinite(v) for v in s)
        healthy = healthy and all(abs(v) < 100 for v in s[i + 1 :])
        return not (healthy and s[i] > f32(0.7) and abs(s[i + 1]) < f32(0.2))
    if name in ("d4rl/walker2d", "neorl/walker2d"):
        i = 1 if name.startswith("neorl") else 0
        return not (f32(0.8) < s[i] < 2.0 and abs(s[i + 1]) < 1.0)
    if name == "adroit/pen":
        return bool(s[26] < f32(0.075))
    if name == "cartpole":
        return bool(abs(s[0]) > f32(2.4) or abs(s[2]) > f32(12 * np.pi / 180))
    goals = {"umaze": (0.75, 8.75), "medium": (20.75, 20.75), "large": (32.75, 24.75)}
    goal = goals[name.removeprefix("antmaze/")]
    return bool(np.hypot(s[0] - f32(goal[0]), s[1] - f32(goal[1])) < 0.25)


# A state in the middle of what is healthy, and how far around it to look.
AROUND = {
    "d4rl/hopper": ({0: 0.7}, 0.25),
    "neorl/hopper": ({1: 0.7}, 0.25),
    "d4rl/walker2d": ({0: 1.4}, 1.2),
    "neorl/walker2d": ({1: 1.4}, 1.2),
    "adroit/pen": ({26: 0.075}, 0.1),
    "cartpole": ({}, 3.0),
    "antmaze/umaze": ({0: 0.75, 1: 8.75}, 0.3),
    "antmaze/medium": ({0: 20.75, 1: 20.75}, 0.3),
    "antmaze/large": ({0: 32.75, 1: 24.75}, 0.3),
}


@pytest.mark.parametrize("name", AROUND)
def test_termination_equals_the_rule_written_plainly(name: str) -> None:
    centre, spread = AROUND[name]
    rng = np.random.default_rng(0)
    states = rng.uniform(-spread, spread, (4, 250, tasks.get_task(name).state_size))
    for index, value in centre.items():
        states[..., index] += value
    states = states.astype(np.float32)
    # Where the rule speaks of every entry, some entries are far out or not finite.
    wild = rng.random((4, 250)) < 0.3
    states[wild, rng.integers(0, states.shape[-1], wild.sum())] = rng.choice(
        np.array([99.9, 100.0, -101.0, np.inf, -np.inf, np.nan], np.float32), wild.sum()
    )
    expected = np.array([[slow_terminal(name, s) for s in row] for row in states])
    got = terminal(name, states)
    assert got.shape == (4, 250) and got.dtype == bool
    np.testing.assert_array_equal(got, expected)
    assert 0.02 < expected.mean() < 0.98, "the states should fall on both sides of the rule"


@pytest.mark.parametrize("name", ["d4rl/hopper", "d4rl/walker2d", "neorl/hopper"])
def test_a_state_that_is_not_a_number_is_terminal(name: str) -> None:
    state = np.full(tasks.get_task(name).state_size, np.nan, np.float32)
    assert terminal(name, state)


def test_hopper_is_terminal_when_its_height_alone_is_infinite() -> None:
    """The height is not among the entries below 100, so only finiteness catches it."""
    state = np.zeros(11, np.float32)
    state[0] = np.inf
    assert terminal("d4rl/hopper", state)
    state[0] = 200.0
    assert not terminal("d4rl/hopper", state)


def test_half_cheetah_door_and_hammer_never_terminate() -> None:
    for name in ("d4rl/halfcheetah", "neorl/halfcheetah", "adroit/door", "adroit/hammer"):
        assert tasks.get_task(name).termination is None


# --------------------------------------------------------------------------------- actions

bounds = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float32, n, elements=st.floats(-50, 50, width=32)),
        hnp.arrays(np.float32, n, elements=st.floats(0.125, 50, width=32)),
        st.integers(0, 2**31),
    )
)


@given(bounds)
def test_actions_go_to_the_unit_box_and_back(drawn: tuple[np.ndarray, np.ndarray, int]) -> None:
    low, width, seed = drawn
    high = low + width
    task = Task("t", 1, ContinuousActions(low, high), horizon=1)
    # Where the bounds are far from zero, a float32 cannot tell nearby actions apart.
    resolution = np.spacing(np.maximum(np.abs(low), np.abs(high)))
    actions = np.random.default_rng(seed).uniform(low, high, (3, 4, len(low))).astype(np.float32)
    unit = task.to_unit(actions)
    assert unit.dtype == np.float32 and unit.shape == actions.shape
    assert (np.abs(unit) <= 1 + 1e-5 + 4 * resolution / width).all()
    assert (np.abs(task.from_unit(unit) - actions) <= 2 * resolution + 1e-6 * width).all()
    np.testing.assert_allclose(task.to_unit(low), -1, atol=1e-6)
    np.testing.assert_allclose(task.to_unit(high), 1, atol=1e-6)


def test_unit_bounds_change_nothing() -> None:
    task = tasks.get_task("d4rl/hopper")
    actions = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    assert task.to_unit(actions) is actions and task.from_unit(actions) is actions


@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_discrete_actions_are_one_hot_on_the_tape(n: int, chosen: list[int]) -> None:
    actions = np.array(chosen) % n
    task = Task("t", 1, DiscreteActions(n), horizon=1)
    unit = task.to_unit(actions)
    assert unit.shape == (len(chosen), n) and (unit.sum(-1) == 1).all()
    np.testing.assert_array_equal(task.from_unit(unit), actions)
    np.testing.assert_array_equal(task.to_unit(actions.astype(np.float32)), unit)


@pytest.mark.parametrize("actions", [[0, 2], [-1], [0.5], ["left"]])
def test_actions_that_do_not_exist_are_refused(actions: list) -> None:
    with pytest.raises(TaskError, match="cartpole"):
        tasks.get_task("cartpole").to_unit(np.array(actions))


def test_actions_of_another_size_are_refused() -> None:
    with pytest.raises(TaskError, match="3 action dimensions"):
        tasks.get_task("d4rl/hopper").to_unit(np.zeros((5, 4)))


@pytest.mark.parametrize(
    ("low", "high"), [([0.0], [0.0]), ([0.0], [np.inf]), ([0.0, 0.0], [1.0]), ([], [])]
)
def test_bounds_without_an_inside_are_refused(low: list[float], high: list[float]) -> None:
    with pytest.raises(TaskError, match="bounds"):
        ContinuousActions(np.array(low), np.array(high))


def test_actions_and_tasks_compare_and_hash() -> None:
    unit = ContinuousActions.symmetric(3)
    assert unit == ContinuousActions.symmetric(3) != ContinuousActions.symmetric(3, bound=2.0)
    assert hash(unit) == hash(ContinuousActions.symmetric(3))
    assert len(set(tasks.list_tasks())) == len(tasks.list_tasks())
    hopper = tasks.get_task("d4rl/hopper")
    assert hopper == hopper and hopper != dataclasses.replace(hopper, name="other")


# -------------------------------------------------------------------------------- registry


def test_a_task_of_ones_own_takes_a_few_lines(registry: None) -> None:
    tasks.register_task(
        Task(
            name="mine",
            state_size=3,
            actions=ContinuousActions.symmetric(1, bound=2.0),
            horizon=200,
            env_id="Pendulum-v1",
        )
    )
    task = tasks.get_task("mine")
    assert task.make_env is not None and task.env_name == "Pendulum-v1"
    env = task.make_env()
    state, _ = env.reset(seed=0)
    assert state.shape == (task.state_size,)
    env.step(task.from_unit(np.array([0.5], np.float32)))
    assert tasks.identify("mine") == (task, None)


def test_a_task_without_simulator_or_rule_is_a_task(registry: None) -> None:
    task = tasks.register_task(Task("logs", 7, DiscreteActions(4), horizon=50))
    assert task.make_env is None and task.env_name is None and task.termination is None


def test_a_name_is_taken_once(registry: None) -> None:
    with pytest.raises(TaskError, match="registered already"):
        tasks.register_task(dataclasses.replace(tasks.get_task("pendulum"), horizon=3))


@pytest.mark.parametrize("wrong", [{"name": ""}, {"state_size": 0}, {"horizon": 0}])
def test_nonsense_is_refused(wrong: dict) -> None:
    with pytest.raises(TaskError):
        dataclasses.replace(tasks.get_task("pendulum"), **wrong)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("d4rl/hoper", "d4rl/hopper"),
        ("hopper", "d4rl/hopper"),
        ("Hopper-v5", "mujoco/hopper-v5"),
        ("Walker2d-v4", "d4rl/walker2d"),
        ("pen-human-v1", "adroit/pen"),
        ("HalfCheetah-v3-Low", "neorl/halfcheetah"),
        ("Pendulum-v1", "pendulum"),
    ],
)
def test_an_unknown_task_gets_a_suggestion(asked: str, meant: str) -> None:
    with pytest.raises(TaskError, match=f"did you mean '{meant}'"):
        tasks.get_task(asked)


def test_an_unknown_task_unlike_any_lists_them() -> None:
    with pytest.raises(TaskError, match="known tasks: d4rl/halfcheetah"):
        tasks.get_task("zzzzzz")


@pytest.mark.parametrize("name", ["pendulum", "cartpole", "d4rl/walker2d", "neorl/hopper"])
def test_a_task_read_off_an_environment_is_the_one_written_down(name: str) -> None:
    known = tasks.get_task(name)
    assert known.env_id is not None
    read = tasks.task_from_env(known.env_id)
    assert read.name == known.env_id
    assert (read.state_size, read.actions) == (known.state_size, known.actions)
    assert (read.horizon, read.env_name) == (known.horizon, known.env_name)


def test_task_from_env_takes_what_cannot_be_read_off() -> None:
    reference = Reference(0.0, 500.0, "by definition")
    task = tasks.task_from_env(
        "CartPole-v1", name="pole", horizon=50, termination=tasks.pole_falls, reference=reference
    )
    assert (task.name, task.horizon, task.reference) == ("pole", 50, reference)


@pytest.mark.parametrize(
    ("env_id", "complaint"),
    [
        ("FrozenLake-v1", "observations must be vectors"),
        ("NoSuchThing-v0", "cannot be made"),
        ("Pendulum-v99", "cannot be made"),
    ],
)
def test_environments_that_do_not_fit_are_refused(env_id: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        tasks.task_from_env(env_id)


# ----------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", published.datasets())
def test_every_dataset_of_the_paper_is_identified_and_has_its_preset(name: str) -> None:
    dataset = published.datasets()[name]
    task, known_as = tasks.identify(name)
    assert task is tasks.get_task(dataset.task) and known_as == name
    settings = task.published[name]
    assert settings == tasks.published_settings(task, name)

    paper = preset("paper", settings)
    assert paper.agent.encoder_lr == (dataset.eta_phi or preset("paper").agent.encoder_lr)
    assert paper.agent.kappa == (dataset.kappa or preset("paper").agent.kappa)
    assert paper.world.max_epochs == dataset.max_epochs
    assert paper.agent.tune_alpha == ("opper" not in name)
    assert paper.agent.tape > task.horizon, "a tape holds at least one whole trajectory"
    is_adroit, is_antmaze = task.name.startswith("adroit"), task.name.startswith("antmaze")
    assert paper.world.width == (400 if is_adroit else 200)
    assert paper.agent.steps == (3_000_000 if is_antmaze else 2_000_000)

    assert preset("cpu", settings) == preset("cpu"), "no name decides a reduced setting"


def test_tasks_hold_the_33_datasets_once() -> None:
    held = [name for task in tasks.list_tasks() for name in task.published]
    assert sorted(held) == sorted(published.datasets()) and len(held) == 33


@pytest.mark.parametrize(
    ("name", "task", "dataset"),
    [
        # D4RL's files
        ("halfcheetah_medium_replay-v2.hdf5", "d4rl/halfcheetah", "halfcheetah-medium-replay-v2"),
        ("/data/ü/walker2d_medium-v2.hdf5", "d4rl/walker2d", "walker2d-medium-v2"),
        ("C:\\data\\hopper_random-v2.hdf5", "d4rl/hopper", "hopper-random-v2"),
        ("hand_dapg_v1/pen-human-v1.hdf5", "adroit/pen", "pen-human-v1"),
        (
            "Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5",
            "antmaze/umaze",
            "antmaze-umaze-v2",
        ),
        (
            "Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5",
            "antmaze/umaze",
            "antmaze-umaze-diverse-v2",
        ),
        (
            "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
            "antmaze/medium",
            "antmaze-medium-play-v2",
        ),
        (
            "x/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5",
            "antmaze/large",
            "antmaze-large-diverse-v2",
        ),
        # NeoRL's: the paper's data is the 1000 training trajectories
        ("HalfCheetah-v3-low-1000-train-noise.npz", "neorl/halfcheetah", "HalfCheetah-v3-Low"),
        ("Hopper-v3-high-999-train.npz", "neorl/hopper", "Hopper-v3-High"),
        ("Hopper-v3-high-100-train.npz", "neorl/hopper", None),
        ("Walker2d-v3-medium-100-val.npz", "neorl/walker2d", None),
        # of the family, but another version, another tier, or other data
        ("hopper-medium-v0", "d4rl/hopper", None),
        ("hopper-expert-v2", "d4rl/hopper", None),
        ("hopper_medium_replay.hdf5", "d4rl/hopper", None),
        ("halfcheetah_medium_expert", "d4rl/halfcheetah", None),
        ("door_human.hdf5", "adroit/door", None),
        ("door_human", "adroit/door", None),
        ("pen-v0_demos_clipped.hdf5", "adroit/pen", None),
        ("hammer-demos-v0-bc-combined.hdf5", "adroit/hammer", None),
        ("antmaze_umaze_diverse.hdf5", "antmaze/umaze", None),
        (
            "Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse.hdf5",
            "antmaze/umaze",
            None,
        ),
        ("neorl2_SafetyHalfCheetah_train.npz", "neorl2/safetyhalfcheetah", None),
        ("SafetyHalfCheetah", "neorl2/safetyhalfcheetah", None),
        # Minari ids: never the paper's files, and v5 environments below mujoco/
        ("mujoco/hopper/medium-v0", "mujoco/hopper-v5", None),
        ("mujoco/walker2d/expert-v0", "mujoco/walker2d-v5", None),
        ("/data/minari/mujoco/halfcheetah/simple-v0", "mujoco/halfcheetah-v5", None),
        ("D4RL/door/human-v2", "adroit/door", None),
        # built in
        ("pendulum", "pendulum", None),
        ("pendulum/sticky-v0", "pendulum", None),
        ("cartpole", "cartpole", None),
        # a task's own name
        ("d4rl/hopper", "d4rl/hopper", None),
    ],
)
def test_names_are_read(name: str, task: str, dataset: str | None) -> None:
    assert tasks.identify(name) == (tasks.get_task(task), dataset)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "my_logs.hdf5",
        "grasshopper_medium.npz",
        "hopper_of_my_own.npz",
        "opening-hours-v2",
        "D4RL/antmaze/umaze-v1",  # Gymnasium-Robotics' maze: other coordinates, 27 dimensions
        "/data/pendulum/2024/robot.npz",
    ],
)
def test_names_that_tell_nothing_are_left_alone(name: str) -> None:
    assert tasks.identify(name) == (None, None)


@given(st.text(max_size=60))
def test_any_text_is_read_without_failing(name: str) -> None:
    task, dataset = tasks.identify(name)
    assert task is not None or dataset is None


# ------------------------------------------------------------------------------ categories


def test_categories_are_the_papers_groups() -> None:
    groups: dict[str, set[str]] = {}
    for name in published.datasets():
        groups.setdefault(str(tasks.category(name)), set()).add(name)
    assert {key: len(names) for key, names in groups.items()} == {
        "low-quality": 11,
        "moderate coverage": 7,
        "narrow coverage": 15,
    }
    assert groups["moderate coverage"] == {"pen-cloned-v1"} | {
        f"{body}-{tier}-v2"
        for body in ("halfcheetah", "hopper", "walker2d")
        for tier in ("medium-replay", "medium-expert")
    }
    assert {"antmaze-umaze-diverse-v2", "hammer-cloned-v1", "Hopper-v3-Low"} <= groups[
        "low-quality"
    ]
    assert tasks.category("hopper_medium.hdf5") is None
