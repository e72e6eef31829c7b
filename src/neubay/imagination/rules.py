"""What ends a rollout, and what its rewards cost."""

import enum
import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from neubay.config import EndedBy, RolloutConfig, known
from neubay.imagination.protocols import Dynamics, EndingDynamics
from neubay.tasks import Task, Termination


class Ending(enum.IntEnum):
    """Why a rollout ended. Only a terminal state stops bootstrapping."""

    NONE = 0
    TERMINAL = 1
    """s_{t+1} is terminal."""
    UNCERTAIN = 2
    """U(s_t, a_t) crossed the threshold."""
    TIMEOUT = 3
    """t + 1 reached T."""
    HORIZON = 4
    """The fixed number of imagined steps H was reached."""
    NON_FINITE = 5
    """The world's answer was not finite; that step is not part of the rollout."""
    UNACTED = 6
    """The history was a whole episode: there was nothing to imagine."""


@dataclass(frozen=True)
class Rules:
    """The stopping criteria of Algorithm 2, and those of its relatives."""

    horizon: int
    """T, the maximum episode length in steps, those of the history included."""
    termination: Termination | None = None
    """f_term(s, a, s') where it is known; none where no state is terminal, or `learned`."""
    learned: bool = False
    """f_term is each member's own, learned from the data."""
    threshold: float = math.inf
    """U(zeta)."""
    max_steps: int | None = None
    """H, a fixed cap on imagined steps."""
    penalty: float = 0.0
    """lambda / mean_D(U): what a unit of U takes off the reward."""
    halt_penalty: float | None = None
    """MOReL: crossing the threshold is terminal and costs this much."""
    redraw_member: bool = False
    """MBPO: a new member at every step."""
    widen: float = 0.0
    """k: rollouts live in m + k (m - m')."""

    @classmethod
    def of(
        cls,
        config: RolloutConfig,
        task: Task,
        *,
        threshold: float,
        mean_uncertainty: float,
        termination: EndedBy = "rule",
    ) -> "Rules":
        """The rules of a configuration; `threshold` is U(zeta), or infinity for none."""
        return cls(
            horizon=task.horizon,
            termination=task.termination if termination == "rule" else None,
            learned=termination == "learned",
            threshold=threshold,
            max_steps=config.horizon,
            penalty=config.penalty / mean_uncertainty if config.penalty else 0.0,
            halt_penalty=config.halt_penalty,
            redraw_member=config.redraw_member,
            widen=known(config.widen),
        )

    @property
    def steps(self) -> int:
        """The most steps a rollout can have."""
        return self.horizon if self.max_steps is None else min(self.horizon, self.max_steps)

    @property
    def uses_uncertainty(self) -> bool:
        """Whether anything depends on U."""
        return self.penalised or self.threshold < math.inf

    @property
    def penalised(self) -> bool:
        return self.penalty > 0 or self.halt_penalty is not None

    def terminal(
        self,
        dynamics: Dynamics,
        state: Float[Array, "w s"],
        action: Float[Array, "w a"],
        next_state: Float[Array, "w s"],
        keys: Key[Array, " w"],
    ) -> Bool[Array, " w"]:
        """f_term(s, a, s'): the task's, or that of the member in which a rollout lives."""
        if self.learned:
            assert isinstance(dynamics, EndingDynamics)
            return dynamics.terminal(state, action, next_state, keys)
        if self.termination is None:
            return jnp.zeros(len(state), bool)
        return self.termination(state, action, next_state)

    def ending(
        self,
        terminal: Bool[Array, " w"],
        next_state: Float[Array, "w s"],
        reward: Float[Array, " w"],
        time: Int[Array, " w"],
        steps: Int[Array, ""],
    ) -> Int[Array, " w"]:
        """An `Ending` for each rollout that has come to t + 1 = `time` in `steps` imagined steps:
        the first reason that holds, uncertainty aside."""
        finite = jnp.isfinite(next_state).all(axis=-1) & jnp.isfinite(reward)
        reasons = {
            Ending.NON_FINITE: ~finite,
            Ending.TERMINAL: terminal,
            Ending.TIMEOUT: time >= self.horizon,
            Ending.HORIZON: jnp.full_like(finite, steps >= self.steps),
        }
        return _first(reasons, jnp.int8(Ending.NONE))

    def cut(
        self, ending: Int[Array, "*steps"], uncertainty: Float[Array, "*steps"]
    ) -> Int[Array, "*steps"]:
        """The endings once U is known: crossing U(zeta) counts before a timeout, and after a
        terminal state."""
        return _first(
            {
                Ending.NON_FINITE: (ending == Ending.NON_FINITE) | ~jnp.isfinite(uncertainty),
                Ending.TERMINAL: ending == Ending.TERMINAL,
                Ending.UNCERTAIN: uncertainty > self.threshold,
            },
            ending,
        )


def _first(
    reasons: dict[Ending, Bool[Array, "*steps"]], otherwise: Int[Array, "*#steps"]
) -> Int[Array, "*steps"]:
    return jnp.select(list(reasons.values()), [jnp.int8(reason) for reason in reasons], otherwise)
