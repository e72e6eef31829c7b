"""A process that trains in miniature again and again, and is killed as often as it is told to.

    python fault_driver.py ORDERS.json

Everything is imported once, before JAX starts any thread; every attempt is a fork of that, so that
a kill costs no new start of Python. Prints one JSON line per attempt: how it ended.
"""

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

import orbax.checkpoint  # noqa: F401  (imported before the forks)

from neubay import algorithm, checkpoints, experiment, imagination, rundir, runs, tracking
from neubay.agents import redq
from neubay.experience import Imagined
from neubay.policy import Policy
from neubay.tasks import get_task
from neubay.world import World, fitting
from small_runs import swings, tiny

WORLD_PHASES: dict[str, tuple[Any, str]] = {
    "world training": (fitting, "train"),
    "world validation": (fitting, "validate"),
    "world checkpoint": (runs, "save_arrays"),
    "world checkpoint named": (Path, "replace"),
    "uncertainty over the data": (World, "uncertainty"),
    "world written": (runs, "atomic_write_json"),
}
AGENT_PHASES: dict[str, tuple[Any, str]] = {
    "imagination": (imagination, "imagine"),
    "sampling": (Imagined, "sample"),
    "updates": (redq.Agent, "update"),
    "row of metrics": (tracking, "_finite"),
    "evaluation": (algorithm, "evaluate"),
    "checkpoint arrays": (checkpoints, "_plain"),
    "checkpoint hashes": (checkpoints, "seal"),
    "checkpoint flushed": (runs, "flush_to_disk"),
    "checkpoint named": (Path, "rename"),
    "checkpoint removed": (checkpoints, "_discard"),
}
LAST_PHASES: dict[str, tuple[Any, str]] = {
    "policy written": (Policy, "save"),
    "result computed": (experiment, "posterior_estimate"),
    "checkpoints tidied": (checkpoints.Checkpoints, "finish"),
}
PHASES = WORLD_PHASES | AGENT_PHASES | LAST_PHASES
CONFIG = tiny(
    world={"max_epochs": 6},
    agent={"steps": 1000, "updates_per_row": 0.3},
    evaluation={"evaluations": 5, "episodes": 2},
)


def train(directory: Path) -> None:
    fitting.CHECKPOINT_SECONDS = 0.0
    experiment.run(
        swings(get_task("pendulum")),
        CONFIG,
        directory,
        checkpoint_seconds=0.0,
        report=lambda text: None,
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
            train(directory)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if "after" in order:
        time.sleep(order["after"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Plan:
    """Kills in every phase of a run, and at random moments in between."""

    def __init__(self, chance: random.Random, random_share: float) -> None:
        self.chance, self.random_share = chance, random_share
        self.world, self.agent, self.last = (
            chance.sample(sorted(phases), len(phases))
            for phases in (WORLD_PHASES, AGENT_PHASES, LAST_PHASES)
        )

    def order(self, directory: Path) -> dict[str, Any]:
        """What fits the place where the run is; nothing, once all was tried."""
        chance = self.chance
        trained = (directory / rundir.WORLD_FILE).exists()
        self.world = self.world or sorted(WORLD_PHASES)
        left = (self.agent or self.last) if trained else self.world
        if left and chance.random() < self.random_share:
            return {"after": chance.uniform(0.2, 2.5 if trained else 1.0)}
        delay = chance.choice([0.0, chance.uniform(0.0005, 0.02)])
        # A phase may be over before it is reached: then what follows it is cut short instead.
        if left is self.last:
            phases = {left.pop(): 1} if left else {}
        else:
            phases = {left.pop(): chance.randint(1, 2), "policy written": 1}
        return {"phases": phases, "delay": delay}

    def missed(self, order: dict[str, Any]) -> None:
        """The run was finished before the kill: its phase is tried again in the next life."""
        self.agent += [phase for phase in order.get("phases", {}) if phase in AGENT_PHASES]


def main() -> None:
    warnings.simplefilter("ignore")  # JAX warns of any fork; here it has no threads yet
    wanted = json.loads(Path(sys.argv[1]).read_text())
    folder, chance = Path(wanted["folder"]), random.Random(wanted["seed"])
    os.environ["NEUBAY_CACHE"] = str(folder / "cache")
    print(json.dumps({"life": 0, "code": attempt(folder / "reference", {})}), flush=True)
    kills, life = 0, 0
    plan = Plan(chance, wanted["random_share"])
    while kills < wanted["kills"] or plan.agent:
        life += 1
        directory = folder / f"life-{life}"
        os.environ["NEUBAY_CACHE"] = str(folder / f"cache-{life}")
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            order = plan.order(directory) if kills < wanted["kills"] or plan.agent else {}
            code = attempt(directory, order)
            kills += code == -signal.SIGKILL
            print(json.dumps(order | {"life": life, "code": code}), flush=True)
        if code != 0:
            sys.exit(1)
        plan.missed(order)


if __name__ == "__main__":
    main()
