"""What the analyses of a world share: results as plain records, which world they are about, and
whether it fits the data.

Every result is a frozen dataclass whose `record()` is what the JSON files hold.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Int

from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.world import FittedWorld

CURVE_POINTS = 200
SCATTER_POINTS = 2000


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


@dataclasses.dataclass(frozen=True)
class WorldInfo(Record):
    """Which world a result is about."""

    world: str
    trained_on: str
    dataset_hash: str
    transitions: int
    layer_norm: bool
    width: int
    depth: int
    pool: int
    members: int
    epochs: int
    seed: int
    validation_score: float
    """Mean over the kept members of their best validation score (MSE unless configured)."""
    seconds: float
    """Of training, on the machine it ran on."""


def world_info(name: str, fitted: FittedWorld) -> WorldInfo:
    """What identifies a world, and how it was trained."""
    config = fitted.config
    return WorldInfo(
        world=name,
        trained_on=fitted.dataset_name,
        dataset_hash=fitted.dataset_hash,
        transitions=len(fitted.data_uncertainty),
        layer_norm=config.layer_norm,
        width=config.width,
        depth=config.depth,
        pool=config.pool,
        members=config.members,
        epochs=len(fitted.history),
        seed=fitted.seed,
        validation_score=float(fitted.scores[fitted.kept].mean()),
        seconds=fitted.seconds,
    )


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
