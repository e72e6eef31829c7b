"""A tiny run, whole and left halfway, that the tests of faults share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.faults import stop_at, train
from helpers.small_runs import outcome, swings, tiny
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.runs import checkpoints, signals
from neubay.runs.signals import Stopped
from neubay.tasks import get_task


@pytest.fixture(scope="session")
def data() -> Dataset:
    return swings(get_task("pendulum"))


@pytest.fixture(scope="session")
def config() -> TrainConfig:
    return tiny(agent={"steps": 300})


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the worlds of these runs are, so that each is trained once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to reach a safe point, and must not end the tests."""
    monkeypatch.setattr(signals, "GRACE", 200.0)


@pytest.fixture(autouse=True)
def cache(shared_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # of its own: some tests undo theirs
        patch.setenv("NEUBAY_CACHE", str(shared_cache))
        yield


@pytest.fixture(scope="session")
def reference(
    data: Dataset,
    config: TrainConfig,
    shared_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict:
    """What the run is when nothing goes wrong."""
    directory = tmp_path_factory.mktemp("reference") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUBAY_CACHE", str(shared_cache))
        train(data, config, directory)
    return outcome(directory)


@pytest.fixture(scope="session")
def halfway(
    data: Dataset,
    config: TrainConfig,
    shared_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run that was stopped at step 200 of 300, with two checkpoints and a best one."""
    directory = tmp_path_factory.mktemp("halfway") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setenv("NEUBAY_CACHE", str(shared_cache))
        train(data, config, directory, stop_at(200))
    assert len(checkpoints.found(directory / "checkpoints")) == 2
    return directory


@pytest.fixture
def left(halfway: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(halfway, tmp_path / "run"))
