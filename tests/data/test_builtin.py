"""The built-in dataset: poor data, the same each time, with or without a cache."""

from pathlib import Path

import numpy as np
import pytest

from neubay.data import builtin
from neubay.data.builtin import pendulum
from neubay.data.dataset import Dataset
from neubay.data.summary import summarise


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the data is collected, quickly: five episodes stand for all."""
    calls: list[int] = []
    original = builtin._collected

    def counted() -> Dataset:
        calls.append(1)
        return original()

    monkeypatch.setattr(builtin, "EPISODES", 5)
    monkeypatch.setattr(builtin, "_collected", counted)
    return calls


def cached_file(cache: Path) -> Path:
    (path,) = (cache / "builtin").iterdir()
    return path


@pytest.mark.slow
def test_it_is_of_low_quality_but_swings_through_every_angle() -> None:
    data = pendulum()
    assert data.episodes == 100 and data.transitions == 20_000
    assert data.returns.mean() < -1000
    assert data.name == "pendulum" and data.source == "builtin:pendulum"
    angle = np.arctan2(data.tape.state[:, 1], data.tape.state[:, 0])
    counts, _ = np.histogram(angle, bins=36, range=(-np.pi, np.pi))
    assert counts.min() > 100  # also upright, where gravity does not lead
    assert np.abs(data.tape.state[:, 2]).max() > 6
    assert summarise(data).coverage.action_freedom > 0.9


def test_it_is_the_same_each_time_and_from_the_cache(cache: Path, made: list[int]) -> None:
    first = pendulum()
    assert pendulum().hash == first.hash and len(made) == 1
    cached_file(cache).unlink()
    assert pendulum().hash == first.hash and len(made) == 2


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "changed", "other keys"])
def test_a_damaged_cache_is_made_anew(cache: Path, made: list[int], damage: str) -> None:
    first = pendulum()
    path = cached_file(cache)
    if damage == "changed":
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        arrays["reward"] = arrays["reward"] + 1
        np.savez(path, **arrays)
    elif damage == "other keys":
        np.savez(path, hash=np.array("x"), state=np.zeros((2, 3), np.float32))
    else:
        whole = path.read_bytes()
        path.write_bytes({"truncated": whole[:-500], "empty": b"", "text": b"hello"}[damage])
    assert pendulum().hash == first.hash and len(made) == 2
    assert pendulum().hash == first.hash and len(made) == 2


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "a file"
    blocker.write_text("in the way")
    monkeypatch.setenv("NEUBAY_CACHE", str(blocker / "cache"))
    assert pendulum().hash == pendulum().hash and len(made) == 2


def test_the_data_cannot_be_changed_by_accident(made: list[int]) -> None:
    for data in (pendulum(), pendulum()):
        with pytest.raises(ValueError, match="read-only"):
            data.tape.reward[0] = 1
