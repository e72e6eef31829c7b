"""Files larger than memory are read by memory map, and loading costs little more than reading."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from helpers.data_checks import make_log
from neubay.data.store import gather

# What a process does that opens a large file and draws from it; prints its peak memory in MB.
DRAW = """
import json, resource, sys
import numpy as np
from neubay.data import load

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak()
dataset = load(sys.argv[1], "d4rl/halfcheetah", memory_limit=1 << 24)
rng = np.random.default_rng(0)
total = 0.0
for _ in range(200):
    rows = rng.choice(dataset.world_rows, 256)
    total += float(dataset.take(rows).reward.sum() + dataset.take(rows + 1).state.sum())
histories = dataset.histories
some = rng.integers(0, dataset.episodes, 20)
total += float(dataset.take(histories.first[some][:, None] + np.arange(1000)).state.sum())
assert len(dataset.returns) == dataset.episodes and dataset.hash
print(json.dumps({
    "before": before, "peak": peak(), "kind": type(dataset.tape.state).__name__,
    "tape": sum(field.nbytes for field in dataset.tape if field is not None) / 2**20,
}))
"""


def run(program: str, *arguments: str) -> str:
    """Run Python in a process of its own, where no shapes are checked at run time."""
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def write_large(path: Path, rows: int) -> None:
    """Halfcheetah's sizes; written in pieces, since it is not to fit into memory here either."""
    piece = 50_000
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for key, shape, dtype in (
            ("observations", (17,), "f4"),
            ("next_observations", (17,), "f4"),
            ("actions", (6,), "f4"),
            ("rewards", (), "f4"),
            ("terminals", (), "?"),
            ("timeouts", (), "?"),
        ):
            file.create_dataset(key, (rows, *shape), dtype)
        for begin in range(0, rows, piece):
            states = rng.random((piece + 1, 17), dtype=np.float32)
            file["observations"][begin : begin + piece] = states[:-1]
            file["next_observations"][begin : begin + piece] = states[1:]
            file["actions"][begin : begin + piece] = states[:-1, :6]
            file["rewards"][begin : begin + piece] = states[:-1, 0]
            file["timeouts"][begin : begin + piece] = np.arange(piece) % 1000 == 999


@pytest.mark.slow
def test_a_large_file_is_opened_and_drawn_from_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of 4 GB within a tenth of 700 MB, but for what importing costs anyway."""
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "large.hdf5"
    try:
        write_large(path, 2_400_000)
        assert path.stat().st_size > 390e6
        for _ in ("built", "found in the cache"):
            measured = json.loads(run(DRAW, str(path)))
            assert measured["kind"] == "memmap"
            assert measured["tape"] > 220
            assert measured["peak"] - measured["before"] < 70
    finally:  # pytest would keep it
        path.unlink()
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_rows_of_a_memory_map_by_plain_reads(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    np.save(tmp_path / "values.npy", values)
    mapped = np.load(tmp_path / "values.npy", mmap_mode="r")
    for rows in (
        np.array([5]),
        np.array([], dtype=int),
        np.array([[3, 4, 5], [999, 0, 1]]),
        np.array([7, 7, 8, 6]),
        np.arange(1000),
    ):
        np.testing.assert_array_equal(gather(mapped, rows), values[rows])
        np.testing.assert_array_equal(gather(mapped[1:], rows % 999), values[1:][rows % 999])
    for rows in (np.array([1000]), np.array([-1])):
        with pytest.raises(IndexError):
            gather(mapped, rows)


# Raw read and load in turns, so that both meet the same machine; prints the best of each.
COMPARE = """
import json, sys, time
import h5py
from neubay.data import load

def raw(path):
    with h5py.File(path, "r") as file:
        return {key: file[key][()] for key in file}

times = {"raw": [], "load": []}
for _ in range(int(sys.argv[2])):
    for name, function in (("raw", raw), ("load", lambda path: load(path, "d4rl/halfcheetah"))):
        began = time.process_time()
        function(sys.argv[1])
        times[name].append(time.process_time() - began)
print(json.dumps({name: min(values) for name, values in times.items()}))
"""


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    ("options", "rows", "turns"),
    [({}, 1_000_000, 30), ({"compression": "gzip"}, 100_000, 4)],
    ids=["plain", "gzip"],
)
def test_loading_takes_at_most_twice_the_raw_read(
    tmp_path: Path, options: dict[str, str], rows: int, turns: int
) -> None:
    path = tmp_path / "halfcheetah.hdf5"
    log = make_log([1000] * (rows // 1000), state_size=17, action_size=6)
    try:
        with h5py.File(path, "w") as file:
            for key, values in log.d4rl().items():
                file.create_dataset(key, data=values, **options)
        times = json.loads(run(COMPARE, str(path), str(turns)))
    finally:
        path.unlink()
    assert times["load"] <= 2 * times["raw"], times
