"""Behaviour cloning with the recurrent actor of REDQ: the baseline that imagines nothing.

Only the transitions of the data count.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from neubay.agents.layers import Standardiser
from neubay.agents.learning import (
    Metrics,
    RecurrentAgent,
    descend,
    init_optimiser,
    mean_weights,
    network_optimiser,
    transition_kinds,
)
from neubay.agents.networks import (
    Actor,
    GaussianPolicy,
    Imitation,
    generator,
    imitation,
    read,
)
from neubay.tape import Tape


class AgentState(NamedTuple):
    """Everything that training changes."""

    actor: Actor
    optimiser: optax.OptState


class Agent(RecurrentAgent):
    """A recurrent imitator."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return network_optimiser(self.config, decay=True)

    def init(self, key: PRNGKeyArray, constants: Standardiser | None = None) -> AgentState:
        sizes = self.state_size, self.action_size, self.config
        actor = Actor(*sizes, rng=generator(key), standardise=constants or self.constants)
        return AgentState(actor, init_optimiser(self.optimiser, actor))

    def gradient_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on one tape."""
        histories, tape = read(tape, self.burn_in)
        weights = mean_weights(transition_kinds(tape).real)

        def loss(actor: Actor) -> tuple[Float[Array, ""], Imitation]:
            fit = imitation(actor(histories), tape.action, weights)
            return fit.loss, fit

        gradient, fit = jax.grad(loss, has_aux=True)(state.actor)
        actor, optimiser, health = descend(self.optimiser, state.actor, gradient, state.optimiser)
        metrics = {
            "squared_error": fit.squared_error,
            "log_likelihood": fit.log_likelihood,
            "actor_gradient_norm": health.norm,
            "nonfinite_gradients": health.nonfinite,
        }
        return AgentState(actor, optimiser), metrics

    def policy(self, state: AgentState, deterministic: bool) -> GaussianPolicy:
        return GaussianPolicy(state.actor, deterministic)

    def values(self, state: AgentState, tapes: Tape) -> Float[Array, "batches rows *slots"]:
        """NaN: an imitator has no critic."""
        return jnp.full(tapes.reward.shape, jnp.nan)
