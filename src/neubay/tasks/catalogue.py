"""Which tasks there are: the registry, and in it the tasks of the paper and the small ones.

A task of your own takes a few lines:

    register_task(Task(
        name="mine", state_size=3, actions=ContinuousActions.symmetric(1, bound=2.0),
        horizon=200, env_id="Pendulum-v1",
    ))

where `env_id` and `termination` may be left out, and `task_from_env("Pendulum-v1")` reads the
sizes, the bounds and T from the environment itself.
"""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from neubay import published
from neubay.config import Published
from neubay.errors import TaskError
from neubay.tasks import names, rules
from neubay.tasks.task import (
    ContinuousActions,
    DiscreteActions,
    Reference,
    Task,
    Termination,
    action_space,
)

# --------------------------------------------------------------------------------- the registry

_TASKS: dict[str, Task] = {}


def register_task(task: Task) -> Task:
    """Make a task known by its name; a name can be taken once, and "none" stands for no task."""
    if task.name == "none":
        raise TaskError("a task cannot be named 'none', which stands for no task")
    if task.name in _TASKS:
        raise TaskError(f"a task named '{task.name}' is registered already; choose another name")
    _TASKS[task.name] = task
    return task


@contextmanager
def registering() -> Iterator[list[Task]]:
    """Gives the tasks that the block registered, once it has ended; they are forgotten again."""
    before, registered = dict(_TASKS), list[Task]()
    try:
        yield registered
        registered += [task for name, task in _TASKS.items() if name not in before]
    finally:
        _TASKS.clear()
        _TASKS.update(before)


def get_task(name: str) -> Task:
    """The task of that name."""
    if name in _TASKS:
        return _TASKS[name]
    # The name may be that of a dataset or an environment: suggest the task it belongs to.
    words = {task.env_name.lower(): task.name for task in _TASKS.values() if task.env_name}
    words |= {known.rsplit("/")[-1]: known for known in reversed(_TASKS)}
    words |= {known: known for known in _TASKS}
    close = difflib.get_close_matches(name.lower(), words, n=1, cutoff=0.6)
    guess = names.interpret(name)[0] or (words[close[0]] if close else None)
    hint = f"did you mean '{guess}'?" if guess else f"known tasks: {', '.join(_TASKS)}"
    raise TaskError(f"unknown task '{name}'; {hint}")


def identify(name: str) -> tuple[Task | None, str | None]:
    """The task that a dataset's name, Minari id or file name belongs to, and the name of the
    paper's dataset that it *is*; none where the name does not say."""
    if name in _TASKS:
        return _TASKS[name], None
    task, dataset = names.interpret(name)
    return None if task is None else _TASKS[task], dataset


def list_tasks() -> list[Task]:
    """Every registered task, in the order of registration."""
    return list(_TASKS.values())


def task_from_env(
    env_id: str,
    *,
    name: str | None = None,
    horizon: int | None = None,
    termination: Termination | None = None,
    reference: Reference | None = None,
) -> Task:
    """A task read off a Gymnasium environment: sizes, action bounds and T; not registered.

    `horizon` is needed where the environment states no maximum episode length. What ends an
    episode cannot be read off: without `termination`, imagined rollouts never terminate.
    """
    from neubay.tasks import environments

    state_size, actions, stated = environments.describe(env_id)
    if horizon is None and stated is None:
        raise TaskError(
            f"environment '{env_id}' states no maximum episode length; pass horizon=..."
        )
    return Task(
        name=name or env_id,
        state_size=state_size,
        actions=action_space(**actions),
        horizon=horizon or stated or 1,
        env_id=env_id,
        termination=termination,
        reference=reference,
    )


# ---------------------------------------------------------------------------- the paper's tasks

RandomExpert = tuple[float, float]
"""Mean returns of a random and of an expert policy, which normalise scores."""


def _settings(task: str) -> dict[str, Published]:
    """The paper's settings for its datasets of one task.

    Where it names no best eta_phi and kappa (door, hammer-human and the large AntMazes: every
    setting scored near zero) they stay none, and the preset's defaults hold.
    """
    return {
        dataset.name: Published(
            benchmark=published.benchmarks()[dataset.benchmark].preset,
            encoder_lr=dataset.eta_phi,
            kappa=dataset.kappa,
            max_epochs=dataset.max_epochs,
            fixed_alpha=dataset.fixed_alpha,
        )
        for dataset in published.datasets().values()
        if dataset.task == task
    }


# body -> states, actions, rule, random and expert return of D4RL, of NeoRL
_BODIES: dict[
    str, tuple[int, int, Callable[[int], Termination] | None, RandomExpert, RandomExpert]
] = {
    "HalfCheetah": (17, 6, None, (-280.178953, 12135.0), (-298.0, 12284.0)),
    "Hopper": (11, 3, rules.hopper_falls, (-20.272305, 3234.3), (5.0, 3294.0)),
    "Walker2d": (17, 6, rules.walker_falls, (1.629008, 4592.3), (1.0, 5143.0)),
}


def _locomotion() -> Iterator[Task]:
    for body, (states, actions, rule, d4rl, neorl) in _BODIES.items():
        unit = ContinuousActions.symmetric(actions)
        family = f"d4rl/{body.lower()}"
        yield Task(
            name=family,
            state_size=states,
            actions=unit,
            horizon=1000,
            benchmark="locomotion",
            env_id=f"{body}-v4",
            termination=rule and rule(0),
            reference=Reference(*d4rl, source="D4RL v2"),
            published=_settings(family),
            world_skips_timeouts=True,
        )
        # Minari's data was recorded in v5, which differs from v4 in physics and rewards.
        yield Task(
            name=f"mujoco/{body.lower()}-v5",
            state_size=states,
            actions=unit,
            horizon=1000,
            benchmark="locomotion",
            env_id=f"{body}-v5",
            termination=rule and rule(0),
            reference=Reference(*d4rl, source="D4RL v2, applied to v5 returns"),
        )
        family = f"neorl/{body.lower()}"
        yield Task(
            name=family,
            state_size=states + 1,  # x comes first
            actions=unit,
            horizon=1000,
            benchmark="locomotion",
            env_id=f"neubay/NeoRL{body}-v4",
            termination=rule and rule(1),
            reference=Reference(*neorl, source="NeoRL"),
            published=_settings(family),
            world_skips_timeouts=True,
        )
    yield Task(
        name="neorl2/safetyhalfcheetah",
        state_size=18,
        actions=ContinuousActions.symmetric(6),
        horizon=1000,
        benchmark="locomotion",
        env_id="neubay/SafetyHalfCheetah-v4",
        reference=Reference(-283.0, 2507.0, source="NeoRL-2"),
    )


# body -> states, actions, T, random and expert return
_HANDS: dict[str, tuple[int, int, int, RandomExpert]] = {
    "pen": (45, 24, 100, (96.262799, 3076.8331017826877)),
    "door": (39, 28, 200, (-56.512833, 2880.5693087298737)),
    "hammer": (46, 26, 200, (-274.856578, 12794.134825156867)),
}


def _adroit() -> Iterator[Task]:
    for body, (states, actions, horizon, returns) in _HANDS.items():
        family = f"adroit/{body}"
        yield Task(
            name=family,
            state_size=states,
            actions=ContinuousActions.symmetric(actions),
            horizon=horizon,
            benchmark="adroit",
            env_id=f"neubay/Adroit{body.title()}-v1",
            termination=rules.pen_drops if body == "pen" else None,
            reference=Reference(*returns, source="D4RL v1"),
            published=_settings(family),
        )


# maze -> T, mean evaluation goal
_MAZES: dict[str, tuple[int, tuple[float, float]]] = {
    "umaze": (700, (0.75, 8.75)),
    "medium": (1000, (20.75, 20.75)),
    "large": (1000, (32.75, 24.75)),
}


def _antmaze() -> Iterator[Task]:
    for maze, (horizon, goal) in _MAZES.items():
        family = f"antmaze/{maze}"
        yield Task(
            name=family,
            state_size=29,
            actions=ContinuousActions.symmetric(8),
            horizon=horizon,
            benchmark="antmaze",
            env_id=f"neubay/AntMaze{maze.title()}-v4",
            termination=rules.ant_arrives(goal),
            reward_shift=-1.0,
            reference=Reference(0.0, 1.0, source="D4RL v2"),
            published=_settings(family),
            split_by_timeouts_only=True,
            world_skips_terminals=True,
        )


def _small() -> Iterator[Task]:
    """Tasks that need no download; no reference scores, so raw returns are reported."""
    yield Task(
        name="pendulum",
        state_size=3,
        actions=ContinuousActions.symmetric(1, bound=2.0),
        horizon=200,
        env_id="Pendulum-v1",
    )
    yield Task(
        name="cartpole",
        state_size=4,
        actions=DiscreteActions(2),
        horizon=500,
        benchmark="cartpole",
        env_id="CartPole-v1",
        termination=rules.pole_falls,
    )
    yield Task(  # the two-armed bandit of the paper's Section 3
        name="bandit",
        state_size=1,  # a constant: there is no state
        actions=DiscreteActions(2),
        horizon=100,
        benchmark="bandit",
        env_id="neubay/Bandit-v1",
        reward_only=True,
    )


for _task in (*_locomotion(), *_adroit(), *_antmaze(), *_small()):
    register_task(_task)

_BUILT_IN = dict(_TASKS)


def is_built_in(task: Task) -> bool:
    """Every process knows it, and not only the one that registered it."""
    return _BUILT_IN.get(task.name) is task


def category(name: str) -> published.Category | None:
    """The paper's category of one of its datasets; none for any other dataset.

    Decided by the paper from how the data was collected and its mean score: low quality (random,
    Low, door, hammer, umaze-diverse), else moderate coverage (replays, mixtures, pen-cloned) or
    narrow coverage (one policy, human demonstrations, planned paths).
    """
    dataset = published.datasets().get(name)
    return None if dataset is None else dataset.category


def published_settings(task: Task | None, name: str | None) -> Published:
    """The paper's settings for one of its datasets; for other data of a family, those that the
    family has in common; for the rest, what its actions ask for."""
    if task is None:
        return Published()
    if name in task.published:
        return task.published[name]
    alphas = {settings.fixed_alpha for settings in task.published.values()}
    return Published(
        benchmark=task.benchmark,
        fixed_alpha=alphas.pop() if len(alphas) == 1 else None,
        discrete=task.actions.kind == "discrete",
    )
