"""What is derived from a tape: against slow restatements, in memory and memory-mapped."""

from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data_checks import check_invariants, make_log, small_task
from neubay import tape as tapes
from neubay.data import Dataset, load


def antmaze_like(seed: int) -> Dataset:
    """Episodes that run on after terminals, longer than T, with shifted rewards."""
    log = make_log([9, 14, 3, 6], seed=seed)
    rng = np.random.default_rng(seed)
    log.terminals = rng.random(len(log.terminals)) < 0.1
    log.timeouts = np.zeros(len(log.terminals), bool)
    log.timeouts[np.cumsum([9, 14, 3, 6]) - 1] = True
    task = small_task(
        horizon=8,
        reward_shift=-1.0,
        split_by_timeouts_only=True,
        world_skips_terminals=True,
    )
    return Dataset.from_arrays(**log.arrays(), task=task)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), piece=st.integers(1, 11))
def test_histories_and_returns_stop_at_the_first_terminal(seed: int, piece: int) -> None:
    dataset = antmaze_like(seed)
    with mock.patch("neubay.data.dataset.PIECE_ROWS", piece):
        check_invariants(dataset)
        returns = dataset.returns
    for episode, length, total in zip(
        tapes.episodes(dataset.tape), dataset.histories.length, returns, strict=True
    ):
        alive = 0
        raw = 0.0
        for reward, terminated in zip(episode.reward[:-1], episode.terminated[:-1], strict=True):
            raw += float(reward) + 1.0
            alive += 1
            if terminated:
                break
        assert length == min(alive, 8)
        assert total == pytest.approx(raw, abs=1e-6)


@pytest.mark.parametrize("skips_terminals", [False, True])
@pytest.mark.parametrize("skips_timeouts", [False, True])
def test_world_rows_by_hand(skips_terminals: bool, skips_timeouts: bool) -> None:
    task = small_task(world_skips_terminals=skips_terminals, world_skips_timeouts=skips_timeouts)
    dataset = Dataset.from_arrays(**make_log([4, 1, 6, 1, 1]).arrays(), task=task)
    expected = []
    for first, length in zip(*dataset.bounds, strict=True):
        for row in range(first, first + length):
            terminal = dataset.tape.terminated[row]
            at_timeout = row == first + length - 1 and not terminal
            if (terminal and skips_terminals) or (at_timeout and skips_timeouts):
                continue
            expected.append(row)
    assert dataset.world_rows.tolist() == expected


def test_rows_that_are_no_step_are_never_a_world_row_without_successors() -> None:
    dataset = Dataset.from_arrays(**make_log().arrays(successors=False))
    check_invariants(dataset)
    assert len(dataset.world_rows) == dataset.transitions - 2  # the terminal ones


def test_hash_tells_content_and_nothing_else() -> None:
    log = make_log()
    dataset = Dataset.from_arrays(**log.arrays(), name="a")
    assert dataset.hash == Dataset.from_arrays(**log.arrays(), name="b").hash
    with mock.patch("neubay.data.dataset.PIECE_ROWS", 3):
        assert dataset.hash == Dataset.from_arrays(**log.arrays()).hash
    for key in ("states", "actions", "rewards", "terminals"):
        changed = log.arrays()
        changed[key] = changed[key].copy()
        changed[key][0] = 0 if key != "terminals" else 1
        assert dataset.hash != Dataset.from_arrays(**changed).hash


def test_take_copies_rows_of_any_shape() -> None:
    dataset = Dataset.from_arrays(**make_log().arrays())
    rows = np.array([[3, 0], [7, 7]])
    taken = dataset.take(rows)
    assert taken.state.shape == (2, 2, 3)
    np.testing.assert_array_equal(taken.state, dataset.tape.state[rows])
    np.testing.assert_array_equal(taken.start, dataset.tape.start[rows])


def write_hdf5(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_memory_mapped_is_the_same_in_everything(tmp_path: Path, cache: Path) -> None:
    path = write_hdf5(tmp_path / "log.hdf5", make_log([50, 20, 70, 1]).d4rl())
    in_memory = load(path)
    with (
        mock.patch("neubay.data.rows.BLOCK_ROWS", 16),
        mock.patch("neubay.data.dataset.PIECE_ROWS", 13),
    ):
        mapped = load(path, memory_limit=0)
        check_invariants(mapped)
        assert mapped.hash == in_memory.hash
        np.testing.assert_array_equal(mapped.returns, in_memory.returns)
    assert isinstance(mapped.tape.state, np.memmap)
    assert mapped.task.horizon == in_memory.task.horizon
    for a, b in zip(mapped.take(np.arange(9)), in_memory.take(np.arange(9)), strict=True):
        if a is not None:
            np.testing.assert_array_equal(a, b)


def test_the_cache_is_used_again_and_follows_the_file(tmp_path: Path, cache: Path) -> None:
    path = write_hdf5(tmp_path / "log.hdf5", make_log(seed=1).d4rl())
    first = load(path, memory_limit=0).hash
    (folder,) = (cache / "tapes").iterdir()
    with mock.patch("neubay.data.store.FolderWriter", side_effect=AssertionError("built again")):
        assert load(path, memory_limit=0).hash == first
    # Another task is another tape, and so is another content under the same name.
    task = small_task(reward_shift=1.0)
    assert load(path, task, memory_limit=0).hash != first
    write_hdf5(path, make_log(seed=2).d4rl())
    assert load(path, memory_limit=0).hash not in (first, None)
    assert folder in (cache / "tapes").iterdir()
    assert not [entry for entry in (cache / "tapes").iterdir() if entry.name.startswith(".")]


def test_a_damaged_cache_is_built_again(tmp_path: Path, cache: Path) -> None:
    path = write_hdf5(tmp_path / "log.hdf5", make_log().d4rl())
    expected = load(path, memory_limit=0).hash
    (folder,) = (cache / "tapes").iterdir()
    for damage in (b"", b"nonsense", (folder / "state.npy").read_bytes()[:-40]):
        (folder / "state.npy").write_bytes(damage)
        assert load(path, memory_limit=0).hash == expected


# --- What settings may follow from ---------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(0, 1), st.booleans())
@settings(max_examples=20)
def test_how_much_of_the_actions_the_states_foretell(seed: int, share: float, scaled: bool) -> None:
    """Of a = share * pi(s) + (1 - share) * chance it is what pi has of the variance, whatever the
    units and offsets of the states; of random actions nothing."""
    rng = np.random.default_rng(seed)
    rows, length = 4000, 100
    states = rng.normal(size=(rows, 4))
    follow, chance = np.tanh(0.3 * states[:, :2]), rng.uniform(-0.5, 0.5, (rows, 2))
    actions = share * follow + (1 - share) * chance
    seen = 1000 * states + 50 if scaled else states
    ends = np.arange(rows) % length == length - 1
    data = Dataset.from_arrays(seen, actions, np.ones(rows), np.zeros(rows, bool), ends)
    expected = (share * follow).var(axis=0).sum() / actions.var(axis=0).sum()
    assert data.facts.foretold == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("episodes", [1, 2])
def test_a_few_rows_foretell_nothing(episodes: int) -> None:
    """One episode has no other to measure on, and a few rows can be fitted exactly."""
    rows = 9 * episodes
    states = np.random.default_rng(0).normal(size=(rows, 6))
    ends = np.arange(rows) % 9 == 8
    data = Dataset.from_arrays(
        states, np.tanh(states[:, :1]), np.ones(rows), np.zeros(rows, bool), ends
    )
    assert data.facts.foretold == 0.0
    still = Dataset.from_arrays(
        np.ones((400, 2)),
        np.zeros((400, 1)),
        np.ones(400),
        np.zeros(400, bool),
        np.arange(400) % 50 == 49,
    )
    assert still.facts.foretold == 0.0
