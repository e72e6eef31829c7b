"""Behaviour cloning on recurrent features: the baseline that imagines nothing.

Only the transitions of the data count. With continuous actions the network is the actor of REDQ.
With discrete ones it gives a logit for every action, and

    L = -log softmax(logits(h))[a].
"""

import abc
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PRNGKeyArray

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
    ActorPolicy,
    GaussianPolicy,
    Head,
    Histories,
    Network,
    before_tanh,
    generator,
    imitation,
    one_hot_choice,
    read,
    untrained,
)
from neubay.config import AgentConfig
from neubay.tape import AnyArray, Tape


class Chooser(Network):
    """A distribution over discrete actions: an encoder, and one head for the logits."""

    @staticmethod
    def make_head(
        features: int, action_size: int, config: AgentConfig, rng: np.random.Generator
    ) -> Head:
        return Head(features, config.width, config.head_depth, action_size, rng=rng)

    def __call__(self, histories: Histories) -> Float[Array, "rows *slots a"]:
        """The logits at every row that is learnt from."""
        return self.head(histories.features(self.encoder))


class CategoricalPolicy(ActorPolicy):
    """The likeliest action, or a sample."""

    def choose(
        self, features: Float[Array, "k width"], keys: Key[Array, " k"]
    ) -> Float[Array, "k a"]:
        logits = self.actor.head(features)
        scores = logits
        if not self.deterministic:
            scores += jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
        return one_hot_choice(scores.argmax(axis=-1), logits)


class AgentState(NamedTuple):
    """Everything that training changes."""

    actor: Any
    optimiser: optax.OptState


class Imitator(RecurrentAgent):
    """What imitators of both kinds of actions share."""

    network: type[Actor] | type[Chooser]

    @abc.abstractmethod
    def loss(
        self,
        actor: Any,
        histories: Histories,
        action: Float[AnyArray, "rows *slots a"],
        weights: Float[Array, "rows *slots"],
    ) -> tuple[Float[Array, ""], Metrics]:
        """How badly the actions are imitated, and what is told of it."""

    @abc.abstractmethod
    def log_likelihood(self, actor: Any, tape: Tape) -> Float[Array, "rows *slots"]:
        """Log-likelihood of the action at every row."""

    @property
    @abc.abstractmethod
    def any_action(self) -> float:
        """Log-density of an action of which nothing is known."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return network_optimiser(self.config, decay=True)

    def init(self, key: PRNGKeyArray, constants: Standardiser | None = None) -> AgentState:
        sizes = self.state_size, self.action_size, self.config
        actor = untrained(
            self.network, *sizes, rng=generator(key), standardise=constants or self.constants
        )
        return AgentState(actor, init_optimiser(self.optimiser, actor))

    def gradient_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on one tape."""
        histories, tape = read(tape, self.burn_in)
        weights = mean_weights(transition_kinds(tape).real)
        gradient, told = jax.grad(self.loss, has_aux=True)(
            state.actor, histories, tape.action, weights
        )
        actor, optimiser, health = descend(self.optimiser, state.actor, gradient, state.optimiser)
        metrics = {
            **told,
            "actor_gradient_norm": health.norm,
            "nonfinite_gradients": health.nonfinite,
        }
        return AgentState(actor, optimiser), metrics

    def tape_values(self, state: AgentState, tape: Tape) -> Float[Array, "rows *slots"]:
        """NaN: an imitator has no critic."""
        return jnp.full(tape.reward.shape, jnp.nan)


class Agent(Imitator):
    """A recurrent imitator of continuous actions."""

    network = Actor

    def loss(
        self,
        actor: Actor,
        histories: Histories,
        action: Float[AnyArray, "rows *slots a"],
        weights: Float[Array, "rows *slots"],
    ) -> tuple[Float[Array, ""], Metrics]:
        return imitation(actor, histories, action, weights)

    def log_likelihood(self, actor: Actor, tape: Tape) -> Float[Array, "rows *slots"]:
        return actor(read(tape, 0)[0]).log_prob(before_tanh(tape.action))

    @property
    def any_action(self) -> float:
        return -self.action_size * math.log(2)  # of [-1, 1] in every dimension

    def policy(self, state: AgentState, deterministic: bool) -> GaussianPolicy:
        return GaussianPolicy(state.actor, deterministic)


class DiscreteAgent(Imitator):
    """A recurrent imitator of discrete actions, which are one-hot."""

    network = Chooser

    def loss(
        self,
        actor: Chooser,
        histories: Histories,
        action: Float[AnyArray, "rows *slots a"],
        weights: Float[Array, "rows *slots"],
    ) -> tuple[Float[Array, ""], Metrics]:
        logits = actor(histories)
        likelihood = _log_probability(logits, action)
        likeliest = logits.argmax(axis=-1) == jnp.asarray(action).argmax(axis=-1)
        told = {
            "log_likelihood": jnp.vdot(weights, likelihood),
            "accuracy": jnp.vdot(weights, likeliest.astype(jnp.float32)),
        }
        return -told["log_likelihood"], told

    def log_likelihood(self, actor: Chooser, tape: Tape) -> Float[Array, "rows *slots"]:
        return _log_probability(actor(read(tape, 0)[0]), tape.action)

    @property
    def any_action(self) -> float:
        return -math.log(self.action_size)

    def policy(self, state: AgentState, deterministic: bool) -> CategoricalPolicy:
        return CategoricalPolicy(state.actor, deterministic)


def _log_probability(
    logits: Float[Array, "*rows a"], action: Float[AnyArray, "*rows a"]
) -> Float[Array, "*rows"]:
    return (jax.nn.log_softmax(logits) * action).sum(axis=-1)
