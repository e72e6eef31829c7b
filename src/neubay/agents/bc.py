"""Behaviour cloning with the recurrent actor of REDQ: the baseline that imagines nothing.

Only the transitions of the data count. The mode of the policy, which is what evaluation uses, is
fitted to the actions by least squares; sigma is fitted around it by maximum likelihood, so that
samples of the policy are as spread as the data is.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neubay.agents.learning import (
    Metrics,
    actor_decay,
    descend,
    init_optimiser,
    mean_weights,
    transition_kinds,
)
from neubay.agents.networks import Actor, RecurrentPolicy, TanhGaussian, generator, observe
from neubay.config import AgentConfig
from neubay.tape import Tape, agent_input

LARGEST_ACTION = 1 - 1e-3
"""Actions are drawn in to this before atanh: at 1 the Gaussian would have to reach infinity."""


class AgentState(NamedTuple):
    """Everything that training changes."""

    actor: Actor
    optimiser: optax.OptState
    step: Int[Array, ""]


@dataclass(frozen=True)
class Agent:
    """A recurrent imitator: its sizes and settings. What it has learned is an `AgentState`."""

    state_size: int
    action_size: int
    config: AgentConfig

    def init(self, key: PRNGKeyArray) -> AgentState:
        actor = Actor(self.state_size, self.action_size, self.config, rng=generator(key))
        return AgentState(actor, init_optimiser(actor), jnp.zeros((), jnp.int32))

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, state: AgentState, tapes: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on each tape; `tapes` has leaves (batches, rows, ...).

        Gives the mean of the metrics over the steps. The state handed in is given up.
        """
        state, metrics = lax.scan(partial(_gradient_step, self.config), state, tapes)
        return state, {name: values.mean() for name, values in metrics.items()}

    def policy(self, state: AgentState, deterministic: bool) -> RecurrentPolicy:
        return RecurrentPolicy(state.actor, deterministic)

    def values(self, state: AgentState, tapes: Tape) -> Float[Array, "batches rows"]:
        """An imitator does not judge: not a number."""
        return jnp.full(tapes.reward.shape, jnp.nan)


def _gradient_step(
    config: AgentConfig, state: AgentState, tape: Tape
) -> tuple[AgentState, Metrics]:
    inputs = agent_input(tape)
    weights = mean_weights(transition_kinds(tape).real)
    u = jnp.arctanh(jnp.clip(tape.action, -LARGEST_ACTION, LARGEST_ACTION))

    def loss(actor: Actor) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
        policy = actor(observe(inputs), inputs.start)
        squared_error = weights @ ((policy.mode() - tape.action) ** 2).sum(axis=-1)
        around_mode = TanhGaussian(lax.stop_gradient(policy.mean), policy.log_sigma)
        log_prob = weights @ around_mode.log_prob(u)
        return squared_error - log_prob, (squared_error, log_prob)

    gradient, (squared_error, log_prob) = jax.grad(loss, has_aux=True)(state.actor)
    actor, optimiser, health = descend(
        state.actor, gradient, state.optimiser, config, actor_decay(config, state.step)
    )
    metrics = {
        "squared_error": squared_error,
        "log_likelihood": log_prob,
        "actor_gradient_norm": health.norm,
        "nonfinite_gradients": health.nonfinite,
    }
    return AgentState(actor, optimiser, state.step + 1), metrics
