"""Runs side by side, for the commands that know beforehand which runs they want."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neubay.commands.sweep_display import run_lines
from neubay.commands.text import Console
from neubay.config import TrainConfig
from neubay.runs.messages import duration

if TYPE_CHECKING:
    from neubay.sweeps.plan import Plan


@dataclass(frozen=True)
class Wanted:
    """One run."""

    config: TrainConfig
    directory: Path
    about: dict[str, Any]
    """More for its run.json."""
    before: TrainConfig | None = None
    """A run whose world this one's is made of."""
    prepare: Callable[[], None] | None = None
    """Makes it of that."""


def run_side_by_side(
    console: Console,
    plan: "Plan",
    wanted: Sequence[Wanted],
    engine: Any,
    *,
    jobs: int | None = None,
    address: str | None = None,
) -> int:
    """Do all that is not finished, or not judged as it should be; how many runs failed."""
    from neubay.experiment import lacks_verdict
    from neubay.runs import rundir
    from neubay.sweeps.cores import available
    from neubay.sweeps.dispatch import Dispatch
    from neubay.sweeps.jobs import Job, Outcome
    from neubay.sweeps.loop import run_all
    from neubay.sweeps.sweep import make_engine

    plan.begin()
    to_do = [
        each
        for each in wanted
        if not rundir.is_finished(each.directory)
        or (plan.select is not None and lacks_verdict(each.directory, plan.select))
    ]
    for each in wanted:
        if each not in to_do:
            console.print(f"{each.directory}: finished before", markup=False, soft_wrap=True)
    if not to_do:
        return 0
    # As many workers as were asked for, or as there are cores, and no more than runs; the cores of
    # a cluster are counted there.
    at_once = len(available()) if jobs is None else jobs
    most = jobs if address is not None else min(len(to_do), at_once)
    dispatch = Dispatch(make_engine(engine, plan, jobs=most, address=address))
    names: dict[str, str] = {}
    for each in to_do:
        job = plan.job(each.config, each.directory, **each.about)
        names[job.directory] = str(each.directory)
        dispatch.add(job, plan.needs(each.before or each.config), each.prepare)
    failed = 0
    with run_lines(console, names) as show:

        def done(job: Job, outcome: Outcome) -> None:
            nonlocal failed
            failed += outcome.state != "finished"
            problem = f": {outcome.problem}" if outcome.problem else ""
            show(job.directory, f"{outcome.state}, {duration(outcome.seconds)}{problem}")

        def look() -> None:
            for job in dispatch.begun:
                show(job.directory, "running")
            dispatch.begun.clear()

        run_all(dispatch, done, look)
    return failed
