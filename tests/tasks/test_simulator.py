"""An environment as a function of state and action."""

import numpy as np
import pytest

from neubay.data.collect import RandomActions, collect
from neubay.errors import TaskError
from neubay.tasks import get_task
from neubay.tasks.simulator import Simulator

# Without and with the body's position, with a reward of our own, classic and discrete.
TASKS = (
    "d4rl/hopper",
    "d4rl/walker2d",
    "neorl/halfcheetah",
    "neorl2/safetyhalfcheetah",
    "antmaze/umaze",
    "pendulum",
    "cartpole",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_it_continues_from_any_recorded_state_as_the_environment_did(name: str) -> None:
    task = get_task(name)
    data = collect(task, RandomActions(task), steps=60, seed=3)
    rows = np.random.default_rng(0).permutation(data.world_rows)  # in no order
    # Hopper and walker show no speed above 10: from there, nothing can be continued exactly.
    clipped = (np.abs(np.asarray(data.take(rows).state)) == 10).any(axis=1)
    rows = rows[~clipped]
    assert len(rows) > 7
    here, after = data.take(rows), data.take(rows + 1)
    state, reward = Simulator(task).step(np.asarray(here.state), np.asarray(here.action))
    np.testing.assert_allclose(state, after.state, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(reward, here.reward, rtol=1e-4, atol=1e-4)


def test_the_answer_does_not_depend_on_what_was_asked_before() -> None:
    task = get_task("d4rl/hopper")
    data = collect(task, RandomActions(task), steps=40, seed=0)
    tape = data.take(data.world_rows)
    simulator = Simulator(task)
    state, action = np.asarray(tape.state), np.asarray(tape.action)
    first, again = simulator.step(state, action), simulator.step(state[::-1], action[::-1])
    np.testing.assert_array_equal(first[0], again[0][::-1])
    np.testing.assert_array_equal(first[1], again[1][::-1])


def test_what_is_not_finite_is_left_alone() -> None:
    task = get_task("pendulum")
    state = np.array([[1, 0, 0], [np.nan, 0, 0]], np.float32)
    after, reward = Simulator(task).step(state, np.zeros((2, 1), np.float32))
    assert np.isfinite(after[0]).all() and np.isnan(after[1, 0]) and reward[1] == 0


@pytest.mark.parametrize("name", ["adroit/door", "bandit"])
def test_where_a_state_cannot_be_set_that_is_said(name: str) -> None:
    with pytest.raises(TaskError, match="cannot be read off"):
        Simulator(get_task(name))
