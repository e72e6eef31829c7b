"""Every real file gives what its README says."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from helpers.data_checks import check_invariants
from neubay.data import Dataset, load, validate
from neubay.tasks import list_tasks


def readme_rows(folder: Path) -> dict[str, dict[str, float]]:
    """The table of the README: rows, episodes, mean, std and score by file."""
    number = r"(-?[\d,.]+)"
    pattern = rf"^\| `(\S+)` \|.*\| {number} \| {number} \| {number} ± {number} \| {number} \|$"
    found = re.findall(pattern, (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = ("rows", "episodes", "mean", "std", "score")
    return {
        file: dict(zip(names, (float(value.replace(",", "")) for value in values), strict=True))
        for file, *values in found
    }


def complete(dataset: Dataset) -> np.ndarray:
    """Episodes that ended by themselves: terminated, or as long as they may be."""
    first, length = dataset.bounds
    ended = dataset.tape.terminated[first + dataset.lifetimes - 1]
    return ended | (length >= dataset.task.horizon)


def final_rewards(path: Path) -> np.ndarray:
    """Rewards of the rows that have no successor, and are not on the tape therefore."""
    with h5py.File(path) as file:
        return file["rewards"][()][file["timeouts"][()]].astype(np.float64)


@pytest.mark.slow
def test_every_file_is_what_its_readme_says(shared_data: Path) -> None:
    table = readme_rows(shared_data)
    files = [path for path in shared_data.iterdir() if path.suffix in (".hdf5", ".npz")]
    assert {path.name for path in files} == set(table)
    for path in files:
        dataset, expected = load(path), table[path.name]
        check_invariants(dataset)
        assert dataset.published is None, "none of these is the paper's data"
        assert dataset.task in list_tasks()
        returns = dataset.returns
        dropped = 0
        if dataset.task.name.startswith(("adroit", "antmaze")):
            # The last row of an episode has no successor; a terminal one is a step all the same.
            first, length = dataset.bounds
            dropped = int((~dataset.tape.terminated[first + length - 1]).sum())
            if dataset.task.reward_shift == 0:
                returns = returns + final_rewards(path)
        assert dataset.transitions + dropped == expected["rows"]
        assert dataset.episodes == expected["episodes"]
        returns = returns[complete(dataset)]
        tolerance = 0.0006 if expected["mean"] < 1 and expected["mean"] > 0 else 0.06
        assert returns.mean() == pytest.approx(expected["mean"], abs=tolerance), path.name
        assert returns.std() == pytest.approx(expected["std"], abs=tolerance), path.name
        score = dataset.task.score(returns)
        assert score.mean() == pytest.approx(expected["score"], abs=0.06), path.name


@pytest.mark.slow
def test_no_real_file_has_an_error(shared_data: Path) -> None:
    for path in shared_data.glob("*.*5"):
        assert not [finding for finding in validate(path) if finding.severity == "error"]
