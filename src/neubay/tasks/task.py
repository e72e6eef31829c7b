"""What a task is: sizes, actions, horizon, environment, termination rule and reference returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Bool, Float

from neubay.config import Benchmark, Published
from neubay.errors import TaskError

AnyArray = Array | np.ndarray

# f_term(s, a, s') over any batch, in jnp; true where s' is terminal.
Termination = Callable[
    [Float[AnyArray, "*batch s"], Float[AnyArray, "*batch a"], Float[AnyArray, "*batch s"]],
    Bool[Array, "*batch"],
]


MOST_DISCRETE_ACTIONS = 1024
"""Integers above this are something other than the numbers of actions."""


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
    def shape(self) -> tuple[int, ...]:
        """Of one action, as environments and files have it."""
        return self.low.shape

    def record(self) -> dict[str, Any]:
        """As plain values, of which `action_space` makes it again."""
        return {"low": self.low.tolist(), "high": self.high.tolist()}

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
    shape: tuple[int, ...] = ()
    """Of one action, as environments and files have it."""

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MOST_DISCRETE_ACTIONS:
            raise TaskError(
                f"discrete actions are 1 to {MOST_DISCRETE_ACTIONS} in number, got {self.n}"
            )

    @property
    def size(self) -> int:
        return self.n

    def record(self) -> dict[str, Any]:
        """As plain values, of which `action_space` makes it again."""
        return {"discrete": self.n}


def action_space(
    discrete: int | None = None, low: Any = (), high: Any = ()
) -> ContinuousActions | DiscreteActions:
    """Discrete actions by their number, or continuous ones by their bounds."""
    if discrete is not None:
        return DiscreteActions(discrete)
    return ContinuousActions(np.asarray(low), np.asarray(high))


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
    """f_term(s, a, s') in jnp over batches; none where no state is terminal, or no rule known."""
    learns_termination: bool = False
    """There are terminal states, no rule is known, and the data must tell."""
    reward_shift: float = 0.0
    """Added to every reward of data, imagination and environment; scores add it back."""
    reference: Reference | None = None
    """None where the normalisation is unknown: raw returns are reported, and labelled as such."""
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
    """D4RL and NeoRL: the published runs leave the transition at a timeout out of the world's
    data."""

    def __post_init__(self) -> None:
        if not self.name:
            raise TaskError("a task needs a name")
        for size in ("state_size", "horizon"):
            if getattr(self, size) < 1:
                raise TaskError(f"task '{self.name}': {size} is {getattr(self, size)}, not >= 1")
        if self.env_id is not None and self.make_env is None:
            object.__setattr__(self, "make_env", partial(_make_environment, self.env_id))
        if self.env_name is None:
            object.__setattr__(self, "env_name", self.env_id)

    def try_environment(self) -> None:
        """Make the environment once, if there is one, and refuse it where its observations or its
        actions are not of the task's sizes."""
        if self.make_env is None:
            return
        env = self.make_env()
        env.close()
        shape, space = env.observation_space.shape, env.action_space
        numbered = getattr(space, "n", None)
        theirs = (
            self.state_size if shape is None else math.prod(shape),
            "continuous" if numbered is None else "discrete",
            int(math.prod(space.shape) if numbered is None else numbered),
        )
        ours = (self.state_size, self.actions.kind, self.actions.size)
        if theirs != ours:
            said = "{} numbers in an observation and {} actions, {} of them".format
            raise TaskError(
                f"task '{self.name}': its environment '{self.env_name}' has {said(*theirs)}, and "
                f"the task {said(*ours)}; correct the sizes, or name the environment that is meant"
            )

    @property
    def cuts_long_logs(self) -> bool:
        """Own data: an episode that is longer than T is read as several. In data of the paper's
        benchmarks, as published, the world is shown the whole of it and the agent T steps."""
        return self.benchmark == "other" and not self.split_by_timeouts_only

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


def _make_environment(env_id: str, **options: Any) -> Any:
    """An environment by id; Gymnasium is imported with the first one, not before."""
    from neubay.tasks import environments

    return environments.make(env_id, **options)


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
