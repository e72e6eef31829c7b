"""Several trainings on one device: the same as each alone, whatever becomes of the others."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import neubay
from helpers.small_runs import TINY, swings
from neubay import experiment
from neubay.devices import together
from neubay.errors import ConfigError, RunError
from neubay.runs.files import read_arrays
from neubay.runs.signals import Interrupted, Stopped, deferred_signals, stop_if_signalled
from neubay.tasks import get_task


class Counter(NamedTuple):
    """An agent whose state is a sum, and whose call is counted when it is traced."""

    name: str = "counter"

    def update(self, state: Any, tapes: Any) -> tuple[Any, dict[str, Any]]:
        if self.name == "broken":
            raise ValueError("broken")
        return state + tapes.sum(), {"batches": tapes.shape[0] + 0 * state}


def training(
    agent: Counter, values: list[float], fails_at: int | None = None
) -> Callable[[together.Update], float]:
    """Adds one value per update."""

    def run(update: together.Update) -> float:
        state: Any = np.float32(0)
        for number, value in enumerate(values):
            if number == fails_at:
                raise ValueError("failed on the way")
            state, metrics = update(agent, state, np.full(2 if number else 1, value, np.float32))
            assert metrics["batches"] == (2 if number else 1)
        return float(state)

    return run


def sums(values: list[float]) -> float:
    return values[0] + 2 * sum(values[1:])


def test_each_training_gets_its_own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have different lengths; one call serves all that are left."""
    calls = []
    make = together.updates
    monkeypatch.setattr(
        together,
        "updates",
        lambda agent, states, tapes: calls.append(len(states)) or make(agent, states, tapes),
    )
    values = [[1.0, 2.0, 3.0], [10.0], [100.0, 200.0]]
    found = together.run_together([training(Counter(), each) for each in values])
    assert found == [sums(each) for each in values]
    assert calls == [3, 2, 1]


def test_one_that_fails_does_not_stop_the_others() -> None:
    finished = []

    def whole(update: together.Update) -> None:
        finished.append(training(Counter(), [1.0, 2.0, 3.0])(update))

    with pytest.raises(ValueError, match="failed on the way"):
        together.run_together([training(Counter(), [1.0, 1.0], fails_at=1), whole])
    with pytest.raises(ValueError, match="broken"):
        together.run_together([training(Counter("broken"), [1.0]), whole])
    assert finished == [11.0, 11.0]


def test_nothing_to_train_is_refused() -> None:
    for seeds in ((), (1, 1)):
        with pytest.raises(ConfigError, match="each of them once"):
            neubay.train_together(seeds=seeds)


def test_a_seed_that_cannot_work_is_refused_before_any_work(tmp_path: Path) -> None:
    dataset, chosen = swings(get_task("pendulum")), {"preset": "cpu", "out": tmp_path}
    with pytest.raises(ConfigError, match="seed"):
        neubay.train_together(dataset, seeds=(0, -1), **chosen)
    foreign = tmp_path / "swings-neubay-seed1"
    foreign.mkdir()
    (foreign / "mine.txt").touch()
    with pytest.raises(RunError, match="is not a run"):
        neubay.train_together(dataset, seeds=(0, 1), changes=TINY, **chosen)
    assert not (tmp_path / "swings-neubay-seed0").exists()


def files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def assert_alike(run: Path, alone: Path) -> None:
    """The same files; weights within 1e-5, and so the curves."""
    assert files(run) == files(alone)
    ours, theirs = (read_arrays(directory / "policy.npz") for directory in (run, alone))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-5)
    for one, other in zip(rows(run), rows(alone), strict=True):
        assert one.keys() == other.keys() and one["step"] == other["step"]
        if one["kind"] == "train":
            np.testing.assert_allclose(one["critic_loss"], other["critic_loss"], rtol=1e-4)


@pytest.mark.slow
def test_runs_together_are_the_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    dataset, settings = swings(get_task("pendulum")), {"changes": TINY, "quiet": True}
    chosen = {**settings, "preset": "cpu", "select": None}
    results = neubay.train_together(dataset, seeds=(0, 1), out=tmp_path / "together", **chosen)
    for seed, result in enumerate(results):
        alone = neubay.train(dataset, seed=seed, out=tmp_path / f"alone{seed}", **chosen)
        assert result.directory == tmp_path / "together" / f"swings-neubay-seed{seed}"
        assert_alike(result.directory, alone.directory)
        assert result.summary["seed"] == seed
    weights = [jax.tree.leaves(result.policy.mode)[-1] for result in results]
    assert np.abs(weights[0] - weights[1]).max() > 1e-3  # each its own


@pytest.mark.slow
def test_a_signal_stops_all_and_they_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = swings(get_task("pendulum"), episodes=2)
    agent = TINY["agent"] | {"memory": "none", "steps": 120}  # one candidate
    changes = {**TINY, "agent": agent, "evaluation": {"evaluations": 1, "episodes": 1}}
    chosen = {"preset": "cpu", "variant": "bc", "changes": changes, "quiet": True, "select": None}
    made: list[int] = []
    make = together.updates

    def then_signal(*arguments: Any) -> Any:
        made.append(1)
        if len(made) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return make(*arguments)

    monkeypatch.setattr(together, "updates", then_signal)
    with pytest.raises(Stopped):
        neubay.train_together(dataset, seeds=(0, 1), out=tmp_path, **chosen)
    runs = [tmp_path / f"swings-bc-seed{seed}" for seed in (0, 1)]
    assert [len(rows(run)) for run in runs] == [1, 1]
    assert not any((run / "summary.json").exists() for run in runs)
    neubay.train_together(dataset, seeds=(0, 1), out=tmp_path, **chosen)
    assert len(made) == 3  # 120 steps in calls of 50
    for seed, run in enumerate(runs):
        assert [row["step"] for row in rows(run) if row["kind"] == "train"] == [50, 100, 120]
        alone = experiment.train(dataset, seed=seed, out=tmp_path / f"alone{seed}", **chosen)
        np.testing.assert_allclose(
            jax.tree.leaves(alone.policy.mode)[-1],
            jax.tree.leaves(neubay.load_policy(run / "policy.npz").mode)[-1],
            atol=1e-5,
        )


def test_tasks_are_done_at_once_and_what_one_raises_waits_for_the_others() -> None:
    """Two that wait for each other end, so they are done side by side; the block ends with the last
    of them, also where one has failed."""
    there, ended = [threading.Event(), threading.Event()], []

    def meets(place: int) -> int:
        there[place].set()
        assert there[1 - place].wait(20)
        return place

    with together.at_once([partial(meets, 0), partial(meets, 1)]) as results:
        assert [result() for result in results] == [0, 1]

    def fails() -> None:
        raise ValueError("failed")

    def is_slow() -> None:
        time.sleep(0.2)
        ended.append(True)

    with (
        pytest.raises(ValueError, match="failed"),
        together.at_once([fails, is_slow]) as (failed, _),
    ):
        failed()
    assert ended == [True]


def test_a_second_signal_leaves_no_task_behind() -> None:
    """A process that ended while a task computes would abort."""
    ended = []

    def computes() -> None:
        try:
            while True:
                time.sleep(0.01)
                stop_if_signalled()
        finally:
            time.sleep(0.3)  # the end of a device call
            ended.append(True)

    def signals() -> None:
        for _ in range(2):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as stop, deferred_signals():  # noqa: SIM117
        with together.at_once([computes, signals]) as (result, _):
            result()
    assert not isinstance(stop.value, Stopped) and ended == [True]


def test_tasks_are_done_on_the_callers_device() -> None:
    def chosen() -> Any:
        return jax.config.jax_default_device  # type: ignore[attr-defined]

    for device in (jax.devices()[0], None):
        with jax.default_device(device), together.at_once([chosen]) as (result,):
            assert result() == device
