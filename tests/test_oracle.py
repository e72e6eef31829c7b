"""Imagination in the simulator itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.small_runs import outcome, swings, tiny
from neubay import data, experiment
from neubay.config import VARIANTS, WorldConfig, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, TaskError
from neubay.oracle import Simulated, check_simulator, simulated_world
from neubay.tasks import get_task


@pytest.fixture(scope="module")
def pendulum() -> Dataset:
    return data.load("pendulum")


@pytest.mark.slow
def test_its_rollouts_are_the_environments_own_and_end_bit_for_bit_the_same(
    pendulum: Dataset, tmp_path: Path
) -> None:
    config = updated(tiny(), VARIANTS["oracle"])
    first, second = (experiment.run(pendulum, config, tmp_path / name) for name in "ab")
    assert isinstance(first.world and first.world.world, Simulated)
    assert outcome(first.directory) == outcome(second.directory)
    # A world never fitted, never unsure; what it promises is what the environment pays.
    reference = json.loads((first.directory / "world.json").read_text())
    assert reference["directory"] is None
    assert first.summary["posterior"]["cut_share"] == 0
    promised, paid = first.summary["posterior"]["return_mean"], first.summary["return_mean"]
    assert promised == pytest.approx(paid, abs=400)  # from other starts; returns go to -1,900


def test_data_of_another_system_is_refused_before_a_run_is_begun(tmp_path: Path) -> None:
    config = updated(tiny(), VARIANTS["oracle"])
    with pytest.raises(TaskError, match="does not repeat what was recorded"):
        experiment.run(swings(get_task("pendulum")), config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_world_beside_it_is_refused(pendulum: Dataset, tmp_path: Path) -> None:
    fitted = simulated_world(pendulum, WorldConfig(), 0)
    config = updated(tiny(), VARIANTS["oracle"])
    with pytest.raises(ConfigError, match="leave out one of the two"):
        experiment.run(pendulum, config, tmp_path / "run", fitted=fitted)
    assert not (tmp_path / "run").exists()


def test_ends_that_no_rule_tells_are_refused(pendulum: Dataset) -> None:
    rows = 400
    tape = pendulum.take(np.arange(rows))
    ends = np.arange(rows) % 200 == 199
    cut = Dataset.from_arrays(
        np.asarray(tape.state),
        np.asarray(tape.action),
        np.asarray(tape.reward),
        ends,
        np.zeros(rows, bool),
        task=get_task("pendulum"),
    )
    with pytest.raises(TaskError, match="no rule is known"):
        check_simulator(cut)
