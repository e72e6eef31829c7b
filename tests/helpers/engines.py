"""An engine that trains nothing: what a job is worth follows from its settings."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from helpers.small_runs import swings, tiny
from neubay.config import TrainConfig
from neubay.runs.files import atomic_write_json
from neubay.sweeps.data import Source
from neubay.sweeps.jobs import Job, Outcome
from neubay.sweeps.plan import Plan
from neubay.sweeps.sweep import Request
from neubay.tasks import get_task


class Killed(BaseException):
    """The process of a sweep ends, wherever it is."""


def worth(job: Job) -> float:
    """Best at kappa 0.3; worse with every seed."""
    kappa, seed = job.config["agent"]["kappa"] or 0.5, job.config["seed"]
    return -((kappa - 0.3) ** 2) - 0.001 * seed


class Pretended:
    """Ends the oldest job at every look; a world is made as an empty file.

    Args:
        kill_after: looks before the sweep is killed.
        outcome: what becomes of a run, where it is not simply worth something.
    """

    def __init__(
        self,
        workers: int = 2,
        kill_after: float = math.inf,
        outcome: Callable[[Job], Outcome | None] = lambda job: None,
    ) -> None:
        self.workers, self.kill_after, self.outcome = workers, kill_after, outcome
        self.jobs: list[tuple[int, Job]] = []
        self.trained: Counter[str] = Counter()
        self.submitted = 0
        self.stopped = False

    @property
    def room(self) -> int:
        return self.workers - len(self.jobs)

    def submit(self, job: Job) -> int:
        assert self.room > 0, "more than it has room for"
        if job.kind == "run":
            assert all((Path(where) / "world.json").exists() for where in job.worlds), "no world"
        self.jobs.append((self.submitted, job))
        self.submitted += 1
        return self.submitted - 1

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        self.kill_after -= 1
        if self.kill_after < 0:
            raise Killed
        if not self.jobs:
            return []
        ticket, job = self.jobs.pop(0)
        name = f"{job.name} to {job.until}" if job.kind == "run" else job.name
        self.trained[name] += 1
        if job.kind != "run":
            atomic_write_json(Path(job.directory) / "world.json", {})
            return [(ticket, Outcome("finished", seconds=1.0))]
        given = self.outcome(job)
        state = "finished" if job.until is None else "paused"
        return [(ticket, given or Outcome(state, worth(job), seconds=1.0))]

    def stop(self) -> None:
        self.stopped = True


def request(directory: Path, *search: str, **options: object) -> Request:
    """A sweep over tiny runs."""
    config: TrainConfig = tiny(evaluation={"evaluations": 16, "episodes": 1})
    dataset = swings(get_task("pendulum"))
    about = {"preset": "cpu", "variant": "neubay"}
    plan = Plan(dataset, Source.of(dataset), directory, about, metric="posterior", versions={})
    wanted = search or ("agent.kappa=0.05:0.95",)
    return Request.of(plan, config, wanted, **options)  # type: ignore[arg-type]
