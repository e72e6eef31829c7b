"""One call from data to a scored policy, in miniature."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import neubay
from helpers.small_runs import TINY, swings, tiny
from neubay import experiment, world
from neubay.config import Facts, settle, updated, validated
from neubay.errors import ConfigError, NeubayError, RunError
from neubay.policy import load_policy
from neubay.runs import checkpoints, progress
from neubay.runs.files import read_arrays
from neubay.runs.tracking import read_json_lines
from neubay.tape import has_successor
from neubay.tasks import get_task


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> experiment.Result:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUBAY_CACHE", str(folder / "cache"))
        return experiment.run(swings(get_task("pendulum")), tiny(), folder / "run")


def test_a_run_leaves_what_it_promises(finished: experiment.Result) -> None:
    directory = finished.directory
    summary = json.loads((directory / "summary.json").read_text())
    assert summary == finished.summary
    assert summary["episodes"] == 3 and summary["score"] is None
    assert summary["environment"] == "Pendulum-v1"
    for key in ("return_mean", "return_std", "data_return_mean", "q_data"):
        assert np.isfinite(summary[key])
    assert {"p25", "p50", "p75", "max"} <= summary["horizon"].keys()
    stages = {"world", "imagination", "sampling", "updates", "evaluation", "total"}
    assert stages <= summary["seconds"].keys()
    described = json.loads((directory / "run.json").read_text())
    facts = described["dataset"]["facts"]
    asked = settle(tiny(), validated(Facts, facts)).model_dump()
    later = {"average": 0.0, "termination": "auto", "resample": False, "prior": 0.0}
    for name, usual in later.items():
        assert asked["world"].pop(name) == usual  # left out, as before there was a choice
    assert asked["rollout"].pop("simulator") is False and asked["rollout"].pop("widen") == 0.0
    assert asked["agent"].pop("best_share") == 1.0
    assert described["config"] == asked
    assert validated(Facts, facts) == swings(get_task("pendulum")).facts
    assert described["dataset"]["hash"] == summary["dataset_hash"]
    rows = list(read_json_lines(directory / "metrics.jsonl"))
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [50, 100]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [50, 100]
    assert rows[-1]["return_mean"] == summary["return_mean"]
    last = rows[-1]  # of the very episodes that were played: what was expected, what was paid
    assert last["q_gap"] == pytest.approx(last["q_start"] - last["discounted_mean"])


@pytest.mark.slow
def test_the_last_call_is_as_short_as_it_must_be_and_evaluations_wait_for_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 steps in calls of 50, with evaluations due at 30 and 60; without memory it compiles
    least."""
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    config = tiny(agent={"memory": "none", "steps": 60}, evaluation={"episodes": 1})
    experiment.run(swings(get_task("pendulum")), config, tmp_path / "run")
    rows = list(read_json_lines(tmp_path / "run" / "metrics.jsonl"))
    for kind in ("train", "evaluation"):
        assert [row["step"] for row in rows if row["kind"] == kind] == [50, 60]


def test_a_saved_policy_acts_as_the_trained_one(finished: experiment.Result) -> None:
    ours, theirs = finished.policy, load_policy(finished.directory / "policy.npz")
    rng = np.random.default_rng(0)
    state, other, reward = None, None, None
    for step in range(4):
        observation = rng.normal(size=(2, 3)).astype(np.float32)
        start = np.array([step == 0, step in (0, 2)])
        action, state = ours.predict(observation, state, start, reward=reward)
        again, other = theirs.predict(observation, other, start, reward=reward)
        np.testing.assert_array_equal(action, again)
        assert action.shape == (2, 1) and (np.abs(action) <= 2).all()
        reward = np.array([1.0, -1.0])
    single, _ = ours.predict(observation[0])
    assert single.shape == (1,)


def test_memory_is_cleared_where_an_episode_starts(finished: experiment.Result) -> None:
    policy = finished.policy
    first, last = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.5])
    _, state = policy.predict(first)
    fresh, _ = policy.predict(last)
    reset, _ = policy.predict(last, state, episode_start=True)
    carried, _ = policy.predict(last, state, reward=-3.0)
    np.testing.assert_array_equal(fresh, reset)
    assert not np.array_equal(fresh, carried)


def test_a_policy_says_what_it_needs(finished: experiment.Result) -> None:
    policy = finished.policy
    _, state = policy.predict(np.zeros(3))
    with pytest.raises(NeubayError, match="reward"):
        policy.predict(np.zeros(3), state)
    with pytest.raises(NeubayError, match="3 values"):
        policy.predict(np.zeros(4))
    with pytest.raises(NeubayError, match="2 observations"):
        policy.predict(np.zeros((2, 3)), state, reward=0.0)
    batch = np.zeros((3, 3))
    _, many = policy.predict(batch)
    with pytest.raises(NeubayError, match="reward has shape"):
        policy.predict(batch, many, reward=np.zeros(2))
    with pytest.raises(NeubayError, match="episode_start has shape"):
        policy.predict(batch, many, np.ones(2, bool), reward=0.0)
    with pytest.raises(NeubayError, match="observation has a value that is not finite"):
        policy.predict(np.array([0, np.nan, 0]))
    with pytest.raises(NeubayError, match="reward has a value that is not finite"):
        policy.predict(batch, many, reward=np.nan)
    policy.predict(batch, many, True, reward=np.nan)  # where an episode starts it is not looked at


@pytest.mark.parametrize("content", [b"", b"not a file of arrays", b"PK\x03\x04broken"])
def test_a_damaged_policy_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.npz"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"policy\.npz"):
        load_policy(path)


def test_a_finished_run_is_opened_and_nothing_else_is_touched(
    finished: experiment.Result, tmp_path: Path
) -> None:
    files = {path: path.read_bytes() for path in finished.directory.glob("*.*")}
    again = experiment.run(swings(get_task("pendulum")), tiny(), finished.directory)
    assert again.summary == finished.summary
    assert {path: path.read_bytes() for path in finished.directory.glob("*.*")} == files
    with pytest.raises(RunError, match="not a run"):
        (tmp_path / "thesis.txt").touch()
        experiment.run(swings(get_task("pendulum")), tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_finished_run_says_that_its_world_is_gone(
    finished: experiment.Result, tmp_path: Path
) -> None:
    run, said, gone = tmp_path / "run", [], tmp_path / "gone"
    shutil.copytree(finished.directory, run)
    reference = json.loads((run / "world.json").read_text())
    (run / "world.json").write_text(json.dumps(reference | {"directory": str(gone)}))

    def opened() -> world.FittedWorld | None:
        dataset = swings(get_task("pendulum"))
        return experiment.run(dataset, tiny(), run, tell=said.append).world

    assert opened() is None and len(said) == 1
    for part in (f"its world was in {gone}", f"copy that directory from there to {run / 'world'}",
                 "'neubay world' with the run's data", "the result has no world"):  # fmt: skip
        assert part in said[0]
    shutil.copytree(reference["directory"], run / "world")
    found = opened()
    assert found is not None and found.seed == 0 and len(said) == 1


def test_a_tape_shorter_than_a_trajectory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.tape is 100"):
        experiment.run(swings(), tiny(agent={"tape": 100, "window": None}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_environment_that_cannot_be_made_is_told_before_any_work(tmp_path: Path) -> None:
    task = dataclasses.replace(
        get_task("pendulum"), env_id="no_such_module:Nowhere-v0", make_env=None
    )
    with pytest.raises(NeubayError, match="no_such_module"):
        experiment.run(swings(task), tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_own_data_without_an_environment(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(progress, "EVERY", 0.0)
    dataset = swings()
    result = neubay.train(dataset, out=tmp_path / "run", changes=TINY)
    shown = capsys.readouterr()
    assert "world: epoch 2" in shown.err and "step 50 of 100: Q on data" in shown.err
    assert not shown.out
    neubay.train(dataset, out=tmp_path / "quiet", changes=TINY, quiet=True)
    assert not "".join(capsys.readouterr())
    assert result.summary["return_mean"] is None and result.summary["episodes"] == 0
    assert np.isfinite(result.summary["posterior"]["return_mean"])
    kinds = {row["kind"] for row in read_json_lines(tmp_path / "run" / "metrics.jsonl")}
    assert kinds == {"train"}
    action, _ = result.policy.predict(np.zeros(3))
    assert action.shape == (1,)


def test_what_cannot_be_trained_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown variant 'cql'; known: neubay"):
        neubay.train(swings(), variant="cql", out=tmp_path / "run")
    with pytest.raises(NeubayError, match="no such file"):
        neubay.train(tmp_path / "nothing.npz", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_world_is_reused_only_where_it_matches(
    finished: experiment.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(finished.directory.parent / "cache"))
    dataset, config = swings(get_task("pendulum")), tiny()
    here = world.world_directory(dataset, config.world, 0)
    renamed = dataclasses.replace(dataset, name="called otherwise")
    assert here.is_dir() and here == world.world_directory(renamed, config.world, 0)
    others = [
        world.world_directory(dataset, config.world, 1),
        world.world_directory(dataset, updated(config.world, {"width": 9}), 0),
        world.world_directory(swings(episodes=5), config.world, 0),
    ]
    assert len({here, *others}) == 4


def test_the_datas_constants_travel_with_agent_policy_and_checkpoints(
    finished: experiment.Result,
) -> None:
    """As they were before training: they are not trained."""
    data = swings(get_task("pendulum"))
    states, rewards = data.tape.state, data.tape.reward[has_successor(data.tape.start)]
    mean = np.concatenate([states.mean(axis=0), [0], [rewards.mean()]])
    std = np.concatenate([states.std(axis=0), [1], [rewards.std()]])
    newest = checkpoints.found(finished.directory / "checkpoints")[-1]
    stored = read_arrays(newest / "0000.npz")
    places = {
        name.removesuffix(".mean"): array
        for name, array in stored.items()
        if name.endswith("standardise.mean") and "optimiser" not in name
    }
    assert {name.split(".")[1] for name in places} == {"actor", "critic", "target", "average"}
    with np.load(finished.directory / "policy.npz", allow_pickle=False) as file:
        (name,) = (name for name in file.files if name.endswith("standardise.mean"))
        np.testing.assert_allclose(file[name], mean, atol=1e-4)
        np.testing.assert_allclose(file[name.replace(".mean", ".std")], std, rtol=1e-4)
        for place, array in places.items():
            np.testing.assert_allclose(array, file[name], rtol=1e-5)
            np.testing.assert_allclose(
                stored[f"{place}.std"], file[name.replace(".mean", ".std")], rtol=1e-5
            )
