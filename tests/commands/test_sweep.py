"""`neubay sweep` and `neubay train --seeds` as a user gives them."""

import shutil
from pathlib import Path

import pytest
import yaml

from helpers.small_runs import TINY, outcome, swings
from neubay import cli, experiment
from neubay.commands import sweep, train
from neubay.config import resolve, updated
from neubay.data import convert, load
from neubay.errors import ConfigError, RunError
from neubay.runs.files import read_arrays
from neubay.tasks import get_task

# Without memory there is one candidate for the clone, which compiles least.
CLONING = ["--variant", "bc", "--no-select", "--agent.memory", "none", "--agent.steps", "60"]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A dataset and tiny settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    convert.write(swings(get_task("pendulum")), "swings.hdf5")
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return ["swings.hdf5", "--config", "tiny.yaml"]


def test_a_dry_run_counts_and_does_nothing(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*given, "--out", "s", "--search", "agent.kappa=0.1:0.9", "agent.gamma=[0.9,0.99]"]
    assert sweep.sweep([*asked, "--trials", "7", "--seeds", "0", "1", "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "7 trials, 14 runs (0 finished before), 3 worlds to train" in printed, "two and a judge"
    assert "hours not known before a run is finished" in printed
    assert not Path("s").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--search", "agent.kapa=0:1"], "did you mean 'agent.kappa'"),
        (["--search", "agent.memory=0:1"], "not a number, so that it has no range"),
        (["--search", "agent.kappa=0:1", "--sampler", "grid"], "a grid needs values"),
        (["--search", "agent.kappa=0:1", "--jobs", "0"], "--jobs 0"),
        (["--search", "agent.kappa=0:1", "--address", "a:1"], "belongs to --engine ray"),
        (
            ["--search", "agent.kappa=0:1", "--engine", "ray", "--address", "127.0.0.1:1"],
            "no Ray answers there",
        ),
        (
            ["--search", "agent.kappa=0:1", "--prune", "--evaluation.evaluations", "1"],
            "--evaluation.evaluations 2 or more",
        ),
        ([], "nothing to search"),
    ],
)
def test_bad_input_is_one_message(
    given: list[str], words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", *given, "--out", "s", *words])
    told = " ".join(capsys.readouterr().err.split())
    assert stop.value.code == 2 and says in told and "Traceback" not in told


def test_no_environment_no_score(given: list[str]) -> None:
    asked = [*given, "--task", "none", "--out", "s", "--search", "agent.kappa=0:1"]
    with pytest.raises(ConfigError, match="has no environment to score in"):
        sweep.sweep([*asked, "--metric", "score"])
    with pytest.raises(ConfigError, match="--out"):
        sweep.sweep(asked[:-4])
    for flags in (["--jobs", "2"], ["--together"]):
        with pytest.raises(ConfigError, match=f"{flags[0]}: .*--seeds"):
            train.train([*given, *flags])
    for flags in (["--jobs", "2"], ["--wandb", "project"]):
        with pytest.raises(ConfigError, match=f"{flags[0]}: .*--together"):
            train.train([*given, "--seeds", "0", "1", "--together", *flags])


@pytest.mark.slow
def test_seeds_side_by_side_are_the_runs_alone(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Cloning, which needs no world; the second call finds all finished."""
    asked = [*given, *CLONING, "--out", "runs", "--seeds", "0", "1"]
    assert train.train([*asked, "--jobs", "1"]) == 0
    assert "seed 1" in capsys.readouterr().out
    config = updated(resolve(None, "cpu", "bc", TINY), {"agent": {"memory": "none", "steps": 60}})
    for seed in (0, 1):
        own = updated(config, {"seed": seed})
        alone = Path(f"alone{seed}")
        experiment.run(load("swings.hdf5", tell=lambda text: None), own, alone)
        assert outcome(alone) == outcome(Path("runs") / f"swings-bc-seed{seed}")
    assert train.train([*asked, "--jobs", "1"]) == 0
    assert capsys.readouterr().out.count("finished before") == 2


@pytest.mark.slow
def test_seeds_together_are_a_run_each_and_refused_before_any_is_begun(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """That they are the runs alone, to rounding: tests/devices/test_together.py."""
    asked = [*given, *CLONING]
    assert train.train([*asked, "--out", "runs", "--seeds", "0", "1", "--together"]) == 0
    told = capsys.readouterr().out
    assert all(f"\nseed {seed}: step " in told for seed in (0, 1)), "a line of each"
    policies = [read_arrays(path / "policy.npz") for path in sorted(Path("runs").iterdir())]
    assert len(policies) == 2 and policies[0].keys() == policies[1].keys()
    assert any((policies[0][name] != policies[1][name]).any() for name in policies[0])
    # Of these seeds the last is of another run: nothing is begun.
    Path("other").mkdir()
    shutil.copytree("runs/swings-bc-seed1", "other/swings-bc-seed3")
    with pytest.raises(RunError, match="its seed is 1, asked for is 3"):
        train.train([*asked, "--out", "other", "--seeds", "2", "3", "--together"])
    assert not Path("other/swings-bc-seed2").exists()
