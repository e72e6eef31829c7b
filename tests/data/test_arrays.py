"""Flat arrays become a tape: against a slow restatement, and in every way to get it wrong."""

from dataclasses import replace
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data_checks import Log, check_invariants, make_log, small_task
from neubay.agents.learning import transition_kinds
from neubay.data import Dataset
from neubay.errors import DatasetError, TaskError
from neubay.replay import BatchShape, sample_data
from neubay.tasks import ContinuousActions, DiscreteActions, Task


def tape_by_hand(
    log: Log, *, successors: bool, timeouts: bool, task: Task
) -> list[tuple[list[np.ndarray], list[np.ndarray], list[float], list[bool]]]:
    """Episode by episode, row by row: states (L + 1), actions, rewards and terminals (L)."""
    episodes: list[list[int]] = [[]]
    cuts = set()  # rows after which a log goes on as another episode
    for i in range(len(log.states)):
        episodes[-1].append(i)
        ends = bool(log.terminals[i]) and not task.split_by_timeouts_only
        if timeouts:
            ends |= bool(log.timeouts[i])
        else:
            ends |= len(episodes[-1]) == task.horizon
        if i + 1 < len(log.states):
            if successors:
                ends |= not np.array_equal(log.next_states[i], log.states[i + 1])
            if timeouts and not ends and task.cuts_long_logs and len(episodes[-1]) == task.horizon:
                ends = True
                cuts.add(i)
            if ends:
                episodes.append([])
    result, known = [], 0
    for rows in episodes:
        cut = rows[-1] in cuts
        # Of a terminal, the state before stands in.
        kept = successors or cut or log.terminals[rows[-1]]
        steps = rows if kept else rows[:-1]
        if not steps:
            continue
        known += len(steps) if successors or cut else len(rows) - 1
        states = [log.states[i] for i in rows]
        if kept:
            last = rows[-1] + (cut and not successors)
            states.append((log.next_states if successors else log.states)[last])
        result.append(
            (
                states,
                [log.actions[i] for i in steps],
                [float(log.rewards[i] + np.float32(task.reward_shift)) for i in steps],
                [bool(log.terminals[i]) for i in steps],
            )
        )
    return result if known else []


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Random walks with flags and jumps anywhere, also where they contradict each other."""
    rows = draw(st.integers(1, 40))
    log = make_log([rows], seed=draw(st.integers(0, 99)))
    flags = st.lists(st.booleans(), min_size=rows, max_size=rows)
    rare = st.lists(st.integers(0, rows - 1), max_size=4)
    log.terminals = np.array(draw(flags)) if draw(st.booleans()) else np.zeros(rows, bool)
    log.timeouts = np.zeros(rows, bool)
    log.timeouts[draw(rare)] = True
    log.next_states[draw(rare)] += 1
    return log


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    log=logs(),
    successors=st.booleans(),
    timeouts=st.booleans(),
    horizon=st.integers(1, 12),
    by_timeouts_only=st.booleans(),
    benchmark=st.sampled_from(["other", "adroit"]),
    block_rows=st.integers(1, 9),
    long_run=st.sampled_from([0, 10**6]),
)
def test_tape_is_what_it_is_by_hand(
    log: Log,
    successors: bool,
    timeouts: bool,
    horizon: int,
    by_timeouts_only: bool,
    benchmark: str,
    block_rows: int,
    long_run: int,
) -> None:
    task = small_task(
        log,
        horizon=horizon,
        split_by_timeouts_only=by_timeouts_only,
        reward_shift=-1.0,
        benchmark=benchmark,
    )
    arrays = log.arrays(successors=successors, timeouts=timeouts)
    expected = tape_by_hand(log, successors=successors, timeouts=timeouts, task=task)
    with (
        mock.patch("neubay.data.rows.BLOCK_ROWS", block_rows),
        mock.patch("neubay.data.layout.LONG_RUN", long_run),
    ):
        if not expected:
            with pytest.raises(DatasetError, match="no step with a successor"):
                Dataset.from_arrays(**arrays, task=task)
            return
        dataset = Dataset.from_arrays(**arrays, task=task)
    check_invariants(dataset)
    tape = dataset.tape
    first, length = dataset.bounds
    assert length.tolist() == [len(actions) for _, actions, _, _ in expected]
    for begin, steps, (states, actions, rewards, terminals) in zip(
        first, length, expected, strict=True
    ):
        end = begin + steps
        np.testing.assert_array_equal(tape.state[begin : end + 1], np.array(states))
        np.testing.assert_array_equal(tape.action[begin:end], np.array(actions))
        assert tape.reward[begin:end].tolist() == rewards
        assert tape.terminated[begin:end].tolist() == terminals
        assert tape.real[begin:end].all()
        assert tape.real[end] == (successors or not terminals[-1])


def test_a_terminal_step_reaches_the_agent_where_its_successor_is_not_stored() -> None:
    """As in Adroit's files (pen). The world does not learn from it, a timeout's step is dropped."""
    log = make_log([5, 3, 2])  # a terminal, a timeout, a terminal
    dataset = Dataset.from_arrays(**log.arrays(successors=False), task=small_task(log))
    assert dataset.bounds[1].tolist() == [5, 2, 2]
    assert np.flatnonzero(dataset.tape.terminated).tolist() == [4, 10]
    assert np.flatnonzero(~np.asarray(dataset.tape.real)).tolist() == [5, 11]
    assert dataset.world_rows.tolist() == [0, 1, 2, 3, 6, 7, 9]
    assert dataset.histories.length.tolist() == [5, 2, 2]
    tapes = sample_data(dataset, np.random.default_rng(0), 20, BatchShape(12))
    kinds = transition_kinds(jax.tree.map(lambda leaf: leaf[0], tapes))
    ends = np.flatnonzero(tapes.terminated[0])
    assert len(ends) and np.asarray(kinds.real)[ends[:-1]].all()
    rewards = set(tapes.reward[tapes.terminated].tolist())
    assert rewards == {float(log.rewards[4]), float(log.rewards[9])}
    whole = Dataset.from_arrays(**log.arrays(), task=small_task(log))
    assert whole.bounds[1].tolist() == [5, 3, 2] and np.asarray(whole.tape.real).all()
    assert len(whole.world_rows) == 10


def test_rounding_of_successors_is_no_jump() -> None:
    log = make_log([20])
    log.next_states *= np.float32(1 + 1e-6)
    assert Dataset.from_arrays(**log.arrays(timeouts=False)).episodes == 1


@pytest.mark.parametrize("successors", [True, False])
def test_an_uninterrupted_log_is_read_in_equal_pieces(successors: bool) -> None:
    """No step is lost, and it is said. Episodes of a usual length stay whole."""
    log = make_log([2_500, 700])  # a terminal, a timeout
    said: list[str] = []
    arrays = log.arrays(successors=successors)
    dataset = Dataset.from_arrays(**arrays, action_bounds=(-1, 1), name="plant", tell=said.append)
    assert dataset.bounds[1].tolist() == [834, 834, 832, 700 if successors else 699]
    assert dataset.task.horizon == 834
    first = dataset.bounds[0]
    np.testing.assert_array_equal(dataset.tape.state[first[1] - 1], log.states[834])
    np.testing.assert_array_equal(dataset.tape.state[first[1]], log.states[834])
    assert len(said) == 1 and said[0].startswith("plant: an episode of 2,500 steps")
    assert "in pieces of at most 834 (T)" in said[0] and "task file" in said[0]
    given = Dataset.from_arrays(**arrays, action_bounds=(-1, 1), horizon=5_000)
    assert given.bounds[1].tolist() == [2_500, 700 if successors else 699]
    assert given.horizon_said is None and given.task.horizon == 5_000


@pytest.mark.parametrize("successors", [True, False])
@pytest.mark.parametrize("timeouts", [True, False])
def test_only_what_is_longer_than_any_usual_episode_is_cut(
    successors: bool, timeouts: bool
) -> None:
    """Also where resets are not marked, and stored successors show them."""
    log = make_log([1_500, 2_100, 1_500, 2_000])
    log.terminals[:], log.timeouts[np.cumsum([1_500, 2_100, 1_500, 2_000]) - 1] = False, True
    if not (successors or timeouts):  # one log, as far as anybody can tell
        return
    made = Dataset.from_arrays(**log.arrays(successors=successors, timeouts=timeouts))
    last = 0 if successors else 1
    assert made.bounds[1].tolist() == [
        1_500 - last,
        700,
        700,
        700 - last,
        1_500 - last,
        2_000 - last,
    ]
    assert made.task.horizon == 2_000 - last
    assert made.horizon_said is not None and f"of {2_100 - last:,} steps" in made.horizon_said


def test_a_log_that_is_longer_than_its_task_is_read_in_pieces_of_t() -> None:
    log, said = make_log([25, 10]), list[str]()
    task = small_task(log, horizon=10)
    dataset = Dataset.from_arrays(**log.arrays(), task=task, name="plant", tell=said.append)
    assert dataset.bounds[1].tolist() == [10, 10, 5, 10] and dataset.task is task
    assert len(said) == 1 and "an episode of 25 steps" in said[0]
    np.testing.assert_array_equal(dataset.histories.length, dataset.bounds[1])
    # Eleven rows without successors are ten steps: nothing is cut, and no piece is empty.
    rows = make_log([11, 11])
    rows.terminals[:], rows.timeouts[[10, 21]] = False, True
    short = Dataset.from_arrays(**rows.arrays(successors=False), task=task)
    assert short.bounds[1].tolist() == [10, 10] and short.horizon_said is None
    published = replace(task, benchmark="adroit")  # its histories stop at T, as published
    assert Dataset.from_arrays(**log.arrays(), task=published).bounds[1].tolist() == [25, 10]


def test_resets_that_nothing_marks_are_assumed_at_every_t_and_told() -> None:
    """Successors show that a log goes on; without them a step is left out, and that is said."""
    log, said = make_log([25]), list[str]()
    log.terminals[:] = False
    task = small_task(log, horizon=10)
    for successors, lengths in ((True, [10, 10, 5]), (False, [9, 9, 4])):
        arrays = log.arrays(successors=successors, timeouts=False)
        data = Dataset.from_arrays(**arrays, task=task, tell=said.append)
        assert data.bounds[1].tolist() == lengths
    assert ["read in pieces" in said[0], "a reset is assumed after every 10" in said[1]] == [
        True
    ] * 2


def test_without_a_task_sizes_and_horizon_come_from_the_data() -> None:
    dataset = Dataset.from_arrays(**make_log([5, 9, 2]).arrays(), name="mine")
    task = dataset.task
    assert (task.name, task.state_size, task.actions.size, task.horizon) == ("mine", 3, 2, 9)
    assert task.make_env is None
    assert task.termination is None
    assert task.reference is None
    assert dataset.published is None


def test_where_no_episode_ran_out_of_time_the_horizon_is_the_usual_one() -> None:
    """Falls after nine steps do not say that nobody stands for longer."""
    log, said = make_log([9, 5, 8, 2]), list[str]()
    dataset = Dataset.from_arrays(**log.arrays(), action_bounds=(-1, 1), tell=said.append)
    assert dataset.task.horizon == 1000
    assert len(said) == 1 and "ends in a terminal state after 9 steps" in said[0]
    for lengths, horizon in (([1500, 5], 1500), ([50, 40, 50], 50), ([9, 9], 9), ([5, 9], 9)):
        data = Dataset.from_arrays(**make_log(lengths).arrays(), tell=said.append)
        assert data.task.horizon == horizon, lengths


def test_lists_and_columns_of_one_are_taken() -> None:
    log = make_log()
    plain = Dataset.from_arrays(**log.arrays())
    listed = Dataset.from_arrays(**{key: values.tolist() for key, values in log.arrays().items()})
    columns = log.arrays()
    for key in ("rewards", "terminals", "timeouts"):
        columns[key] = columns[key][:, None].astype(np.float64)
    assert plain.hash == listed.hash == Dataset.from_arrays(**columns).hash


def test_one_dimensional_floats_are_one_action() -> None:
    log = make_log(action_size=1)
    dataset = Dataset.from_arrays(**{**log.arrays(), "actions": log.actions[:, 0]})
    assert isinstance(dataset.task.actions, ContinuousActions)
    assert dataset.hash == Dataset.from_arrays(**log.arrays()).hash


def test_integers_are_discrete_actions() -> None:
    log = make_log()
    numbers = np.arange(len(log.actions)) % 4
    dataset = Dataset.from_arrays(**{**log.arrays(), "actions": numbers})
    assert dataset.task.actions == DiscreteActions(n=4)
    steps = np.setdiff1d(np.arange(len(dataset.tape.start)), np.add(*dataset.bounds))
    np.testing.assert_array_equal(np.argmax(dataset.tape.action[steps], axis=1), numbers)
    check_invariants(dataset)


def test_actions_are_scaled_from_bounds_and_back() -> None:
    log = make_log()
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
    actions = np.float32(low + (log.actions + 1) / 2 * (high - low))
    dataset = Dataset.from_arrays(**{**log.arrays(), "actions": actions}, action_bounds=(low, high))
    steps = np.setdiff1d(np.arange(len(dataset.tape.start)), np.add(*dataset.bounds))
    np.testing.assert_allclose(dataset.tape.action[steps], log.actions, atol=1e-6)
    back = dataset.task.from_unit(dataset.tape.action[steps])
    np.testing.assert_allclose(back, actions, atol=1e-5)


def test_a_hair_beyond_the_bounds_is_clipped() -> None:
    log = make_log()
    log.actions[3, 0] = 1.00001
    dataset = Dataset.from_arrays(**log.arrays())
    assert dataset.tape.action.max() == 1


def test_task_by_name_and_unknown_name() -> None:
    log = make_log(state_size=11, action_size=3)
    assert Dataset.from_arrays(**log.arrays(), task="d4rl/hopper").task.horizon == 1000
    with pytest.raises(TaskError, match="d4rl/hopper"):
        Dataset.from_arrays(**log.arrays(), task="d4rl/hoper")


def test_the_tape_cannot_be_changed() -> None:
    dataset = Dataset.from_arrays(**make_log().arrays())
    with pytest.raises(ValueError, match="read-only"):
        dataset.tape.state[0] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": np.zeros(20)}, r"'states': has shape \(20,\)"),
        ({"states": np.zeros((20, 0))}, "'states': has shape"),
        ({"states": np.full((20, 3), "x")}, "'states': holds text"),
        ({"states": np.zeros((20, 3), complex)}, "complex"),
        ({"states": [[1, 2], [3]]}, "'states' is not an array"),
        ({"states": np.array([None] * 20)}, "'states': holds objects"),
        ({"actions": np.zeros((19, 2))}, "'actions': has 19 rows where 'states' has 20"),
        ({"actions": np.full((20, 2), 1.5)}, r"'actions' row 0: holds 1.5, outside .*\[-1, 1\]"),
        ({"actions": np.full(20, -1)}, "'actions' row 0: is -1"),
        ({"actions": np.full(20, 10**6)}, "'actions' row 0: is 1000000"),
        ({"rewards": np.full(20, np.nan)}, "'rewards' row 0: holds nan"),
        ({"rewards": np.full(20, 1e300)}, "too large for float32"),
        ({"rewards": np.zeros((20, 2))}, "'rewards': has shape"),
        ({"terminals": np.full(20, 2)}, "'terminals' row 0: is 2, neither 0 nor 1"),
        ({"timeouts": np.full(20, np.nan)}, "'timeouts' row 0: is nan"),
        ({"next_states": np.zeros((20, 4))}, "'next_states': has states of size 4"),
        ({"next_states": np.full((20, 3), np.inf)}, "'next_states' row 0: holds inf"),
    ],
)
def test_wrong_arrays_are_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Dataset.from_arrays(**{**make_log().arrays(), **change})


def test_no_rows_and_no_steps_are_refused() -> None:
    with pytest.raises(DatasetError, match="has no rows"):
        Dataset.from_arrays(np.zeros((0, 3)), np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    log = make_log([1, 1, 1])
    with pytest.raises(DatasetError, match="no step with a successor"):
        Dataset.from_arrays(**log.arrays(successors=False))
    check_invariants(Dataset.from_arrays(**log.arrays()))


@pytest.mark.parametrize("bounds", [(1, -1), (0, np.inf), ([0, 0], [1, 1, 1]), (0, 0)])
def test_wrong_bounds_are_refused(bounds: tuple[object, object]) -> None:
    with pytest.raises(DatasetError, match="bounds"):
        Dataset.from_arrays(**make_log().arrays(), action_bounds=bounds)


def test_bounds_and_a_task_are_one_too_many() -> None:
    for extra in ({"action_bounds": (-1, 1)}, {"horizon": 9}):
        with pytest.raises(DatasetError, match=f"{next(iter(extra))}: the task has its own"):
            Dataset.from_arrays(**make_log().arrays(), task=small_task(), **extra)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state_size": 4}, "size 3, but those of task 'small' have 4"),
        ({"actions": ContinuousActions.symmetric(5)}, "size 2, but those of task 'small' have 5"),
        ({"actions": DiscreteActions(3)}, "size 2, but those of task 'small' are numbers below 3"),
    ],
)
def test_a_task_of_another_size_is_refused_with_both_sizes(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        Dataset.from_arrays(**make_log().arrays(), task=small_task(**changes))


def test_action_numbers_beyond_the_task_are_refused() -> None:
    log = make_log()
    numbers = np.zeros(len(log.actions), int)
    numbers[7] = 3
    with pytest.raises(DatasetError, match="'actions' row 7: is 3, not an action number"):
        Dataset.from_arrays(
            **{**log.arrays(), "actions": numbers}, task=small_task(actions=DiscreteActions(3))
        )


def test_assumed_bounds_are_told_with_the_range_that_the_data_uses() -> None:
    log = make_log([50, 50])
    log.actions = 0.6 + 0.3 * log.actions  # 0.3 to 0.9
    said: list[str] = []
    Dataset.from_arrays(**log.arrays(), tell=said.append)
    assert len(said) == 1 and "[-1, 1] is assumed, the data uses 0.3" in said[0]
    assert "down to -1, the data stays above 0.3" in said[0]
    said.clear()
    Dataset.from_arrays(**log.arrays(), action_bounds=(0, 1), tell=said.append)
    Dataset.from_arrays(**log.arrays(), task=small_task(), tell=said.append)
    assert said == []
