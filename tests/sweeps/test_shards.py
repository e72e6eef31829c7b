"""A pool in shards is the pool in one process, bit for bit, whatever happens on the way."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from helpers.small_runs import swings
from neubay import world
from neubay.config import WorldConfig, preset, updated
from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.runs.checkpoints import found
from neubay.sweeps import shards
from neubay.sweeps.data import Source
from neubay.sweeps.local import Local
from neubay.sweeps.plan import Plan
from neubay.tasks import get_task
from neubay.world import FittedWorld, Progress

# Wide enough that the last bits depend on the threads of a program; odd, so that a shard of two
# members alone would take other groups than the pool. It stops when no member improves, which a
# shard alone would do earlier or later.
CONFIG = updated(
    preset("cpu").world,
    {"width": 200, "depth": 2, "pool": 5, "members": 3, "batch": 256, "patience": 1}
    | {"max_epochs": None, "max_steps": None, "improvement": 0.08, "learning_rate": 0.003}
    | {"average": 0.5, "unit": "change", "beta": 0.5, "decay": False},
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return swings(get_task("pendulum"))


@pytest.fixture(scope="module")
def whole(dataset: Dataset) -> FittedWorld:
    return world.fit(dataset, CONFIG, seed=5)


def fit(
    dataset: Dataset,
    directory: Path,
    engine: Callable[[Plan], Any],
    progress: Callable[[Progress], None] | None = None,
    config: WorldConfig = CONFIG,
) -> FittedWorld:
    elsewhere = shards.in_shards(
        lambda folder: Plan(dataset, Source.of(dataset), folder),
        updated(preset("cpu"), {"seed": 5}),
        engine,
    )
    return world.fit(
        dataset, config, 5, directory=directory, progress=progress, elsewhere=elsewhere
    )


def assert_same(ours: FittedWorld, theirs: FittedWorld) -> None:
    """Every array and every number but the time."""
    assert ours.history == theirs.history
    for name in ("scores", "kept", "data_uncertainty"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), strict=True)
    pairs = zip(jax.tree.leaves(ours.world), jax.tree.leaves(theirs.world), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other, strict=True)


def local(jobs: int) -> Callable[[Plan], Local]:
    return lambda plan: Local(jobs, plan.directory / "workers.log", threads=plan.threads)


def test_shards_are_whole_groups_as_equal_as_can_be() -> None:
    for pool, group, workers in itertools.product((1, 2, 6, 8, 128), (1, 2), (1, 2, 3, 7, 200)):
        if pool % group:
            continue
        bounds = shards.split(pool, group, workers)
        sizes = np.diff(bounds)
        assert bounds[0] == 0 and bounds[-1] == pool and len(sizes) == min(workers, pool // group)
        assert not (sizes % group).any() and sizes.min() > 0
        assert sizes.max() - sizes.min() <= group


@pytest.mark.slow
@pytest.mark.faults("kill -9 of a Ray worker that trains a shard of a pool")
def test_a_pool_over_ray_loses_a_worker_and_is_the_pool_of_one_process(
    dataset: Dataset, whole: FittedWorld, tmp_path: Path, tally: Any
) -> None:
    from neubay.sweeps.ray_engine import Ray

    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        """Once, while it trains the second epoch."""
        if killed or progress.stage != "training" or progress.epoch < 1:
            return
        for process in psutil.Process().children(recursive=True):
            if process.name().startswith("ray::task"):
                process.send_signal(signal.SIGKILL)
                killed.append(process.pid)
                return

    found = fit(dataset, tmp_path / "world", lambda plan: Ray(plan, jobs=2), kill_one)
    assert killed and len(found.history) > 2
    assert_same(found, whole)
    assert_same(world.load(tmp_path / "world"), whole)
    assert not (tmp_path / "world" / "shards").exists(), "nothing is left of the shards"
    tally(1, "Ray runs its task again, which resumes; every array is that of one process")


@pytest.mark.slow
def test_an_interrupted_pool_is_resumed_by_other_workers(
    dataset: Dataset, whole: FittedWorld, tmp_path: Path
) -> None:
    """A damaged checkpoint on the way costs one shard its last epoch."""
    directory = tmp_path / "world"

    def interrupt(progress: Progress) -> None:
        if progress.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        fit(dataset, directory, local(2), interrupt)
    record = json.loads((directory / "shards" / "shards.json").read_text())
    assert len(record["bounds"]) == 3 and record["seconds"] > 0
    with pytest.raises(WorldError, match="begun by 'neubay world --engine ray'"):
        world.fit(dataset, CONFIG, 5, directory=directory)
    with pytest.raises(WorldError, match="not how a pool is split"):
        fit(dataset, directory, local(1), config=updated(CONFIG, {"pool": 4}))
    saved = found(sorted((directory / "shards").glob("0*"))[0] / "checkpoints")
    assert len(saved) == 2
    (saved[-1] / "0000.npz").write_bytes(b"damaged")
    resumed = fit(dataset, directory, local(1))
    assert resumed.seconds > record["seconds"]
    assert_same(resumed, whole)


def test_how_a_pool_was_split_is_checked(dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "world" / "shards"
    folder.mkdir(parents=True)
    good = {"bounds": [0, 2, 6], "group": 2, "threads": 2, "seconds": 1.0}
    wrong: list[dict[str, Any]] = [
        {"bounds": [0, 3, 6]}, {"bounds": [0, 4]}, {"bounds": [2, 6]}, {"bounds": [0, 4, 2, 6]},
        {"bounds": "0"}, {"bounds": []}, {"group": 0}, {"group": "2"}, {"threads": None},
        {"threads": -1}, {"seconds": "x"}, {"seconds": -1}, {"more": 1},
    ]  # fmt: skip
    six = updated(CONFIG, {"pool": 6})

    def begin(record: dict[str, Any]) -> None:
        (folder / "shards.json").write_text(json.dumps(record))
        fit(dataset, tmp_path / "world", lambda plan: pytest.fail("was begun"), config=six)

    for each in wrong:
        with pytest.raises(WorldError, match=r"remove .* to train from the start"):
            begin(good | each)
    with pytest.raises(pytest.fail.Exception, match="was begun"):
        begin(good)


def test_a_pool_begun_in_one_process_is_not_resumed_in_shards(
    dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "0000001-0000000").mkdir(parents=True)
    with pytest.raises(WorldError, match="leave --engine out to resume it"):
        fit(dataset, tmp_path, lambda plan: pytest.fail("was begun"))
