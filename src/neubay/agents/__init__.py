"""Agents: what learns from tapes and acts on histories."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

from neubay.agents import bc, dqn, redq
from neubay.agents.layers import Standardiser as Standardiser
from neubay.config import AgentConfig
from neubay.errors import ConfigError
from neubay.tape import Tape

AgentState = Any  # a pytree: all that training changes


@runtime_checkable
class Agent(Protocol):
    """Sizes and settings; everything that is learned is in the state."""

    @property
    def config(self) -> AgentConfig: ...

    def init(self, key: PRNGKeyArray, constants: Standardiser | None = None) -> AgentState:
        """Networks before training; `constants` standardise their inputs, where the settings want
        that."""
        ...

    def update(self, state: AgentState, tapes: Tape) -> tuple[AgentState, dict[str, Any]]:
        """One gradient step per tape. The state passed in must not be used again."""
        ...

    def warm(self, state: AgentState) -> AgentState:
        """The state at the beginning of a warm start."""
        ...

    def warm_update(self, state: AgentState, tapes: Tape) -> tuple[AgentState, dict[str, Any]]:
        """One gradient step of a warm start per tape of the data with its returns."""
        ...

    def warmed(self, state: AgentState) -> AgentState:
        """The state at the end of a warm start, where the training begins."""
        ...

    def policy(self, state: AgentState, deterministic: bool) -> Any:
        """The policy for imagination and evaluation: `initial`, `recall`, `act`."""
        ...

    def values(self, state: AgentState, tapes: Tape) -> Float[Array, "batches rows *slots"]:
        """Q(h_t, a_t) at the tapes' own actions; NaN where there is no critic."""
        ...


def update(agent: Agent, state: AgentState, tapes: Tape) -> tuple[AgentState, dict[str, Any]]:
    """How a training makes gradient steps, unless `devices.together` makes those of several."""
    return agent.update(state, tapes)


Update = Callable[[Agent, AgentState, Tape], tuple[AgentState, dict[str, Any]]]

ALGORITHMS: dict[tuple[str, str], Callable[[int, int, AgentConfig], Agent]] = {
    ("redq", "continuous"): redq.Agent,
    ("bc", "continuous"): bc.Agent,
    ("bc", "discrete"): bc.DiscreteAgent,
    ("dqn", "discrete"): dqn.Agent,
}


def make(
    state_size: int, action_size: int, kind: Literal["continuous", "discrete"], config: AgentConfig
) -> Agent:
    """The agent of a configuration."""
    if (config.algorithm, kind) not in ALGORITHMS:
        fitting = " or ".join(name for name, actions in ALGORITHMS if actions == kind)
        raise ConfigError(
            f"agent.algorithm {config.algorithm} cannot act in a task with {kind} actions: "
            f"choose another --variant, or --agent.algorithm {fitting}"
        )
    return ALGORITHMS[config.algorithm, kind](state_size, action_size, config)
