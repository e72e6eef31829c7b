"""Every fault that is put into clean data is found, with its key and its row."""

import time
from pathlib import Path

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data_checks import Log, make_log, small_task
from neubay.data import Dataset, Finding, load, validate
from neubay.data.rows import Column, Rows
from neubay.data.validation import row_findings
from neubay.tasks import DiscreteActions, Task

LENGTHS = [30, 20, 25, 15]


def findings_of(
    log: Log, task: Task | None, *, successors: bool = True, timeouts: bool = True
) -> list[Finding]:
    arrays = log.arrays(successors=successors, timeouts=timeouts)
    return row_findings(
        Rows(file="log", **{key: Column(key, values) for key, values in arrays.items()}), task
    )


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [str(finding) for finding in findings]
    return findings[0]


def test_clean_data_has_no_findings() -> None:
    assert findings_of(make_log(LENGTHS), small_task()) == []


def test_no_task_is_a_note() -> None:
    finding, horizon = findings_of(make_log(LENGTHS), None)
    assert (finding.severity, finding.row) == ("note", None)
    assert "no known task" in finding.message
    assert "longest episode ends in a terminal state after 30 steps" in horizon.message


@pytest.mark.parametrize("key", ["states", "actions", "rewards", "next_states"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(key: str, value: float) -> None:
    log = make_log(LENGTHS)
    getattr(log, key)[[33, 60]] = value
    errors = [finding for finding in findings_of(log, small_task()) if finding.key == key]
    finding = next(finding for finding in errors if "NaN" in finding.message)
    assert (finding.severity, finding.row) == ("error", 33)
    assert "2 rows" in finding.message


def test_values_too_large_for_float32() -> None:
    log = make_log(LENGTHS)
    log.rewards = log.rewards.astype(np.float64)
    log.rewards[7] = 1e300
    finding = only(findings_of(log, small_task()))
    assert (finding.severity, finding.key, finding.row) == ("error", "rewards", 7)


def test_shapes_types_and_lengths_are_all_listed() -> None:
    log = make_log(LENGTHS)
    log.actions = log.actions[:-1]
    log.rewards = np.full((90, 2), "x")
    found = findings_of(log, small_task())
    assert {(finding.severity, finding.key) for finding in found} == {
        ("error", "actions"),
        ("error", "rewards"),
    }
    assert len(found) == 3


def test_a_task_of_another_size() -> None:
    finding = only(findings_of(make_log(LENGTHS), small_task(state_size=4)))
    assert (finding.severity, finding.key) == ("error", "states")


@pytest.mark.parametrize("row", [3, 80])
def test_successors_across_episodes(row: int) -> None:
    log = make_log(LENGTHS)
    log.next_states[row] += 1
    finding = only(findings_of(log, small_task()))
    assert (finding.severity, finding.key, finding.row) == ("error", "next_states", row)
    # Without timeouts to contradict, that is how episodes are told apart.
    log.terminals[-1] = True
    noted = findings_of(log, small_task(), timeouts=False)
    assert {finding.severity for finding in noted} == {"note"}


def test_actions_out_of_range() -> None:
    log = make_log(LENGTHS)
    log.actions[[4, 9, 70], 1] = -1.5
    finding = only(findings_of(log, small_task()))
    assert (finding.severity, finding.key, finding.row) == ("error", "actions", 4)
    assert "3 rows" in finding.message
    assert "-1.5 is outside [-1, 1]" in finding.message


def test_discrete_actions_out_of_range() -> None:
    log = make_log(LENGTHS)
    log.actions = np.arange(90) % 3
    log.actions[8] = 3
    finding = only(findings_of(log, small_task(actions=DiscreteActions(3))))
    assert (finding.severity, finding.key, finding.row) == ("error", "actions", 8)


def test_flags_that_are_no_flags() -> None:
    log = make_log(LENGTHS)
    log.terminals = log.terminals.astype(float)
    log.terminals[12] = 0.5
    found = findings_of(log, small_task())
    assert (found[0].severity, found[0].key, found[0].row) == ("error", "terminals", 12)


def test_constant_features() -> None:
    log = make_log(LENGTHS)
    log.states[:, 1] = log.next_states[:, 1] = 7
    log.actions[:, 0] = 0.5
    found = findings_of(log, small_task())
    assert [(finding.severity, finding.key) for finding in found] == [
        ("warning", "states"),
        ("warning", "actions"),
    ]
    assert "1 of 3 features never change: 1" in found[0].message


def test_the_last_episode_without_an_end() -> None:
    log = make_log(LENGTHS)
    log.timeouts[-1] = log.terminals[-1] = False
    finding = only(findings_of(log, small_task()))
    assert (finding.severity, finding.row) == ("warning", 89)
    assert "no flag ends the last episode" in finding.message


def test_no_ends_at_all() -> None:
    log = make_log(LENGTHS)
    log.timeouts[:] = log.terminals[:] = False
    finding = only(findings_of(log, small_task(), successors=False))
    assert finding.severity == "warning"
    assert "no flag ends any episode" in finding.message


def test_episodes_longer_than_the_horizon() -> None:
    """The paper's are told as longer, one's own as read in pieces."""
    published = small_task(horizon=20, benchmark="adroit")
    finding = only(findings_of(make_log(LENGTHS), published))
    assert (finding.severity, finding.row) == ("note", 0)
    assert "2 of 4 episodes are longer than the horizon 20" in finding.message
    assert "30 steps" in finding.message
    finding = only(findings_of(make_log(LENGTHS), small_task(horizon=20)))
    assert finding.severity == "note" and "T was given" in finding.remedy
    assert "an episode of 30 steps is read in pieces of at most 20" in finding.message


def test_duplicate_episodes() -> None:
    log = make_log(LENGTHS)
    twice = Log(
        *(
            np.concatenate([values, values[30:50]])
            for values in (
                log.states,
                log.actions,
                log.rewards,
                log.terminals,
                log.timeouts,
                log.next_states,
            )
        )
    )
    finding = only(findings_of(twice, small_task()))
    assert (finding.severity, finding.row) == ("warning", 90)
    assert "1 of 5 episodes repeat an earlier one (here, the one from row 30)" in finding.message


@settings(max_examples=30, deadline=None)
@given(row=st.integers(90, 109), key=st.sampled_from(["states", "actions", "rewards"]))
def test_a_copy_with_one_value_changed_is_no_duplicate(row: int, key: str) -> None:
    log = make_log([*LENGTHS, 20])
    for name in ("states", "actions", "rewards", "next_states"):
        getattr(log, name)[90:110] = getattr(log, name)[30:50]
    assert any("repeat" in finding.message for finding in findings_of(log, small_task()))
    values = getattr(log, key)
    values[row] = np.nextafter(values[row], 0)
    if key == "states" and row > 90:
        log.next_states[row - 1] = log.states[row]
    assert findings_of(log, small_task()) == []


def test_swapped_rows_are_no_duplicate() -> None:
    """The fingerprint depends on the order of the rows: a palindrome is not its mirror image."""
    log = make_log([20, 20], seed=3)
    for name in ("states", "actions", "rewards", "next_states"):
        getattr(log, name)[20:] = getattr(log, name)[:20][::-1]
    assert not any("repeat" in finding.message for finding in findings_of(log, small_task()))


def test_short_episodes() -> None:
    log = make_log([6, 1, 5, 2, 1])
    noted = only(findings_of(log, small_task()))
    assert (noted.severity, noted.row) == ("note", 6)
    assert "2 of 5 episodes have a single step" in noted.message
    found = findings_of(log, small_task(), successors=False)
    empty = next(finding for finding in found if "no step" in finding.message)
    assert (empty.severity, empty.row) == ("warning", 6)


def test_terminal_steps_alone_are_no_data_for_a_world() -> None:
    found = findings_of(make_log([1, 1, 1]), small_task(), successors=False)
    assert "3 of 3 episodes have no step" in next(f for f in found if f.severity == "error").message


def test_terminal_steps_without_successors_are_noted() -> None:
    found = findings_of(make_log(LENGTHS), small_task(), successors=False)
    finding = only(found)
    assert (finding.severity, finding.key, finding.row) == ("note", "terminals", 29)
    assert "2 rows terminal" in finding.message and "the agent learns" in finding.message


# --------------------------------------------------------------------- the task's own rule


def high_is_terminal(state: object, action: object, next_state: jnp.ndarray) -> jnp.ndarray:
    return next_state[..., 0] > 5.0


def ruled_log(*, successors: bool) -> Log:
    """Terminal where the rule says so, and only there."""
    log = make_log(LENGTHS)
    log.states[:, 0] = log.next_states[:, 0] = 0
    log.terminals[:] = log.timeouts[:] = False
    log.timeouts[np.cumsum(LENGTHS) - 1] = True
    if successors:
        log.timeouts[29], log.terminals[29], log.next_states[29, 0] = False, True, 9
    return log


@pytest.mark.parametrize("successors", [True, False])
@pytest.mark.parametrize("block_rows", [7, 1 << 15])
def test_terminal_flags_against_the_rule(
    successors: bool, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neubay.data.rows.BLOCK_ROWS", block_rows)
    task = small_task(termination=high_is_terminal, split_by_timeouts_only=not successors)
    log = ruled_log(successors=successors)

    def contradictions() -> list[Finding]:
        found = findings_of(log, task, successors=successors)
        return [finding for finding in found if "rule" in finding.message]

    assert contradictions() == []
    log.states[42, 0] = log.next_states[41, 0] = 9
    finding = only(contradictions())
    assert (finding.severity, finding.row) == ("error" if successors else "warning", 41)
    assert "0 rows flagged" in finding.message
    assert "1 row not flagged" in finding.message
    log.terminals[41], log.terminals[13] = True, True
    finding = only(contradictions())
    assert finding.row == 13
    assert "1 row flagged" in finding.message


# ------------------------------------------------------------------- files and datasets


def test_datasets_are_checked_like_files() -> None:
    log = make_log(LENGTHS)
    task = small_task(horizon=20, benchmark="adroit")
    clean = Dataset.from_arrays(**log.arrays(), task=task)
    finding = only(validate(clean))
    assert "longer than the horizon" in finding.message
    broken = clean.tape._replace(
        state=np.where(clean.tape.start[:, None], np.nan, clean.tape.state)
    )
    found = validate(Dataset(np_tape(broken), clean.task, "x", "x"))
    assert found[0].severity == "error"


def np_tape(tape: object) -> object:
    return tape._replace(state=tape.state.astype(np.float32))


def test_discrete_and_scaled_datasets_are_clean() -> None:
    log = make_log(LENGTHS)
    discrete = Dataset.from_arrays(**{**log.arrays(), "actions": np.arange(90) % 3}, horizon=30)
    assert validate(discrete) == []
    scaled = Dataset.from_arrays(
        **{**log.arrays(), "actions": log.actions * 3}, action_bounds=(-3, 3), horizon=30
    )
    assert validate(scaled) == []


def test_findings_of_files_come_worst_first_and_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.hdf5"
    log = make_log(LENGTHS)
    log.actions[:, 0] = 0.5
    log.rewards[5] = np.nan
    with h5py.File(path, "w") as file:
        for key, values in log.d4rl().items():
            file[key] = values
    found = validate(f"d4rl:{path}")
    assert [finding.severity for finding in found] == ["error", "warning", "note", "note"]
    assert {finding.file for finding in found} == {str(path)}
    assert str(found[0]).startswith(f"{path}: 'rewards' row 5: ")


def test_sources_that_cannot_be_opened_are_a_finding(tmp_path: Path) -> None:
    missing = only(validate("nowhere.hdf5"))
    assert missing.severity == "error"
    assert "no such file" in missing.message
    (tmp_path / "log.hdf5").write_bytes(b"")
    empty = only(validate(f"d4rl:{tmp_path}/log.hdf5"))
    assert (empty.file, empty.message) == (f"{tmp_path}/log.hdf5", "is empty")
    assert empty.remedy.startswith("Copy, record or download")
    assert "unknown task" in only(validate(tmp_path / "log.hdf5", "no such task")).message


@pytest.mark.slow
@pytest.mark.timing
def test_a_hundred_thousand_rows_in_a_second(tmp_path: Path) -> None:
    rows = 100_000
    log = make_log([100] * (rows // 100), state_size=17, action_size=6)
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        for key, values in log.d4rl().items():
            file[key] = values
    validate(path)  # imports and compiles
    load(path)
    began = time.process_time()
    load(path)
    loading = time.process_time() - began
    began = time.process_time()
    assert len(validate(path)) == 1
    assert time.process_time() - began < max(1.0, 40 * loading)
