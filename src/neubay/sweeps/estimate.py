"""How much a sweep would be, before anything is done."""

import math
from dataclasses import dataclass
from pathlib import Path

from neubay import world
from neubay.config import known, settle, updated
from neubay.runs import rundir, sweepdir
from neubay.runs.values import is_number
from neubay.sweeps.sweep import Request


@dataclass(frozen=True)
class Expected:
    """What a sweep has to do."""

    trials: int
    runs: int
    finished: int
    """Runs that were finished before."""
    worlds: int
    """Worlds and judges that are not there yet."""
    searches_worlds: bool
    """Settings of worlds are searched, so that every trial may need its own."""
    hours: float | None
    """Of one core, for the runs that are not finished."""
    basis: str = ""
    """Where that comes from."""


def expected(request: Request) -> Expected:
    """From settings, and from runs of the same data that were finished before, in the sweep or
    beside it: hours per gradient step."""
    directory, dataset = request.plan.directory, request.plan.dataset
    trials = request.trials
    if sweepdir.is_sweep(directory):
        trials = max(trials, len(sweepdir.read(directory).trials))
    runs = trials * len(request.seeds)
    places = [place for place in (directory, directory.parent, Path("runs")) if place.is_dir()]
    inside = rundir.find(directory) if directory.is_dir() and not rundir.is_run(directory) else []
    finished = sum(run.state == "finished" for run in inside)
    searches_worlds = any(key.startswith("world.") for key in request.space)
    missing = {
        need.directory
        for seed in request.seeds
        for need in request.plan.needs(updated(request.config, {"seed": seed}))
        if not world.is_whole(Path(need.directory))
    }
    steps = known(settle(request.config, dataset.facts).agent.steps)
    rates = [
        rate
        for place in dict.fromkeys(places)
        if not rundir.is_run(place)
        for run in rundir.find(place)
        if (rate := _seconds_per_step(run, dataset.hash)) is not None
    ]
    if not rates:
        return Expected(trials, runs, finished, len(missing), searches_worlds, None)
    seconds = math.fsum(rates) / len(rates) * steps * max(runs - finished, 0)
    basis = f"by {len(rates)} finished runs of this data"
    return Expected(trials, runs, finished, len(missing), searches_worlds, seconds / 3600, basis)


def _seconds_per_step(run: rundir.Run, dataset_hash: str) -> float | None:
    """Of a finished run of the same data, its world left out."""
    seconds, steps = run.summary.get("seconds"), run.summary.get("steps")
    same = run.about.get("dataset", {}).get("hash") == dataset_hash
    if not same or not isinstance(seconds, dict) or not is_number(steps) or steps < 1:
        return None
    total, trained = seconds.get("total"), seconds.get("world", 0.0)
    if not is_number(total) or not is_number(trained):
        return None
    return max(total - trained, 0.0) / steps
