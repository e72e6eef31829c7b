"""--task none, --task-file, --action-low and --action-high: the same on every command."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.data_checks import make_log
from neubay.cli import main

Run = Callable[..., tuple[int, str, str]]

VALVES = """
name: valves
state_size: 3
actions: {low: [0, 0], high: [2, 2]}
horizon: 60
termination: next_state[0] > 1000
"""
TINY = shlex.split(
    "--variant bc --agent.steps 4 --agent.width 4 --agent.memory-size 2 --evaluation.evaluations 1"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(stop.value.code or 0), " ".join(out.split()), " ".join(err.split())

    return call


@pytest.fixture
def valves(tmp_path: Path) -> Path:
    """Two valves logged at 0 to 1, and nothing that says how far they open."""
    log = make_log([60, 60, 60])
    log.actions = np.abs(log.actions)
    np.savez(tmp_path / "valves.npz", **log.d4rl())
    return tmp_path / "valves.npz"


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "valves.yaml"
    path.write_text(VALVES)
    return path


def test_guessed_bounds_are_said_with_numbers(run: Run, valves: Path) -> None:
    code, out, _ = run("data", "info", valves)
    assert code == 0
    assert "[-1, 1] is assumed, the data uses 0" in out
    assert "may command down to -1" in out and "--action-low" in out
    for given in (("--action-low", 0, "--action-high", 1), ("--action-low=0,0", "--action-high=1")):
        code, out, _ = run("data", "info", valves, *given)
        assert code == 0 and "assumed" not in out


def test_a_task_file_gives_horizon_bounds_and_name(run: Run, valves: Path, task_file: Path) -> None:
    code, out, _ = run("data", "info", valves, "--task-file", task_file, "--json", "-")
    assert code == 0
    assert '"task": "valves"' in out and '"horizon": 60' in out
    code, out, _ = run("data", "validate", valves, "--task-file", task_file)
    assert code == 1 and "terminal" in out, "two thirds end by a flag where the rule sees none"


def test_a_file_keeps_the_bounds_it_was_converted_with(run: Run, valves: Path) -> None:
    given = ("--action-low", "0", "--action-high", "1,2")
    assert run("data", "convert", valves, "kept.hdf5", *given)[0] == 0
    code, out, _ = run("data", "info", "kept.hdf5")
    assert code == 0 and "assumed" not in out
    code, _, err = run("data", "info", "kept.hdf5", "--action-low", 0, "--action-high", "0.1")
    assert code == 2 and "outside the bounds [0, 0.1]" in err


def test_none_is_no_task(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "pendulum_rig.npz", **make_log(action_size=1).d4rl())
    assert "Pendulum-v1" in run("data", "info", "pendulum_rig.npz")[1]
    code, out, _ = run("data", "info", "pendulum_rig.npz", "--task", "none")
    assert code == 0 and "no environment" in out and "Pendulum-v1" not in out
    bounds = ("--action-low", "-3", "--action-high", "3")
    code, out, _ = run("data", "info", "pendulum_rig.npz", *bounds)
    assert code == 0 and "not of task 'pendulum'" in out and "given are [-3, 3]" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--action-low 0", "give both --action-low and --action-high"),
        ("--action-low x --action-high 1", "--action-low x: expected a number"),
        ("--action-low 1 --action-high 0", "low below high"),
        ("--action-low 0,0,0 --action-high 1", "two arrays of 2"),
        ("--task pendulum --action-low 0 --action-high 1", "task 'pendulum' has bounds"),
        ("--task pendulum --task-file valves.yaml", "--task or --task-file, not both"),
        ("--task-file nowhere.yaml", "nowhere.yaml: cannot be read"),
        ("--task-file valves.npz", "a task file is .yaml or .py"),
    ],
)
@pytest.mark.parametrize("command", ["data info", "train", "world"])
def test_what_does_not_go_together(
    run: Run, valves: Path, task_file: Path, command: str, flags: str, message: str
) -> None:
    code, _, err = run(*command.split(), valves, *shlex.split(flags))
    assert code == 2 and message in err


def test_every_command_that_takes_data_has_the_flags(run: Run) -> None:
    commands = ["train", "world", "ablate", "data info", "data validate", "data convert"]
    commands += ["analyze uncertainty", "analyze compounding", "analyze calibration"]
    for command in commands:
        out = run(*command.split(), "--help")[1]
        for flag in ("--task ", "--task-file", "--action-low", "--action-high"):
            assert flag in out, f"{command} has no {flag}"


@pytest.mark.slow
def test_a_run_is_resumed_with_its_task_file_and_no_other(
    run: Run, valves: Path, task_file: Path
) -> None:
    command = ("train", valves, "--task-file", task_file, "--out", "run", "--no-select", *TINY)
    code, _, err = run(*command)
    assert code == 0, err
    about = json.loads(Path("run/run.json").read_text())
    assert about["task"] == "valves" and about["task_file"].startswith("valves.yaml (SHA-256 ")
    assert run(*command)[0] == 0, "finished before"
    task_file.write_text(VALVES.replace("1000", "999"))
    code, _, err = run(*command)
    assert code == 2 and "task_file is valves.yaml" in err


def test_an_ablation_passes_the_flags_on(run: Run, valves: Path, task_file: Path) -> None:
    code, out, _ = run(
        "ablate", valves, "--task-file", task_file, "--over", "critic", "--dry-run", "--out", "x"
    )
    assert code == 0 and f"--task-file={task_file}" in out
