"""Whole runs in miniature, and what two of them must have in common."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from neubay.config import TrainConfig, preset, updated
from neubay.data.dataset import Dataset
from neubay.runs import checkpoints, rundir
from neubay.runs.files import read_arrays

TINY: dict[str, Any] = {
    "world": {"width": 8, "depth": 1, "pool": 3, "members": 2, "max_epochs": 2, "batch": 64},
    "rollout": {"rollouts": 4},
    "agent": {
        "width": 8,
        "memory_size": 4,
        "memory_layers": 1,
        "heads": 2,
        "head_depth": 1,
        "standardise": True,
        "window": 8,
        "burn_in": 4,
        "steps": 100,  # whole calls of 50: one program
        "updates_per_row": 0.2,
        "tape": 64,
        "buffer": 10_000,
    },
    "evaluation": {"evaluations": 2, "episodes": 3},
}


def tiny(**changes: dict) -> TrainConfig:
    return updated(updated(preset("cpu"), TINY), changes)


def swings(task: object = None, horizon: int = 200, episodes: int = 6) -> Dataset:
    """Something like a pendulum's data, made up."""
    rng = np.random.default_rng(0)
    rows = episodes * horizon
    angle = np.cumsum(rng.normal(size=(episodes, horizon + 1)) * 0.3, axis=1)
    states = np.stack([np.cos(angle), np.sin(angle), np.gradient(angle, axis=1)], axis=-1)
    ends = np.tile(np.arange(horizon) == horizon - 1, episodes)
    return Dataset.from_arrays(
        states[:, :-1].reshape(rows, 3).astype(np.float32),
        rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        -(angle[:, :-1] ** 2).reshape(rows).astype(np.float32),
        np.zeros(rows, bool),
        ends,
        states[:, 1:].reshape(rows, 3).astype(np.float32),
        task=task,
        name="swings",
    )


def outcome(directory: Path) -> dict[str, Any]:
    """All of a finished run that does not depend on the time it took, bit for bit."""
    summary = json.loads((directory / rundir.SUMMARY_FILE).read_text())
    del summary["seconds"]
    found: dict[str, Any] = {
        "summary": summary,
        "metrics": (directory / rundir.METRICS_FILE).read_bytes(),
        "policy": _arrays(directory / rundir.POLICY_FILE),
    }
    if (directory / rundir.WORLD_REFERENCE).exists():
        found["world"] = json.loads((directory / rundir.WORLD_REFERENCE).read_text())["hash"]
    kept = sorted(path for path in (directory / "checkpoints").iterdir())
    for path in kept:
        sealed = checkpoints.unsealed(path)
        position = {name: value for name, value in sealed["note"].items() if name != "seconds"}
        slices = [read_arrays(path / name) for name in sealed["files"]]
        arrays = {name: array.tobytes() for part in slices for name, array in part.items()}
        found[path.name] = (position, arrays)
    return found


def _arrays(path: Path) -> dict[str, bytes]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name].tobytes() for name in file.files if name != "about"}
