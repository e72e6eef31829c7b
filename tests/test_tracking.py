"""Rows of numbers on their way out of a run."""

from pathlib import Path

import pytest

from neubay import tracking
from neubay.errors import ConfigError


def test_rows_survive_and_an_unfinished_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    track = tracking.json_lines(path)
    track({"kind": "train", "step": 1, "loss": float("nan"), "nested": {"x": [1.5, float("inf")]}})
    track({"kind": "train", "step": 2, "loss": 0.5})
    with path.open("a") as file:
        file.write('{"kind": "train", "st')  # killed while writing
    first, second = tracking.read_json_lines(path)
    assert first == {"kind": "train", "step": 1, "loss": None, "nested": {"x": [1.5, None]}}
    assert second["loss"] == 0.5


def test_scalars_are_the_finite_numbers() -> None:
    row = {"kind": "train", "step": 3, "a": 1, "b": {"c": 2.0}, "d": float("nan"), "e": True}
    assert dict(tracking.scalars(row)) == {"a": 1.0, "b/c": 2.0}


def test_tensorboard_gets_files(tmp_path: Path) -> None:
    tracking.tensorboard(tmp_path)({"kind": "train", "step": 1, "loss": 0.5})
    assert any(path.stat().st_size for path in tmp_path.iterdir())


def test_a_missing_tracker_says_what_to_install(monkeypatch, tmp_path: Path) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(tracking.importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r"neubay\[track\]"):
        tracking.wandb("project", "name", {}, tmp_path)
