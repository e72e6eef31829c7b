"""The loop of a sweep, with an engine that trains nothing: what is proposed, told, resumed."""

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import Killed, Pretended, request
from neubay.errors import ConfigError, NeubayError, RunError, SweepError
from neubay.runs.sweepdir import read
from neubay.sweeps.jobs import Job, Outcome
from neubay.sweeps.loop import climbs
from neubay.sweeps.proposals import JOURNAL
from neubay.sweeps.sweep import Request, run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))


def swept(asked: Request, engine: Pretended) -> list[tuple[Any, ...]]:
    """Every trial's settings, state and value."""
    run(asked, lambda: engine)
    assert engine.stopped
    return outcomes(asked.plan.directory)


def outcomes(directory: Path) -> list[tuple[Any, ...]]:
    return [(t.number, t.settings, t.state, t.value, t.runs) for t in read(directory).trials]


def test_a_grid_runs_every_point_with_every_seed_once(tmp_path: Path) -> None:
    asked = request(
        tmp_path / "s", "agent.kappa=[0.1, 0.3, 0.9]", "agent.gamma=[0.9, 0.99]",
        sampler="grid", seeds=(0, 3), trials=100,
    )  # fmt: skip
    engine = Pretended()
    found = swept(asked, engine)
    points = [(t[1]["agent.kappa"], t[1]["agent.gamma"]) for t in found]
    assert points == [(kappa, gamma) for kappa in (0.1, 0.3, 0.9) for gamma in (0.9, 0.99)]
    assert {t[2] for t in found} == {"finished"}
    worlds = [name for name in engine.trained if "seed" not in name]
    assert len(worlds) == 2, "a world for each seed"
    assert set(engine.trained.values()) == {1}, "nothing twice"
    assert len(engine.trained) == 2 + 12
    content = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert content["metric"] == "posterior" and content["best"] == 2
    assert content["trials"][0]["runs"] == ["0000-seed0", "0000-seed3"]
    assert content["trials"][2]["value"] == pytest.approx(-0.0015), "the mean over seeds"
    keys = {"number", "state", "settings", "value", "runs"}
    assert all(keys <= trial.keys() for trial in content["trials"])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_killed_after_any_look_it_resumes_to_the_same_trials(tmp_path: Path, sampler: Any) -> None:
    """One worker, so that what an adaptive sampler knows does not depend on who is first."""
    search = "agent.kappa=[0.1, 0.2, 0.3, 0.6, 0.9]" if sampler == "grid" else "agent.kappa=0:1"

    def asked(name: str) -> Request:
        return request(tmp_path / name, search, sampler=sampler, trials=5, seeds=(0, 1))

    whole = Pretended(workers=1)
    undisturbed = swept(asked("whole"), whole)
    assert len({json.dumps(trial[1]) for trial in undisturbed}) == 5
    for looks in (0, 1, 4, 9):
        name = f"killed{looks}"
        engine = Pretended(workers=1, kill_after=looks)
        with pytest.raises(Killed):
            run(asked(name), lambda engine=engine: engine)
        again = Pretended(workers=1)
        assert swept(asked(name), again) == undisturbed
        run(asked(name), _no_engine)
        assert outcomes(tmp_path / name) == undisturbed, "nothing was left to do"


def test_a_kill_between_question_and_record_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is ahead of sweep.json by half a proposal, and by half a line."""

    def asked(name: str) -> Request:
        return request(tmp_path / name, sampler="random", trials=4)

    undisturbed = swept(asked("whole"), Pretended(workers=1))
    with pytest.raises(Killed):
        run(asked("killed"), lambda: Pretended(workers=1, kill_after=3))
    journal = tmp_path / "killed" / JOURNAL
    before = journal.read_bytes()
    created = next(line for line in before.splitlines() if b'"op_code":4' in line)
    journal.write_bytes(before + created + b"\n" + created[: len(created) // 2])
    assert swept(asked("killed"), Pretended(workers=1)) == undisturbed


def test_a_journal_that_was_shortened_or_lost_is_refused(tmp_path: Path) -> None:
    asked = request(tmp_path / "s", sampler="random", trials=3)
    swept(asked, Pretended())
    journal = tmp_path / "s" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-50])
    with pytest.raises(NeubayError, match="shortened"):
        run(asked, Pretended)
    journal.unlink()
    with pytest.raises(NeubayError, match="not found"):
        run(asked, Pretended)


def test_more_trials_may_be_asked_for_and_nothing_else(tmp_path: Path) -> None:
    first = swept(request(tmp_path / "s", sampler="random", trials=2), Pretended())
    engine = Pretended()
    more = swept(request(tmp_path / "s", sampler="random", trials=5), engine)
    assert more[:2] == first and len(more) == 5
    assert len([name for name in engine.trained if "seed" in name]) == 3
    for other in ({"seeds": (1,)}, {"sampler": "tpe"}, {"prune": True}, {"proposal_seed": 7}):
        with pytest.raises(RunError, match="of another sweep"):
            run(request(tmp_path / "s", **{"sampler": "random", "trials": 5} | other), Pretended)
    with pytest.raises(RunError, match="search"):
        run(request(tmp_path / "s", "agent.gamma=0.9:0.99", sampler="random"), Pretended)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(RunError, match="is not a sweep"):
        run(request(tmp_path / "other"), Pretended)


def test_the_same_point_is_run_once(tmp_path: Path) -> None:
    engine = Pretended()
    found = swept(
        request(tmp_path / "s", "agent.kappa=[0.1, 0.3]", sampler="random", trials=12), engine
    )
    assert Counter(t[2] for t in found) == {"finished": 12}
    assert len([name for name in engine.trained if "seed" in name]) == 2
    by_kappa = {t[1]["agent.kappa"]: (t[3], t[4]) for t in found}
    assert all((t[3], t[4]) == by_kappa[t[1]["agent.kappa"]] for t in found)


def test_a_failed_trial_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    def diverges(job: Job) -> Outcome | None:
        high = job.config["agent"]["kappa"] == 0.9
        return Outcome("failed", problem="diverged at step 50") if high else None

    asked = request(tmp_path / "s", "agent.kappa=[0.1, 0.9, 0.3]", sampler="grid", seeds=(0, 1))
    found = swept(asked, Pretended(outcome=diverges))
    assert [t[2] for t in found] == ["finished", "failed", "finished"]
    assert read(tmp_path / "s").trials[1].problem == "diverged at step 50"
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["best"] == 2


def test_where_all_fail_at_first_it_ends(tmp_path: Path) -> None:
    engine = Pretended(outcome=lambda job: Outcome("failed", problem="too short a tape"))
    with pytest.raises(SweepError, match=r"first 3 trials all failed.*too short a tape"):
        run(request(tmp_path / "s", trials=50), lambda: engine)
    assert engine.stopped and len(read(tmp_path / "s").trials) < 8


def test_a_full_disk_on_a_node_is_one_message_and_the_sweep_resumes(tmp_path: Path) -> None:
    def full(job: Job) -> Outcome | None:
        problem = "node7: /data: No space left on device"
        return Outcome("refused", problem=problem) if job.name.startswith("0002") else None

    def asked(name: str) -> Request:
        return request(tmp_path / name, sampler="random", trials=4)

    undisturbed = swept(asked("whole"), Pretended())
    engine = Pretended(outcome=full)
    with pytest.raises(SweepError, match="node7: /data: No space left"):
        run(asked("s"), lambda: engine)
    record = read(tmp_path / "s")
    assert engine.stopped and "No space left" in record.problem
    assert {t.state for t in record.trials} == {"finished", "waiting"}
    assert swept(asked("s"), Pretended()) == undisturbed
    assert not read(tmp_path / "s").problem


def test_a_run_whose_worker_is_asked_to_stop_is_begun_again(tmp_path: Path) -> None:
    stops: Counter[str] = Counter()

    def preempted(job: Job) -> Outcome | None:
        stops[job.name] += 1
        return Outcome("stopped") if stops[job.name] <= 2 else None

    found = swept(request(tmp_path / "s", trials=3), Pretended(outcome=preempted))
    assert {t[2] for t in found} == {"finished"} and set(stops.values()) == {3}


@pytest.mark.slow
def test_pruning_ends_most_and_keeps_the_best(tmp_path: Path) -> None:
    """16 evaluations: rungs at 1 and 4, where one in four goes on."""
    assert climbs(request(tmp_path / "s").config) == (1, 4)
    kappas = [0.3, *(round(0.4 + 0.03 * i, 2) for i in range(15))]
    asked = request(tmp_path / "s", f"agent.kappa={kappas}", sampler="grid", prune=True)
    engine = Pretended(workers=1)
    found = swept(asked, engine)
    states = Counter(t[2] for t in found)
    assert states["pruned"] >= 12 and states["pruned"] + states["finished"] == 16
    assert found[0][2] == "finished" and read(tmp_path / "s").best.number == 0  # type: ignore[union-attr]
    every = 100 // 16
    assert engine.trained[f"0000-seed0 to {every}"] == 1
    assert engine.trained[f"0000-seed0 to {4 * every}"] == 1
    assert engine.trained["0000-seed0 to None"] == 1
    pruned = [t for t in found if t[2] == "pruned"]
    assert all(engine.trained[f"{t[4][0]} to None"] == 0 for t in pruned), "not trained to the end"
    with pytest.raises(Killed):
        run(
            request(tmp_path / "k", f"agent.kappa={kappas}", sampler="grid", prune=True),
            lambda: Pretended(workers=1, kill_after=9),
        )
    again = request(tmp_path / "k", f"agent.kappa={kappas}", sampler="grid", prune=True)
    assert swept(again, Pretended(workers=1)) == found


def test_settings_that_do_not_go_together_fail_alone(tmp_path: Path) -> None:
    search = ("world.pool=[2, 3]", "world.members=[2, 3]")
    asked = request(tmp_path / "s", *search, sampler="grid")
    found = swept(asked, Pretended())
    assert [t[2] for t in found] == ["finished", "failed", "finished", "finished"]
    assert "exceeds pool" in read(tmp_path / "s").trials[1].problem


def test_what_cannot_work_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, says in (
        ({"trials": 0}, "--trials 0"),
        ({"seeds": (1, 1)}, "each once"),
        ({"sampler": "grid"}, "a grid needs values"),
    ):
        with pytest.raises(ConfigError, match=says):
            request(tmp_path / "s", **options)
    monkeypatch.setattr(importlib, "import_module", _missing)
    with pytest.raises(ConfigError, match=r'pip install "neubay\[sweep\]"'):
        request(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def _missing(name: str) -> None:
    raise ImportError(name)


def _no_engine() -> Pretended:
    raise AssertionError("an engine was started for nothing")
