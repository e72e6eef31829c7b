"""Where worlds are kept, so that every run of the same data and settings finds the same one."""

import hashlib
import json
from pathlib import Path

from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.runs.cache import cache_directory
from neubay.world.termination import settled


def world_directory(dataset: Dataset, config: WorldConfig, seed: int) -> Path:
    """Where the world of these data, settings and seed is, or will be: the same for every run,
    whatever the data was called when it was trained."""
    settings = settled(config, dataset).record()
    identity = json.dumps([dataset.hash, settings, seed], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    worlds = cache_directory() / "worlds"
    return min(worlds.glob(f"*-{digest}"), default=worlds / f"{dataset.name}-{digest}")
