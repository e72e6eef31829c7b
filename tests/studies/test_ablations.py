"""The paper's ablations: the grids are its tables' columns, and runs are gone on with, shared and
reported."""

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from helpers.report_runs import make_run
from helpers.small_runs import TINY, outcome, swings, tiny
from neubay import cli, data, experiment, published, world
from neubay.commands import ablate, train
from neubay.commands.options import TrainSettings, parse, train_defaults
from neubay.config import Published, TrainConfig, preset, updated
from neubay.data import convert
from neubay.errors import ConfigError, TrainingError
from neubay.runs import rundir
from neubay.runs.files import read_json, tree_hash
from neubay.runs.signals import Stopped
from neubay.studies import ablations
from neubay.studies.ablations import Over
from neubay.tasks import get_task, published_settings

OVERS: tuple[Over, ...] = ("zeta", "N", "lambda", "horizon", "memory", "critic", "layernorm")


def paper_arms(over: Over, name: str = "hopper-medium-replay-v2") -> dict[str, TrainConfig]:
    task = get_task(published.datasets()[name].task)
    config = preset("paper", published_settings(task, name))
    return {arm.name: arm.config for arm in ablations.arms(over, config, task)}


# --- The grids -----------------------------------------------------------------------------------


def columns(table: str, group: str) -> list[str]:
    return [column.name for column in published.table(table).columns if column.group == group]


def values(over: Over, show: Any) -> list[str]:
    return [show(config) for config in paper_arms(over).values()]


def test_the_grids_are_the_columns_of_the_papers_tables() -> None:
    assert values("zeta", lambda c: f"zeta={c.rollout.zeta:g}") == columns("ablations", "zeta")
    assert values("N", lambda c: f"N={c.world.members}") == columns("ablations", "N")
    assert values("lambda", lambda c: f"lambda={c.rollout.penalty:g}") == columns(
        "ablations", "lambda"
    )
    assert values(
        "horizon", lambda c: f"H={c.rollout.horizon}" if c.rollout.horizon else "adaptive"
    ) == columns("horizon_ablation", "horizon")
    assert values(
        "critic",
        lambda c: f"{'SAC' if c.agent.heads == 2 else 'REDQ'} zeta={c.rollout.zeta:g}",
    ) == columns("sac_ablation", "critic")


@pytest.mark.parametrize("over", OVERS)
def test_arms_differ_from_the_main_one_in_the_named_choice_alone(over: Over) -> None:
    may_differ = {
        "zeta": {"rollout.zeta"},
        "N": {"world.members"},
        "lambda": {"rollout.penalty"},
        "horizon": {"rollout.horizon", "rollout.zeta"},
        "memory": {"agent.memory", "agent.kappa"},
        "critic": {"agent.heads", "agent.target_heads", "rollout.zeta"},
        "layernorm": {"world.layer_norm"},
    }[over]
    main, *others = paper_arms(over).values()
    assert others
    for other in others:
        differing = {
            f"{stage}.{name}"
            for stage in ("world", "rollout", "agent", "evaluation")
            for name, value in getattr(other, stage)
            if value != getattr(getattr(main, stage), name)
        }
        assert differing and differing <= may_differ


def test_fixed_horizons_are_not_cut_and_fit_into_an_episode() -> None:
    for name, longest in (("hopper-random-v2", 256), ("pen-cloned-v1", 32)):
        fixed = list(paper_arms("horizon", name).values())[1:]
        assert [config.rollout.horizon for config in fixed] == [longest, 10, 3]
        assert all(config.rollout.zeta is None for config in fixed)


@pytest.mark.parametrize(
    ("name", "kappas"),
    [
        ("hopper-medium-replay-v2", {0.05, 0.5, 0.8}),
        ("Hopper-v3-Low", {0.5, 0.8}),
        ("antmaze-umaze-v2", {0.5, 0.8, 0.95}),
    ],
)
def test_the_markov_agents_kappa_is_chosen_anew(name: str, kappas: set[float]) -> None:
    main, *markov = paper_arms("memory", name).values()
    assert main.agent.memory == "lru"
    assert all(config.agent.memory == "none" for config in markov)
    assert {config.agent.kappa for config in markov} == kappas


def test_a_reduced_posterior_shrinks_as_far_as_it_can() -> None:
    task = get_task("d4rl/hopper")
    found = ablations.arms("N", preset("cpu"), task)
    assert [arm.config.world.members for arm in found] == [10, 5]
    with pytest.raises(ConfigError, match="has 5 members, this one 4"):
        ablations.arms("N", updated(preset("cpu"), {"world": {"members": 4}}), task)


def test_what_is_the_main_setting_is_no_arm_of_its_own() -> None:
    config = updated(preset("cpu"), {"rollout": {"zeta": 0.99}})
    found = ablations.arms("zeta", config, get_task("d4rl/hopper"))
    assert [arm.name for arm in found] == ["main", "zeta-1", "zeta-0.999", "zeta-0.9"]
    without = updated(preset("cpu"), {"world": {"layer_norm": False}})
    found = ablations.arms("layernorm", without, get_task("d4rl/hopper"))
    assert [arm.name for arm in found] == ["main", "layernorm"]


def test_discrete_control_has_no_critic_to_exchange() -> None:
    with pytest.raises(ConfigError, match="discrete actions"):
        ablations.arms("critic", preset("cpu"), get_task("cartpole"))


def test_seeds_come_one_after_the_other_and_each_once(tmp_path: Path) -> None:
    task = get_task("d4rl/hopper")
    planned = ablations.plan("layernorm", preset("cpu"), task, [3, 1, 3], tmp_path)
    assert [(run.arm.name, run.seed) for run in planned] == [
        ("main", 3),
        ("no-layernorm", 3),
        ("main", 1),
        ("no-layernorm", 1),
    ]
    assert all(run.config.seed == run.seed for run in planned)
    assert planned[1].directory == tmp_path / "no-layernorm-seed3"


# --- The command ---------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of tiny settings; what is trained stays in the test's own folder."""
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return path


@pytest.mark.parametrize("over", OVERS)
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
    planned = ablations.plan(
        over, updated(config, changes), get_task("pendulum"), (4,), tmp_path / "runs"
    )
    assert len(printed) == len(planned)
    for words, run in zip(printed, planned, strict=True):
        assert words[:2] == ["neubay", "train"]
        flags, _ = parse(
            train.TrainFlags, TrainSettings, train_defaults, words[2:], prog="", description=""
        )
        assert flags.values == run.config and flags.out == run.directory
    assert not (tmp_path / "runs").exists(), "nothing was done"


def test_the_whole_command_trains_reports_and_does_nothing_twice(
    tmp_path: Path,
    settings: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is made by hand: six members and the best five of them, trained and evaluated."""
    monkeypatch.chdir(tmp_path)
    convert.write(swings(get_task("pendulum")), "swings.hdf5")
    asked = ["ablate", "swings.hdf5", "--over", "N", "--config", str(settings), "--seed", "3"]
    asked += ["--world.pool", "6", "--world.members", "6", "--agent.steps", "20"]
    asked += ["--evaluation.evaluations", "1", "--evaluation.episodes", "1"]
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


def test_runs_are_gone_on_with_and_reported(
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
    assert len(made) == 3 and said.count("saved; to go on: neubay ablate pendulum") == 1
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


def test_a_smaller_posterior_is_the_best_of_the_same_pool(tmp_path: Path, settings: Path) -> None:
    """Bit for bit what training the pool again and keeping fewer would give."""
    dataset = data.load("pendulum")
    main = tiny(world={"pool": 3, "members": 3})
    smaller = updated(main, {"world": {"members": 2}})
    where = experiment.world_directory(dataset, smaller.world, 0)
    ablations.share_pool(dataset, main, smaller)
    assert not where.exists(), "there is no main world yet"
    world.fit(dataset, main.world, 0, directory=experiment.world_directory(dataset, main.world, 0))
    ablations.share_pool(dataset, main, updated(smaller, {"world": {"max_epochs": 3}}))
    assert len(list(where.parent.iterdir())) == 1, "another world is none of its business"
    ablations.share_pool(dataset, main, smaller)
    shared, anew = world.load(where, dataset), world.fit(dataset, smaller.world, 0)
    assert shared.identity == anew.identity
    np.testing.assert_array_equal(shared.kept, anew.kept)
    np.testing.assert_array_equal(shared.data_uncertainty, anew.data_uncertainty)
    assert tree_hash(shared.world) == tree_hash(anew.world)
