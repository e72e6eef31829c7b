"""Where worlds are kept, so that every run of the same data and settings finds the same one."""

from pathlib import Path

from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.runs.cache import kept_at
from neubay.world.termination import settled


def world_directory(dataset: Dataset, config: WorldConfig, seed: int) -> Path:
    """Where the world of these data, settings and seed is, or will be: the same for every run,
    whatever the data was called when it was trained."""
    identity = [dataset.hash, settled(config, dataset).record(), seed]
    return kept_at("worlds", dataset.name, identity)
