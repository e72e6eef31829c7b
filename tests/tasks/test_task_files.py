"""Tasks from files: what they say holds, and what is wrong with them is one message."""

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neubay.errors import NeubayError
from neubay.tasks import ContinuousActions, DiscreteActions, list_tasks
from neubay.tasks.files import fingerprint, read_task

BOILER = """
name: boiler
state_size: 3
actions: {low: [0, 10], high: [100, 20]}
horizon: 288
termination: next_state[0] > 95 or (action[1] < 11 and state[-1] > 0)
reference: {random: -200, expert: 0}
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_yaml_task(tmp_path: Path) -> None:
    task = read_task(written(tmp_path, BOILER))
    assert (task.name, task.state_size, task.horizon, task.env_id) == ("boiler", 3, 288, None)
    assert task.actions == ContinuousActions(np.array([0, 10]), np.array([100, 20]))
    assert task.score(np.array([-100.0])) == 50


def test_termination_sees_actions_as_they_were_logged_and_can_be_compiled(tmp_path: Path) -> None:
    task = read_task(written(tmp_path, BOILER))
    assert task.termination is not None
    state = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]], np.float32)
    action = np.array([[0, -1], [0, 0], [0, -1], [0, 0]], np.float32)  # 10 and 15 of 10 to 20
    after = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [96, 0, 0]], np.float32)
    ends = [True, False, False, True]
    assert task.termination(state, action, after).tolist() == ends
    assert jax.jit(task.termination)(state, action, after).tolist() == ends
    assert task.termination(state[None], action[None], after[None]).tolist() == [ends]


def test_termination_may_be_left_to_the_data(tmp_path: Path) -> None:
    text = "name: x\nstate_size: 1\nactions: 3\nhorizon: 5\ntermination: learned\n"
    task = read_task(written(tmp_path, text))
    assert task.termination is None and task.learns_termination
    assert not read_task(written(tmp_path, text.replace("learned", "null"))).learns_termination


def test_discrete_actions_are_a_number(tmp_path: Path) -> None:
    text = "name: x\nstate_size: 1\nactions: 3\nhorizon: 5\ntermination: action[0] == 2\n"
    task = read_task(written(tmp_path, text))
    assert task.actions == DiscreteActions(3) and task.termination is not None
    assert task.termination(np.zeros((3, 1)), np.eye(3), np.zeros((3, 1))).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("horizon:", "horizont:"), "unknown key 'horizont'; did you mean 'horizon'"),
        (("low:", "lo:"), r"unknown key 'actions.lo'; did you mean 'actions.low'"),
        (("288", "soon"), "horizon soon: must be a whole number"),
        (("288", "0"), "horizon 0: must be at least 1"),
        (("name: boiler", "name: pendulum"), "'pendulum' is taken"),
        (("[100, 20]", "[100]"), r"two vectors of one length"),
        (("[100, 20]", "[100, 5]"), "low < high"),
        (("actions: {low: [0, 10], high: [100, 20]}", "actions: {low: [0]}"), "lists low and high"),
        (("state[-1]", "state[3]"), r"no state\[3\]; it has 3 values"),
        (("state[-1]", "state"), r"write state\[0\]"),
        (("state[-1]", "pressure[0]"), "'pressure' is not one of state, action, next_state"),
        (("state[-1]", "__import__('os')"), "no function|cannot stand"),
        (("horizon: 288", "horizon: 288\nhorizon: 289"), "'horizon' is given twice, in line 6"),
        (("horizon: 288", "horizon: 288\nenvironment: os:X-v0"), "needs a .py task file"),
    ],
)
def test_what_is_wrong_with_a_yaml_task_is_named(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = written(tmp_path, BOILER.replace(*change))
    with pytest.raises(NeubayError, match=message) as problem:
        read_task(path)
    assert str(path) in str(problem.value)


PYTHON = """
from neubay.tasks import ContinuousActions, Task

task = Task("mine", state_size=3, actions=ContinuousActions.symmetric(2), horizon=10)
"""


def test_a_python_file_defines_its_task_or_registers_it(tmp_path: Path) -> None:
    before = list_tasks()
    assert read_task(written(tmp_path, PYTHON, "a.py")).name == "mine"
    registers = PYTHON.replace("task = ", "tasks.register_task(") + ")\n"
    path = written(tmp_path, "from neubay import tasks\n" + registers, "b.py")
    assert read_task(path).name == read_task(path).name == "mine"
    assert list_tasks() == before, "reading a file leaves the registry as it was"


def test_a_python_file_may_use_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "T = 12\n", "facts_of_my_plant.py")
    text = "from facts_of_my_plant import T\n" + PYTHON.replace("10)", "T)")
    assert read_task(written(tmp_path, text, "a.py")).horizon == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x +\n", r"a\.py, line 2: SyntaxError"),
        ("x = 1\n\n1 / 0\n", r"a\.py, line 3: ZeroDivisionError: division by zero"),
        ("import nothing_like_it\n", r"a\.py, line 1: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", r"a\.py, line 1: SystemExit"),
        ("x = 1\n", "registers 0 tasks"),
        ("task = 1\n", "defines 'task'"),
        (PYTHON.replace("horizon=10", "horizon=0"), r"a\.py, line 4: .*horizon is 0"),
        (
            PYTHON.replace("=10)", "=10, termination=lambda s, a, n:\n n[0, 99])"),
            r"a\.py(, line 5)?: ",
        ),
        (PYTHON.replace("=10)", "=10, termination=lambda s, a, n: n)"), "one bool for each"),
    ],
)
def test_what_is_wrong_with_a_python_task_is_one_message(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(NeubayError, match=message) as problem:
        read_task(written(tmp_path, text, "a.py"))
    assert "Traceback" not in str(problem.value)


def test_other_files_are_no_task_files(tmp_path: Path) -> None:
    with pytest.raises(NeubayError, match=r"\.yaml or \.py"):
        read_task(written(tmp_path, BOILER, "task.txt"))
    for name in ("none.yaml", "none.py"):
        with pytest.raises(NeubayError, match=name):
            read_task(tmp_path / name)


def test_a_changed_file_has_another_fingerprint(tmp_path: Path) -> None:
    path = written(tmp_path, BOILER)
    before = fingerprint(path)
    written(tmp_path, BOILER.replace("95", "96"))
    assert fingerprint(path) != before


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(BOILER)), st.binary(max_size=8), st.integers(0, 20))
def test_a_damaged_file_is_a_task_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, place: int, inserted: bytes, removed: int
) -> None:
    whole = BOILER.encode()
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(whole[:place] + inserted + whole[place + removed :])
    try:
        read_task(path)
    except NeubayError as problem:
        assert "damaged.yaml" in str(problem)
