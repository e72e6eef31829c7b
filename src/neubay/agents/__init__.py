"""Agents: what learns from tapes and acts on histories."""

from collections.abc import Callable
from typing import Any, Literal

from neubay.agents import bc, dqn, redq
from neubay.agents.layers import Standardiser as Standardiser
from neubay.agents.learning import RecurrentAgent as Agent
from neubay.config import AgentConfig
from neubay.errors import ConfigError
from neubay.tape import Tape

AgentState = Any  # a pytree: all that training changes


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
