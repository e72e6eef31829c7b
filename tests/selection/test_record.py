"""What is kept of the data: C_i, returns up to it, windows, and the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.judges import logged
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError, RunError
from neubay.selection import DataRecord, load_record
from neubay.tasks import ContinuousActions, Task


def ones(lengths: list[int], terminal: list[bool], horizon: int, shift: float = 0.0) -> Dataset:
    """Episodes whose reward is 1, some of which end in a terminal state; long ones stay whole."""
    actions = ContinuousActions.symmetric(1)
    task = Task("ones", 1, actions, horizon, reward_shift=shift, benchmark="adroit")
    rows, last = sum(lengths), np.cumsum(lengths) - 1
    ends, terminals = np.zeros((2, rows), bool)
    terminals[last[terminal]] = True
    ends[last[~np.asarray(terminal)]] = True
    states = np.arange(rows, dtype=np.float32)[:, None]
    return Dataset.from_arrays(
        states, np.zeros((rows, 1)), np.ones(rows), terminals, ends, states + 1, task=task
    )


def test_a_start_is_judged_to_t_or_to_where_the_log_was_cut() -> None:
    record = DataRecord.of(ones([4, 10, 6], [True, False, False], horizon=10))
    assert record.limit.tolist() == [10, 10, 6]
    assert record.length.tolist() == [4, 10, 6]
    assert record.returns.tolist() == [4, 10, 6]
    assert record.start[:, 0].tolist() == [0, 4, 14]
    assert record.reward_range == (1.0, 1.0) and record.terminals and not record.rule


def test_returns_are_raw_and_count_up_to_the_limit() -> None:
    record = DataRecord.of(ones([4, 4], [False, False], horizon=3, shift=-1.0))
    assert record.limit.tolist() == [3, 3] and record.returns.tolist() == [3, 3]
    assert record.reward_range == (1.0, 1.0) and record.reward_shift == -1.0


def test_the_floor_is_a_low_quantile_over_windows_of_that_length() -> None:
    dataset = logged([30, 20, 25], gain=0.5)
    record = DataRecord.of(dataset)
    first, length = dataset.bounds
    for window in (record.window_length[0], record.window_length[-3]):
        sums = [
            np.sum(dataset.tape.reward[t : t + window], dtype=np.float64)
            for f, n in zip(first, length, strict=True)
            for t in range(f, f + n - window + 1)
        ]
        low = record.floor(np.array([window]))[0]
        assert low == pytest.approx(np.quantile(sums, 0.05), abs=1e-5)
    assert record.floor(np.array([0])).tolist() == [0.0]


def test_excerpts_are_parts_of_the_log_and_end_where_an_episode_terminated() -> None:
    dataset = logged([60, 10, 40], gain=0.5)
    record = DataRecord.of(dataset)
    state, reward = np.asarray(dataset.tape.state), np.asarray(dataset.tape.reward, np.float64)
    assert record.excerpt_action.shape == (52, 25, 1)  # 36 + 16 beginnings, of two episodes
    for start, actions, paid in zip(
        record.excerpt_state, record.excerpt_action, record.excerpt_return, strict=True
    ):
        row = int(np.flatnonzero((state == start).all(axis=1))[0])
        np.testing.assert_array_equal(actions, dataset.tape.action[row : row + 25])
        assert paid == pytest.approx(reward[row : row + 25].sum(), abs=1e-4)
    assert not record.excerpt_ended.any()
    ends = DataRecord.of(ones([4, 10], [True, False], horizon=10))
    assert ends.excerpt_return.tolist() == [4, 3, 2, 1, 10]
    assert ends.excerpt_ended.tolist() == [True, True, True, True, False]


def test_what_can_end_may_earn_nothing_more() -> None:
    pays, cuts = (
        DataRecord.of(ones([8, 3, 8], ends, horizon=8))
        for ends in ([False, True, False], [False, False, False])
    )
    assert pays.floor(np.array([5])).tolist() == [0.0]
    assert cuts.floor(np.array([5])).tolist() == [5.0]
    assert cuts.floor(np.array([5]), ends=True).tolist() == [0.0]  # by a rule given with the task
    costs = DataRecord.of(logged([9, 9], terminal=True))
    assert costs.floor(np.array([5]))[0] < 0  # lower than 0: nothing is free either


def test_a_record_is_kept_in_a_file(tmp_path: Path) -> None:
    record, path = DataRecord.of(logged([5, 7])), tmp_path / "data.npz"
    record.save(path)
    again = load_record(path)
    for name, value in vars(record).items():
        np.testing.assert_array_equal(value, getattr(again, name))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RunError, match=r"data\.npz"):
        load_record(path)


def test_the_incumbent_is_a_part_of_the_episodes() -> None:
    record = DataRecord.of(logged([5, 7, 9]))
    chosen = record.only(np.array([2, 0, 2]))
    assert chosen.limit.tolist() == [5, 9], "each once"
    np.testing.assert_array_equal(chosen.window_return, record.window_return)
    with pytest.raises(NeubayError, match="no episode 3; the data has the episodes 0 to 2"):
        record.only(np.array([3]))
    with pytest.raises(NeubayError, match="names no episode"):
        record.only(np.array([], np.int64))
    with pytest.raises(NeubayError, match=r"no episode 1\.5"):
        record.only(np.array([0, 1.5]))


@pytest.mark.parametrize("mask", [[True, True, False], np.array([False, True, True])])
def test_a_mask_of_episodes_is_refused(mask: Any) -> None:
    """Its values would be the episodes 0 and 1."""
    with pytest.raises(NeubayError, match=r"incumbent: got true and false.*np\.flatnonzero"):
        DataRecord.of(logged([5, 7, 9])).only(mask)


@pytest.mark.parametrize("wrong", [3, [[0, 1]], [[0], [1, 2]], "0-2", ["0"], [None], {0, 1}])
def test_what_are_no_numbers_of_episodes_is_refused_in_words(wrong: Any) -> None:
    with pytest.raises(NeubayError, match=r"incumbent: got .*: give a list of numbers of episodes"):
        DataRecord.of(logged([5, 7, 9])).only(wrong)
