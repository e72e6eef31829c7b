"""Tasks: everything that is known about an environment family before any data is seen.

The only room where the name of a dataset is interpreted. A task of one's own takes a few lines:

    register_task(Task(
        name="mine", state_size=3, actions=ContinuousActions.symmetric(1, bound=2.0),
        horizon=200, env_id="Pendulum-v1",
    ))

where `env_id` and `termination` may be left out, and `task_from_env("Pendulum-v1")` reads the
sizes, the bounds and T from the environment itself.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from neubay import published
from neubay.config import Benchmark, Published
from neubay.errors import TaskError
from neubay.published import Category

AnyArray = Array | np.ndarray

# f_term(s, a, s') over any batch, in jnp; true where s' is terminal.
Termination = Callable[
    [Float[AnyArray, "*batch s"], Float[AnyArray, "*batch a"], Float[AnyArray, "*batch s"]],
    Bool[Array, "*batch"],
]


@dataclass(frozen=True)
class Reference:
    """Returns that normalise a score to 0 and 100, and where they come from."""

    random: float
    expert: float
    source: str


@dataclass(frozen=True, eq=False)
class ContinuousActions:
    """Box actions; the tape holds them scaled to [-1, 1]."""

    low: np.ndarray
    high: np.ndarray
    kind: Literal["continuous"] = "continuous"

    def __post_init__(self) -> None:
        low, high = (np.array(bound, dtype=np.float32) for bound in (self.low, self.high))
        if low.ndim != 1 or low.shape != high.shape or low.size == 0:
            raise TaskError(
                "the bounds of continuous actions are two vectors of one length, "
                f"got shapes {low.shape} and {high.shape}"
            )
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise TaskError(
                "the bounds of continuous actions must be finite with low < high, "
                f"got low {low.tolist()} and high {high.tolist()}"
            )
        for name, bound in (("low", low), ("high", high)):
            bound.flags.writeable = False
            object.__setattr__(self, name, bound)

    @classmethod
    def symmetric(cls, size: int, bound: float = 1.0) -> "ContinuousActions":
        """`size` actions, each in [-bound, bound]."""
        return cls(np.full(size, -bound), np.full(size, bound))

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def is_unit(self) -> bool:
        """The bounds are -1 and 1 already, so that nothing needs to be rescaled."""
        return bool((self.low == -1).all() and (self.high == 1).all())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ContinuousActions)
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.low.tobytes(), self.high.tobytes()))


@dataclass(frozen=True)
class DiscreteActions:
    """n actions; the tape holds them one-hot."""

    n: int
    kind: Literal["discrete"] = "discrete"

    @property
    def size(self) -> int:
        return self.n


@dataclass(frozen=True, eq=False)
class Task:
    """One environment family. Everything but the sizes may be absent for a user's own data.

    Two tasks are equal when they are the same object: the registry holds one of each name.
    """

    name: str
    state_size: int
    actions: ContinuousActions | DiscreteActions
    horizon: int
    """T, the maximum episode length in steps."""
    env_id: str | None = None
    """Gymnasium id of the environment that matches the data, ours ('neubay/...') included;
    none where there is no simulator, or where `make_env` makes it."""
    make_env: Callable[..., Any] | None = None
    """Makes one Gymnasium environment that matches the data (keyword arguments go to
    `gymnasium.make`); by default from `env_id`, none where there is no simulator."""
    env_name: str | None = None
    """The environment that `make_env` makes, by default `env_id`; every score names it."""
    termination: Termination | None = None
    """f_term(s, a, s') in jnp over batches; none where no state is terminal."""
    reward_shift: float = 0.0
    """Added to every reward of data, imagination and environment; scores add it back."""
    reference: Reference | None = None
    """None where the normalisation is unknown: raw returns are reported, and that is said."""
    published: dict[str, Published] = field(default_factory=dict)
    """The paper's datasets of this family and its settings for them."""
    benchmark: Benchmark = "other"
    """Whose settings hold for data of this family that is not the paper's."""
    reward_only: bool = False
    """A bandit: there are no dynamics to model."""
    split_by_timeouts_only: bool = False
    """AntMaze: an episode runs on after a terminal; only timeouts end it."""
    world_skips_terminals: bool = False
    """AntMaze: the world trains on non-success transitions, whose reward is then constant."""
    world_skips_timeouts: bool = False
    """D4RL: the published runs leave the transition at a timeout out of the world's data."""

    def __post_init__(self) -> None:
        if not self.name:
            raise TaskError("a task needs a name")
        for size in ("state_size", "horizon"):
            if getattr(self, size) < 1:
                raise TaskError(f"task '{self.name}': {size} is {getattr(self, size)}, not >= 1")
        if self.env_id is not None and self.make_env is None:
            object.__setattr__(self, "make_env", _EnvironmentMaker(self.env_id))
        if self.env_name is None:
            object.__setattr__(self, "env_name", self.env_id)

    def to_unit(self, actions: np.ndarray) -> Float[np.ndarray, "*batch a"]:
        """Environment actions -> tape actions: scaled to [-1, 1], or one-hot."""
        if isinstance(self.actions, DiscreteActions):
            return _one_hot(actions, self.actions.n, self.name)
        if actions.shape[-1:] != (self.actions.size,):
            raise TaskError(
                f"task '{self.name}' has {self.actions.size} action dimensions, "
                f"got actions of shape {actions.shape}"
            )
        if self.actions.is_unit:
            return np.asarray(actions, dtype=np.float32)
        # In float64, so that going there and back changes no more than the last float32 digit.
        low, high = self.actions.low.astype(np.float64), self.actions.high.astype(np.float64)
        return (2 * (actions - low) / (high - low) - 1).astype(np.float32)

    def from_unit(self, actions: Float[np.ndarray, "*batch a"]) -> np.ndarray:
        """Tape actions -> environment actions; the inverse of `to_unit`."""
        if isinstance(self.actions, DiscreteActions):
            return np.argmax(actions, axis=-1)
        if self.actions.is_unit:
            return np.asarray(actions, dtype=np.float32)
        low, high = self.actions.low.astype(np.float64), self.actions.high.astype(np.float64)
        return (low + (actions + 1) * (high - low) / 2).astype(np.float32)

    def score(self, returns: np.ndarray) -> np.ndarray | None:
        """Normalised score of raw (unshifted) returns: 100 (R - random) / (expert - random)."""
        if self.reference is None:
            return None
        span = self.reference.expert - self.reference.random
        return 100 * (np.asarray(returns, dtype=np.float64) - self.reference.random) / span


@dataclass(frozen=True)
class _EnvironmentMaker:
    """Makes an environment by id; Gymnasium is imported with the first one, not before."""

    env_id: str

    def __call__(self, **options: Any) -> Any:
        from neubay.tasks import environments

        return environments.make(self.env_id, **options)


def _one_hot(actions: np.ndarray, n: int, task: str) -> Float[np.ndarray, "*batch a"]:
    chosen = np.asarray(actions)
    if not np.issubdtype(chosen.dtype, np.integer):
        whole = np.rint(chosen) if np.issubdtype(chosen.dtype, np.floating) else None
        if whole is None or not np.array_equal(whole, chosen):
            raise TaskError(
                f"task '{task}' has {n} discrete actions, got {chosen.dtype} values "
                "that are not whole numbers"
            )
        chosen = whole.astype(np.int64)
    if chosen.size and (chosen.min() < 0 or chosen.max() >= n):
        raise TaskError(
            f"task '{task}' has actions 0 .. {n - 1}, got {chosen.min()} .. {chosen.max()}"
        )
    return (chosen[..., None] == np.arange(n)).astype(np.float32)


# ----------------------------------------------------------------------------- termination rules


def _hopper_falls(height: int) -> Termination:
    """Hopper's rule with z at index `height`: 0, or 1 where the state begins with x.

    Everything from the angle on must stay below 100, and the whole state must be finite.
    """

    def termination(
        state: Float[AnyArray, "*batch s"],
        action: Float[AnyArray, "*batch a"],
        next_state: Float[AnyArray, "*batch s"],
    ) -> Bool[Array, "*batch"]:
        next_state = jnp.asarray(next_state)
        healthy = (
            jnp.isfinite(next_state).all(-1)
            & (jnp.abs(next_state[..., height + 1 :]) < 100).all(-1)
            & (next_state[..., height] > 0.7)
            & (jnp.abs(next_state[..., height + 1]) < 0.2)
        )
        return ~healthy

    return termination


def _walker_falls(height: int) -> Termination:
    """Walker2d's rule with z at index `height`: 0, or 1 where the state begins with x."""

    def termination(
        state: Float[AnyArray, "*batch s"],
        action: Float[AnyArray, "*batch a"],
        next_state: Float[AnyArray, "*batch s"],
    ) -> Bool[Array, "*batch"]:
        next_state = jnp.asarray(next_state)
        z, angle = next_state[..., height], next_state[..., height + 1]
        return ~((z > 0.8) & (z < 2.0) & (jnp.abs(angle) < 1.0))

    return termination


def pen_drops(
    state: Float[AnyArray, "*batch s"],
    action: Float[AnyArray, "*batch a"],
    next_state: Float[AnyArray, "*batch s"],
) -> Bool[Array, "*batch"]:
    """Adroit's pen has fallen off the hand."""
    return jnp.asarray(next_state)[..., 26] < 0.075


def _ant_arrives(goal: tuple[float, float]) -> Termination:
    """Within 0.25 of the mean evaluation goal: the published rule of imagined rollouts.

    The environment draws its goal anew each episode and counts success from 0.5.
    """

    def termination(
        state: Float[AnyArray, "*batch s"],
        action: Float[AnyArray, "*batch a"],
        next_state: Float[AnyArray, "*batch s"],
    ) -> Bool[Array, "*batch"]:
        distance = jnp.linalg.norm(jnp.asarray(next_state)[..., :2] - jnp.asarray(goal), axis=-1)
        return distance < 0.25

    return termination


def pole_falls(
    state: Float[AnyArray, "*batch s"],
    action: Float[AnyArray, "*batch a"],
    next_state: Float[AnyArray, "*batch s"],
) -> Bool[Array, "*batch"]:
    """CartPole: the cart has left the track, or the pole leans by more than 12 degrees."""
    next_state = jnp.asarray(next_state)
    position, angle = next_state[..., 0], next_state[..., 2]
    return (jnp.abs(position) > 2.4) | (jnp.abs(angle) > jnp.deg2rad(12.0))


# --------------------------------------------------------------------------------- the registry

_TASKS: dict[str, Task] = {}


def register_task(task: Task) -> Task:
    """Make a task known by its name; a name can be taken once."""
    if task.name in _TASKS:
        raise TaskError(f"a task named '{task.name}' is registered already; choose another name")
    _TASKS[task.name] = task
    return task


def get_task(name: str) -> Task:
    """The task of that name."""
    if name in _TASKS:
        return _TASKS[name]
    # Whoever names a dataset or an environment instead is told the task.
    words = {task.env_name.lower(): task.name for task in _TASKS.values() if task.env_name}
    words |= {known.rsplit("/")[-1]: known for known in reversed(_TASKS)}
    words |= {known: known for known in _TASKS}
    close = difflib.get_close_matches(name.lower(), words, n=1, cutoff=0.6)
    task, _ = identify(name)
    guess = task.name if task is not None else words[close[0]] if close else None
    hint = f"did you mean '{guess}'?" if guess else f"known tasks: {', '.join(_TASKS)}"
    raise TaskError(f"unknown task '{name}'; {hint}")


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

    facts = environments.describe(env_id)
    if horizon is None and facts.horizon is None:
        raise TaskError(
            f"environment '{env_id}' states no maximum episode length; pass horizon=..."
        )
    actions: ContinuousActions | DiscreteActions
    if isinstance(facts.actions, int):
        actions = DiscreteActions(facts.actions)
    else:
        actions = ContinuousActions(*facts.actions)
    return Task(
        name=name or env_id,
        state_size=facts.state_size,
        actions=actions,
        horizon=horizon or facts.horizon or 1,
        env_id=env_id,
        termination=termination,
        reference=reference,
    )


# ---------------------------------------------------------------------------- the paper's tasks


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


def _register_locomotion() -> None:
    rules: dict[str, Callable[[int], Termination] | None] = {
        "HalfCheetah": None,
        "Hopper": _hopper_falls,
        "Walker2d": _walker_falls,
    }
    sizes = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Walker2d": (17, 6)}
    d4rl_returns = {
        "HalfCheetah": (-280.178953, 12135.0),
        "Hopper": (-20.272305, 3234.3),
        "Walker2d": (1.629008, 4592.3),
    }
    neorl_returns = {"HalfCheetah": (-298, 12284), "Hopper": (5, 3294), "Walker2d": (1, 5143)}
    for body, (states, actions) in sizes.items():
        rule, unit = rules[body], ContinuousActions.symmetric(actions)
        d4rl = Reference(*d4rl_returns[body], source="D4RL v2")
        family = f"d4rl/{body.lower()}"
        register_task(
            Task(
                name=family,
                state_size=states,
                actions=unit,
                horizon=1000,
                benchmark="locomotion",
                env_id=f"{body}-v4",
                termination=rule and rule(0),
                reference=d4rl,
                published=_settings(family),
                world_skips_timeouts=True,
            )
        )
        # Minari's data was recorded in v5, which differs from v4 in physics and rewards.
        register_task(
            Task(
                name=f"mujoco/{body.lower()}-v5",
                state_size=states,
                actions=unit,
                horizon=1000,
                benchmark="locomotion",
                env_id=f"{body}-v5",
                termination=rule and rule(0),
                reference=Reference(d4rl.random, d4rl.expert, "D4RL v2, applied to v5 returns"),
            )
        )
        family = f"neorl/{body.lower()}"
        random, expert = neorl_returns[body]
        register_task(
            Task(
                name=family,
                state_size=states + 1,  # x comes first
                actions=unit,
                horizon=1000,
                benchmark="locomotion",
                env_id=f"neubay/NeoRL{body}-v4",
                termination=rule and rule(1),
                reference=Reference(float(random), float(expert), source="NeoRL"),
                published=_settings(family),
            )
        )
    register_task(
        Task(
            name="neorl2/safetyhalfcheetah",
            state_size=18,
            actions=ContinuousActions.symmetric(6),
            horizon=1000,
            benchmark="locomotion",
            env_id="neubay/SafetyHalfCheetah-v4",
            reference=Reference(-283.0, 2507.0, source="NeoRL-2"),
        )
    )


def _register_adroit() -> None:
    facts = {  # states, actions, T, random, expert
        "pen": (45, 24, 100, 96.262799, 3076.8331017826877),
        "door": (39, 28, 200, -56.512833, 2880.5693087298737),
        "hammer": (46, 26, 200, -274.856578, 12794.134825156867),
    }
    for body, (states, actions, horizon, random, expert) in facts.items():
        family = f"adroit/{body}"
        register_task(
            Task(
                name=family,
                state_size=states,
                actions=ContinuousActions.symmetric(actions),
                horizon=horizon,
                benchmark="adroit",
                env_id=f"neubay/Adroit{body.title()}-v1",
                termination=pen_drops if body == "pen" else None,
                reference=Reference(random, expert, source="D4RL v1"),
                published=_settings(family),
            )
        )


def _register_antmaze() -> None:
    facts: dict[str, tuple[int, tuple[float, float]]] = {  # T, mean evaluation goal
        "umaze": (700, (0.75, 8.75)),
        "medium": (1000, (20.75, 20.75)),
        "large": (1000, (32.75, 24.75)),
    }
    for maze, (horizon, goal) in facts.items():
        family = f"antmaze/{maze}"
        register_task(
            Task(
                name=family,
                state_size=29,
                actions=ContinuousActions.symmetric(8),
                horizon=horizon,
                benchmark="antmaze",
                env_id=f"neubay/AntMaze{maze.title()}-v4",
                termination=_ant_arrives(goal),
                reward_shift=-1.0,
                reference=Reference(0.0, 1.0, source="D4RL v2"),
                published=_settings(family),
                split_by_timeouts_only=True,
                world_skips_terminals=True,
            )
        )


def _register_classics() -> None:
    """Small tasks that need no download; no reference scores, so raw returns are reported."""
    register_task(
        Task(
            name="pendulum",
            state_size=3,
            actions=ContinuousActions.symmetric(1, bound=2.0),
            horizon=200,
            env_id="Pendulum-v1",
        )
    )
    register_task(
        Task(
            name="cartpole",
            state_size=4,
            actions=DiscreteActions(2),
            horizon=500,
            benchmark="cartpole",
            env_id="CartPole-v1",
            termination=pole_falls,
        )
    )


def _register_bandit() -> None:
    """The two-armed bandit of the paper's Section 3."""
    register_task(
        Task(
            name="bandit",
            state_size=1,  # a constant: there is no state
            actions=DiscreteActions(2),
            horizon=100,
            benchmark="bandit",
            env_id="neubay/Bandit-v1",
            reward_only=True,
        )
    )


_register_locomotion()
_register_adroit()
_register_antmaze()
_register_classics()
_register_bandit()


def category(name: str) -> Category | None:
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


# ------------------------------------------------------------------------ names and file names

_LOCOMOTION = r"(?P<body>halfcheetah|hopper|walker2d)"
_ADROIT = r"(?P<body>pen|door|hammer)"
_VERSION = r"(?:-v(?P<version>\d+))?"

# How a name of the data is written -> the task, and the paper's spelling of the dataset. Matched
# in lower case, with '-' for '_', against the whole name; the first that fits is taken.
_NAMES: tuple[tuple[str, str, str | None], ...] = (
    # D4RL names and files: hopper-medium-replay-v2, hopper_medium_replay-v2.hdf5
    (
        rf"{_LOCOMOTION}-(?P<tier>random|medium|expert|mixed"
        rf"|medium-replay|medium-expert|full-replay|random-expert){_VERSION}",
        "d4rl/{body}",
        "{body}-{tier}-v{version}",
    ),
    (
        rf"{_ADROIT}-(?P<tier>human|cloned|expert){_VERSION}",
        "adroit/{body}",
        "{body}-{tier}-v{version}",
    ),
    (
        rf"antmaze-(?P<maze>umaze|medium|large)(?P<tier>-diverse|-play)?{_VERSION}",
        "antmaze/{maze}",
        "antmaze-{maze}{tier}-v{version}",
    ),
    # hand_dapg's own files, from before D4RL's v1: pen-v0_demos_clipped, pen-demos-v0-bc-combined
    (rf"{_ADROIT}-(?:v0-demos|demos-v0).*", "adroit/{body}", None),
    # NeoRL: HalfCheetah-v3-Low, HalfCheetah-v3-low-1000-train-noise.npz; the paper's data is the
    # training file of 1000 trajectories
    (
        rf"{_LOCOMOTION}-v3-(?P<tier>low|medium|high)(?:-(?:999|1000))?(?:-train)?(?:-noise)?",
        "neorl/{body}",
        "{body}-v3-{tier}",
    ),
    (
        rf"{_LOCOMOTION}-v3-(?:low|medium|high)(?:-\d+)?(?:-train|-val)?(?:-noise)?",
        "neorl/{body}",
        None,
    ),
    (r"(?:neorl2-)?safetyhalfcheetah(?:-v\d+)?(?:-train|-val)?", "neorl2/safetyhalfcheetah", None),
    # Minari ids, which may be the end of a path: new data, of the same families
    (rf"(?:.*/)?mujoco/{_LOCOMOTION}/[^/]+", "mujoco/{body}-v5", None),
    (rf"(?:.*/)?d4rl/{_ADROIT}/[^/]+", "adroit/{body}", None),
    (r"(?:.*/)?(?P<body>pendulum|cartpole)(?:-v1)?(?:[-/][^/]+)?", "{body}", None),
)

# D4RL's AntMaze files say what was varied, not what the dataset is called.
_ANTMAZE_FILE = re.compile(
    r"ant-maze-(?P<maze>u-maze|big-maze|hardest-maze)-noisy"
    r"-multistart-(?P<starts>true|false)-multigoal-(?P<goals>true|false)-sparse(?P<v2>-fixed)?"
)
_ANTMAZE_MAZES = {"u-maze": "umaze", "big-maze": "medium", "hardest-maze": "large"}
_DATA_SUFFIXES = {".hdf5", ".h5", ".npz"}


def identify(name: str) -> tuple[Task | None, str | None]:
    """The task that a dataset's name, Minari id or file name belongs to, and the name of the
    paper's dataset that it *is*; none where the name does not tell.

    A file such as 'hopper_medium.hdf5' is of the hopper family but, having no version, not the
    paper's dataset: its results are not comparable with published ones.
    """
    if name in _TASKS:
        return _TASKS[name], None
    path = PurePosixPath(name.replace("\\", "/"))
    is_file = path.suffix.lower() in _DATA_SUFFIXES
    plain = (path.stem if is_file else str(path)).lower().replace("_", "-")
    if found := _ANTMAZE_FILE.fullmatch(plain):
        plain = _antmaze_name(found)
    for pattern, task, dataset in _NAMES:
        if found := re.fullmatch(pattern, plain):
            words = {key: value or "" for key, value in found.groupdict().items()}
            spelling = dataset.format(**words) if dataset else ""
            return _TASKS[task.format(**words)], _paper_spelling().get(spelling)
    return None, None


def _paper_spelling() -> dict[str, str]:
    """The paper's dataset names by their lower-case form (NeoRL's have capitals)."""
    return {name.lower(): name for name in published.datasets()}


def _antmaze_name(found: re.Match[str]) -> str:
    maze = _ANTMAZE_MAZES[found["maze"]]
    varied = (found["starts"] == "true", found["goals"] == "true")
    tier = {(True, True): "-diverse", (True, False): "-play"}.get(varied, "")
    return f"antmaze-{maze}{tier}" + ("-v2" if found["v2"] else "")
