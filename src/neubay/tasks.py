"""Tasks: everything that is known about an environment family before any data is seen.

The only room where the name of a dataset is interpreted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Bool, Float

from neubay.config import Published
from neubay.errors import TaskError

# f_term(s, a, s') over any batch, in jnp; true where s' is terminal.
Termination = Callable[
    [Float[Array, "*batch s"], Float[Array, "*batch a"], Float[Array, "*batch s"]],
    Bool[Array, "*batch"],
]


@dataclass(frozen=True)
class Reference:
    """Returns that normalise a score to 0 and 100, and where they come from."""

    random: float
    expert: float
    source: str


@dataclass(frozen=True)
class ContinuousActions:
    """Box actions; the tape holds them scaled to [-1, 1]."""

    low: np.ndarray
    high: np.ndarray
    kind: Literal["continuous"] = "continuous"

    @property
    def size(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class DiscreteActions:
    """n actions; the tape holds them one-hot."""

    n: int
    kind: Literal["discrete"] = "discrete"

    @property
    def size(self) -> int:
        return self.n


@dataclass(frozen=True)
class Task:
    """One environment family. Everything but the sizes may be absent for a user's own data."""

    name: str
    state_size: int
    actions: ContinuousActions | DiscreteActions
    horizon: int
    """T, the maximum episode length in steps."""
    make_env: Callable[..., Any] | None = None
    """Makes one Gymnasium environment that matches the data (keyword arguments go to
    `gymnasium.make`); none where there is no simulator."""
    env_name: str | None = None
    """The environment that `make_env` makes; every score names it."""
    termination: Termination | None = None
    """f_term(s, a, s') in jnp over batches; none where no state is terminal."""
    reward_shift: float = 0.0
    """Added to every reward of data, imagination and environment; scores add it back."""
    reference: Reference | None = None
    """None where the normalisation is unknown: raw returns are reported, and that is said."""
    published: dict[str, Published] = field(default_factory=dict)
    """The paper's datasets of this family and its settings for them."""
    reward_only: bool = False
    """A bandit: there are no dynamics to model."""
    split_by_timeouts_only: bool = False
    """AntMaze: an episode runs on after a terminal; only timeouts end it."""
    world_skips_terminals: bool = False
    """AntMaze: the world trains on non-success transitions, whose reward is then constant."""
    world_skips_timeouts: bool = False
    """D4RL: the published runs leave the transition at a timeout out of the world's data."""

    def to_unit(self, actions: np.ndarray) -> np.ndarray:
        """Environment actions -> tape actions: scaled to [-1, 1], or one-hot."""
        raise TaskError("filled in below")

    def from_unit(self, actions: np.ndarray) -> np.ndarray:
        """Tape actions -> environment actions; the inverse of `to_unit`."""
        raise TaskError("filled in below")

    def score(self, returns: np.ndarray) -> np.ndarray | None:
        """Normalised score of raw (unshifted) returns: 100 (R - random) / (expert - random)."""
        raise TaskError("filled in below")
