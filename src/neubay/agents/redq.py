"""REDQ on recurrent features: the paper's agent for continuous control. SAC is 2 of 2 heads.

A batch is a tape. Every loss is a weighted mean over its transitions, kappa for the real ones and
1 - kappa for the imagined ones. With h' the history one row on,

    y        = r + gamma (1 - d) (min over M of Q_target(h', a') - alpha log pi(a' | h'))
    L_critic = mean over heads of Huber(Q(h, a) - y)
    L_actor  = alpha log pi(a~ | h) - mean over heads of Q(h, a~)
    L_alpha  = -alpha (log pi(a~ | h) + target entropy)

where a~ ~ pi(h), a' ~ pi(h') and M is a random subset of the target heads. Each network runs over
the tape once: the action sampled at row t is the a~ of row t and the a' of row t - 1, and the
critic's features serve both Q(h, a) and Q(h, a~).
"""

import math
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from neubay.agents.learning import (
    Metrics,
    RecurrentAgent,
    alpha_optimiser,
    bootstrapped,
    descend,
    init_optimiser,
    mixture_weights,
    network_optimiser,
    q_metrics,
    transition_kinds,
)
from neubay.agents.networks import (
    Actor,
    Critic,
    GaussianPolicy,
    Head,
    generator,
    observe,
    q_embed,
    q_value,
)
from neubay.config import AgentConfig
from neubay.tape import AnyArray, Tape, agent_input


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

    def init(self, key: PRNGKeyArray) -> AgentState:
        key, weights_key = jax.random.split(key)
        rng = generator(weights_key)
        actor = Actor(self.state_size, self.action_size, self.config, rng=rng)
        critic = Critic(self.state_size, self.action_size, self.config, rng=rng)
        log_alpha = jnp.asarray(math.log(self.config.alpha), jnp.float32)
        return AgentState(
            actor=actor,
            critic=critic,
            target=jax.tree.map(jnp.copy, critic),  # updates may overwrite both
            log_alpha=log_alpha,
            actor_optimiser=init_optimiser(self.actor_optimiser, actor),
            critic_optimiser=init_optimiser(self.critic_optimiser, critic),
            alpha_optimiser=init_optimiser(self.alpha_optimiser, log_alpha),
            key=key,
        )

    def gradient_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on one tape."""
        config = self.config
        key, noise_key, subset_key = jax.random.split(state.key, 3)
        noise = jax.random.normal(noise_key, tape.action.shape)
        inputs = agent_input(tape)
        observed, start = observe(inputs), inputs.start
        kinds = transition_kinds(tape)
        weights = mixture_weights(kinds, config.kappa)
        alpha = jnp.exp(state.log_alpha)

        # Actor and critic read the tape: a~ ~ pi(h), its log-probability, the critic's features.
        (action, log_prob), actor_vjp = jax.vjp(
            lambda actor: actor(observed, start).sample(noise), state.actor
        )
        features, encoder_vjp = jax.vjp(
            lambda encoder: encoder(observed, start), state.critic.encoder
        )

        # The critic's target y, and L_critic and L_actor up to the entropy.
        next_q = _target_q(config, state.target, observed, start, action, subset_key)
        target = bootstrapped(tape, next_q - alpha * log_prob, config.gamma)
        judged, d_heads = _judge(
            config, state.critic.head, features, action, tape.action, target, weights
        )

        # Back through the encoders.
        (d_actor,) = actor_vjp((judged.d_action, alpha * weights))
        (d_encoder,) = encoder_vjp(judged.d_features)
        d_critic = eqx.tree_at(lambda c: (c.encoder, c.head), state.critic, (d_encoder, d_heads))
        alpha_loss = -alpha * (weights @ (log_prob + config.target_entropy * self.action_size))

        state, health = self._descend(state, d_actor, d_critic, alpha_loss)
        metrics = {
            "critic_loss": judged.critic_loss,
            "actor_loss": alpha * (weights @ log_prob) - judged.policy_q,
            "alpha_loss": alpha_loss,
            "alpha": alpha,
            "entropy": -(weights @ log_prob) / jnp.maximum(weights.sum(), 1e-6),
            **health,
            **q_metrics(kinds, judged.q),
        }
        return state._replace(key=key), metrics

    def _descend(
        self, state: AgentState, d_actor: Actor, d_critic: Critic, alpha_loss: Float[Array, ""]
    ) -> tuple[AgentState, Metrics]:
        """A step of every optimiser, and the target critic after the critic."""
        actor, actor_optimiser, actor_health = descend(
            self.actor_optimiser, state.actor, d_actor, state.actor_optimiser
        )
        critic, critic_optimiser, critic_health = descend(
            self.critic_optimiser, state.critic, d_critic, state.critic_optimiser
        )
        log_alpha, alpha_optimiser = state.log_alpha, state.alpha_optimiser
        if self.config.tune_alpha:  # with respect to log alpha, the loss is its own gradient
            log_alpha, alpha_optimiser, _ = descend(
                self.alpha_optimiser, log_alpha, alpha_loss, alpha_optimiser
            )
        state = state._replace(
            actor=actor,
            critic=critic,
            target=optax.incremental_update(critic, state.target, self.config.polyak),
            log_alpha=log_alpha,
            actor_optimiser=actor_optimiser,
            critic_optimiser=critic_optimiser,
            alpha_optimiser=alpha_optimiser,
        )
        return state, {
            "actor_gradient_norm": actor_health.norm,
            "critic_gradient_norm": critic_health.norm,
            "nonfinite_gradients": actor_health.nonfinite + critic_health.nonfinite,
        }

    def policy(self, state: AgentState, deterministic: bool) -> GaussianPolicy:
        return GaussianPolicy(state.actor, deterministic)

    @partial(jax.jit, static_argnums=0)
    def values(self, state: AgentState, tapes: Tape) -> Float[Array, "batches rows"]:
        """Q(h_t, a_t) at the tapes' own actions, the mean over heads.

        A row that is no transition has no action, and its value means nothing.
        """

        def one_tape(tape: Tape) -> Float[Array, " rows"]:
            inputs = agent_input(tape)
            features = state.critic.encoder(observe(inputs), inputs.start)
            return _q(state.critic.head, features, tape.action).mean(axis=0)

        return lax.map(one_tape, tapes)


class Judged(NamedTuple):
    """Sums over the critic's heads, each of which counts 1 / heads."""

    d_features: Float[Array, "rows width"]  # of L_critic
    d_action: Float[Array, "rows a"]  # of L_actor: a~ moves to where Q is higher
    critic_loss: Float[Array, ""]
    policy_q: Float[Array, ""]  # Q(h, a~), weighted over rows
    q: Float[Array, " rows"]  # Q(h, a)


def _judge(
    config: AgentConfig,
    heads: Head,
    features: Float[Array, "rows width"],
    policy_action: Float[Array, "rows a"],
    action: Float[AnyArray, "rows a"],
    target: Float[Array, " rows"],
    weights: Float[Array, " rows"],
) -> tuple[Judged, Head]:
    """What all heads say of the data's actions and of the policy's; and the heads' gradients.

    Critic and actor loss meet in the heads. Each head is differentiated before the next one is
    run, so that its activations never leave the processor's cache.
    """

    def loss(
        head: Head, features: Float[Array, "rows width"], policy_action: Float[Array, "rows a"]
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""], Float[Array, " rows"]]]:
        embedded = q_embed(head, features)
        q = q_value(head, embedded, action)
        critic_loss = weights @ optax.huber_loss(q, target, delta=config.huber) / config.heads
        frozen_head, frozen_embedded = lax.stop_gradient((head, embedded))
        policy_q = weights @ q_value(frozen_head, frozen_embedded, policy_action) / config.heads
        return critic_loss - policy_q, (critic_loss, policy_q, q / config.heads)

    def one_head(sums: Judged, head: Head) -> tuple[Judged, Head]:
        (d_head, *d_inputs), values = jax.grad(loss, (0, 1, 2), has_aux=True)(
            head, features, policy_action
        )
        return jax.tree.map(jnp.add, sums, Judged(*d_inputs, *values)), d_head

    nothing = jnp.zeros(())
    zeros = jax.tree.map(jnp.zeros_like, Judged(features, policy_action, nothing, nothing, weights))
    return lax.scan(one_head, zeros, heads)


def _target_q(
    config: AgentConfig,
    target: Critic,
    observed: Float[Array, "rows into"],
    start: Bool[AnyArray, " rows"],
    action: Float[Array, "rows a"],
    key: PRNGKeyArray,
) -> Float[Array, " rows"]:
    """The minimum over a random subset of the target critic's heads; the others are not run."""
    features = target.encoder(observed, start)
    _, subset = lax.top_k(jax.random.uniform(key, (config.heads,)), config.target_heads)
    heads = jax.tree.map(lambda leaf: leaf[subset], target.head)
    return _q(heads, features, action).min(axis=0)


def _q(
    heads: Head, features: Float[Array, "rows width"], action: Float[AnyArray, "rows a"]
) -> Float[Array, "heads rows"]:
    return lax.map(lambda head: q_value(head, q_embed(head, features), action), heads)


def update_flops(state_size: int, action_size: int, config: AgentConfig, rows: int) -> int:
    """Floating-point operations of the matrix products of one gradient step, from their shapes."""
    width, memory = config.width, 2 * config.memory_size
    if config.memory == "none":
        features, project, blocks = state_size, 0, 0
    else:
        features, project = width, (state_size + action_size + 1) * width
        blocks = config.memory_layers * (2 * width * memory + width * 2 * width)
    deeper = (config.head_depth - 1) * width * width
    # A product costs once forwards, once for its weights' gradient, once for its input's; what
    # comes from the tape needs no gradient, nor do weights where the critic judges the policy.
    embed, from_action, rest = features * width, action_size * width, deeper + width
    encoder = 2 * project + 3 * blocks
    actor = encoder + 3 * (features * width + deeper + width * 2 * action_size)
    critic = encoder + config.heads * (3 * embed + 2 * from_action + 3 * rest)
    judging = config.heads * (2 * from_action + 2 * rest)
    target = project + blocks + config.target_heads * (embed + from_action + rest)
    if config.memory == "none":  # the states need no gradient either
        actor, critic = actor - features * width, critic - config.heads * embed
    return 2 * rows * (actor + critic + judging + target)
