"""One fit that most tests of the world look at, and what streams a dataset in chunks."""

import pytest

from helpers.linear_system import CONFIG, Linear
from neubay import world
from neubay.data.dataset import Dataset
from neubay.world import FittedWorld, transitions


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return Linear().dataset(4000)


@pytest.fixture(scope="session")
def fitted(dataset: Dataset) -> FittedWorld:
    return world.fit(dataset, CONFIG, seed=0)


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(transitions, "BLOCK", 16)
    monkeypatch.setattr(transitions, "BLOCKS_PER_CHUNK", 60)
