"""Rows of numbers on their way out of a run."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from neubay.errors import ConfigError
from neubay.runs import tracking


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

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r"neubay\[track\]"):
        tracking.wandb("project", "name", {}, tmp_path)


def test_columns_of_a_metrics_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    track = tracking.json_lines(path)
    for step in range(1, 101):
        loss = {"loss": math.nan} if step == 2 else {"loss": step / 2}
        late = {"late": {"value": 1}} if step > 50 else {}
        track({"kind": "train", "step": step, "iteration": 0, **loss, **late})
        if step % 10 == 0:
            track({"kind": "evaluation", "step": step, "returns": [1.0], "return_mean": -step})
    columns = tracking.read_metrics(path)
    assert columns.keys() == {"step", "iteration", "loss", "late/value"}
    np.testing.assert_array_equal(columns["step"], np.arange(1, 101))
    assert np.flatnonzero(np.isnan(columns["loss"])).tolist() == [1]
    assert np.isnan(columns["late/value"]).sum() == 50
    evaluations = tracking.read_metrics(path, "evaluation")
    np.testing.assert_array_equal(evaluations["return_mean"], np.arange(-10, -101, -10))
    few = tracking.read_metrics(path, points=7)
    assert len(few["step"]) == 7 and {1, 100} <= set(few["step"])
    np.testing.assert_array_equal(few["step"] / 2, few["loss"])
    assert len(tracking.read_metrics(path, points=200)["step"]) == 100
    assert len(tracking.read_metrics(path, "world")["step"]) == 0
