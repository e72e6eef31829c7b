"""Logs as tables: nothing is guessed, dropped, sorted or split in silence."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neubay.data.dataset import Dataset
from neubay.data.tables import Imported, choose_columns, frame_table, open_table, steps_of
from neubay.errors import DatasetError, NeubayError


def plant(episodes: int = 4, rows: int = 50) -> pd.DataFrame:
    """A tank with two pumps at 0 to 100 %."""
    rng = np.random.default_rng(0)
    count = episodes * rows
    return pd.DataFrame(
        {
            "run": np.repeat(np.arange(episodes), rows),
            "timestamp": np.tile(np.arange(rows) * 0.5, episodes),
            "level": rng.normal(size=count),
            "temperature": rng.normal(20, 3, size=count),
            "pump1": rng.uniform(0, 100, count),
            "pump2": rng.uniform(0, 100, count),
            "reward": rng.normal(size=count),
        }
    )


def steps(frame: Any, **options: Any) -> Imported:
    names = ("states", "actions", "reward", "episode", "time", "terminal", "timeout")
    given = {name: options.pop(name) for name in names if name in options}
    return steps_of([frame_table(frame, "log")], given, **options)


def said(imported: Imported) -> str:
    return "\n".join(map(str, imported.findings))


def test_columns_are_guessed_by_name_and_what_was_guessed_is_said() -> None:
    imported = steps(plant())
    assert imported.columns.states == ("level", "temperature")
    assert imported.columns.actions == ("pump1", "pump2")
    assert (imported.columns.reward, imported.columns.episode) == ("reward", "run")
    assert imported.columns.time == "timestamp" and imported.columns.terminal is None
    assert imported.guessed["states"] == "every other column of numbers"
    assert imported.guessed["actions"] == "by name"


@pytest.mark.parametrize(
    "names", [["a0", "a1", "s0", "s1"], ["action_x", "act.2", "obs[0]", "o 1"]]
)
def test_numbered_columns_are_told_apart(names: list[str]) -> None:
    columns, guessed = choose_columns(
        [*names, "r", "ambient"], dict.fromkeys([*names, "r", "ambient"], True), {}, "log"
    )
    assert columns.actions == tuple(names[:2]) and columns.states == tuple(names[2:])
    assert set(guessed) == {"actions", "states", "reward"}


def test_the_last_row_of_an_episode_lends_its_state_only() -> None:
    frame = plant(episodes=2, rows=3)
    arrays = steps(frame).arrays
    states = frame[["level", "temperature"]].to_numpy(np.float32)
    np.testing.assert_array_equal(arrays["states"], states[[0, 1, 3, 4]])
    np.testing.assert_array_equal(arrays["next_states"], states[[1, 2, 4, 5]])
    np.testing.assert_array_equal(
        arrays["rewards"], frame["reward"].to_numpy(np.float32)[[0, 1, 3, 4]]
    )
    assert list(arrays["timeouts"]) == [False, True, False, True]
    assert not arrays["terminals"].any()
    after = steps(frame, reward_at="next").arrays["rewards"]
    np.testing.assert_array_equal(after, frame["reward"].to_numpy(np.float32)[[1, 2, 4, 5]])


def test_a_terminal_in_the_last_row_marks_the_step_into_it() -> None:
    frame = plant(episodes=2, rows=3)
    frame["tripped"] = [0, 0, 1, 0, 0, 0]
    arrays = steps(frame).arrays
    assert list(arrays["terminals"]) == [False, True, False, False]
    assert list(arrays["timeouts"]) == [False, False, False, True]


def test_a_flag_ends_an_episode_where_no_id_does() -> None:
    frame = plant(episodes=1, rows=6).drop(columns=["run", "timestamp"])
    frame["terminated"] = [False, False, True, False, False, False]
    dataset = Dataset.from_frame(frame, tell=lambda _: None)
    assert dataset.episodes == 2 and list(dataset.bounds[1]) == [2, 2]
    assert dataset.tape.terminated.sum() == 1


def test_a_reward_is_a_formula_whose_columns_stay_states_and_actions() -> None:
    frame = plant().drop(columns="reward")
    imported = steps(frame, reward="-abs(temperature - 21) - 0.01 * pump1 ** 2")
    expected = -abs(frame.temperature - 21) - 0.01 * frame.pump1**2
    keep = np.arange(len(frame)) % 50 != 49
    np.testing.assert_allclose(imported.arrays["rewards"], expected[keep], rtol=1e-5)
    assert "temperature" in imported.columns.states and "pump1" in imported.columns.actions


def test_a_reward_on_the_terminal_flag_counts_with_the_step_into_the_row() -> None:
    frame = plant(episodes=2, rows=3).drop(columns="reward")
    frame["tripped"] = [0, 0, 1, 0, 0, 0]
    imported = steps(frame, reward="1 - 30 * tripped")
    assert "uses the terminal flag 'tripped', and never counts" in said(imported)
    assert list(imported.arrays["rewards"]) == [1, 1, 1, 1]
    after = steps(frame, reward="1 - 30 * tripped", reward_at="next")
    assert "never counts" not in said(after)
    assert list(after.arrays["rewards"]) == [1, -29, 1, 1]


def test_a_column_with_the_name_of_a_formula_is_that_column() -> None:
    frame = plant().rename(columns={"reward": "income - cost"})
    imported = steps(frame, reward="income - cost")
    np.testing.assert_array_equal(
        imported.arrays["rewards"][:49], frame["income - cost"].to_numpy(np.float32)[:49]
    )


def test_every_format_gives_the_same_dataset(tmp_path: Path) -> None:
    frame = plant()
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_csv(tmp_path / "log.tsv", index=False, sep=";")
    with gzip.open(tmp_path / "log.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    hashes = {
        Dataset.from_arrays(
            **(found := steps_of([open_table(path)], {})).arrays, action_bounds=found.action_bounds
        ).hash
        for path in tmp_path.iterdir()
    }
    for other in (frame, pl.from_pandas(frame), pa.table(frame), frame.sample(frac=1).sort_index()):
        hashes.add(Dataset.from_frame(other, tell=lambda _: None).hash)
    assert len(hashes) == 1


def test_several_files_are_episodes_apart_and_must_agree(tmp_path: Path) -> None:
    for number in range(2):
        plant(episodes=1).drop(columns="run").to_csv(tmp_path / f"{number}.csv", index=False)
    tables = [open_table(tmp_path / f"{number}.csv") for number in range(2)]
    arrays = steps_of(tables, {}).arrays
    assert arrays["timeouts"].sum() == 2 and len(arrays["rewards"]) == 98
    plant(episodes=1).drop(columns="pump2").to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(DatasetError, match=r"other\.csv: has no column 'pump2', which .*0\.csv"):
        steps_of([tables[0], open_table(tmp_path / "other.csv")], {})


def test_rows_out_of_order_are_sorted_and_that_is_said() -> None:
    frame = plant()
    shuffled = frame.sample(frac=1, random_state=3)
    imported = steps(shuffled)
    assert "earlier than the row above them" in said(imported)
    assert "rows lie apart" in said(imported)
    ids = shuffled["run"].drop_duplicates().to_numpy()
    expected = steps(pd.concat([frame[frame.run == run] for run in ids]))
    np.testing.assert_array_equal(imported.arrays["states"], expected.arrays["states"])
    assert "earlier" not in said(expected)


def test_gaps_and_irregular_steps_are_counted() -> None:
    frame = plant(episodes=1, rows=100)
    frame.loc[40:, "timestamp"] += 30.0  # a gap
    frame.loc[70:, "timestamp"] += 0.4  # one step of 0.9
    imported = steps(frame)
    assert "an episode ends at each: 1." in said(imported)
    assert "off by more than half of the usual one (0.5): 1." in said(imported)
    assert imported.arrays["timeouts"].sum() == 2 and len(imported.arrays["rewards"]) == 98
    assert steps(frame, gap=None).arrays["timeouts"].sum() == 1


def test_no_step_leads_over_a_row_with_a_missing_value() -> None:
    frame = plant(episodes=1, rows=10).drop(columns="timestamp")
    frame.loc[4, "level"] = np.nan
    frame.loc[7, "reward"] = np.inf
    imported = steps(frame)
    assert "rows without a state, a time or an episode" in said(imported)
    assert "an episode ends at each: 1. Fill" in said(imported)
    assert "steps with an action or a reward that is missing or not finite" in said(imported)
    states = frame["level"].to_numpy(np.float32)
    np.testing.assert_array_equal(imported.arrays["states"][:, 0], states[[0, 1, 2, 5, 6, 8]])
    np.testing.assert_array_equal(imported.arrays["next_states"][:, 0], states[[1, 2, 3, 6, 7, 9]])
    after = steps(frame, reward_at="next")
    np.testing.assert_array_equal(after.arrays["states"][:, 0], states[[0, 1, 2, 5, 7, 8]])
    for missing in ({"level": np.nan}, {"pump1": np.nan}, {"reward": np.nan}):
        with pytest.raises(DatasetError, match="every row has a value that is missing"):
            steps(frame.assign(**missing), states=("level",), actions=("pump1",), reward="reward")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=5),
    st.sampled_from(["same", "next"]),
    st.sampled_from(["run", "tripped", "stopped", "gap"]),
    st.booleans(),
    st.integers(0, 9),
)
def test_what_no_step_needs_may_be_empty(
    lengths: list[int], reward_at: Any, ended_by: str, shuffled: bool, seed: int
) -> None:
    """The last row of an episode needs no action, and the reward is that of a step."""
    rng = np.random.default_rng(seed)
    count, last = sum(lengths), np.cumsum(lengths) - 1
    first = last - lengths + 1
    frame = pd.DataFrame(rng.normal(size=(count, 3)), columns=["level", "pump1", "reward"])
    frame["time"] = np.arange(count) + 0.0
    if ended_by == "run":
        frame["run"] = np.repeat(np.arange(len(lengths)), lengths)
        frame["tripped"] = np.isin(np.arange(count), last[::2])
    elif ended_by == "gap":
        frame["time"] += 100.0 * np.repeat(np.arange(len(lengths)), lengths)
    else:
        frame[ended_by] = np.isin(np.arange(count), last)
    given = {"timeout": "stopped"} if ended_by == "stopped" else {}
    if shuffled:
        frame = frame.sample(frac=1, random_state=seed)
    empty = frame.copy()
    empty.loc[last, "pump1"] = np.nan
    empty.loc[first if reward_at == "next" else last, "reward"] = np.nan
    filled, found = (steps(log, reward_at=reward_at, **given) for log in (frame, empty))
    assert said(filled) == said(found)
    for name, array in filled.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
    flags = frame["tripped"].sum() if "tripped" in frame else 0
    assert found.arrays["terminals"].sum() == flags and "flag is lost" not in said(found)


def test_a_terminal_flag_that_is_lost_is_said() -> None:
    frame = plant(episodes=6, rows=5)
    last = np.arange(4, 30, 5)
    frame["tripped"] = np.isin(np.arange(30), last)
    assert steps(frame).arrays["terminals"].sum() == 6
    frame.loc[last[0], "level"] = np.nan  # what it led to is not known
    frame.loc[last[1], "timestamp"] = frame.loc[last[1] - 1, "timestamp"]  # a row that came twice
    frame.loc[last[2] - 1, "pump1"] = np.nan  # nor what led to it
    frame.loc[last[3], ["pump1", "reward"]] = np.nan
    imported = steps(frame)
    assert "no step leads, so that the flag is lost: 3." in said(imported)
    assert imported.arrays["terminals"].sum() == 3
    after = steps(frame, reward_at="next")  # a reward of the step into the row is needed there
    assert "no step leads, so that the flag is lost: 4." in said(after)
    assert after.arrays["terminals"].sum() == 2


def test_a_missing_value_in_a_shuffled_log_cuts_its_own_episode_alone() -> None:
    frame = plant(episodes=4, rows=20)
    frame.loc[27, "level"] = np.nan  # row 7 of the second episode
    expected = steps(frame)
    assert list(np.diff(np.flatnonzero(expected.arrays["timeouts"]), prepend=-1)) == [
        *(19, 6, 11, 19, 19)
    ]
    shuffled = frame.sample(frac=1, random_state=1)
    imported = steps(shuffled)
    assert "rows lie apart, put together: 4." in said(imported)
    assert "irregular" not in said(imported) and "off by" not in said(imported)
    in_order = pd.concat([frame[frame.run == run] for run in shuffled["run"].drop_duplicates()])
    np.testing.assert_array_equal(
        imported.arrays["next_states"], steps(in_order).arrays["next_states"]
    )


def test_a_row_without_its_time_or_id_is_where_the_log_has_it() -> None:
    frame = plant(episodes=2, rows=10)
    frame["run"] = frame["run"].map({0: "first", 1: "second"})
    frame.loc[4, "timestamp"] = np.nan
    frame.loc[15, "run"] = None
    arrays = steps(frame).arrays
    states = frame["level"].to_numpy(np.float32)
    np.testing.assert_array_equal(
        arrays["states"][:, 0], states[[0, 1, 2, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 18]]
    )


def test_columns_of_text_are_not_dropped_in_silence() -> None:
    frame = plant().assign(pressure=["0,5"] * 200)
    assert "columns of text that are not used: pressure." in said(steps(frame))


def test_repeated_sensor_values_and_double_rows_are_counted() -> None:
    frame = plant(episodes=1, rows=40)
    frame.loc[1::2, ["level", "temperature"]] = frame.loc[::2, ["level", "temperature"]].to_numpy()
    frame = pd.concat([frame, frame.tail(1)])
    imported = steps(frame)
    assert "repeat all states of the row before: 20." in said(imported)
    assert "with the time of the row before them, left out: 1." in said(imported)


def test_times_may_be_dates_or_text() -> None:
    frame = plant(episodes=1)
    dates = pd.to_datetime("2026-01-31") + pd.to_timedelta(frame.timestamp, unit="s")
    for times in (dates, dates.dt.strftime("%Y-%m-%dT%H:%M:%S.%f")):
        imported = steps(frame.assign(timestamp=times)[::-1])
        assert "earlier than the row above them" in said(imported)
        np.testing.assert_array_equal(
            imported.arrays["states"][:, 0], frame.level.to_numpy(np.float32)[:-1]
        )
    with pytest.raises(DatasetError, match="'timestamp' holds text that is no time"):
        steps(frame.assign(timestamp="noon"))


def test_bounds_that_were_guessed_are_a_warning_with_numbers() -> None:
    frame = plant()
    low, high = frame.pump1.min(), frame.pump1.max()
    assert f"guessed from the data: [{low:g}, {high:g}]" in said(steps(frame))
    given = steps(frame, action_bounds=(0, 100))
    assert "guessed" not in said(given) and given.action_bounds == (0, 100)


def test_whole_numbers_are_discrete_actions_unless_bounds_are_given() -> None:
    frame = plant().drop(columns=["pump1", "pump2"])
    frame["action"] = np.arange(len(frame)) % 3 + 1
    imported = steps(frame)
    assert imported.arrays["actions"].dtype == np.int64 and imported.action_bounds is None
    assert "one of 3 whole numbers, 1 to 3: taken for the number of one of 4" in said(imported)
    assert steps(frame, action_bounds=(0, 5)).arrays["actions"].shape[1:] == (1,)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"states": ("level", "nothing")}, r"no column 'nothing' \(states\)"),
        ({"reward": "income - 2"}, r"no column 'income' \(reward\)"),
        ({"reward": "open('x')"}, "no function 'open'"),
        ({"terminal": "level"}, "neither 0 nor 1"),
        ({"states": ("note",)}, "'note' holds"),
        ({"episode": "timestamp"}, "nothing follows on anything"),
        ({"gap": -3.0}, "a gap longer than -3 usual steps .* Give a factor of at least 1"),
        ({"gap": np.nan}, "a gap longer than nan usual steps"),
        ({"terminal": "one"}, r"'one' \(terminal\) is 1 in every row"),
        ({"timeout": "one"}, r"'one' \(timeout\) is 1 in every row"),
        ({"states": ("level", "level")}, r"'level' is named twice \(--states\)"),
        ({"states": ("level",), "actions": ("level",)}, "named as a state and as an action"),
        ({"states": ("comma",)}, "'comma' holds text such as '1,7', .*a decimal point, 1.7"),
        ({"states": ("note",)}, "'note' holds text such as 'fine', not numbers"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], complaint: str) -> None:
    frame = plant(episodes=1).assign(note="fine", one=1, comma="1,7")
    with pytest.raises(NeubayError, match=complaint):
        steps(frame, **options)


def test_a_log_without_what_is_needed_says_how_to_name_it() -> None:
    with pytest.raises(DatasetError, match=r"no column is called like reward.*--reward NAME"):
        steps(plant().drop(columns="reward"))
    with pytest.raises(DatasetError, match="is not a data frame"):
        frame_table(object(), "log")
    with pytest.raises(DatasetError, match="no rows"):
        steps(plant().head(0))


@settings(max_examples=40)
@given(st.binary(max_size=300) | st.text(alphabet='a,;\n\t"1.-eN\x00é', max_size=200))
def test_any_file_is_a_table_or_a_dataset_error(content: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            steps_of([open_table(path)], {})
        except NeubayError as error:
            assert str(error)


def test_a_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(plant()), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(4, len(whole), 8):
            damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged[: int(rng.integers(10, len(whole)))])
        with pytest.raises(NeubayError):
            steps_of([open_table(path)], {})


def test_files_of_arrays_and_other_bytes_are_refused_in_words(tmp_path: Path) -> None:
    arrays = tmp_path / "plant.npz"
    np.savez(arrays, observations=np.zeros(3))
    with pytest.raises(DatasetError, match="is a file of arrays and no log"):
        open_table(arrays)
    noise = tmp_path / "noise.csv"
    rows = [b"a,b"] + [bytes([27, 7, 200 + n]) * 5 + b",1,2" for n in range(5)]
    noise.write_bytes(b"\n".join(rows))
    with pytest.raises(DatasetError) as refused:
        open_table(noise)
    assert str(refused.value).isprintable()
