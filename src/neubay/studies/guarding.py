"""What a guard would have said, and what it changes: a policy in its environment, watched.

Episodes are run once without a fall-back, where the full guard (posterior and ranges) and the light
one (ranges alone) only watch; then, with the same seeds, once with each of them handing over to the
clone. An alarm is a step at which a limit is crossed, seen before the step is made.

A fall is a terminal state. Half-cheetahs have none: there it is lying on the back, and where the
task has a speed limit, breaking it. What lasts counts once, from its first step on.
"""

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay import world
from neubay.errors import TaskError
from neubay.guard import Guard
from neubay.policy import load_policy
from neubay.runs import rundir
from neubay.runs.files import read_json
from neubay.runs.messages import Tell, log
from neubay.tasks import Task, get_task

AHEAD = 50
"""Steps before a fall in which an alarm announces it; without a fall in as many, it is false."""
LIMITS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Of U as a share of its threshold: what the curve is drawn over."""

Form = Literal["full", "light"]
GUARDS: dict[str, tuple[Form, float]] = {
    "full": ("full", 1.0),
    "full, limit 0.5": ("full", 0.5),
    "light": ("light", 1.0),
}
"""The guards compared: their form and their limit of U. Only the first is the default."""
DRAWN = ("falls", "announced", "ahead", "false_per_thousand")
"""Of the posterior alone at each limit, what is kept."""


class Watched(NamedTuple):
    """Episodes side by side, a row per step; what lies beyond an episode's end is not `alive`."""

    alive: Bool[np.ndarray, "steps episodes"]
    unsure: Float[np.ndarray, "steps episodes"]  # as a share of the threshold
    outside: Bool[np.ndarray, "steps episodes"]
    fell_back: Bool[np.ndarray, "steps episodes"]
    falls: Bool[np.ndarray, "steps episodes"]  # the step led into a fall, or was made in one
    returns: Float[np.ndarray, " episodes"]

    def alarms(self, form: Form, limit: float = 1.0) -> Bool[np.ndarray, "steps episodes"]:
        """Steps at which a guard of that form and limit gives an alarm."""
        light = self.outside & self.alive
        return light if form == "light" else light | (self.unsure > limit) & self.alive


@dataclass(frozen=True)
class Alarms:
    """How alarms and falls lie to each other."""

    per_episode: float
    falls: int
    announced: int
    """Falls with an alarm in the steps before."""
    ahead: float | None
    """Steps from the first of those alarms to the fall, the median."""
    false_per_thousand: float | None
    """Alarms per 1,000 steps that no fall follows in time."""
    by_chance: float | None
    """Of windows of as many steps without a fall in or after them, those with an alarm."""

    @classmethod
    def of(
        cls, alarms: Bool[np.ndarray, "steps episodes"], watched: Watched, ahead: int = AHEAD
    ) -> "Alarms":
        first = onsets(watched.falls, ahead)
        # Steps without a fall at them or in those that follow, and windows of such steps.
        calm = watched.alive & (_within(watched.falls, ahead, forwards=True) == 0)
        quiet = _within(calm, ahead, forwards=True) == ahead
        distances = []
        for step, episode in zip(*np.nonzero(first), strict=True):
            before = alarms[max(step - ahead + 1, 0) : step + 1, episode]
            if before.any():
                distances.append(len(before) - int(before.argmax()))
        windows = (_within(alarms, ahead, forwards=True) > 0)[quiet]
        steps = int(calm.sum())
        return cls(
            per_episode=float(alarms.sum() / alarms.shape[1]),
            falls=int(first.sum()),
            announced=len(distances),
            ahead=float(np.median(distances)) if distances else None,
            false_per_thousand=1000 * float((alarms & calm).sum()) / steps if steps else None,
            by_chance=float(windows.mean()) if len(windows) else None,
        )


def onsets(
    falls: Bool[np.ndarray, "steps episodes"], apart: int
) -> Bool[np.ndarray, "steps episodes"]:
    """The first step of each fall: none was in the steps before it."""
    return falls & (_within(falls, apart + 1, forwards=False) == 1)


def _within(
    events: Bool[np.ndarray, "steps episodes"], steps: int, *, forwards: bool
) -> Int[np.ndarray, "steps episodes"]:
    """How many events there are in so many steps from each on, or up to it; both ends count."""
    total = np.concatenate([np.zeros((1, events.shape[1]), np.int64), events.cumsum(axis=0)])
    row = np.arange(len(events))
    if forwards:
        return total[np.minimum(row + steps, len(events))] - total[row]
    return total[row + 1] - total[np.maximum(row + 1 - steps, 0)]


Fallen = Callable[[np.ndarray, dict[str, Any]], bool]
"""Whether a state that is not terminal counts as a fall, from it and what the environment says."""


def watch(
    task: Task, guard: Guard, *, episodes: int, seed: int = 0, fallen: Fallen | None = None
) -> Watched:
    """Episodes of the task's environment under a guarded policy, deterministic; `seed` is that of
    the first one's reset, the others count on."""
    if task.make_env is None:
        raise TaskError(f"task '{task.name}' has no environment to show in what a guard does")
    make, state = task.make_env, None
    rows: list[tuple[np.ndarray, ...]] = []
    with contextlib.ExitStack() as stack:
        environments = [stack.enter_context(contextlib.closing(make())) for _ in range(episodes)]
        seen = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(environments)])
        seen = seen.astype(np.float32).reshape(episodes, -1)
        paid, returns, live = np.zeros(episodes), np.zeros(episodes), np.ones(episodes, bool)
        while live.any() and len(rows) < task.horizon:
            commands, state, check = guard.predict(seen, state, reward=paid)
            falls, alive = np.zeros(episodes, bool), live.copy()
            for i in np.flatnonzero(alive):
                observed, reward, terminated, truncated, info = environments[i].step(
                    np.asarray(commands)[i]
                )
                seen[i] = np.asarray(observed, np.float32).reshape(-1)
                paid[i] = float(reward)
                returns[i] += paid[i]
                falls[i] = terminated or (fallen is not None and fallen(seen[i], info))
                live[i] = not (terminated or truncated)
            rows.append(
                (alive, *map(np.array, (check.unsure, check.outside, check.fell_back)), falls)
            )
    alive, unsure, outside, fell_back, falls = (np.stack(each) for each in zip(*rows, strict=True))
    return Watched(alive, unsure, outside & alive, fell_back & alive, falls, returns)


def falls_of(task: Task) -> tuple[str, Fallen | None]:
    """What a fall is in a task, in words, and where it is not a terminal state."""
    if "halfcheetah" not in task.name:
        return "terminal state", None
    from neubay.tasks.environments import SpeedLimit  # with it comes MuJoCo

    pitch = task.state_size - 16  # after z, which comes first or after x
    limited = task.name == "neorl2/safetyhalfcheetah"

    def fallen(state: np.ndarray, info: dict[str, Any]) -> bool:
        angle = (state[pitch] + np.pi) % (2 * np.pi) - np.pi
        too_fast = limited and info["x_velocity"] > SpeedLimit.LIMIT
        return bool(abs(angle) > np.pi / 2 or too_fast)

    return "on its back, or too fast" if limited else "on its back", fallen


def guard_study(
    run: rundir.Run, *, episodes: int = 20, seed: int = 0, tell: Tell = log
) -> dict[str, Any]:
    """What guards say of a run's policy, and what the clone as their fall-back changes."""
    directory = run.directory
    policy, fitted = load_policy(directory), world.load(directory)
    task, path = get_task(policy.task.name), directory / rundir.POLICIES / f"{rundir.CLONE}.npz"
    clone = load_policy(path) if path.exists() else None
    words, fallen = falls_of(task)
    name = directory.resolve().name

    def watched(how: str, form: Form = "full", **options: Any) -> Watched:
        tell(f"{name}: {episodes} episodes {how}")
        guard = Guard(policy, fitted if form == "full" else None, **options)
        return watch(task, guard, episodes=episodes, seed=seed, fallen=fallen)

    alone, guards = watched("watched"), {}
    for label, (form, limit) in GUARDS.items():
        guards[label] = asdict(Alarms.of(alone.alarms(form, limit), alone))
        if clone is not None:
            how = f"with the clone behind the guard: {label}"
            handed = watched(how, form, limit=limit, fallback=clone)
            guards[label]["fallback"] = _earned(handed, task)
    curve = {
        limit: asdict(Alarms.of((alone.unsure > limit) & alone.alive, alone)) for limit in LIMITS
    }
    return {
        "run": name,
        "dataset": run.about["dataset"]["name"],
        "environment": task.env_name,
        "falls_are": words,
        "episodes": episodes,
        "seed": seed,
        "alone": _earned(alone, task),
        "clone": None if clone is None else read_json(path.with_suffix(".json")),
        "guards": guards,
        "posterior": [
            {"limit": limit, **{each: found[each] for each in DRAWN}}
            for limit, found in curve.items()
        ],
    }


def _earned(watched: Watched, task: Task) -> dict[str, Any]:
    """What episodes paid, and how often the fall-back acted."""
    scores = task.score(watched.returns)
    return {
        "return_mean": float(watched.returns.mean()),
        "return_std": float(watched.returns.std()),
        "score": None if scores is None else float(scores.mean()),
        "length_mean": float(watched.alive.sum(axis=0).mean()),
        "falls": int(onsets(watched.falls, AHEAD).sum()),
        "fell_back": float(watched.fell_back.sum() / watched.alive.sum()),
    }
