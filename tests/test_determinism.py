"""Same seed, same machine, same numbers: whatever watches, and however often it is scored."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from neubay import algorithm, experiment, tracking
from neubay.commands.display import Display, live_display
from neubay.config import TrainConfig
from neubay.tasks import get_task
from small_runs import outcome, swings, tiny


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def train(
    directory: Path, config: TrainConfig | None = None, *trackers: tracking.Tracker
) -> dict[str, object]:
    data = swings(get_task("pendulum"))
    experiment.run(data, config or tiny(), directory, trackers=trackers)
    return outcome(directory)


def test_a_run_repeats_and_nothing_that_watches_changes_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(cache / "first"))
    plain = train(tmp_path / "plain")
    monkeypatch.setenv("NEUBAY_CACHE", str(cache / "second"))  # its world is trained again
    console = Console(force_terminal=True, file=(tmp_path / "terminal").open("w"))
    with live_display(console, Display(120, "0.0")) as display:
        watched = train(
            tmp_path / "watched",
            None,
            display,
            tracking.tensorboard(tmp_path / "tensorboard"),
        )
    assert watched == plain
    assert (tmp_path / "terminal").stat().st_size and any((tmp_path / "tensorboard").iterdir())


def test_scoring_does_not_change_what_is_learned(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(cache / "first"))
    often = train(tmp_path / "often", tiny(evaluation={"evaluations": 3, "episodes": 2}))
    monkeypatch.setattr(algorithm, "score", lambda *_: None)
    never = train(tmp_path / "never")
    assert often["policy"] == never["policy"]
    rows = [json.loads(line) for line in often["metrics"].splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert len(trained) < len(rows)
    assert trained == [json.loads(line) for line in never["metrics"].splitlines()]
