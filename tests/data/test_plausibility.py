"""What is allowed and yet rarely meant is found, with its row and a remedy; sound data is quiet."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.data_checks import Log, make_log, small_task
from neubay.data import Dataset, Finding, validate
from neubay.data.rows import Column, Rows
from neubay.data.validation import row_findings
from neubay.tasks import ContinuousActions, DiscreteActions, Task

LENGTHS = [100, 100, 100, 100]


def found(log: Log, task: Task | None = None, **options: object) -> list[Finding]:
    """What the new checks find beside the note that there is no task."""
    columns = {key: Column(key, values) for key, values in log.arrays().items()}
    findings = row_findings(Rows(file="log", **columns), task, **options)
    return [each for each in findings if "no known task" not in each.message]


def the_one(findings: list[Finding], words: str) -> Finding:
    (finding,) = [each for each in findings if words in each.message]
    assert finding.remedy
    return finding


def test_sound_data_is_quiet() -> None:
    assert found(make_log(LENGTHS)) == found(make_log(LENGTHS), small_task()) == []


def test_half_of_the_bounds() -> None:
    log = make_log(LENGTHS)
    log.actions[:, 1] = np.abs(log.actions[:, 1])
    finding = the_one(found(log), "half of their bounds")
    assert (finding.severity, finding.key) == ("warning", "actions")
    assert "1 of 2 actions" in finding.message and "1 uses 0" in finding.message
    assert the_one(found(log, small_task()), "half of their bounds").severity == "note"
    fitting = ContinuousActions(np.array([-1.0, 0.0]), np.array([1.0, 1.0]))
    assert found(log, small_task(actions=fitting)) == []


@pytest.mark.parametrize(
    ("numbers", "words", "severity"),
    [
        ([1, 2, 3], "numbers begin at 1: 4 actions are assumed, 0 never taken", "warning"),
        ([0, 1, 4], "2 of 5 actions are never taken: 2, 3", "note"),
        ([0, 1, 2], None, None),
    ],
)
def test_numbers_of_actions(numbers: list[int], words: str | None, severity: str | None) -> None:
    log = make_log(LENGTHS)
    log.actions = np.random.default_rng(0).choice(numbers, 400)
    findings = found(log)
    if words is None:
        assert findings == []
    else:
        assert the_one(findings, words).severity == severity
    known = found(log, small_task(actions=DiscreteActions(5)))
    assert [each.severity for each in known] == ["note"]


def test_one_hot_actions() -> None:
    log = make_log(LENGTHS)
    log.actions = np.eye(3, dtype=np.float32)[np.arange(400) % 3]
    findings = found(log)
    assert the_one(findings, "all 400 rows are one-hot").severity == "warning"
    assert len(findings) == 1
    log.actions[7, 0] = 0.5
    assert not any("one-hot" in each.message for each in found(log))


def twice(log: Log, rows: slice) -> None:
    """Rows that a logger wrote twice."""
    for values in (log.states, log.actions, log.rewards):
        values[rows] = values[rows.start - 1]
    log.next_states[:-1][~(log.terminals | log.timeouts)[:-1]] = log.states[1:][
        ~(log.terminals | log.timeouts)[:-1]
    ]


def test_repeated_rows() -> None:
    log = make_log(LENGTHS)
    twice(log, slice(51, 52))
    finding = the_one(found(log), "equal to the one before")
    assert (finding.severity, finding.row) == ("note", 51) and "1 row" in finding.message
    twice(log, slice(61, 81))
    finding = the_one(found(log), "equal to the one before")
    assert finding.severity == "warning" and "21 rows" in finding.message


def test_equal_rows_of_a_state_that_never_changes_are_no_surprise() -> None:
    log = make_log(LENGTHS)
    log.states[:], log.next_states[:], log.actions[:], log.rewards[:] = 0, 0, 0.5, 1
    assert not any("equal to the one" in each.message for each in found(log))


def test_a_row_repeated_over_two_blocks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(LENGTHS)
    twice(log, slice(50, 51))
    monkeypatch.setattr(Rows, "block_rows", 50)
    assert the_one(found(log), "equal to the one before").row == 50


def hold(log: Log, feature: int, kept: Callable[[int], int]) -> None:
    rows = np.arange(400)
    log.states[:, feature] = log.states[[kept(row) for row in rows], feature]
    inside = ~(log.terminals | log.timeouts)[:-1]
    log.next_states[:-1][inside] = log.states[1:][inside]


def test_a_sensor_that_is_slower_than_the_log() -> None:
    log = make_log(LENGTHS)
    hold(log, 2, lambda row: row - row % 4)
    finding = the_one(found(log), "keep their value")
    assert (finding.severity, finding.key, finding.row) == ("warning", "states", 1)
    assert "1 of 3 features" in finding.message and "2 in 76%" in finding.message


def test_what_rests_and_then_moves_is_no_slow_sensor() -> None:
    log = make_log(LENGTHS)
    hold(log, 2, lambda row: row if row % 100 > 60 else row - row % 100)
    assert found(log) == []


def test_a_switch_may_stand_still() -> None:
    log = make_log(LENGTHS)
    hold(log, 2, lambda row: row - row % 4)
    log.states[:, 2] = np.sign(log.states[:, 2])
    log.next_states[:, 2] = np.sign(log.next_states[:, 2])
    assert not any("keep their value" in each.message for each in found(log))


@pytest.mark.parametrize("key", ["rewards", "states"])
def test_one_value_far_away(key: str) -> None:
    log = make_log(LENGTHS)
    values = getattr(log, key).reshape(400, -1)
    values[123, 0] = 1e12
    if key == "states":
        log.next_states[122, 0] = 1e12
    finding = the_one(found(log), "far away from all others")
    assert (finding.severity, finding.key, finding.row) == ("warning", key, 123)
    assert "1 row " in finding.message and "1e+12" in finding.message


def test_a_sparse_reward_is_no_outlier() -> None:
    log = make_log(LENGTHS)
    log.rewards[:] = 0
    log.rewards[::40] = 5000
    assert found(log) == []


def test_rewards_that_do_not_vary() -> None:
    log = make_log(LENGTHS)
    log.rewards[:] = 0.5
    finding = the_one(found(log), "all 400 rewards are 0.5")
    assert (finding.severity, finding.key) == ("warning", "rewards")


def test_lengths_that_say_nothing_of_the_horizon() -> None:
    for lengths in ([400], [100, 90, 80, 70, 60, 50]):
        log = make_log(lengths)
        log.terminals[:], log.timeouts[np.cumsum(lengths) - 1] = False, True
        finding = the_one(found(log), "T is taken to be the longest episode")
        assert finding.row == 0 and "--task-file" in finding.remedy
        assert found(log, small_task()) == []
    log = make_log([100, 100, 100, 40])
    assert found(log) == []


def test_datasets_are_checked_like_files() -> None:
    log = make_log(LENGTHS)
    log.rewards[7] = 1e12
    assert the_one(validate(Dataset.from_arrays(**log.arrays())), "far away").row == 7


@pytest.mark.slow
def test_real_data_is_quiet(shared_data: Path) -> None:
    for path in sorted([*shared_data.glob("*.hdf5"), *shared_data.glob("*.npz")]):
        findings = [each for each in validate(path) if each.severity != "note"]
        assert all("rule of task 'antmaze" in each.message for each in findings), path
