"""A run that is killed ends as if it never had been."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.fault_driver import CONFIG, PHASES, RANDOM_KILLS
from helpers.faults import TESTS, Tally, compiled_once
from helpers.small_runs import outcome


@pytest.mark.slow
@pytest.mark.faults("kill -9 in every phase and at random moments")
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_ends_as_if_it_never_had_been(tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "orders.json").write_text(json.dumps({"folder": str(tmp_path), "seed": 1}))
    finished = subprocess.run(
        [sys.executable, "-m", "helpers.fault_driver", str(tmp_path / "orders.json")],
        cwd=TESTS,
        env=os.environ | compiled_once(tmp_path),
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    attempts = [json.loads(line) for line in finished.stdout.splitlines()]
    whole, *killed, last = attempts
    assert whole["code"] == last["code"] == 0, finished.stderr[-2000:]
    assert {attempt["code"] for attempt in killed} == {-signal.SIGKILL}, finished.stderr[-2000:]
    assert len(killed) == len(PHASES) + RANDOM_KILLS
    assert {attempt["run"] for attempt in killed} == {"killed"}
    phases = {phase for attempt in killed for phase in attempt.get("phases", {})}
    assert phases == PHASES.keys()
    uninterrupted = outcome(tmp_path / "reference")
    rows = [json.loads(line) for line in uninterrupted["metrics"].splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == CONFIG.agent.steps
    assert outcome(tmp_path / "killed") == uninterrupted
    tally(
        len(killed),
        f"one run, killed in {len(phases)} phases (world, imagination, updates, evaluation, "
        "checkpointing, result) and at random moments: parameters, optimiser states, metrics file "
        "and result bit for bit those of the uninterrupted run",
    )


def test_every_phase_of_the_kills_exists() -> None:
    for home, name in PHASES.values():
        assert callable(getattr(home, name))
