"""A run ends with a verdict: its files, `neubay select`, resuming, and what is refused."""

import dataclasses
import inspect
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neubay
from helpers.known_worlds import fitted as fitted_world
from helpers.known_worlds import linear_world
from helpers.small_runs import swings, tiny
from helpers.walks import LIMIT, LONGEST, walks
from neubay import agents, cli, experiment, selection, world
from neubay.cloning import clone_config, clones_for
from neubay.config import VARIANTS, SelectionConfig, WorldConfig, updated
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError, RunError
from neubay.policy import Policy
from neubay.report.parts.numbers import number
from neubay.report.parts.tables import END
from neubay.report.runs import page, records
from neubay.report.studies import guard_tables
from neubay.runs import rundir
from neubay.runs.files import read_json
from neubay.runs.signals import Stopped, deferred_signals
from neubay.selection import Judge, Trial, choice, judge_config, load_judge
from neubay.selection import judge as judges
from neubay.studies import fitted_q, guarding
from neubay.studies.fitted_q import FittedQ
from neubay.studies.selecting import by_dataset, selection_study
from neubay.tasks import ContinuousActions, get_task

KEYS = {"name", "run", "step", "estimate", "lower", "upper", "cut_share", "length_mean"}


def data() -> Dataset:
    return swings(get_task("pendulum"), horizon=40)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("selection")


@pytest.fixture(scope="module")
def finished(cache: Path) -> experiment.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUBAY_CACHE", str(cache / "cache"))
        return experiment.run(data(), tiny(), cache / "run", select=SelectionConfig())


@pytest.fixture
def chosen(finished: experiment.Result, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, with the folder where its world, clone and judge are kept."""
    monkeypatch.setenv("NEUBAY_CACHE", str(cache / "cache"))
    return finished.directory


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "selection.json").read_text())


def test_a_run_ends_with_a_verdict(finished: experiment.Result) -> None:
    directory, summary = finished.directory, finished.summary
    found = written(directory / "selection")
    assert {"protocol", "data", "candidates", "chosen", "verdict", "reasons"} <= found.keys()
    assert found["data"]["episodes"] == 6 and found["data"]["length_mean"] == 40
    names = {each["name"] for each in found["candidates"]}
    assert names == {"clone", "run@50", "run@100"}
    for each in found["candidates"]:
        assert each.keys() >= KEYS and each["lower"] <= each["estimate"] <= each["upper"]
        assert np.isfinite(each["return_mean"])  # an environment told it
    estimates = [each["estimate"] for each in found["candidates"]]
    assert estimates == sorted(estimates, reverse=True)
    best = next(each for each in found["candidates"] if each["name"] == found["chosen"])
    assert summary["verdict"] == found["verdict"] in ("deploy", "copy", "keep")
    assert found["reasons"] and all(isinstance(reason, str) for reason in found["reasons"])
    for name in ("estimate", "lower", "upper"):
        assert summary[name] == best[name]
    assert {"clone and judge", "selection"} <= summary["seconds"].keys()
    assert finished.chosen is not None and finished.chosen.ranges is not None
    # Which clone it was compared with.
    clone, told = read_json(directory / "policies" / "clone.json"), summary["clone"]
    assert clone == told and told["memory"] in ("none", "gated")
    imitator = next(each for each in found["candidates"] if each["name"] == "clone")
    for name in ("held_out_markov", "held_out_memory"):
        assert np.isfinite(told[name]) and imitator[name] == told[name]
    of_file = neubay.load_policy(directory / "policies" / "clone.npz")
    assert of_file.config.memory == told["memory"]
    # The run's own policy stays that of the last step.
    kept = sorted(path.name for path in (directory / "policies").glob("*.npz"))
    assert kept == ["000000050.npz", "000000100.npz", "clone.npz"]
    last, same = (neubay.load_policy(directory / "policies" / kept[1]), finished.policy)
    np.testing.assert_array_equal(last.predict(np.zeros(3))[0], same.predict(np.zeros(3))[0])


def test_select_needs_no_data_and_judges_nothing_twice(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "roll", lambda *_, **__: pytest.fail("judged again"))
    again = selection.select(chosen, out=tmp_path / "out")
    assert again.record == written(chosen / "selection") == written(tmp_path / "out")
    assert isinstance(again.policy, Policy)
    kept = neubay.load_policy(tmp_path / "out" / "policy.npz")
    np.testing.assert_array_equal(
        kept.predict(np.zeros(3))[0], again.policy.predict(np.zeros(3))[0]
    )


def test_a_users_own_function_and_a_single_candidate_are_judged(
    chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = neubay.select(chosen, candidates={"mine": lambda seen: -seen[:, 2:]})
    assert "mine" in {each["name"] for each in found.record["candidates"]}
    monkeypatch.setattr(judges, "EPOCHS_SHARE", 0.01)  # the preset's judge, in a few epochs
    alone = neubay.select(data=data(), candidates={"mine": lambda seen: 0 * seen[:, 2:]})
    assert [each["name"] for each in alone.record["candidates"]] == ["mine"]
    assert alone.verdict == "keep" and "no clone" in alone.record["reasons"][0]


def test_a_users_functions_are_called_in_the_main_thread(chosen: Path) -> None:
    """They may hold what knows no other one, such as an interpreter of another language."""
    called: set[threading.Thread] = set()

    def mine(seen: np.ndarray) -> np.ndarray:
        called.add(threading.current_thread())
        return 0 * seen[:, 2:]

    neubay.select(chosen, candidates={"mine": mine, "other": mine})
    assert called == {threading.main_thread()}


@pytest.mark.parametrize("ours", [True, False])
def test_judging_stops_at_a_signal(
    chosen: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """What has been begun is finished, and nothing else is begun."""
    judge = load_judge(chosen / "selection" / "judge.json")
    record = selection.load_record(chosen / "selection" / "data.npz")
    policy = neubay.load_policy(chosen)
    source = policy if ours else lambda seen: 0 * seen[:, 2:]
    candidates = [selection.Candidate(str(number), source) for number in range(6)]
    begun: list[int] = []

    with deferred_signals() as signalled:

        def roll(*_: Any, **__: Any) -> selection.Rollouts:
            begun.append(1)
            if len(begun) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            while not signalled():
                time.sleep(0.01)
            return selection.Rollouts(*5 * [np.zeros((2, 3))])

        monkeypatch.setattr(Trial, "roll", roll)
        with pytest.raises(Stopped):
            selection.choose(candidates, judge, record, get_task("pendulum"))
    assert len(begun) < len(candidates) if ours else len(begun) == 1


def test_policies_give_the_same_on_the_device_and_on_the_host(chosen: Path) -> None:
    """A policy without memory, once as ours and once as a plain function."""
    judge = load_judge(chosen / "selection" / "judge.json")
    record = selection.load_record(chosen / "selection" / "data.npz")
    trial = Trial.of(judge.fitted.world, judge.threshold, record, get_task("pendulum"), seed=0)
    config = tiny(agent={"memory": "none"}).agent
    agent = agents.make(3, 1, "continuous", config)
    policy = Policy(agent, agent.init(jax.random.key(0)), get_task("pendulum"), config)
    ours, theirs = trial.roll(policy), trial.roll(lambda seen: policy.predict(seen)[0])
    np.testing.assert_allclose(ours.estimate, theirs.estimate, rtol=1e-3)


def test_the_command_tells_the_verdict_and_the_page_has_it_on_top(
    chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["select", str(chosen), "--out", str(tmp_path / "out"), "--incumbent", "0-3,5"])
    assert ended.value.code == 0
    found, printed = written(tmp_path / "out"), capsys.readouterr().out
    assert found["data"]["episodes"] == 5 and found["protocol"]["incumbent"] == [0, 1, 2, 3, 5]
    assert found["verdict"] == "keep", "else the line below is another"
    assert f"keep your controller (judged best: {found['chosen']})" in printed
    assert written(chosen / "selection")["protocol"]["incumbent"] is None
    # The judge is checked on all the data, of which the clone is, and not on the incumbent's.
    assert found["protocol"]["sanity"] == written(chosen / "selection")["protocol"]["sanity"]
    html = page.one_run(records.read(chosen)).html
    ours = written(chosen / "selection")
    assert html.index(ours["verdict"].capitalize()) < html.index("The data&#39;s own")
    assert "gain over clone" in html
    summary = read_json(chosen / "summary.json")
    unscored = copied(chosen, tmp_path / "unscored", {})
    (unscored / "summary.json").write_text(json.dumps(summary | {"return_mean": None}))
    with pytest.raises(SystemExit):
        cli.main(["runs", "list", str(tmp_path)])
    listed = " ".join(capsys.readouterr().out.split())
    assert f"≈{number(summary['estimate'])}" in listed and ours["verdict"] in listed


def test_a_users_function_that_fails_is_named(chosen: Path) -> None:
    def trying(name: str, function: Any) -> str:
        with pytest.raises(NeubayError, match=f"candidate '{name}'") as error:
            neubay.select(chosen, candidates={name: function})
        return str(error.value)

    assert "not finite" in trying("broken", lambda seen: np.full((len(seen), 1), np.nan))
    assert "one action for each" in trying("single", lambda seen: np.zeros((2, 1)))
    assert "one action for each" in trying("silent", lambda seen: None)
    assert "has that name" in trying("clone", lambda seen: np.zeros((len(seen), 1)))
    assert "one action for each" in trying("transposed", lambda seen: np.zeros((1, len(seen))))
    assert "ValueError: no model" in trying("raising", raising)
    assert "predict(observations, state=..." in trying("old", Stateless())
    assert "got int" in trying("number", 7)
    assert "not found" in trying("lost", chosen / "nothing.npz")
    config = tiny(agent={"memory": "none"}).agent
    agent = agents.make(4, 1, "continuous", config)
    wide = dataclasses.replace(get_task("pendulum"), state_size=4)
    policy = Policy(agent, agent.init(jax.random.key(0)), wide, config)
    assert "state_size 4, and the data has 3" in trying("wide", policy)
    with pytest.raises(NeubayError, match="give it a name"):
        neubay.select(chosen, candidates={" ": lambda seen: np.zeros((len(seen), 1))})


def raising(seen: np.ndarray) -> np.ndarray:
    raise ValueError("no model")


class Stateless:
    def predict(self, observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), 1))


def test_a_policy_file_is_a_candidate(chosen: Path) -> None:
    found = neubay.select(chosen, candidates={"file": str(chosen / "policies" / "000000050.npz")})
    estimates = {each["name"]: each["estimate"] for each in found.record["candidates"]}
    assert estimates["file"] == estimates["run@50"]


def test_a_selection_replaces_no_run_and_no_candidate(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "roll", lambda *_, **__: pytest.fail("judged before it is refused"))
    run, mine = copied(chosen, tmp_path / "run", {}), tmp_path / "mine"
    before = (run / "policy.npz").read_bytes()
    with pytest.raises(RunError, match=r"name another folder, such as .*run/selection"):
        neubay.select(run, out=run)
    assert (run / "policy.npz").read_bytes() == before
    mine.mkdir()
    shutil.copy(run / "policies" / "clone.npz", mine / "policy.npz")
    with pytest.raises(RunError, match="holds the candidate 'today'"):
        neubay.select(run, candidates={"today": mine}, out=mine)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file: cannot be written"):
        neubay.select(run, out=tmp_path / "file")
    neubay.select(run, out=run / "selection")  # where `neubay train` writes too


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"incumbent": np.arange(6) < 3}, "incumbent: got true and false"),
        ({"incumbent": 3}, "incumbent: got 3"),
        ({"incumbent": [[0, 1], [2]]}, "incumbent: got "),
        ({"incumbent": [6]}, "no episode 6; the data has the episodes 0 to 5"),
        ({"candidates": [lambda seen: seen]}, "candidates is of type list: give each a name"),
        ({"out": ""}, "out is empty: name a folder"),
        ({"out": " "}, "out is empty"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_judged(
    chosen: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    complaint: str,
) -> None:
    monkeypatch.setattr(choice, "_judge", lambda *_, **__: pytest.fail("a judge was looked for"))
    monkeypatch.chdir(tmp_path)
    unchecked = inspect.unwrap(neubay.select)  # by the types, as it is for a user
    with pytest.raises(NeubayError, match=complaint):
        unchecked(chosen, **options)
    assert not list(tmp_path.iterdir())


def test_an_incumbent_may_be_an_array(chosen: Path) -> None:
    found = neubay.select(chosen, incumbent=np.array([5, 0, 5]))
    assert found.record["protocol"]["incumbent"] == [0, 5]


def with_another_clone(run: Path, target: Path) -> Path:
    """The same run, whose clone acts otherwise."""
    copied(run, target, {})
    path = target / "policies" / "clone.npz"
    policy = neubay.load_policy(path)
    policy.mode = jax.tree.map(lambda leaf: 2 * leaf, policy.mode)
    policy.save(path)
    return target


def test_all_are_compared_with_the_best_clone_whatever_the_order(
    chosen: Path, tmp_path: Path
) -> None:
    runs = [chosen, with_another_clone(chosen, tmp_path / "other")]
    one, other = (selection.select(order).record for order in (runs, runs[::-1]))
    clones = {each["name"]: each for each in one["candidates"] if each["is_clone"]}
    assert clones.keys() == {"clone of run", "clone of other"}
    best = max(clones.values(), key=lambda each: each["estimate"])
    margin = one["protocol"]["sanity"]["margin"]
    assert best["gain_over_clone"] == pytest.approx(-margin)
    gains = ("estimate", "gain_over_data", "gain_over_clone")
    for ours, theirs in zip(one["candidates"], other["candidates"], strict=True):
        assert [ours[name] for name in gains] == [theirs[name] for name in gains]
    assert one["protocol"] == other["protocol"] and one["reasons"][0] == other["reasons"][0]


def test_a_task_of_other_data_is_refused_by_name(chosen: Path) -> None:
    task = get_task("pendulum")
    others = {
        "state_size 7, and the data has 3": {"state_size": 7},
        r"actions 1 in \[-1, 1\], and the data has 1 in \[-2, 2\]": {
            "actions": ContinuousActions.symmetric(1)
        },
        "horizon 100, and the data has 200": {"horizon": 100},
    }
    for why, change in others.items():
        with pytest.raises(NeubayError, match=f"task 'pendulum': does not fit the data: {why}"):
            neubay.select(chosen, task=dataclasses.replace(task, **change))
    with pytest.raises(NeubayError, match="judge_seed -1: must be at least 0"):
        neubay.select(chosen, data=data(), judge_seed=-1)


def test_another_rule_is_judged_anew(chosen: Path, tmp_path: Path) -> None:
    lengths = []
    for ended in (True, False):

        def rule(state: Any, action: Any, following: Any, ended: bool = ended) -> Any:
            return jnp.full(len(state), ended)

        task = dataclasses.replace(get_task("pendulum"), termination=rule)
        found = neubay.select(chosen, task=task, out=tmp_path / "out")
        lengths.append({each["length_mean"] for each in found.record["candidates"]})
    assert lengths == [{1.0}, {40.0}]


def copied(run: Path, target: Path, change: dict[str, Any]) -> Path:
    shutil.copytree(run, target)
    about = read_json(target / "run.json")
    (target / "run.json").write_text(json.dumps(about | change))
    return target


def test_runs_of_other_data_or_tasks_are_refused_by_name(chosen: Path, tmp_path: Path) -> None:
    about = read_json(chosen / "run.json")
    other = copied(chosen, tmp_path / "other", {"dataset": about["dataset"] | {"hash": "beef"}})
    with pytest.raises(RunError, match=r"other: of other data than .*run: beef"):
        selection.select([chosen, other])
    facts = about["dataset"]["facts"] | {"horizon": 30}
    shorter = about["dataset"] | {"hash": "beef", "facts": facts}
    with pytest.raises(RunError, match="; its T is 30 and not 200; only"):
        selection.select([chosen, copied(chosen, tmp_path / "shorter", {"dataset": shorter})])
    policy = neubay.load_policy(other / "policy.npz")
    unit = ContinuousActions.symmetric(1)
    policy.task = dataclasses.replace(policy.task, actions=unit)
    policy.save(other / "policy.npz")
    bounds = r"; its actions are low \[-1.0\], high \[1.0\] and not low \[-2.0\], high \[2.0\]"
    with pytest.raises(RunError, match=bounds):
        selection.select([chosen, other])
    elsewhere = copied(chosen, tmp_path / "elsewhere", {"task": "cartpole"})
    with pytest.raises(RunError, match="of other task"):
        selection.select([chosen, elsewhere])
    with pytest.raises(RunError, match="not a run directory"):
        selection.select(tmp_path / "nothing")
    with pytest.raises(NeubayError, match="no policy to judge"):
        selection.select()


def test_a_run_without_its_judge_says_how_to_get_it(chosen: Path, tmp_path: Path) -> None:
    lost = copied(chosen, tmp_path / "run", {})
    reference = lost / "selection" / "judge.json"
    reference.write_text(json.dumps(read_json(reference) | {"directory": str(tmp_path / "gone")}))
    with pytest.raises(RunError, match=r"its judge is not at .*gone: name the data \(--data\)"):
        selection.select(lost)
    assert selection.select(lost, data=data()).record == written(chosen / "selection")
    shutil.rmtree(lost / "selection")  # as neubay 0.2 left it
    with pytest.raises(RunError, match=r"made with --no-select or by neubay 0.2.*--data"):
        selection.select(lost)
    with pytest.raises(RunError, match="has no judge of seed 7"):
        selection.select(chosen, judge_seed=7)


def test_a_judge_of_other_data_has_no_vote(chosen: Path) -> None:
    judge = load_judge(chosen / "selection" / "judge.json")
    record = selection.load_record(chosen / "selection" / "data.npz")
    assert judge.saw(record.dataset_hash)
    candidates = selection.of_runs([rundir.look(chosen)])
    other = dataclasses.replace(record, dataset_hash="beef")
    found = selection.choose(candidates, judge, other, get_task("pendulum"))
    assert found.verdict == "keep" and "fitted on other data" in found.record["reasons"][0]


def test_terminals_without_a_rule_leave_no_vote(chosen: Path) -> None:
    judge = load_judge(chosen / "selection" / "judge.json")
    record = selection.load_record(chosen / "selection" / "data.npz")
    ends = dataclasses.replace(record, terminals=True)
    candidates = selection.of_runs([rundir.look(chosen)])
    found = selection.choose(candidates, judge, ends, get_task("pendulum"))
    assert found.verdict == "keep"
    assert any("no rule says where an episode ends" in why for why in found.record["reasons"])


# --- Ends that the judge has learned -------------------------------------------------------------


def test_a_judge_learns_ends_where_no_rule_tells_them() -> None:
    def wanted(dataset: Dataset, **changes: Any) -> str:
        return judge_config(WorldConfig(**changes), dataset).termination

    ends = walks(60)
    assert wanted(ends) == wanted(ends, termination="learned") == "learned"
    assert wanted(ends, termination="none") == "none"
    assert wanted(walks(30, by_chance=1e-12)) == "none"
    ruled = dataclasses.replace(ends.task, termination=lambda s, a, n: abs(n[..., 0]) > LIMIT)
    assert wanted(dataclasses.replace(ends, task=ruled)) == "none"


@pytest.fixture(scope="module")
def ending() -> tuple[Dataset, Judge]:
    """Data whose rule is told to nobody, and a judge that knows all but the rule."""
    dataset = walks(300)
    moves = np.concatenate([np.zeros((3, 3)), np.eye(3) / 2], axis=1)
    truth = np.concatenate([moves, np.zeros((1, 6))])
    of = linear_world(2 * [truth], 2 * [np.array([0.0, 0.0, 0.0, 1.0])], sigma=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.termination, "STEPS", 1000)
        fitted = world.with_termination(fitted_world(of, dataset), dataset)
    return dataset, Judge(fitted, 0, None, zeta=None)


@pytest.mark.slow
def test_learned_ends_are_judged_as_the_rule_would(ending: tuple[Dataset, Judge]) -> None:
    dataset, judge = ending
    record = selection.DataRecord.of(dataset)
    policies = {
        "outwards": lambda seen: np.tile([1.0, 0.0, 0.0], (len(seen), 1)),
        "home": lambda seen: -seen,
    }
    candidates = [selection.Candidate(name, policy) for name, policy in policies.items()]

    def estimates(rule: Any) -> dict[str, float]:
        task = dataclasses.replace(dataset.task, termination=rule)
        found = selection.choose(candidates, judge, record, task).record
        expected = "learned" if rule is None else "rule"
        assert found["protocol"]["termination"] == expected
        assert not any("no rule" in why for why in found["reasons"])
        return {each["name"]: each["estimate"] for each in found["candidates"]}

    learned = estimates(None)
    known = estimates(lambda s, a, n: abs(n[..., 0]) > LIMIT)
    assert known["outwards"] < 7 and known["home"] == pytest.approx(LONGEST, abs=0.1)
    for name in policies:
        assert learned[name] == pytest.approx(known[name], rel=0.1)
    headless = dataclasses.replace(judge.fitted.world, heads=None)
    blind = dataclasses.replace(judge, fitted=dataclasses.replace(judge.fitted, world=headless))
    found = selection.choose(candidates, blind, record, dataset.task).record
    assert found["protocol"]["termination"] == "none" and not found["protocol"]["vote"]
    assert any("too few ends, or learning was switched off" in why for why in found["reasons"])
    assert all(each["length_mean"] == LONGEST for each in found["candidates"])


@pytest.mark.slow
def test_a_run_and_select_use_the_ends_that_the_judge_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(world.termination, "STEPS", 500)
    dataset, run = walks(60), tmp_path / "run"
    config = tiny(agent={"algorithm": "bc", "memory": "none"})
    experiment.run(dataset, config, run, select=SelectionConfig())
    ours = written(run / "selection")
    assert ours["protocol"]["termination"] == "learned"
    judge = load_judge(run / "selection" / "judge.json")
    assert judge.fitted.termination is not None
    assert selection.select(run).record == ours  # without the data
    # A judge without heads, as earlier versions fitted it, is replaced where the data is named.
    plain = selection.fit_judge(dataset, tiny(world={"termination": "none"}).world)
    (run / "selection" / "judge.json").write_text(json.dumps(plain.reference()))
    assert selection.select(run).record["protocol"]["termination"] == "none"
    assert selection.select(run, data=dataset).record == ours


@pytest.mark.faults("a signal while the clone, the judge or the candidates are worked on")
@pytest.mark.parametrize("stage", ["clone", "judge", "selection"])
def test_an_interrupted_selection_is_resumed(
    stage: str,
    finished: experiment.Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tally: Any,
) -> None:
    """The training is taken from the finished run; what is interrupted begins anew."""
    run, again = finished.directory, tmp_path / "run"
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    shutil.copytree(run.parent / "cache", tmp_path / "cache")
    shutil.copytree(run, again)
    for part in ("summary.json", "selection", "policies/clone.npz", "policies/clone.json"):
        path = again / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if stage == "clone":
        shutil.rmtree(tmp_path / "cache" / "clones")
    if stage == "judge":
        reference = read_json(run / "selection" / "judge.json")["directory"]
        shutil.rmtree(tmp_path / "cache" / "worlds" / Path(reference).name)

    def interrupt(name: str, share: float) -> None:
        if name == stage and share > 0:
            raise Stopped(2)

    def stop_world(progress: world.Progress) -> None:
        if stage == "judge" and progress.epoch:
            raise KeyboardInterrupt

    def go(**options: Any) -> experiment.Result:
        return experiment.run(data(), tiny(), again, select=SelectionConfig(), **options)

    with pytest.raises(Stopped):
        go(stage_progress=interrupt, world_progress=stop_world)
    assert not rundir.is_finished(again)
    resumed = go()
    ours, theirs = written(again / "selection"), written(run / "selection")
    del ours["protocol"]["judge"]["directory"], theirs["protocol"]["judge"]["directory"]
    assert ours == theirs
    assert resumed.summary["verdict"] == finished.summary["verdict"]
    tally(1, "resumed; the same verdict and numbers as without it")


def test_a_finished_run_is_judged_where_it_was_not(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it has no clone, that is trained; the agent is not."""
    monkeypatch.setattr(experiment, "train_agent", lambda *_, **__: pytest.fail("trained again"))
    run, whole = copied(chosen, tmp_path / "run", {}), read_json(chosen / "summary.json")
    shutil.rmtree(run / "selection")
    for clone in (run / "policies").glob("clone*"):
        clone.unlink()
    left_out = ("verdict", "chosen", "estimate", "lower", "upper", "clone")
    bare = {name: value for name, value in whole.items() if name not in left_out}
    (run / "summary.json").write_text(json.dumps(bare))
    said: list[str] = []

    def go(select: SelectionConfig | None) -> experiment.Result:
        return experiment.run(data(), tiny(), run, select=select, tell=said.append)

    assert go(None).summary == bare and not said
    go(SelectionConfig(baseline=False))
    assert "no clone was judged" in written(run / "selection")["reasons"][0]
    found = go(SelectionConfig()).summary
    assert written(run / "selection") == written(chosen / "selection")
    assert {**found, "seconds": 0} == {**whole, "seconds": 0}
    seconds = found["seconds"]
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"])
    assert sum("it is judged now" in line for line in said) == 2
    monkeypatch.setattr(selection, "choose", lambda *_, **__: pytest.fail("judged again"))
    go(SelectionConfig())
    (run / "selection" / "selection.json").write_text("{}")
    with pytest.raises(RunError, match="damaged; remove it, and the same command judges again"):
        go(SelectionConfig())


@pytest.mark.slow
def test_a_finished_run_is_judged_by_the_judge_that_is_asked_for(
    chosen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clone is decided by that seed too."""
    monkeypatch.setattr(experiment, "train_agent", lambda *_, **__: pytest.fail("trained again"))
    run, said = copied(chosen, tmp_path / "run", {}), []
    clone, before = run / "policies" / "clone.npz", written(chosen / "selection")

    def go(seed: int) -> experiment.Result:
        select = SelectionConfig(judge_seed=seed)
        return experiment.run(data(), tiny(), run, select=select, tell=said.append)

    found = go(7)
    assert f"{run}: judged with --judge-seed 0, and 7 is asked for: it is judged now" in said
    after = written(run / "selection")
    assert after["protocol"]["judge"]["seed"] == 7
    assert clone.read_bytes() != (chosen / "policies" / "clone.npz").read_bytes()
    assert found.summary["estimate"] != read_json(chosen / "summary.json")["estimate"]
    choose = selection.choose
    monkeypatch.setattr(selection, "choose", lambda *_, **__: pytest.fail("judged again"))
    go(7)
    # What does not tell its judge is left as it is.
    bare: Any
    for bare in ({}, {"judge": None}, {"judge": {"seed": None}}, None, [1]):
        path = run / "selection" / "selection.json"
        path.write_text(json.dumps(after | {"protocol": bare}))
        go(0)
    path.write_text(json.dumps(after))
    monkeypatch.setattr(selection, "choose", choose)
    go(0)
    assert written(run / "selection") == before


def test_a_damaged_answer_is_judged_again(chosen: Path, tmp_path: Path) -> None:
    run = copied(chosen, tmp_path / "run", {})
    for path in (run / "selection" / "judged").glob("*.npz"):
        path.write_bytes(b"PK damaged")
    assert selection.select(run).record == written(chosen / "selection")


# --- Judges and clones ---------------------------------------------------------------------------


def test_a_judge_is_smaller_than_the_world_by_a_written_rule() -> None:
    config = WorldConfig(pool=12, members=10, max_epochs=60, quantifier="aleatoric")
    smaller = judge_config(config, data())
    assert (smaller.pool, smaller.members, smaller.max_epochs) == (6, 5, 40)
    assert smaller.max_steps is None and smaller.quantifier == "disagreement"
    assert smaller.resample  # members that saw different episodes, and that trained no policy
    many = judge_config(WorldConfig(pool=40, members=36), data())
    assert (many.pool, many.members) == (10, 9)
    tiny_one = judge_config(WorldConfig(pool=2, members=1), data())
    assert (tiny_one.pool, tiny_one.members) == (2, 2)


def test_relatives_share_one_clone() -> None:
    settings = SelectionConfig()
    ours = clone_config(tiny(), settings)
    theirs = clone_config(tiny(agent={"kappa": 0.9, "heads": 4}, rollout={"zeta": 0.9}), settings)
    assert ours == theirs and ours.agent.algorithm == "bc" and ours.agent.steps == 25
    markov = tiny(agent={"memory": "none", "window": 1, "burn_in": 0, "standardise": False})
    assert clone_config(markov, settings) == ours
    assert clone_config(tiny(agent={"steps": 10**6}), settings).agent.steps == 10_000
    assert clone_config(tiny(), SelectionConfig(clone_steps=7)).agent.steps == 7
    best = clone_config(tiny(), settings, rundir.BEST_CLONE)
    assert best == updated(ours, {"agent": {"best_share": best.agent.best_share}})
    assert best.agent.best_share < 1 == ours.agent.best_share


def test_what_a_run_is_compared_with_depends_on_what_it_trains_and_on_who_acted() -> None:
    rng = np.random.default_rng(0)
    state, ends = rng.normal(size=(4000, 2)).astype(np.float32), np.arange(4000) % 20 == 19
    none, paid = np.zeros(4000, bool), np.repeat(rng.normal(size=200), 20)
    follows, drawn = np.tanh(state[:, :1]), rng.uniform(-1, 1, (4000, 1)).astype(np.float32)
    mostly_drawn = np.where(paid[:, None] > np.quantile(paid, 0.7), follows, drawn)

    def compared(action: np.ndarray, reward: np.ndarray = paid, **agent: Any) -> list[str]:
        log = Dataset.from_arrays(state, action, reward, none, ends, name="log", horizon=20)
        return clones_for(log, tiny(agent=agent))

    assert compared(follows) == ["clone", "clone-of-best"]
    assert compared(mostly_drawn) == ["clone", "clone-of-best"]  # the best are a policy's
    assert compared(drawn) == ["clone"]  # good by luck
    assert compared(follows, 0 * paid + 1) == ["clone"]  # none is better
    assert compared(follows, algorithm="bc") == []
    assert compared(follows, algorithm="bc", best_share=0.25) == ["clone"]


def test_a_run_of_the_best_clone_is_compared_with_the_clone_of_other_runs() -> None:
    """As large a budget, and found where theirs is; its own share decides what the best are."""
    settings, ours = SelectionConfig(), tiny(agent={"steps": 40_000})
    cloning = tiny(agent={"algorithm": "bc", "steps": 10_000, "best_share": 0.1})
    assert clone_config(cloning, settings) == clone_config(ours, settings)
    shares = [
        clone_config(tiny(agent=agent), settings, rundir.BEST_CLONE).agent.best_share
        for agent in ({}, {"best_share": 0.1})
    ]
    assert shares == [0.25, 0.1]


@pytest.mark.slow
def test_a_run_of_the_best_clone_keeps_its_name(
    chosen: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Though its last policies are the same: it was at its best before."""
    config = updated(tiny(agent={"steps": 100}), VARIANTS["bc-best"] | {"agent": {
        "algorithm": "bc", "best_share": 0.25, "average_share": 0.0, "steps": 100}})  # fmt: skip
    said: list[str] = []
    made = experiment.run(data(), config, tmp_path / "run", select=None, tell=said.append)
    assert any("good by luck" in line for line in said)  # these actions are random
    policies = tmp_path / "run" / "policies"
    shutil.copy(tmp_path / "run" / "policy.npz", policies / "000000050.npz")
    found = selection.of_runs([rundir.look(chosen), rundir.look(tmp_path / "run")])
    assert [each.name for each in found if each.clone_of] == ["clone", "clone-of-best"]
    assert made.summary["clone_of_best"]["best_share"] == 0.25 and "clone" not in made.summary
    with pytest.raises(SystemExit, match="0"):
        cli.main(["card", str(tmp_path / "run")])
    assert "A clone of the data's best episodes (25% of its steps)" in capsys.readouterr().out


def test_a_clone_of_the_best_is_a_candidate_and_not_what_others_are_compared_with(
    chosen: Path, tmp_path: Path
) -> None:
    shutil.copytree(chosen, tmp_path / "run")
    policies = tmp_path / "run" / "policies"
    shutil.copy(policies / "clone.json", policies / "clone-of-best.json")
    another = neubay.load_policy(policies / "clone.npz")
    another.mode = jax.tree.map(lambda leaf: 2 * leaf, another.mode)
    another.save(policies / "clone-of-best.npz")
    found = {each.name: each for each in selection.of_runs([rundir.look(tmp_path / "run")])}
    assert found.keys() == {"clone", "clone-of-best", "run@50", "run@100"}
    assert [name for name, each in found.items() if each.is_clone] == ["clone"]
    assert found["clone-of-best"].told == found["clone"].told != {}


@pytest.mark.slow
def test_a_study_values_every_candidate_by_fitted_q_too(
    chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mean_action(study: FittedQ, policy: Any) -> float:
        assert study.gamma == read_json(chosen / "run.json")["config"]["agent"]["gamma"]
        return float(fitted_q.actions_of(policy, study.dataset).mean())

    monkeypatch.setattr(FittedQ, "value", mean_action)
    monkeypatch.setattr(FittedQ, "of_data", lambda study: (1.0, 2.0))
    (runs,) = by_dataset([chosen])
    found = selection_study(runs, lambda source: data(), tell=lambda text: None)["candidates"]
    files = {"clone": "policies/clone.npz", "run@50": "policies/000000050.npz"}
    for each in found:
        policy = neubay.load_policy(chosen / files.get(each["name"], "policy.npz"))
        expected = fitted_q.actions_of(policy.mode, data()).mean()
        assert each["fqe"] == pytest.approx(expected)
    assert len({each["fqe"] for each in found}) == 3
    told = written(chosen / "selection")["candidates"]
    assert [each["estimate"] for each in found] == [each["estimate"] for each in told]
    with pytest.raises(RunError, match="--data"):
        selection_study(runs, lambda source: swings(get_task("pendulum"), horizon=30))
    with pytest.raises(RunError, match="not a run directory"):
        by_dataset([chosen, chosen / "policies"])


@pytest.mark.slow
def test_a_study_of_guards_writes_tables_and_a_figure(chosen: Path, tmp_path: Path) -> None:
    page, out, drawn = (tmp_path / name for name in ("page.md", "guard.json", "guard.png"))
    page.write_text(f"{guard_tables.BEGIN}\n{END}\n")
    words = ["--text", str(page), "--out", str(out), "--figure", str(drawn)]
    for source, more in ((chosen, ["--episodes", "2"]), (out, [])):
        with pytest.raises(SystemExit) as ended:
            cli.main(["analyze", "guard", str(source), *more, *words])
        assert not ended.value.code
    (found,) = read_json(out)["guards"]
    assert found["alone"]["falls"] == 0 and found["alone"]["length_mean"] == 200
    assert found["guards"].keys() == guarding.GUARDS.keys()
    for guard in found["guards"].values():
        # The clone acted wherever there was an alarm, from the same starts on.
        assert (guard["per_episode"] > 0) == (guard["fallback"]["fell_back"] > 0)
    limits = [each["false_per_thousand"] for each in found["posterior"]]
    assert limits == sorted(limits, reverse=True)
    assert guard_tables.markdown([found]) in page.read_text() and drawn.stat().st_size > 1000
    with pytest.raises(NeubayError, match="analyze guard"):
        guard_tables.condense([{"guards": [{"run": "x"}]}])
