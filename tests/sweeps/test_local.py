"""Real workers and real runs in miniature: pinned, killed, resumed, equal to runs alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.faults import TESTS
from helpers.small_runs import outcome, swings, tiny
from helpers.sweep_driver import CLONING
from neubay import experiment
from neubay.config import updated
from neubay.runs.rundir import is_finished
from neubay.runs.sweepdir import read
from neubay.sweeps import cores
from neubay.sweeps.data import Source
from neubay.sweeps.jobs import Job
from neubay.sweeps.local import TRIES, Local
from neubay.sweeps.plan import Plan
from neubay.tasks import get_task

# What is tested here is the same for every algorithm.
CONFIG = tiny(**CLONING)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))


def plan_in(folder: Path) -> Plan:
    dataset = swings(get_task("pendulum"))
    plan = Plan(dataset, Source.of(dataset), folder, metric="score", checkpoint_seconds=0.0)
    plan.begin()
    return plan


def ended(engine: Local, count: int, seconds: float = 200.0) -> dict[int, Any]:
    found: dict[int, Any] = {}
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, "the engine hangs"
        found |= dict(engine.wait(0.2))
    return found


def alone(folder: Path, seed: int) -> dict[str, Any]:
    directory = folder / "alone"
    config = updated(CONFIG, {"seed": seed})
    experiment.run(swings(get_task("pendulum")), config, directory, checkpoint_seconds=0.0)
    return outcome(directory)


def test_workers_claim_cores_of_their_own_and_free_them_when_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from neubay.sweeps import cores\n"
        "core = cores.claim(1, Path(sys.argv[1])); threads = os.environ['OMP_NUM_THREADS']\n"
        "print(*core, 'jax' in sys.modules, threads, list(os.sched_getaffinity(0)), flush=True)\n"
        "sys.stdin.read()"
    )

    def start() -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "cores")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return process, process.stdout.readline().split()  # type: ignore[union-attr]

    begun = [start() for _ in cores.available()]
    claimed = [int(words[0]) for _, words in begun]
    assert claimed == cores.available(), "each has its own"
    for _, (core, imported, threads, affinity) in begun:
        assert imported == "False" and threads == "1" and affinity == f"[{core}]"
    late, words = start()
    assert int(words[0]) in claimed, "where none is free, one is shared"
    begun[0][0].kill()
    begun[0][0].wait()
    after, words = start()
    assert int(words[0]) == claimed[0], "a killed worker's core is free at once"
    for process in (*(each for each, _ in begun), late, after):
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.faults("kill -9 of a worker of a sweep")
def test_a_killed_worker_is_replaced_and_its_run_ends_as_if_it_had_not_been(
    tmp_path: Path, tally: Any
) -> None:
    plan = plan_in(tmp_path / "runs")
    engine = Local(1, tmp_path / "workers.log")
    directory = tmp_path / "runs" / "seed3"
    ticket = engine.submit(plan.job(updated(CONFIG, {"seed": 3}), directory))
    deadline = time.monotonic() + 100
    while not list((directory / "checkpoints").glob("[0-9]*")) and time.monotonic() < deadline:
        engine.wait(0.02)
    assert not is_finished(directory), "it was to be killed on its way"
    victim = engine.processes[0]
    os.kill(victim, signal.SIGKILL)
    result = ended(engine, 1)[ticket]
    assert result.state == "finished" and engine.processes != [victim]
    # The same worker takes the next job, and a pause on the way changes nothing.
    later = updated(CONFIG, {"seed": 4})
    first = engine.submit(plan.job(later, tmp_path / "runs" / "seed4", until=50))
    paused = ended(engine, 1)[first]
    assert paused.state == "paused" and paused.value is not None
    assert not is_finished(tmp_path / "runs" / "seed4")
    second = engine.submit(plan.job(later, tmp_path / "runs" / "seed4"))
    assert ended(engine, 1)[second].state == "finished"
    engine.stop()
    assert outcome(directory) == alone(tmp_path, 3), "bit for bit"
    assert result.value == json.loads((directory / "summary.json").read_text())["return_mean"]
    whole = tmp_path / "whole"
    experiment.run(plan.dataset, later, whole, checkpoint_seconds=0.0)
    assert outcome(tmp_path / "runs" / "seed4") == outcome(whole)
    tally(1, "another worker resumes the run, which ends bit for bit as it would have")


def test_a_job_that_costs_every_worker_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neubay.sweeps.local.sys.executable", "/bin/false")
    engine = Local(2)
    ticket = engine.submit(Job("run", str(tmp_path / "run"), "", {}, {}))
    result = ended(engine, 1, 20)[ticket]
    assert result.state == "lost" and f"died {TRIES} times" in result.problem
    assert engine.room == 2
    engine.stop()


@pytest.mark.slow
@pytest.mark.faults("kill -9 of a sweep")
def test_a_killed_sweep_leaves_no_worker_and_resumes(tmp_path: Path, tally: Any) -> None:
    """With proposals by chance; the policies are those of runs alone, and no run is done twice."""
    command = [sys.executable, "-m", "helpers.sweep_driver", str(tmp_path / "sweep"), "local", "1"]
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{TESTS}"}
    log = (tmp_path / "log").open("w")
    killed = subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True)
    first, deadline = tmp_path / "sweep" / "0000-seed0", time.monotonic() + 200
    second = tmp_path / "sweep" / "0001-seed0"
    while not list((second / "checkpoints").glob("[0-9]*")):
        assert killed.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    assert is_finished(first) and not is_finished(second)
    before = (first / "policy.npz").stat().st_mtime_ns
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert (first / "policy.npz").stat().st_mtime_ns == before, "what is finished is not run again"
    record = read(tmp_path / "sweep")
    assert [trial.state for trial in record.trials] == ["finished"] * 2
    for trial in record.trials:
        config = updated(CONFIG, {"agent": {"head_lr": trial.settings["agent.head_lr"]}})
        directory = tmp_path / f"alone{trial.number}"
        data = swings(get_task("pendulum"))
        experiment.run(data, config, directory, checkpoint_seconds=0.0)
        assert outcome(directory) == outcome(tmp_path / "sweep" / trial.runs[0])
    tally(1, "its workers save and end; the same command resumes, each run ends as it would alone")
