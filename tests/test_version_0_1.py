"""What version 0.1 wrote: what it finished opens, what it left unfinished is refused by name.

tests/fixtures/version_0_1.json holds folders as neubay 0.1.0 wrote them (only the path of the
world is left out): each file zlib-compressed, as base64 text.
"""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neubay
from neubay import cli, experiment, world
from neubay.config import TrainConfig, validated
from neubay.data.dataset import Dataset
from neubay.errors import RunError, WorldError
from neubay.report.runs import records
from neubay.runs import rundir
from neubay.tasks import get_task


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    text = (Path(__file__).parent / "fixtures" / "version_0_1.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@pytest.fixture
def folder(recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders unpacked: finished, unfinished, world, unfinished_world."""
    for name, content in recorded["files"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(content)))
    for run in ("finished", "unfinished"):
        path = tmp_path / run / rundir.WORLD_REFERENCE
        reference = json.loads(path.read_text()) | {"directory": str(tmp_path / "world")}
        path.write_text(json.dumps(reference))
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def config(recorded: dict[str, Any]) -> TrainConfig:
    """Its settings, all of them given: the presets of version 0.1 were others."""
    about = json.loads(zlib.decompress(base64.b64decode(recorded["files"]["finished/run.json"])))
    return validated(TrainConfig, about["config"])


@pytest.fixture(scope="module")
def data() -> Dataset:
    """The data of these runs: plain arithmetic, the same on every machine."""
    row = np.arange(81)
    states = np.stack([row * 7 % 11, row * 5 % 13, row * 3 % 17], axis=-1) / np.float32(8) - 1
    before = row[:-1]
    return Dataset.from_arrays(
        states[:-1].astype(np.float32),
        (before[:, None] * 3 % 9).astype(np.float32) / 4 - 1,
        -(before * 2 % 7).astype(np.float32),
        np.zeros(80, bool),
        before % 20 == 19,
        states[1:].astype(np.float32),
        task=get_task("pendulum"),
        name="arithmetic",
    )


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_finished_run_is_listed_and_reported(
    folder: Path, data: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rundir.look(folder / "finished")
    assert run.state == "finished" and run.about["dataset"]["hash"] == data.hash
    record = records.read(folder / "finished")
    assert record.status == "finished" and record.step == 60
    assert record.summary == run.summary and len(record.train["step"]) == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(["runs", "list", str(folder)])
    printed = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "finished finished arithmetic" in printed and "unfinished unfinished" in printed


@pytest.mark.slow
def test_a_finished_run_is_given_back(folder: Path, data: Dataset, config: TrainConfig) -> None:
    before = files(folder)
    result = experiment.run(data, config, folder / "finished", tell=pytest.fail)
    assert result.summary == json.loads(before["finished/summary.json"])
    assert result.world is not None and result.world.dataset_hash == data.hash
    assert files(folder) == before


def test_a_policy_acts_as_it_did(recorded: dict[str, Any], folder: Path) -> None:
    policy, known = neubay.load_policy(folder / "finished" / "policy.npz"), recorded["policy"]
    state, reward, actions = None, None, []
    for number, observation in enumerate(known["observations"]):
        action, state = policy.predict(
            np.array(observation, np.float32), state, number == 0, reward=reward
        )
        actions.append(action)
        reward = known["reward"]
    np.testing.assert_allclose(actions, known["actions"], rtol=1e-5)


def test_a_finished_world_opens(recorded: dict[str, Any], folder: Path, data: Dataset) -> None:
    fitted = world.load(folder / "world", data)
    assert fitted.world.size == 2 and len(fitted.data_uncertainty) == 80
    assert fitted.threshold(0.9) == pytest.approx(recorded["world"]["threshold_0.9"])
    measured = world.uncertainty_over(fitted.world, data)
    np.testing.assert_allclose(measured, fitted.data_uncertainty, rtol=1e-4)


@pytest.mark.slow
def test_unfinished_ones_are_refused_by_name(
    folder: Path, data: Dataset, config: TrainConfig
) -> None:
    before = files(folder)
    advice = r"neubay 0\.1.*finish it with neubay 0\.1.*choose another --out"
    with pytest.raises(RunError, match=rf"unfinished: an unfinished run of {advice}"):
        experiment.run(data, config, folder / "unfinished")
    with pytest.raises(WorldError, match=rf"training\.npz: of an unfinished world of {advice}"):
        world.fit(data, config.world, 7, directory=folder / "unfinished_world")
    with pytest.raises(WorldError, match=rf"unfinished world of {advice}"):
        world.load(folder / "unfinished_world")
    assert files(folder) == before


def test_a_world_is_found_in_the_cache_where_it_was(
    recorded: dict[str, Any], folder: Path, data: Dataset, config: TrainConfig
) -> None:
    place = folder / "cache" / "worlds" / recorded["world"]["directory"]
    place.parent.mkdir(parents=True)
    (folder / "world").rename(place)
    assert world.world_directory(data, config.world, 0) == place
    assert world.fit(data, config.world, 0, directory=place, progress=pytest.fail).seed == 0
