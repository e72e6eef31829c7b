"""How much is gathered, and how many gradient steps that is worth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.known_worlds import untrained
from helpers.small_runs import swings, tiny
from neubay import algorithm, experience, imagination
from neubay.agents import Agent
from neubay.config import AgentConfig, settle
from neubay.experience import Imagined, batch_shape
from neubay.imagination import Rollouts
from neubay.replay import BatchShape
from neubay.runs.checkpoints import Checkpoints
from neubay.tape import Prefix, slice_rows
from neubay.tasks import get_task


class Idle(Agent):
    """An agent that learns nothing."""

    def __init__(self) -> None:
        super().__init__(state_size=1, action_size=1, config=AgentConfig())

    def init(self, key: Any, constants: Any = None) -> dict:
        return {"w": np.zeros(1)}

    def update(self, state: Any, tapes: Any) -> tuple[Any, dict]:
        return state, {"loss": 0.0}

    def policy(self, state: Any, deterministic: bool) -> None: ...


def test_transitions_are_counted_those_of_the_history_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """t + L of each rollout: neither the branching state nor the last one is a transition more."""
    data = swings(get_task("pendulum"))
    config = settle(tiny(), data.facts)
    gathering = Imagined(data, untrained(data, layer_norm=True), config)
    prefix = Prefix(data.histories.first[[0, 1]], np.array([7, 0]))
    length = np.array([3, 0])
    rows = slice_rows(data.tape, 0, 5)  # L + 1 each
    rollouts = Rollouts(rows, length, np.zeros(2, np.int8), np.zeros(2))
    monkeypatch.setattr(imagination, "draw_histories", lambda *_: prefix)
    monkeypatch.setattr(imagination, "imagine", lambda *_: rollouts)
    monkeypatch.setattr(experience.imagination, "branch", lambda *_: None)
    transitions, _ = gathering.gather(Idle(), None, 0)
    assert transitions == 7 + 3 and gathering.replay.rows == 7 + 4 + 1


def test_steps_are_rounded_up_each_time_that_is_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Gathering:
        replay = None

        def __init__(self, *_: Any) -> None: ...

        def warm_start(self, agent: Any, state: Any, shape: Any) -> Any:
            return state

        def gather(self, *_: Any) -> tuple[int, dict]:
            done.append("gather")
            return [20, 21, 1, 400][done.count("gather") - 1], {}

        def sample(self, *_: Any) -> Any:
            done.append("step")

    monkeypatch.setattr(algorithm, "Imagined", Gathering)
    monkeypatch.setattr(algorithm.agents, "make", lambda *_: Idle())
    monkeypatch.setattr(algorithm, "score", lambda *_: None)
    monkeypatch.setattr(algorithm, "UPDATES_PER_CALL", 1)
    data = swings(get_task("pendulum"))
    config = settle(tiny(agent={"updates_per_row": 0.05, "steps": 6}), data.facts)
    kept = Checkpoints(tmp_path, every=1e9)
    algorithm.train_agent(
        data,
        untrained(data, layer_norm=True),
        config,
        lambda row: None,
        kept,
        update=lambda agent, *batch: agent.update(*batch),
    )
    steps = [part.count("step") for part in " ".join(done).split("gather")[1:]]
    assert steps == [1, 2, 1, 2]  # 1, 1.05 and 0.05 rounded up; then the training ends


def test_a_batch_has_as_many_windows_as_fit_into_its_rows() -> None:
    task = get_task("pendulum")  # T = 200
    windows = tiny(agent={"tape": 512, "window": 32, "burn_in": 31})
    assert batch_shape(task, windows) == BatchShape(rows=64, slots=16, burn_in=31)
    pairs = tiny(agent={"tape": 512, "window": 1, "burn_in": 0})
    assert batch_shape(task, pairs) == BatchShape(rows=2, slots=512, burn_in=0)
    few = tiny(agent={"tape": 8, "window": 32, "burn_in": 0})
    assert batch_shape(task, few).slots == 1
    whole = batch_shape(task, tiny(agent={"tape": None, "window": None}))
    assert whole == BatchShape(512) and whole.size == 512
    assert batch_shape(task, windows).size == 1024
