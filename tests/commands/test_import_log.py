"""`neubay data import`, as a user with a CSV meets it."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from neubay.cli import main
from neubay.data import load
from neubay.errors import DatasetError
from neubay.tasks import ContinuousActions


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{run},{t * 0.5},{rng.normal():.4f},{rng.normal():.4f},{rng.uniform(0, 100):.2f}"
        for run in range(3)
        for t in range(20)
    ]
    path = tmp_path / "plant.csv"
    path.write_text("\n".join(["run,time,level,temp,pump1", *rows]) + "\n")
    return path


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["data", "import", *map(str, words)])
    return int(stop.value.code or 0)


def test_a_csv_becomes_a_dataset_that_knows_its_bounds(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plant.hdf5"
    words = (log, out, "--reward", "-abs(temp) - 0.01 * pump1")
    assert run(*words, "--action-low", "-5", "--action-high", "100") == 0
    said = capsys.readouterr().out
    assert "every other column of numbers" in said and "by name" in said and "as given" in said
    assert "3 episodes of 19 to 19 steps, 57 in all, 0 terminal" in said
    dataset = load(out)  # no task, no bounds: they are in the file
    assert isinstance(dataset.task.actions, ContinuousActions)
    assert (dataset.task.actions.low[0], dataset.task.actions.high[0]) == (-5, 100)
    assert dataset.transitions == 57 and f"hash {dataset.hash}" in said
    assert dataset.column_names == (("level", "temp"), ("pump1",), "-abs(temp) - 0.01 * pump1")
    assert run(*words) == 2 and "exists" in capsys.readouterr().err
    assert run(*words, "--force") == 0
    assert "bounds of the actions are guessed from the data: [" in capsys.readouterr().out


def test_every_row_is_accounted_for_and_files_are_named(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = log.read_text().splitlines()
    lines[5] = lines[5].replace(lines[5].split(",")[2], "")  # a value is missing
    other = tmp_path / "more.csv"
    other.write_text("\n".join([*lines, "9,0.0,1.0,1.0,1.0"]) + "\n")  # an episode of one row
    assert run(log, other, tmp_path / "out.hdf5", "--reward", "temp", "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"121 rows of 2 files ({log} 60, {other} 61): " in said
    assert "112 steps; 7 last rows, used only as the state that the step before led to; 2" in said


def test_what_is_guessed_is_said_also_where_a_column_is_missing(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(log, tmp_path / "out.hdf5", "--dry-run") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no column is called like reward" in said and "actions pump1 (by name)" in said


def test_a_target_that_cannot_be_is_refused_in_a_dry_run_too(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--dry-run", "--force"):
        assert run(log, tmp_path / "out.txt", "--reward", "temp", flag) == 2
        assert ".txt is not written" in " ".join(capsys.readouterr().err.split())


def test_a_dry_run_shows_and_writes_nothing(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(log, tmp_path / "out.hdf5", "--reward", "temp", "--dry-run") == 0
    assert "Nothing is written" in capsys.readouterr().out
    assert not (tmp_path / "out.hdf5").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "name one or more tables"),
        (("--reward", "temp", "--action-low", "0"), "give both --action-low and --action-high"),
        (("--reward", "temp", "--action-low", "0", "--action-high", "x"), "expected a number"),
        (("--reward", "temp", "--gap", "soon"), "--gap soon: expected a number"),
        (("--reward", "-temp.real"), "cannot stand in a formula"),
        (("--reward", "temp", "--action-low", "0", "--action-high", "1"), "outside the bounds"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    words: tuple[str, ...], complaint: str, log: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    places = (log, tmp_path / "out.hdf5") if words else ()
    assert run(*places, *words) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.hdf5").exists()


def test_bounds_in_a_file_that_cannot_be_are_refused(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "plant.hdf5"
    assert run(log, out, "--reward", "temp", "--action-low", "0", "--action-high", "100") == 0
    for low, high in ((5.0, 1.0), (np.nan, 1.0), ("zero", "one")):
        with h5py.File(out, "a") as file:
            file.attrs["action_low"], file.attrs["action_high"] = low, high
        with pytest.raises(Exception, match="its bounds of actions"):
            load(out)


def test_an_npz_file_tells_its_bounds_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(40, 2)),
        "actions": rng.uniform(0, 1, (40, 2)),
        "rewards": rng.normal(size=40),
        "terminals": np.zeros(40, bool),
        "timeouts": np.arange(40) % 20 == 19,
    }
    np.savez(tmp_path / "valves.npz", **arrays, action_low=np.zeros(2), action_high=np.ones(2))
    dataset = load(tmp_path / "valves.npz")
    assert isinstance(dataset.task.actions, ContinuousActions)
    assert list(dataset.task.actions.low) == [0, 0] and list(dataset.task.actions.high) == [1, 1]
    np.testing.assert_allclose(dataset.tape.action[0], 2 * arrays["actions"][0] - 1, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"state_names": ["level"]}, "has 1 names of states for 2 of them"),
        ({"action_names": '["a", "b"]'}, "has 2 names of actions for 1 of them"),
        ({"state_names": "level, temp"}, "its names of columns"),
        ({"state_names": [1.5, 2.5]}, "its names of columns"),
        ({"state_names": None}, "its names of columns"),
    ],
)
def test_names_in_a_file_that_cannot_be_are_refused(
    changes: dict[str, object], complaint: str, log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "plant.hdf5"
    assert run(log, out, "--reward", "temp", "--states", "level,temp") == 0
    with h5py.File(out, "r+") as file:
        for key, value in changes.items():
            del file.attrs[key]
            if value is not None:
                file.attrs[key] = value
    with pytest.raises(DatasetError, match=complaint):
        load(out)


def test_names_that_others_wrote_as_lists_are_read(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "plant.hdf5"
    assert run(log, out, "--reward", "temp", "--states", "level,temp") == 0
    with h5py.File(out, "r+") as file:
        file.attrs["state_names"] = ["Pegelstand [m]", "temp"]
        arrays = {key: file[key][:] for key in file}
    assert load(out).column_names == (("Pegelstand [m]", "temp"), ("pump1",), "temp")
    arrays |= {"state_names": ["level", "température"], "action_names": ["pump1"]}
    np.savez(tmp_path / "plant.npz", action_low=[0], action_high=[100], **arrays)
    found = load(tmp_path / "plant.npz")
    assert found.column_names == (("level", "température"), ("pump1",), None)
    assert found.hash == load(out, action_bounds=(0, 100)).hash
