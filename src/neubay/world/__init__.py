"""The world: an ensemble of Gaussian members as a posterior over dynamics and rewards.

`fit` trains a pool of members on a dataset and keeps the best N as a `World`; `save` and `load` are
its directory. Imagination draws from `World.select(...).sample` and measures `World.uncertainty`;
rollouts are cut where that exceeds `FittedWorld.threshold`.
"""

from neubay.world.directory import world_directory
from neubay.world.fitted import EpochRecord, FittedWorld, is_whole, load, save
from neubay.world.fitting import Progress, best_of, fit, uncertainty_over
from neubay.world.model import Gaussian, Member, Scaler, World, WorldStep, quantify
from neubay.world.transitions import Batch, Transitions, gather, split_rows

__all__ = [
    "Batch",
    "EpochRecord",
    "FittedWorld",
    "Gaussian",
    "Member",
    "Progress",
    "Scaler",
    "Transitions",
    "World",
    "WorldStep",
    "best_of",
    "fit",
    "gather",
    "is_whole",
    "load",
    "quantify",
    "save",
    "split_rows",
    "uncertainty_over",
    "world_directory",
]
