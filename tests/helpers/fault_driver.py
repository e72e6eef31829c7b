"""A process that trains in miniature again and again, and is killed as often as it is told to.

    python -m helpers.fault_driver ORDERS.json

Everything is imported once, before JAX starts any thread; every attempt is a fork of that, so that
a kill costs no new start of Python. Prints one JSON line per attempt: how it ended.
"""

import gc
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.small_runs import swings, tiny
from neubay import algorithm, experiment, imagination
from neubay.agents import redq
from neubay.experience import Imagined
from neubay.policy import Policy
from neubay.runs import checkpoints, files, tracking
from neubay.tasks import get_task
from neubay.world import World, fitted, fitting, pool

WORLD_PHASES: dict[str, tuple[Any, str]] = {
    "world training": (pool, "train"),
    "world validation": (pool, "validate"),
    "world checkpoint": (checkpoints, "write_arrays"),
    "world checkpoint named": (Path, "replace"),
    "uncertainty over the data": (World, "uncertainty"),
    "world written": (fitted, "atomic_write_json"),
}
AGENT_PHASES: dict[str, tuple[Any, str]] = {
    "imagination": (imagination, "imagine"),
    "sampling": (Imagined, "sample"),
    "updates": (redq.Agent, "update"),
    "row of metrics": (tracking, "finite"),
    "evaluation": (algorithm, "score"),
    "checkpoint arrays": (algorithm, "arrays_of"),
    "checkpoint hashes": (checkpoints, "seal"),
    "checkpoint flushed": (files, "flush_to_disk"),
    "checkpoint named": (Path, "replace"),
    "checkpoint removed": (checkpoints, "_discard"),
}
LAST_PHASES: dict[str, tuple[Any, str]] = {
    "policy written": (Policy, "save"),
    "result computed": (experiment, "posterior_estimate"),
    "checkpoints tidied": (checkpoints.Checkpoints, "finish"),
}
PHASES = WORLD_PHASES | AGENT_PHASES | LAST_PHASES
RANDOM_KILLS = max(int(os.environ.get("NEUBAY_TEST_KILLS", "0")), 5)
"""At random moments, beside those of the phases; the variable only makes them more."""
# A kill comes up to 100 steps ahead of the one before, on a fast machine a few hundred, and the run
# must outlive them all; an evaluation is every 200 steps.
CONFIG = tiny(
    world={"max_epochs": 12, "patience": 12},
    agent={"steps": 1400 + 200 * (RANDOM_KILLS // 3), "updates_per_row": 0.3},
    evaluation={"evaluations": 7 + RANDOM_KILLS // 3, "episodes": 1},
)


def train(directory: Path, every: float) -> None:
    fitting.CHECKPOINT_SECONDS = every
    experiment.run(
        swings(get_task("pendulum")),
        CONFIG,
        directory,
        checkpoint_seconds=every,
        tell=lambda text: None,
    )


def arm(phase: str, call: int, delay: float) -> None:
    """Die at the `call`-th call of what `phase` names, `delay` seconds after it began."""
    home, name = PHASES[phase]
    original: Callable[..., Any] = getattr(home, name)
    calls = 0

    def watched(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            if delay == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return original(*arguments, **named)

    setattr(home, name, watched)


def attempt(directory: Path, order: dict[str, Any]) -> int:
    """Train in a child that follows an order; its exit code, negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        try:
            for phase, call in order.get("phases", {}).items():
                arm(phase, call, order["delay"])
            train(directory, order.get("every", 60.0))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if "after" in order:
        time.sleep(order["after"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def planned(chance: random.Random) -> list[dict[str, Any]]:
    """What to kill one run with over its whole life: each phase in its turn, and in between random
    moments, as the process starts or some time after a device call.

    A phase is cut short at its first or second call, so that the run comes ahead by little, and has
    a checkpoint at every pause until the last phases.
    """

    def kill(phase: str, delay: float | None = None) -> dict[str, Any]:
        call = chance.randint(1, 2) if phase in AGENT_PHASES else 1
        if delay is None:
            delay = chance.choice([0.0, chance.uniform(0.0005, 0.02)])
        return {"phases": {phase: call}, "delay": delay, "every": 0.0}

    def kill_at_start() -> dict[str, Any]:
        return {"after": chance.uniform(0.2, 1.5), "every": 0.0}

    at_start = (RANDOM_KILLS - 1) // 3
    randomly = [kill_at_start() for _ in range(at_start)]
    in_updates = RANDOM_KILLS - 1 - at_start
    randomly += [kill("updates", chance.uniform(0, 0.03)) for _ in range(in_updates)]
    in_the_agent = [*map(kill, AGENT_PHASES), *randomly]
    chance.shuffle(in_the_agent)
    at_the_end = [{"phases": {phase: 1}, "delay": 0.0} for phase in LAST_PHASES]
    return [kill_at_start(), *map(kill, WORLD_PHASES), *in_the_agent, *at_the_end]


def main() -> None:
    warnings.simplefilter("ignore")  # JAX warns of any fork; here it has no threads yet
    gc.freeze()  # a fork need not look through what all share
    wanted = json.loads(Path(sys.argv[1]).read_text())
    folder, orders = Path(wanted["folder"]), planned(random.Random(wanted["seed"]))
    for directory, tries in ((folder / "reference", [{}]), (folder / "killed", [*orders, {}])):
        os.environ["NEUBAY_CACHE"] = str(directory.with_suffix(".cache"))
        for order in tries:
            code = attempt(directory, order)
            print(json.dumps(order | {"run": directory.name, "code": code}), flush=True)


if __name__ == "__main__":
    main()
