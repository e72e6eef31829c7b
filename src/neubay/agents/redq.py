"""REDQ on recurrent features: the paper's agent for continuous control. SAC is 2 of 2 heads.

A batch is a tape. Every loss is a weighted mean over its transitions, kappa for the real ones and
1 - kappa for the imagined ones. With h' the history one row on,

    y        = r + gamma (1 - d) (min over M of Q_target(h', a') - alpha log pi(a' | h'))
    L_critic = mean over heads of Huber(Q(h, a) - y)
    L_actor  = alpha log pi(a~ | h) - mean over heads of Q(h, a~)
    L_alpha  = -alpha (log pi(a~ | h) + target entropy)

where a~ ~ pi(h), a' ~ pi(h') and M is a random subset of the target heads. The actor runs over the
tape once: the action sampled at row t is the a~ of row t and the a' of row t - 1. The critic steps
first, and the new one judges a~. The heads' outputs are values in units of `value_unit`, and so is
the error beyond which Huber's loss is linear.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from neubay.agents.layers import Standardiser
from neubay.agents.learning import (
    Average,
    GradientHealth,
    Metrics,
    RecurrentAgent,
    alpha_optimiser,
    averaged,
    bootstrapped,
    copied,
    descend,
    init_optimiser,
    kept,
    mean_weights,
    mixture_weights,
    network_optimiser,
    q_metrics,
    transition_kinds,
    warm_optimiser,
)
from neubay.agents.networks import (
    Actor,
    Critic,
    GaussianPolicy,
    Head,
    Histories,
    generator,
    imitation,
    q_value,
    read,
    untrained,
)
from neubay.config import AgentConfig
from neubay.devices import choices
from neubay.tape import AnyArray, Tape

Sums = TypeVar("Sums")
Each = TypeVar("Each")


class AgentState(NamedTuple):
    """Everything that training changes."""

    actor: Actor
    critic: Critic
    target: Critic
    log_alpha: Float[Array, ""]
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    alpha_optimiser: optax.OptState
    key: PRNGKeyArray
    average: Average | None = None
    """Of the actor."""


class Agent(RecurrentAgent):
    """A recurrent actor-critic."""

    @property
    def actor_optimiser(self) -> optax.GradientTransformation:
        return network_optimiser(self.config, decay=True)

    @property
    def critic_optimiser(self) -> optax.GradientTransformation:
        return network_optimiser(self.config, decay=self.config.decay_critic)

    @property
    def alpha_optimiser(self) -> optax.GradientTransformation:
        return alpha_optimiser(self.config)

    def init(self, key: PRNGKeyArray, constants: Standardiser | None = None) -> AgentState:
        key, weights_key = jax.random.split(key)
        rng = generator(weights_key)
        sizes = self.state_size, self.action_size, self.config
        constants = constants or self.constants
        actor = untrained(Actor, *sizes, rng=rng, standardise=constants)
        critic = untrained(Critic, *sizes, rng=rng, standardise=copied(constants))
        log_alpha = jnp.asarray(math.log(self.config.alpha), jnp.float32)
        return AgentState(
            actor=actor,
            critic=critic,
            target=copied(critic),
            log_alpha=log_alpha,
            actor_optimiser=init_optimiser(self.actor_optimiser, actor),
            critic_optimiser=init_optimiser(self.critic_optimiser, critic),
            alpha_optimiser=init_optimiser(self.alpha_optimiser, log_alpha),
            key=key,
            average=Average.begin(actor, self.config.average_share),
        )

    def gradient_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on one tape: the critic's, then the actor's by the new critic."""
        key, noise_key, subset_key = jax.random.split(state.key, 3)
        histories, tape = read(tape, self.burn_in)
        noise = jax.random.normal(noise_key, tape.action.shape)
        kinds = transition_kinds(tape)
        weights = mixture_weights(kinds, self.kappa)
        alpha = jnp.exp(state.log_alpha)

        # a~ ~ pi(h) and its log-probability; the critic's target y.
        (action, log_prob), actor_vjp = jax.vjp(
            lambda actor: actor(histories).sample(noise), state.actor
        )
        next_q = _target_q(self.config, state.target, histories, action, subset_key)
        target = bootstrapped(tape, self.value_unit * next_q - alpha * log_prob, self.gamma)

        # L_critic, and the critic's step.
        d_critic, fitted = self._critic_gradient(
            state.critic, histories, tape.action, target, weights
        )
        state, critic_health = self._descend_critic(state, d_critic)

        # L_actor: a~ moves to where the new critic sees a higher Q.
        features = histories.features(state.critic.encoder)
        judged = _judge(self.config, state.critic.head, features, action, weights)
        (d_actor,) = actor_vjp((-self.value_unit * judged.d_action, alpha * weights))
        entropy = -jnp.vdot(weights, log_prob)
        alpha_loss = alpha * (
            entropy - self.config.target_entropy * self.action_size * weights.sum()
        )
        state, actor_health = self._descend_actor(state, d_actor, alpha_loss)

        metrics = {
            "critic_loss": fitted.loss,
            "actor_loss": -alpha * entropy - self.value_unit * judged.q,
            "alpha_loss": alpha_loss,
            "alpha": alpha,
            "entropy": entropy / jnp.maximum(weights.sum(), 1e-6),
            "actor_gradient_norm": actor_health.norm,
            "critic_gradient_norm": critic_health.norm,
            "nonfinite_gradients": actor_health.nonfinite + critic_health.nonfinite,
            **q_metrics(kinds, self.value_unit * fitted.q),
        }
        return state._replace(key=key), metrics

    def warm(self, state: AgentState) -> AgentState:
        """The state at the beginning of a warm start, with optimisers of its own."""
        optimiser = warm_optimiser(self.config)
        return state._replace(
            actor_optimiser=init_optimiser(optimiser, state.actor),
            critic_optimiser=init_optimiser(optimiser, state.critic),
        )

    def warmed(self, state: AgentState) -> AgentState:
        """The state at its end: what the networks have learned, and fresh optimisers."""
        return state._replace(
            target=copied(state.critic),
            actor_optimiser=init_optimiser(self.actor_optimiser, state.actor),
            critic_optimiser=init_optimiser(self.critic_optimiser, state.critic),
        )

    def warm_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """The actor clones the data; the critic learns the data's discounted returns."""
        histories, tape = read(tape, self.burn_in)
        kinds = transition_kinds(tape)
        weights = mean_weights(kinds.real)
        optimiser = warm_optimiser(self.config)
        d_actor, fit = jax.grad(imitation, has_aux=True)(
            state.actor, histories, tape.action, weights
        )
        d_critic, fitted = self._critic_gradient(
            state.critic, histories, tape.action, jnp.asarray(tape.target_reward), weights
        )
        actor, actor_optimiser, _ = descend(optimiser, state.actor, d_actor, state.actor_optimiser)
        critic, critic_optimiser, _ = descend(
            optimiser, state.critic, d_critic, state.critic_optimiser
        )
        state = state._replace(
            actor=actor,
            critic=critic,
            actor_optimiser=actor_optimiser,
            critic_optimiser=critic_optimiser,
        )
        metrics = {
            "critic_loss": fitted.loss,
            **fit,
            **q_metrics(kinds, self.value_unit * fitted.q),
        }
        return state, metrics

    def _critic_gradient(
        self,
        critic: Critic,
        histories: Histories,
        action: Float[AnyArray, "rows *slots a"],
        target: Float[Array, "rows *slots"],
        weights: Float[Array, "rows *slots"],
    ) -> tuple[Critic, "Fitted"]:
        """The gradient of L_critic: head by head, then back through the encoder."""
        features, encoder_vjp = jax.vjp(histories.features, critic.encoder)
        fitted, d_heads = _fit_heads(
            self.config, critic.head, features, action, target / self.value_unit, weights
        )
        (d_encoder,) = encoder_vjp(fitted.d_features)
        return eqx.tree_at(lambda c: (c.encoder, c.head), critic, (d_encoder, d_heads)), fitted

    def _descend_critic(
        self, state: AgentState, gradient: Critic
    ) -> tuple[AgentState, GradientHealth]:
        """A step of the critic, and of its target after it."""
        critic, optimiser, health = descend(
            self.critic_optimiser, state.critic, gradient, state.critic_optimiser
        )
        target = optax.incremental_update(critic, state.target, self.config.polyak)
        return state._replace(critic=critic, target=target, critic_optimiser=optimiser), health

    def _descend_actor(
        self, state: AgentState, gradient: Actor, alpha_loss: Float[Array, ""]
    ) -> tuple[AgentState, GradientHealth]:
        """A step of the actor, and of alpha where it is tuned."""
        actor, optimiser, health = descend(
            self.actor_optimiser, state.actor, gradient, state.actor_optimiser
        )
        average = averaged(state.average, actor, self.config.average_share)
        state = state._replace(actor=actor, actor_optimiser=optimiser, average=average)
        if self.config.tune_alpha:  # with respect to log alpha, the loss is its own gradient
            log_alpha, optimiser, _ = descend(
                self.alpha_optimiser, state.log_alpha, alpha_loss, state.alpha_optimiser
            )
            state = state._replace(log_alpha=log_alpha, alpha_optimiser=optimiser)
        return state, health

    def policy(self, state: AgentState, deterministic: bool) -> GaussianPolicy:
        return GaussianPolicy(kept(state.average, state.actor), deterministic)

    def behaviour(self, state: AgentState) -> GaussianPolicy:
        return GaussianPolicy(state.actor, deterministic=False)

    def tape_values(self, state: AgentState, tape: Tape) -> Float[Array, "rows *slots"]:
        histories, tape = read(tape, 0)
        features = histories.features(state.critic.encoder)
        return self.value_unit * _q(state.critic.head, features, tape.action).mean(axis=0)


class Fitted(NamedTuple):
    """L_critic in units of the values, summed over the heads, each of which counts 1 / heads."""

    d_features: Float[Array, "*rows width"]
    loss: Float[Array, ""]
    q: Float[Array, "*rows"]  # Q(h, a)


def _fit_heads(
    config: AgentConfig,
    heads: Head,
    features: Float[Array, "*rows width"],
    action: Float[AnyArray, "*rows a"],
    target: Float[Array, "*rows"],
    weights: Float[Array, "*rows"],
) -> tuple[Fitted, Head]:
    """L_critic of all heads, and their gradients."""

    def loss(
        head: Head, features: Float[Array, "*rows width"]
    ) -> tuple[Float[Array, ""], Float[Array, "*rows"]]:
        q = q_value(head, features, action)
        errors = optax.huber_loss(q, target, delta=config.huber)
        return jnp.vdot(weights, errors) / config.heads, q / config.heads

    def one_head(head: Head) -> tuple[Fitted, Head]:
        (value, q), (d_head, d_features) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
            head, features
        )
        return Fitted(d_features, value, q), d_head

    zeros = jax.tree.map(jnp.zeros_like, Fitted(features, jnp.zeros(()), weights))
    return _over_heads(one_head, heads, zeros)


class Judged(NamedTuple):
    """The mean over heads of Q(h, a~), in units of the values, weighted over rows."""

    d_action: Float[Array, "*rows a"]
    q: Float[Array, ""]


def _judge(
    config: AgentConfig,
    heads: Head,
    features: Float[Array, "*rows width"],
    action: Float[Array, "*rows a"],
    weights: Float[Array, "*rows"],
) -> Judged:
    """What all heads say of the policy's actions, and where a higher Q lies."""

    def value(action: Float[Array, "*rows a"], head: Head) -> Float[Array, ""]:
        return jnp.vdot(weights, q_value(head, features, action)) / config.heads

    def one_head(head: Head) -> tuple[Judged, None]:
        q, d_action = jax.value_and_grad(value)(action, head)
        return Judged(d_action, q), None

    return _over_heads(one_head, heads, Judged(jnp.zeros_like(action), jnp.zeros(())))[0]


def _over_heads(
    one_head: Callable[[Head], tuple[Sums, Each]], heads: Head, zeros: Sums
) -> tuple[Sums, Each]:
    """What `one_head` gives: the sums over all heads, and what is each head's own, stacked."""
    if choices.heads_side_by_side():
        parts, each = jax.vmap(one_head)(heads)
        return jax.tree.map(lambda part: part.sum(axis=0), parts), each

    def next_head(sums: Sums, head: Head) -> tuple[Sums, Each]:
        part, each = one_head(head)
        return jax.tree.map(jnp.add, sums, part), each

    return lax.scan(next_head, zeros, heads)


def _target_q(
    config: AgentConfig,
    target: Critic,
    histories: Histories,
    action: Float[Array, "rows *slots a"],
    key: PRNGKeyArray,
) -> Float[Array, "rows *slots"]:
    """The minimum over a random subset of the target critic's heads; the others are not run."""
    features = histories.features(target.encoder)
    _, subset = lax.top_k(jax.random.uniform(key, (config.heads,)), config.target_heads)
    heads = jax.tree.map(lambda leaf: leaf[subset], target.head)
    return _q(heads, features, action).min(axis=0)


def _q(
    heads: Head, features: Float[Array, "*rows width"], action: Float[AnyArray, "*rows a"]
) -> Float[Array, "heads *rows"]:
    def one_head(head: Head) -> Float[Array, "*rows"]:
        return q_value(head, features, action)

    return jax.vmap(one_head)(heads) if choices.heads_side_by_side() else lax.map(one_head, heads)


def update_flops(state_size: int, action_size: int, config: AgentConfig, rows: int) -> int:
    """Floating-point operations of the matrix products of one gradient step, from their shapes."""
    width, memory = config.width, 2 * config.memory_size
    if config.memory == "none":
        features, project, blocks = state_size, 0, 0
    else:
        features, project = width, (state_size + action_size + 1) * width
        blocks = config.memory_layers * (2 * width * memory + width * 2 * width)
    if config.memory == "gated":  # the state stands beside what memory gives
        features += state_size
    deeper = (config.head_depth - 1) * width * width
    # A product costs once forwards, once for its weights' gradient, once for its input's; what
    # comes from the tape needs no gradient, nor do weights where the new critic judges the policy.
    embed, from_action, rest = features * width, action_size * width, deeper + width
    encoder = 2 * project + 3 * blocks
    actor = encoder + 3 * (features * width + deeper + width * 2 * action_size)
    critic = encoder + config.heads * (3 * embed + 2 * from_action + 3 * rest)
    judging = project + blocks + config.heads * (embed + 2 * from_action + 2 * rest)
    target = project + blocks + config.target_heads * (embed + from_action + rest)
    if config.memory == "none":  # the states need no gradient either
        actor, critic = actor - features * width, critic - config.heads * embed
    return 2 * rows * (actor + critic + judging + target)
