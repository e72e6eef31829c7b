"""The world: an ensemble of Gaussian members as a posterior over dynamics and rewards.

`fit` trains a pool of members on a dataset and keeps the best N as a `World`; `save` and `load` are
its directory. Imagination draws from `World.select(...).sample` and measures `World.uncertainty`;
rollouts are cut where that exceeds `FittedWorld.threshold`.
"""

from neubay.world.fitted import (
    EpochRecord,
    FittedWorld,
    TerminationRecord,
    is_whole,
    load_world,
    save,
    world_of,
)
from neubay.world.fitted import load_world as load
from neubay.world.fitting import best_of, fit, uncertainty_over, with_termination, world_directory
from neubay.world.model import Gaussian, Head, Member, Scaler, World, WorldStep, quantify
from neubay.world.pool import Progress
from neubay.world.termination import (
    assess,
    calibrated,
    count_ends,
    ended_by,
    is_learnable,
    learn_termination,
    split_episodes,
    survival,
    tell_choice,
)
from neubay.world.transitions import Batch, Transitions, fit_scaler, gather, split_rows

__all__ = [
    "Batch",
    "EpochRecord",
    "FittedWorld",
    "Gaussian",
    "Head",
    "Member",
    "Progress",
    "Scaler",
    "TerminationRecord",
    "Transitions",
    "World",
    "WorldStep",
    "assess",
    "best_of",
    "calibrated",
    "count_ends",
    "ended_by",
    "fit",
    "fit_scaler",
    "gather",
    "is_learnable",
    "is_whole",
    "learn_termination",
    "load",
    "load_world",
    "quantify",
    "save",
    "split_episodes",
    "split_rows",
    "survival",
    "tell_choice",
    "uncertainty_over",
    "with_termination",
    "world_directory",
    "world_of",
]
