"""`neubay ablate`: commands that are its runs, runs that are resumed and not repeated, a report."""

import os
import shlex
import signal
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from helpers.report_runs import make_run
from helpers.small_runs import TINY, outcome, swings
from neubay import cli, experiment
from neubay.commands import ablate, train
from neubay.commands.options import TrainSettings, parse, train_defaults
from neubay.config import Published, TrainConfig, updated
from neubay.data import convert, load
from neubay.errors import TrainingError
from neubay.published import Over
from neubay.runs import rundir
from neubay.runs.files import read_json
from neubay.runs.signals import Stopped
from neubay.studies import ablations
from neubay.tasks import get_task


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A file of tiny settings."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return path


@pytest.mark.parametrize("over", get_args(Over))
def test_a_dry_run_prints_commands_that_are_these_runs(
    over: Over, tmp_path: Path, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read back by `neubay train`, each gives the very settings of the run."""
    asked = ["pendulum", "--over", over, "--seeds", "4", "--out", str(tmp_path / "runs")]
    asked += ["--config", str(settings), "--world.pool", "8", "--world.members", "7"]
    assert ablate.ablate([*asked, "--dry-run", "--agent.no-tune-alpha"]) == 0
    printed = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    config = train_defaults(TrainSettings(preset="cpu", config=settings), Published())
    changes = {"world": {"pool": 8, "members": 7}, "agent": {"tune_alpha": False}}
    data = load("pendulum")
    of = data.task, (4,), tmp_path / "runs", data.facts
    planned = ablations.plan(over, updated(config, changes), *of)
    assert len(printed) == len(planned)
    for words, run in zip(printed, planned, strict=True):
        assert words[:2] == ["neubay", "train"]
        flags, _ = parse(
            train.TrainFlags, TrainSettings, train_defaults, words[2:], prog="", description=""
        )
        assert flags.values == run.config and flags.out == run.directory
    assert not (tmp_path / "runs").exists(), "nothing was done"


@pytest.mark.slow
def test_the_whole_command_trains_reports_and_does_nothing_twice(
    tmp_path: Path,
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is made by hand: six members and the best five of them, trained and evaluated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))  # no world is there before
    convert.write(swings(get_task("pendulum")), "swings.hdf5")
    asked = ["ablate", "swings.hdf5", "--over", "N", "--config", str(settings), "--seed", "3"]
    asked += ["--world.pool", "6", "--world.members", "6", "--agent.steps", "20"]
    asked += ["--evaluation.evaluations", "1", "--evaluation.episodes", "1"]
    asked += ["--agent.memory", "none"]  # the arms differ in their worlds; this compiles least
    folders = [tmp_path / "ablations" / "swings" / f"{arm}-seed3" for arm in ("main", "N-5")]

    def ablated() -> tuple[str, list[dict[str, Any]]]:
        with pytest.raises(SystemExit) as stop:
            cli.main(asked)
        assert not stop.value.code
        return capsys.readouterr().out, [outcome(folder) for folder in folders]

    text, results = ablated()
    assert "1 of 2: main, seed 3" in text and "2 of 2: N-5, seed 3" in text
    for folder, members, result in zip(folders, (6, 5), results, strict=True):
        config = read_json(folder / rundir.RUN_FILE)["config"]
        assert config["world"]["pool"] == 6 and config["world"]["members"] == members
        assert config["seed"] == 3 and result["summary"]["episodes"] == 1
    assert results[0]["world"] != results[1]["world"]

    heading, _, row = (line for line in text.splitlines() if line.startswith("|"))
    assert heading == "| dataset | N = 6 | N = 5 |"
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == [f"{result['summary']['return_mean']:,.1f}" for result in results]

    again, unchanged = ablated()
    assert again.count("finished before") == 2 and unchanged == results
    assert again.endswith(text[text.index("| dataset") :])


@pytest.mark.slow
def test_runs_are_resumed_and_reported(
    tmp_path: Path,
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With runs that are made by hand: a score falls by 25 points at zeta = 0.9."""
    scores = {1.0: 60.0, 0.999: 58.0, 0.99: 52.0, 0.9: 35.0}
    made: list[Path] = []

    def run(dataset: Any, config: TrainConfig, directory: Path, **options: Any) -> None:
        if directory.exists():
            return
        made.append(directory)
        zeta = config.rollout.zeta
        assert zeta is not None and options["about"]["command"].startswith("neubay train pendulum")
        changes = {"rollout": {"zeta": zeta}}
        make_run(directory, score=scores[zeta], seed=config.seed, changes=changes, rows=20)
        if zeta == 0.99:
            os.kill(os.getpid(), signal.SIGTERM)  # the run has no pause left to answer it

    monkeypatch.setattr(experiment, "run", run)
    asked = ["pendulum", "--over", "zeta", "--seed", "1", "--config", str(settings)]
    asked += ["--out", str(tmp_path / "runs")]
    with pytest.raises(Stopped):
        ablate.ablate(asked)
    said = capsys.readouterr().out
    assert len(made) == 3 and said.count("saved; to resume: neubay ablate pendulum") == 1
    assert ablate.ablate(asked) == 0
    assert [path.name for path in made[3:]] == ["zeta-0.9-seed1"], "the rest was there"
    text = capsys.readouterr().out
    assert text.count("finished before") == 3
    heading, _, row = (line for line in text.splitlines() if line.startswith("|"))
    assert heading == "| dataset | ζ = 1 | ζ = 0.999 | ζ = 0.99 | ζ = 0.9 |"
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == ["60.0", "58.0", "52.0 ▼", "35.0 ▼▼"]
    report = tmp_path / "runs" / "report" / "zeta"
    assert "ζ = 0.999" in (report / "index.html").read_text(encoding="utf-8")
    assert (report / "tables" / "sensitivity_zeta.md").read_text(encoding="utf-8") in text


@pytest.mark.slow
def test_a_run_that_diverges_does_not_end_the_others(
    tmp_path: Path,
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(dataset: Any, config: TrainConfig, directory: Path, **options: Any) -> None:
        changes = {"world": {"layer_norm": config.world.layer_norm}}
        diverges = not config.world.layer_norm and config.seed == 0
        score = 60.0 + config.seed
        make_run(
            directory,
            score=score,
            seed=config.seed,
            changes=changes,
            rows=20,
            finished=not diverges,
        )
        if diverges:
            raise TrainingError("diverged at step 40")

    monkeypatch.setattr(experiment, "run", run)
    asked = ["pendulum", "--over", "layernorm", "--seeds", "0", "1", "--config", str(settings)]
    assert ablate.ablate([*asked, "--out", str(tmp_path / "runs")]) == 1
    text = capsys.readouterr().out
    assert "diverged at step 40" in text and "4 of 4: no-layernorm, seed 1" in text
    assert "with LayerNorm | without" in text and "| 60.5 ± 0.7 | 61.0 |" in text
