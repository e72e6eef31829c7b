"""What a run depends on: data, settings, world, layout, clock, finite losses."""

import json
import math
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from helpers.faults import Tally, saved, train
from helpers.small_runs import outcome, swings
from neubay import algorithm, experiment, world
from neubay.agents import redq
from neubay.config import TrainConfig, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, NeubayError, RunError, TrainingError, WorldError
from neubay.runs import checkpoints, rundir
from neubay.tasks import get_task


def test_a_relative_directory_does_as_well(
    left: Path,
    data: Dataset,
    config: TrainConfig,
    reference: dict,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(left.parent)  # the default, runs/..., is relative
    train(data, config, Path(left.name))
    assert outcome(left) == reference


@pytest.mark.faults("dataset changed under a run")
def test_other_data_are_refused(config: TrainConfig, left: Path, tally: Tally) -> None:
    before = saved(left)
    with pytest.raises(RunError, match=r"its dataset\.hash is \w{32}, asked for is \w{32}\. The"):
        train(swings(get_task("pendulum"), episodes=5), config, left)
    assert saved(left) == before
    tally(1, "refused, both hashes named")


@pytest.mark.faults("settings changed under a run")
def test_other_settings_are_refused_by_name(
    data: Dataset, config: TrainConfig, left: Path, tally: Tally
) -> None:
    before = saved(left)
    changes = (
        {"agent": {"kappa": 0.75}},
        {"seed": 9},
        {"world": {"pool": 4}},
        {"rollout": {"zeta": None}},
    )
    for change in changes:
        ((section, values),) = change.items()
        name = section if section == "seed" else f"{section}.{next(iter(values))}"
        with pytest.raises(RunError, match=rf"its {name} is .*, asked for is .*choose another"):
            train(data, updated(config, change), left)
    assert saved(left) == before
    tally(len(changes), "refused, the setting and both values named")


@pytest.mark.faults("another world under a run")
def test_another_world_is_refused(
    data: Dataset, config: TrainConfig, left: Path, tally: Tally
) -> None:
    before = saved(left)
    other = world.fit(data, config.world, 5)
    with pytest.raises(RunError, match=r"begun in the world \w{32}, this one is \w{32}"):
        experiment.run(data, config, left, fitted=other)
    assert saved(left) == before
    tally(1, "refused, both hashes named")


def test_a_reference_to_no_world_is_named(data: Dataset, config: TrainConfig, left: Path) -> None:
    (left / "world.json").write_text("{}")
    with pytest.raises(RunError, match=r"world\.json: damaged: .* which world .* another --out"):
        train(data, config, left)


@pytest.mark.parametrize("seconds", [math.nan, -1.0])
def test_a_senseless_time_between_checkpoints_is_refused(
    seconds: float, data: Dataset, config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--checkpoint-seconds is .*: expected .* 0 or more"):
        experiment.run(data, config, tmp_path / "run", checkpoint_seconds=seconds)
    assert not (tmp_path / "run").exists()


def test_a_score_that_is_no_number_is_never_the_best(
    data: Dataset, config: TrainConfig, tmp_path: Path
) -> None:
    kept = checkpoints.Checkpoints(tmp_path / "checkpoints", tell=print)
    state, at = {"w": jnp.zeros(2)}, algorithm.Position()
    found = []
    for step, mean in enumerate([math.nan, 1.0, math.nan, 0.5, 2.0], start=1):
        at.step, at.evaluation = step, {"step": step, "return_mean": mean}
        algorithm.pause(state, None, at, 10, kept)
        found.append([path.name for path in (tmp_path / "checkpoints").glob("best-*")])
    assert found == [[], *[["best-000000002"]] * 3, ["best-000000005"]] and at.best == 2.0


@pytest.mark.faults("run of another layout")
def test_layouts(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    path = left / "run.json"
    about = json.loads(path.read_text())
    refused = {
        5: "reads 1 to 4; use the version that wrote it",
        3: "unfinished run of neubay 0.2 .*finish it with neubay 0.2, or choose another --out",
        2: "unfinished run of neubay 0.1 .*finish it with neubay 0.1, or choose another --out",
        1: "no checkpoints",
    }
    for layout, why in refused.items():
        path.write_text(json.dumps(about | {"layout": layout}))
        with pytest.raises(RunError, match=why):
            train(data, config, left)
    path.write_text(json.dumps(about))
    train(data, config, left)
    assert outcome(left) == reference
    for layout in (1, 2, 3):  # a finished run of an older layout
        path.write_text(json.dumps(about | {"layout": layout}))
        assert train(data, config, left).summary["steps"] == 300
    tally(7, "newer and unfinished older ones refused with the reason; finished older ones opened")


@pytest.mark.faults("clock going back")
def test_a_clock_that_goes_back_changes_nothing(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally, monkeypatch
) -> None:
    now, asked = time.time(), 0

    def backwards() -> float:
        nonlocal asked
        asked += 1
        return now - 3600.0 * asked

    monkeypatch.setattr(time, "time", backwards)
    train(data, config, left)
    monkeypatch.undo()
    assert outcome(left) == reference
    assert all(value >= 0 for value in rundir.look(left).summary["seconds"].values())
    tally(1, "no decision and no row depends on the time of day")


@pytest.mark.faults("loss that is not finite")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_divergence_stops_the_training(
    value: float, data: Dataset, config: TrainConfig, left: Path, tally: Tally, monkeypatch
) -> None:
    newest, original = checkpoints.found(left / "checkpoints")[-1], redq.Agent.update
    before = saved(newest)

    def diverging(agent: redq.Agent, state: object, tapes: object) -> tuple:
        state, metrics = original(agent, state, tapes)
        return state, metrics | {"critic_loss": jnp.float32(value)}

    monkeypatch.setattr(redq.Agent, "update", diverging)
    with pytest.raises(TrainingError, match=r"diverged at step 250: .* critic_loss\.") as stopped:
        train(data, config, left)
    for advice in ("--agent.encoder-lr", "--agent.gamma", "eta_phi", "last checkpoint", "--out"):
        assert advice in str(stopped.value)
    assert saved(newest) == before
    assert rundir.look(left).step == 200
    tally(1, "stops at once, names the loss and the paper's advice; the last checkpoint is kept")


def test_errors_are_of_the_interface() -> None:
    assert all(issubclass(error, NeubayError) for error in (RunError, TrainingError, WorldError))
