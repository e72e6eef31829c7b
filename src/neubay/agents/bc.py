"""Behaviour cloning with the recurrent actor of REDQ: the baseline that imagines nothing.

Only the transitions of the data count. The mode of the policy, which is what evaluation uses, is
fitted to the actions by least squares; sigma is fitted around it by maximum likelihood, so that
samples of the policy are as spread as the data is.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from neubay.agents.learning import (
    Metrics,
    RecurrentAgent,
    descend,
    init_optimiser,
    mean_weights,
    network_optimiser,
    transition_kinds,
)
from neubay.agents.networks import Actor, GaussianPolicy, TanhGaussian, generator, observe
from neubay.tape import Tape, agent_input

LARGEST_ACTION = 1 - 1e-3
"""Actions are clipped to this before atanh, which is infinite at 1."""


class AgentState(NamedTuple):
    """Everything that training changes."""

    actor: Actor
    optimiser: optax.OptState


class Agent(RecurrentAgent):
    """A recurrent imitator."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return network_optimiser(self.config, decay=True)

    def init(self, key: PRNGKeyArray) -> AgentState:
        actor = Actor(self.state_size, self.action_size, self.config, rng=generator(key))
        return AgentState(actor, init_optimiser(self.optimiser, actor))

    def gradient_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on one tape."""
        inputs = agent_input(tape)
        weights = mean_weights(transition_kinds(tape).real)
        u = jnp.arctanh(jnp.clip(tape.action, -LARGEST_ACTION, LARGEST_ACTION))

        def loss(
            actor: Actor,
        ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
            policy = actor(observe(inputs), inputs.start)
            squared_error = weights @ ((policy.mode() - tape.action) ** 2).sum(axis=-1)
            around_mode = TanhGaussian(lax.stop_gradient(policy.mean), policy.log_sigma)
            log_prob = weights @ around_mode.log_prob(u)
            return squared_error - log_prob, (squared_error, log_prob)

        gradient, (squared_error, log_prob) = jax.grad(loss, has_aux=True)(state.actor)
        actor, optimiser, health = descend(self.optimiser, state.actor, gradient, state.optimiser)
        metrics = {
            "squared_error": squared_error,
            "log_likelihood": log_prob,
            "actor_gradient_norm": health.norm,
            "nonfinite_gradients": health.nonfinite,
        }
        return AgentState(actor, optimiser), metrics

    def policy(self, state: AgentState, deterministic: bool) -> GaussianPolicy:
        return GaussianPolicy(state.actor, deterministic)

    def values(self, state: AgentState, tapes: Tape) -> Float[Array, "batches rows"]:
        """NaN: an imitator has no critic."""
        return jnp.full(tapes.reward.shape, jnp.nan)
