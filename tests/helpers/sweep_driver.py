"""A sweep in a process of its own, to be killed: python -m helpers.sweep_driver DIR ENGINE JOBS.

Further words: NAME=VALUE of what `run_sweep` takes.
"""

import json
import sys
from pathlib import Path
from typing import Any

from helpers.small_runs import swings, tiny
from neubay.sweeps.data import Source
from neubay.sweeps.jobs import Engine
from neubay.sweeps.plan import Plan
from neubay.sweeps.sweep import Request, Sweep, make_engine, run
from neubay.tasks import get_task

# Without memory there is one candidate for the clone, which compiles least.
CLONING: dict[str, Any] = {
    "agent": {"algorithm": "bc", "memory": "none", "steps": 200},
    "evaluation": {"evaluations": 4, "episodes": 1},
}


def run_sweep(
    directory: Path,
    engine: Any = "local",
    jobs: int = 1,
    *,
    address: str | None = None,
    trials: int = 2,
    seeds: tuple[int, ...] = (0,),
    sampler: Any = "random",
    changes: dict[str, Any] | None = None,
    search: str = "agent.head_lr=log:1e-4:1e-2",
    shared: bool = True,
    prune: bool = False,
) -> Sweep:
    """Tiny runs that are cloned, unless `changes` say otherwise; a checkpoint at every pause."""
    dataset = swings(get_task("pendulum"))
    plan = Plan(dataset, Source.of(dataset), directory, metric="score", checkpoint_seconds=0.0)
    config = tiny(**(changes or CLONING))
    request = Request.of(
        plan, config, [search], trials=trials, seeds=seeds, sampler=sampler, prune=prune
    )

    def made() -> Engine:
        if engine == "ray" and not shared:
            from neubay.sweeps.ray_engine import Ray

            return Ray(plan, jobs=jobs, address=address, shared=False)
        return make_engine(engine, plan, jobs=jobs or None, address=address)

    return run(request, made)


if __name__ == "__main__":
    options = dict(word.split("=", 1) for word in sys.argv[4:])
    parsed = {
        name: value if name in ("address", "sampler", "search") else json.loads(value)
        for name, value in options.items()
    }
    run_sweep(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), **parsed)
