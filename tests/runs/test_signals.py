"""Ctrl-C and SIGTERM: everything is saved, and the message says how to resume."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers.faults import Tally, before, stop_at, train
from helpers.small_runs import outcome, tiny
from neubay import cli, experiment, world
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.runs import rundir
from neubay.runs.files import tree_hash
from neubay.runs.signals import Interrupted, Stopped, deferred_signals
from neubay.studies import bandit
from neubay.world import fitting


@pytest.mark.faults("Ctrl-C and SIGTERM")
def test_signals_are_answered_at_a_safe_point(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path, tally: Tally
) -> None:
    points = [(signum, step) for signum in (signal.SIGINT, signal.SIGTERM) for step in (50, 200)]
    for signum, step in points:
        directory = tmp_path / f"{signum}-{step}"
        with pytest.raises(Stopped) as stopped:
            train(data, config, directory, stop_at(step, signum))
        assert stopped.value.signum == signum
        assert rundir.look(directory).step == step
        told: list[str] = []
        train(data, config, directory, tell=told.append)
        assert told == [f"resuming from step {step} of 300"]
        assert outcome(directory) == reference
    tally(len(points), "current step finished, all saved, resumed bit for bit")


@pytest.mark.faults("signals outside of a training's steps")
def test_signals_outside_of_the_steps_are_answered_too(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path, tally: Tally
) -> None:
    def ask(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def ask_in_the_last_stage(progress: world.Progress) -> None:
        if progress.stage == "uncertainty":
            ask()

    place, seen, whole = tmp_path / "world", set(), world.fit(data, config.world, 0)
    with pytest.raises(Stopped):
        world.fit(data, config.world, 0, directory=place, progress=ask_in_the_last_stage)
    assert not world.is_whole(place)
    with before(fitting, "save", ask), pytest.raises(Stopped):
        world.fit(data, config.world, 0, directory=place, progress=lambda p: seen.add(p.stage))
    assert seen == {"uncertainty"}  # the training itself was over
    again = world.load(place, data)
    assert tree_hash(again.world) == tree_hash(whole.world)
    assert again.data_uncertainty.tobytes() == whole.data_uncertainty.tobytes()
    with pytest.raises(Stopped):  # at the last step: only the result is missing
        train(data, config, tmp_path / "last", stop_at(300))
    assert not rundir.is_finished(tmp_path / "last")
    with before(experiment, "posterior_estimate", ask), pytest.raises(Stopped):
        train(data, config, tmp_path / "last")
    assert outcome(tmp_path / "last") == reference
    tally(4, "the step finished, all saved; resumed bit for bit, nothing trained twice")


@pytest.mark.slow
@pytest.mark.faults("SIGTERM to a real command")
def test_a_command_that_is_terminated_says_how_to_resume_and_does(
    tmp_path: Path, tally: Tally
) -> None:
    # So many steps that the signal comes before the last one, on a fast machine too.
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny(agent={"steps": 1000}).model_dump()))
    environment = os.environ | {"NEUBAY_CACHE": str(tmp_path / "cache")}

    def start(arguments: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from neubay.cli import main; main()", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    asked = ["train", "pendulum", "--config", str(tmp_path / "tiny.yaml")]
    asked += ["--out", str(tmp_path / "run"), "--no-select"]
    metrics, patience = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 200
    with start(asked) as running:
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < patience:
            time.sleep(0.02)
        running.terminate()
        said, _ = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM
    left = rundir.look(tmp_path / "run")
    assert left.state == "unfinished" and 0 < left.step < 1000
    advice = said.split("everything up to here is saved; to resume: neubay ")[1]
    assert shlex.split(advice) == asked
    with start(shlex.split(advice)) as running:
        said, _ = running.communicate()
    assert running.returncode == 0
    assert f"resuming from step {left.step:,} of 1,000" in said
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == list(range(50, 1001, 50))
    tally(1, "saved, exit code 143; the command that it printed resumed and finished")


@pytest.mark.faults("exit code and advice after a signal")
@pytest.mark.parametrize("command", ["train", "world", "bandit"])
def test_a_stopped_command_tells_how_to_resume(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tally: Tally,
) -> None:
    def stopped(*_: object, **__: object) -> None:
        with deferred_signals() as signalled:
            os.kill(os.getpid(), sent[0])
            raise Stopped(signalled())

    sent: list[int] = []
    monkeypatch.setattr(experiment, "run", stopped)
    monkeypatch.setattr(world, "fit", stopped)
    monkeypatch.setattr(bandit, "run", stopped)
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        sent[:] = [signum]
        arguments = [command, *([] if command == "bandit" else ["pendulum"])]
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--seed", "3", "--out", str(tmp_path / "run")])
        assert ended.value.code == code
        printed = " ".join(capsys.readouterr().out.split())
        assert f"saved; to resume: neubay {command}" in printed
        assert "--seed" in printed and str(tmp_path / "run") in printed
    tally(2, "exit codes 130 and 143, and the exact command to resume")


def test_a_second_signal_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)  # shells start what runs in the background without it
    with pytest.raises(Interrupted), deferred_signals() as outer:  # noqa: SIM117
        with deferred_signals() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner() == outer() == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
@pytest.mark.faults("SIGTERM in a computation that does not end")
def test_sigterm_does_not_wait_for_a_long_computation(tmp_path: Path, tally: Tally) -> None:
    code = """
import os, signal, sys, time
from neubay.runs import signals
signals.GRACE = 0.2
with signals.deferred_signals():
    os.kill(os.getpid(), signal.SIGTERM)
    with signals.uncut:
        time.sleep(1)
        open(sys.argv[1], "w").write("whole")
    time.sleep(100)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "the same command resumes" in ended.stderr and ended.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "whole"
    tally(1, "ends after a grace; what was being written is whole")


def test_a_second_sigterm_ends_without_a_word() -> None:
    """While the first one's grace runs, what Python tells of signals still finds a reader."""
    code = """
import os, signal, time
from neubay.runs import signals
try:
    with signals.deferred_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
except signals.Interrupted as interrupted:
    print(interrupted.signum == signal.SIGTERM)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_no_watch_outlives_its_block() -> None:
    before = set(threading.enumerate())  # one of another test may be ending just now

    def watching() -> bool:
        return bool(set(threading.enumerate()) - before)

    for _ in range(3):
        with deferred_signals():
            assert watching()
    end = time.monotonic() + 10
    while watching() and time.monotonic() < end:
        time.sleep(0.01)
    assert not watching() and signal.set_wakeup_fd(-1) == -1
