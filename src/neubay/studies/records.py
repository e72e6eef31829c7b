"""What the analyses of a world share: results as plain records, which world they are about, and
whether it fits the data.

Every result is a frozen dataclass whose `record()` is what the JSON files hold.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.world import FittedWorld

CURVE_POINTS = 200
SCATTER_POINTS = 2000
_BLOCK = 1024  # transitions at once


def scatter_sample(count: int, seed: int) -> Int[np.ndarray, " points"]:
    """Which of `count` values a scatter plot shows: a random sample of them."""
    return np.random.default_rng(seed).permutation(count)[:SCATTER_POINTS]


@dataclasses.dataclass(frozen=True)
class Record:
    """A result that can be written to a JSON file."""

    def record(self) -> dict[str, Any]:
        """As plain numbers, lists and strings; what is not finite becomes None."""
        fields = dataclasses.fields(self)
        return {field.name: _plain(getattr(self, field.name)) for field in fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.record()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return (
            float(f"{value:.8g}") if math.isfinite(value) else None
        )  # enough digits to tell 0.9999999 from 1
    return value


def world_info(name: str, fitted: FittedWorld) -> dict[str, Any]:
    """What identifies a world, and how it was trained, as the JSON files hold it."""
    config = fitted.config
    return {
        "world": name,
        "trained_on": fitted.dataset_name,
        "dataset_hash": fitted.dataset_hash,
        "transitions": len(fitted.data_uncertainty),
        **{
            key: getattr(config, key) for key in ("layer_norm", "width", "depth", "pool", "members")
        },
        "epochs": len(fitted.history),
        "seed": fitted.seed,
        # Mean over the kept members of their best validation score (MSE unless configured).
        "validation_score": _plain(float(fitted.scores[fitted.kept].mean())),
        "seconds": _plain(fitted.seconds),  # of training, on the machine it ran on
    }


def in_blocks(
    measure: Callable[[np.ndarray], Iterable[Any]], rows: Int[np.ndarray, " n"], size: int = _BLOCK
) -> list[Float[np.ndarray, "n *shape"]]:
    """What `measure` gives for rows, some at a time. Blocks are padded to one shape, so that one
    compilation serves all."""
    blocks = []
    for begin in range(0, len(rows), size):
        block = rows[begin : begin + size]
        measured = measure(np.pad(block, (0, size - len(block)), mode="edge"))
        blocks.append([np.asarray(leaf, np.float64)[: len(block)] for leaf in measured])
    return [np.concatenate(leaves) for leaves in zip(*blocks, strict=True)]


def check_sizes(fitted: FittedWorld, dataset: Dataset) -> None:
    """Refuse data whose states or actions are not of the world's sizes."""
    scaler = fitted.world.scaler
    ours = (len(scaler.state_mean), len(scaler.action_mean))
    theirs = (dataset.tape.state.shape[-1], dataset.tape.action.shape[-1])
    if ours != theirs:
        raise WorldError(
            f"the world of {fitted.dataset_name} has {ours[0]} state and {ours[1]} action "
            f"dimensions, {dataset.name} has {theirs[0]} and {theirs[1]}; evaluate on data of the "
            "same task"
        )
