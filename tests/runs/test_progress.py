"""Lines of progress: how far, how it goes, and the time left."""

from types import SimpleNamespace

import pytest

from neubay.runs import progress
from neubay.runs.messages import duration


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.time)
    return now


def evaluation(step: int) -> dict:
    return {"kind": "evaluation", "step": step, "return_mean": 3, "return_std": 1, "score": None}


def test_the_time_left_is_that_of_the_pace_without_compilation(clock: SimpleNamespace) -> None:
    told: list[str] = []
    track = progress.agent_lines(told.append, 300)
    for step, at in ((50, 60.0), (100, 65.0), (150, 70.0), (200, 82.0)):
        clock.time = at
        track({"kind": "train", "step": step, "q_data": 2.0, "critic_loss": 0.5})
    clock.time = 85.0
    track(evaluation(250))
    track(evaluation(300))
    assert told == [
        "step 50 of 300: Q on data 2, critic loss 0.5",
        "step 200 of 300: Q on data 2, critic loss 0.5; 15 s left",
        "step 250 of 300: return 3.0 ± 1.0; 6 s left",
        "step 300 of 300: return 3.0 ± 1.0",
    ]


def test_cloning_has_numbers_to_tell(clock: SimpleNamespace) -> None:
    told: list[str] = []
    track = progress.agent_lines(told.append, 1000)
    clock.time = progress.EVERY
    track({"kind": "train", "step": 650, "squared_error": 0.25, "log_likelihood": -1.5})
    assert told == ["step 650 of 1,000: squared error 0.25, log-likelihood -1.5"]


def test_a_world_tells_by_the_clock_and_not_by_epochs(clock: SimpleNamespace) -> None:
    told: list[str] = []
    show = progress.world_lines(told.append, "mse")
    last = SimpleNamespace(median=0.5, improved=3)
    at = SimpleNamespace(
        stage="training", share=0.5, seconds=120.0, history=[last], epoch=1, most_epochs=10
    )
    show(at)
    clock.time = progress.EVERY
    show(at)
    show(at)
    assert told == [
        "world: epoch 2, validation MSE 0.5 (median), 3 members improved; at most 11 min left"
    ]


def test_durations() -> None:
    assert [duration(s) for s in (3.0, 119.0, 600.0, 9000.0)] == ["3 s", "119 s", "10 min", "2.5 h"]
