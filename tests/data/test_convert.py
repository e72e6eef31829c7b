"""What is written reads back as the same tape, bit by bit; and nothing is ever half written."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import hypothesis.strategies as st
import minari
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from helpers.data_checks import make_log, small_task
from neubay.data import Dataset, convert, load
from neubay.data.convert import environment_actions, parse_target, raw_rewards, write
from neubay.data.rows import ColumnNames
from neubay.errors import DatasetError
from neubay.tasks import ContinuousActions, DiscreteActions, Task

LAYOUTS = ["out.hdf5", "folder"]

UNIT = Task("unit", 3, ContinuousActions.symmetric(2), 20)
SCALED = Task("scaled", 3, ContinuousActions(np.array([-0.4, 0.0]), np.array([0.4, 7.3])), 20)
DISCRETE = Task("discrete", 3, DiscreteActions(5), 20)
SHIFTED = replace(UNIT, name="shifted", reward_shift=-1.3)
MAZE = replace(UNIT, name="maze", reward_shift=-1.0, split_by_timeouts_only=True)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)


def made(task: Task, lengths: tuple[int, ...] = (7, 20, 1, 5), seed: int = 0) -> Dataset:
    """Episodes that end in a terminal, a timeout, at once, and by being cut."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    timeouts[ends] = True
    if task.split_by_timeouts_only:
        terminals[[2, 3, ends[1]]] = True  # successes in the middle and at an end
    else:
        terminals[ends[::2]] = True
        timeouts &= ~terminals
    states = rng.normal(size=(rows, 3)).astype(np.float32)
    after = np.concatenate([states[1:], states[:1]])
    after[ends] = rng.normal(size=(len(ends), 3))
    if isinstance(task.actions, DiscreteActions):
        actions: np.ndarray = rng.integers(task.actions.n - 1, size=rows)  # the last is never taken
    else:
        actions = rng.uniform(task.actions.low, task.actions.high, (rows, 2)).astype(np.float32)
        actions[0], actions[1] = task.actions.low, task.actions.high
    rewards = rng.normal(size=rows).astype(np.float32)
    return Dataset.from_arrays(
        states, actions, rewards, terminals, timeouts, after, task=task, name="made"
    )


def tapes_equal(one: Dataset, other: Dataset) -> None:
    for name in ("state", "action", "reward", "terminated", "start", "real"):
        np.testing.assert_array_equal(getattr(one.tape, name), getattr(other.tape, name), name)
    assert one.hash == other.hash


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("task", [UNIT, SCALED, DISCRETE, SHIFTED, MAZE], ids=lambda t: t.name)
def test_a_round_trip_changes_no_bit(task: Task, target: str) -> None:
    data = made(task)
    place = write(data, target)
    tapes_equal(load(place.path, task), data)
    tapes_equal(load(target, task), data)  # without a prefix the layout is detected


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("task", [SCALED, DISCRETE], ids=lambda t: t.name)
def test_names_of_columns_travel_along_and_are_no_part_of_the_hash(task: Task, target: str) -> None:
    commands = ("valve",) if task is DISCRETE else ("heat [W]", "fan")
    names = ColumnNames(("temp [°C]", 'a "b", c', "x" * 70_000), commands, "-abs(`temp [°C]`)")
    data = made(task)
    named = replace(data, column_names=names)
    assert named.hash == data.hash
    write(named, target)
    assert load(target, task).column_names == names
    write(data, "unnamed.hdf5")
    assert load("unnamed.hdf5", task).column_names is None


def test_from_one_layout_to_the_other_and_back(shared_data: Path) -> None:
    data = load(f"d4rl:{shared_data / 'door_human.hdf5'}")
    first = write(data, "a.hdf5")
    second = write(load(first.path), "b")
    third = write(load(second.path), "c.hdf5")
    back = load(third.path)
    tapes_equal(back, data)
    assert back.task is data.task  # recorded in the file: the name 'c' does not tell


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(-100, 99, width=32),
    span=st.floats(0.015625, 200, width=32),
    shares=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1)),
)
def test_actions_in_any_bounds_find_their_way_back(
    low: float, span: float, shares: np.ndarray
) -> None:
    task = Task("any", 1, ContinuousActions(np.array([low]), np.array([low + span])), 5)
    bounds = task.actions.low, task.actions.high
    recorded = np.clip((low + shares * span).astype(np.float32)[:, None], *bounds)
    on_tape = np.clip(task.to_unit(recorded), -1, 1)
    again = environment_actions(task, on_tape)
    assert again.dtype == np.float32
    np.testing.assert_array_equal(np.clip(task.to_unit(again), -1, 1), on_tape)


@settings(max_examples=60, deadline=None)
@given(
    shift=st.floats(-100, 100, width=32),
    raw=hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1000, 1000, width=32)),
)
def test_rewards_find_their_way_back_from_any_shift(shift: float, raw: np.ndarray) -> None:
    task = replace(UNIT, reward_shift=shift)
    on_tape = raw + np.float32(shift)
    np.testing.assert_array_equal(raw_rewards(task, on_tape) + np.float32(shift), on_tape)


def test_d4rl_files_have_d4rls_keys_types_and_units() -> None:
    data = made(SCALED)
    write(data, "out.hdf5", provenance={"behaviour": "made", "seed": 3})
    with h5py.File("out.hdf5") as file:
        assert file["observations"].shape == file["next_observations"].shape == (33, 3)
        assert {file[key].dtype for key in ("observations", "actions", "rewards")} == {
            np.dtype(np.float32)
        }
        assert file["terminals"].dtype == file["timeouts"].dtype == bool
        assert np.flatnonzero(file["terminals"]).tolist() == [6, 27]
        assert np.flatnonzero(file["timeouts"]).tolist() == [26, 32]
        assert file["actions"][1].tolist() == [np.float32(0.4), np.float32(7.3)]
        assert file.attrs["name"] == "made" and file.attrs["task"] == "scaled"
        assert file.attrs["hash"] == data.hash
        assert json.loads(file.attrs["provenance"]) == {"behaviour": "made", "seed": 3}


def test_where_only_timeouts_end_episodes_every_end_is_one() -> None:
    write(made(MAZE), "maze.hdf5")
    with h5py.File("maze.hdf5") as file:
        assert np.flatnonzero(file["timeouts"]).tolist() == [6, 26, 27, 32]
        assert np.flatnonzero(file["terminals"]).tolist() == [2, 3, 26]


def test_terminal_steps_without_a_successor_stay_so() -> None:
    """Written as they were read: a row per state, and no successors that nobody saw."""
    log = make_log([5, 3, 8, 4])
    data = Dataset.from_arrays(**log.arrays(successors=False), task=small_task(log), name="pen")
    write(data, "out.hdf5")
    with h5py.File("out.hdf5") as file:
        assert "next_observations" not in file
        np.testing.assert_array_equal(file["observations"], log.states)
        np.testing.assert_array_equal(file["terminals"], log.terminals)
        np.testing.assert_array_equal(file["timeouts"], log.timeouts)
    assert load("out.hdf5", data.task).hash == data.hash
    with pytest.raises(DatasetError, match=r"'pen' does not have .*choose OUT\.hdf5"):
        write(data, "minari:pen/mixed-v0")


def test_minari_itself_reads_what_was_written() -> None:
    data = made(SCALED)
    provenance = {"behaviour": "made", "seed": 3}
    place = write(data, "minari:made/mixed-v2", provenance=provenance, seeds=[5, 6, 7, 8])
    assert place.path == Path("minari/made/mixed-v2").resolve()
    assert list(minari.list_local_datasets()) == ["made/mixed-v2"]
    stored = minari.load_dataset("made/mixed-v2")
    assert stored.total_episodes == 4 and stored.total_steps == 33
    np.testing.assert_array_equal(stored.action_space.high, np.float32([0.4, 7.3]))
    episode = stored[1]
    assert episode.observations.dtype == np.float32 and episode.observations.shape == (21, 3)
    assert episode.truncations[-1] and not episode.terminations.any()
    first, _ = data.bounds
    np.testing.assert_array_equal(episode.observations, data.tape.state[first[1] : first[2]])
    metadata = stored.storage.metadata
    assert metadata["neubay"]["task"] == "scaled"
    assert metadata["neubay"]["provenance"] == provenance
    assert metadata["algorithm_name"] == "made"
    seeds = [each["seed"] for each in stored.storage.get_episode_metadata(range(4))]
    assert seeds == [5, 6, 7, 8]


@pytest.mark.parametrize("target", [*LAYOUTS, "minari:made-v0"])
def test_nothing_is_overwritten_unless_asked(target: str) -> None:
    old, new = made(UNIT), made(UNIT, seed=1)
    place = write(old, target)
    with pytest.raises(DatasetError, match=r"exists already.*--force"):
        write(new, target)
    tapes_equal(load(place.path, UNIT), old)
    write(new, target, force=True)
    tapes_equal(load(place.path, UNIT), new)


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("failure", ["full disk", "other data"])
def test_a_failed_write_leaves_what_was_there(
    target: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = made(UNIT), made(UNIT, seed=1)
    place = write(old, target)
    before = sorted(tmp_path.iterdir())

    def fail(*arguments: object, **options: object) -> Dataset:
        if failure == "full disk":
            raise OSError(28, "No space left on device")
        return old

    monkeypatch.setattr(convert, "load", fail)
    message = "No space left" if failure == "full disk" else "'state' differs first in row 0"
    with pytest.raises(DatasetError, match=message):
        write(new, target, force=True)
    assert sorted(tmp_path.iterdir()) == before
    tapes_equal(load(place.path, UNIT), old)


def test_targets_mean_what_they_look_like() -> None:
    assert parse_target("x/y.hdf5").layout == "d4rl"
    assert parse_target("y.H5").layout == "d4rl"
    assert parse_target("d4rl:anything").path == Path("anything")
    assert parse_target("some folder").layout == "minari"
    assert parse_target("minari:./here").path == Path("here")
    assert parse_target("minari:a/b-v0").minari_id == "a/b-v0"
    for wrong in ("minari:", "d4rl:", "minari:no version", "minari:a/../b-v0", "out.npz"):
        with pytest.raises(DatasetError, match="target"):
            parse_target(wrong)


def test_unicode_names_and_new_folders_work() -> None:
    data = made(UNIT)
    for target in ("новая папка/数据.hdf5", "новая папка/donn\u00e9es"):
        tapes_equal(load(write(data, target).path, UNIT), data)


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "blocker").write_text("a file, not a folder")
    for target in ("blocker/out.hdf5", "blocker/folder"):
        with pytest.raises(DatasetError, match=f"{target}: cannot be written"):
            write(made(UNIT), target)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "log.csv.gz", "x.npz", "minari:./x.json"])
def test_a_folder_is_not_named_like_a_file(name: str) -> None:
    with pytest.raises(DatasetError, match=r"is not written; choose OUT\.hdf5"):
        parse_target(name)
    assert parse_target("data.v1").layout == "minari"
