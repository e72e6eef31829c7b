"""Same seed, same machine, same numbers: in any process, whatever watches, however often scored.

As a script this trains the watched run into a directory: `python test_determinism.py DIRECTORY`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from helpers.small_runs import outcome, swings, tiny
from neubay import algorithm, experiment
from neubay.commands.display import Display, live_display
from neubay.runs import tracking
from neubay.tasks import get_task


def train(directory: Path, *trackers: tracking.Tracker) -> None:
    experiment.run(swings(get_task("pendulum")), tiny(), directory, trackers=trackers)


def train_watched(directory: Path) -> None:
    """With a live display and TensorBoard, which leave their files beside the run."""
    beside = directory.parent
    tensorboard = tracking.tensorboard(beside / "tensorboard")
    with (
        (beside / "terminal").open("w") as terminal,
        live_display(Console(force_terminal=True, file=terminal), Display(120, "0.0")) as display,
    ):
        train(directory, display, tensorboard)
    assert (beside / "terminal").stat().st_size and any((beside / "tensorboard").iterdir())


@pytest.mark.slow
def test_neither_the_process_nor_what_watches_nor_scoring_changes_what_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process trains its own world, and is watched."""
    command = [sys.executable, __file__, str(tmp_path / "watched")]
    environment = os.environ | {"NEUBAY_CACHE": str(tmp_path / "its cache")}
    subprocess.run(command, env=environment, check=True)
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "our cache"))
    train(tmp_path / "plain")
    scored = outcome(tmp_path / "plain")
    assert outcome(tmp_path / "watched") == scored
    monkeypatch.setattr(algorithm, "score", lambda *_: None)
    train(tmp_path / "unscored")
    unscored = outcome(tmp_path / "unscored")
    assert scored["policy"] == unscored["policy"]
    (last,) = (name for name in unscored if name.startswith("000"))
    assert scored[last][1] == unscored[last][1]  # parameters and optimiser states
    rows: dict[str, list[bytes]] = {"train": [], "evaluation": []}
    for line in scored["metrics"].splitlines(keepends=True):
        rows[json.loads(line)["kind"]].append(line)
    assert len(rows["evaluation"]) == 2 and b"".join(rows["train"]) == unscored["metrics"]


if __name__ == "__main__":
    train_watched(Path(sys.argv[1]))
