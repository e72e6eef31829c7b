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
    def times_drawn(self) -> Int[np.ndarray, " episodes"]:
        present = np.unique(self._episode_of_row)  # those that have something to learn from
        drawn = np.random.default_rng(self.seed).choice(present, len(present))
        return np.bincount(drawn, minlength=self.episodes)

    @cached_property
    def world_rows(self) -> Int[np.ndarray, " transitions"]:
        assert self.of is not None
        return np.repeat(self.of.world_rows, self.times_drawn[self._episode_of_row])

    @property
    def _episode_of_row(self) -> Int[np.ndarray, " transitions"]:
        """Which episode each row is of that a world trains on."""
        assert self.of is not None
        return np.searchsorted(self.of.bounds[0], self.of.world_rows, side="right") - 1

    @cached_property
    def hash(self) -> str:
        assert self.of is not None
        return resampled_hash(self.of.hash, self.seed)
