"""What a worker does with a job."""

import json
from pathlib import Path

import pytest

from helpers.small_runs import swings, tiny
from neubay.config import SelectionConfig
from neubay.runs.rundir import is_finished
from neubay.sweeps.data import Source
from neubay.sweeps.jobs import rungs
from neubay.sweeps.plan import Plan
from neubay.sweeps.work import do
from neubay.tasks import get_task


@pytest.mark.slow
def test_the_judge_values_a_run_on_its_way_as_it_does_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the policy at the rung; cloning, which needs no world of its own."""
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    dataset = swings(get_task("pendulum"))
    config = tiny(
        agent={"algorithm": "bc", "memory": "none", "steps": 100},
        evaluation={"evaluations": 2, "episodes": 1},
    )
    select = SelectionConfig(baseline=False)
    folder, run = tmp_path / "sweep", tmp_path / "sweep" / "run"
    plan = Plan(
        dataset, Source.of(dataset), folder, {}, select, config.world, "posterior",
        checkpoint_seconds=0.0,
    )  # fmt: skip
    plan.begin()
    (step,) = rungs(config, dataset.facts, [1])
    paused = [do(plan.job(config, run, until=step)) for _ in range(2)]  # its sweep was killed
    assert [each.state for each in paused] == ["paused", "paused"], paused
    assert paused[0].value is not None and paused[0].value == paused[1].value
    assert not is_finished(run)
    whole = do(plan.job(config, run))
    judged = json.loads((run / "selection" / "selection.json").read_text())["candidates"]
    estimates = {each["step"]: each["estimate"] for each in judged}
    assert estimates[step] == paused[0].value and len(estimates) == 2
    assert whole.state == "finished" and whole.value == max(estimates.values())
