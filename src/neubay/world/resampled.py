"""Data with its episodes resampled: what a judge is fitted on, so that it is not the world that a
policy was trained in."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from jaxtyping import Int

from neubay.data.dataset import Dataset


def resampled_hash(dataset_hash: str, seed: int) -> str:
    """The hash of data after resampling: known from that of the data alone."""
    return sha256(f"{dataset_hash} resampled {seed}".encode()).hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class Resampled(Dataset):
    """A bootstrap of a dataset's episodes: as many, drawn with replacement.

    The tape is shared with the dataset; only the rows that a world trains on are others. An episode
    that was drawn twice has its rows twice.
    """

    of: Dataset | None = None
    seed: int = 0

    @staticmethod
    def draw(dataset: Dataset, seed: int) -> "Resampled":
        return Resampled(
            dataset.tape,
            dataset.task,
            dataset.name,
            dataset.source,
            dataset.published,
            of=dataset,
            seed=seed,
        )

    @cached_property
    def world_rows(self) -> Int[np.ndarray, " transitions"]:
        assert self.of is not None
        rows, (first, _) = self.of.world_rows, self.of.bounds
        episode = np.searchsorted(first, rows, side="right") - 1
        present = np.unique(episode)  # those that have something to learn from
        drawn = np.random.default_rng(self.seed).choice(present, len(present))
        times = np.bincount(drawn, minlength=len(first))
        return np.repeat(rows, times[episode])

    @cached_property
    def hash(self) -> str:
        assert self.of is not None
        return resampled_hash(self.of.hash, self.seed)
