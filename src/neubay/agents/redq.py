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
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neubay.agents.learning import (
    Metrics,
    actor_decay,
    adam,
    critic_decay,
    descend,
    init_optimiser,
    mixture_weights,
    transition_kinds,
)
from neubay.agents.networks import (
    Actor,
    Critic,
    Head,
    RecurrentPolicy,
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
    step: Int[Array, ""]
    key: PRNGKeyArray


@dataclass(frozen=True)
class Agent:
    """A recurrent actor-critic: its sizes and settings. What it has learned is an `AgentState`."""

    state_size: int
    action_size: int
    config: AgentConfig

    def init(self, key: PRNGKeyArray) -> AgentState:
        key, weights_key = jax.random.split(key)
        rng = generator(weights_key)
        actor = Actor(self.state_size, self.action_size, self.config, rng=rng)
        critic = Critic(self.state_size, self.action_size, self.config, rng=rng)
        log_alpha = jnp.asarray(math.log(self.config.alpha), jnp.float32)
        return AgentState(
            actor=actor,
            critic=critic,
            target=jax.tree.map(jnp.copy, critic),  # updates are free to overwrite both
            log_alpha=log_alpha,
            actor_optimiser=init_optimiser(actor),
            critic_optimiser=init_optimiser(critic),
            alpha_optimiser=init_optimiser(log_alpha),
            step=jnp.zeros((), jnp.int32),
            key=key,
        )

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, state: AgentState, tapes: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on each tape; `tapes` has leaves (batches, rows, ...).

        Gives the mean of the metrics over the steps; `q_real` and `q_imagined` are means over
        rows, and NaN where no tape had such a row. The state handed in is given up.
        """
        state, metrics = lax.scan(partial(_gradient_step, self.config), state, tapes)
        metrics = {name: values.mean() for name, values in metrics.items()}
        for kind in ("real", "imagined"):
            metrics[f"q_{kind}"] = metrics.pop(f"q_{kind}_sum") / metrics[f"rows_{kind}"]
        return state, metrics

    def policy(self, state: AgentState, deterministic: bool) -> RecurrentPolicy:
        return RecurrentPolicy(state.actor, deterministic)

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


def _gradient_step(
    config: AgentConfig, state: AgentState, tape: Tape
) -> tuple[AgentState, Metrics]:
    key, noise_key, subset_key = jax.random.split(state.key, 3)
    noise = jax.random.normal(noise_key, tape.action.shape)
    inputs = agent_input(tape)
    observed, start = observe(inputs), inputs.start
    kinds = transition_kinds(tape)
    weights = mixture_weights(kinds, config.kappa)
    alpha = jnp.exp(state.log_alpha)

    (action, log_prob), actor_vjp = jax.vjp(
        lambda actor: actor(observed, start).sample(noise), state.actor
    )
    features, encoder_vjp = jax.vjp(lambda encoder: encoder(observed, start), state.critic.encoder)

    # The target looks one row on; where the next row is another episode, the row weighs nothing.
    next_q = _target_q(config, state.target, observed, start, action, subset_key)
    next_value = jnp.roll(next_q - alpha * log_prob, -1)
    target = tape.target_reward + config.gamma * jnp.where(tape.terminated, 0.0, next_value)

    # Critic and actor loss meet in the heads. Each head is differentiated before the next one is
    # run, so that its activations never leave the processor's cache.
    def head_loss(
        head: Head, features: Float[Array, "rows width"], action: Float[Array, "rows a"]
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""], Float[Array, " rows"]]]:
        embedded = q_embed(head, features)
        q = q_value(head, embedded, tape.action)
        critic_loss = weights @ optax.huber_loss(q, target, delta=config.huber) / config.heads
        frozen_head, frozen_embedded = lax.stop_gradient((head, embedded))
        policy_q = weights @ q_value(frozen_head, frozen_embedded, action) / config.heads
        return critic_loss - policy_q, (critic_loss, policy_q, q / config.heads)

    def one_head(sums: tuple, head: Head) -> tuple[tuple, Head]:
        (d_head, *d_inputs), values = jax.grad(head_loss, (0, 1, 2), has_aux=True)(
            head, features, action
        )
        return jax.tree.map(jnp.add, sums, (*d_inputs, *values)), d_head

    zeros = jax.tree.map(jnp.zeros_like, (features, action, alpha, alpha, weights))
    (d_features, d_action, critic_loss, policy_q, q), d_heads = lax.scan(
        one_head, zeros, state.critic.head
    )

    (d_actor,) = actor_vjp((d_action, alpha * weights))
    (d_encoder,) = encoder_vjp(d_features)
    d_critic = eqx.tree_at(
        lambda critic: (critic.encoder, critic.head), state.critic, (d_encoder, d_heads)
    )
    actor, actor_optimiser, actor_health = descend(
        state.actor, d_actor, state.actor_optimiser, config, actor_decay(config, state.step)
    )
    critic, critic_optimiser, critic_health = descend(
        state.critic, d_critic, state.critic_optimiser, config, critic_decay(config, state.step)
    )

    log_alpha, alpha_optimiser = state.log_alpha, state.alpha_optimiser
    target_entropy = config.target_entropy * tape.action.shape[-1]
    alpha_loss = -alpha * (weights @ (log_prob + target_entropy))
    if config.tune_alpha:  # with respect to log alpha, the loss is its own gradient
        d_log_alpha = jnp.where(jnp.isfinite(alpha_loss), alpha_loss, 0.0)
        direction, alpha_optimiser = adam.update(d_log_alpha, alpha_optimiser)
        log_alpha = log_alpha - config.alpha_lr * direction

    metrics = {
        "critic_loss": critic_loss,
        "actor_loss": alpha * (weights @ log_prob) - policy_q,
        "alpha_loss": alpha_loss,
        "alpha": alpha,
        "entropy": -(weights @ log_prob) / jnp.maximum(weights.sum(), 1e-6),
        "actor_gradient_norm": actor_health.norm,
        "critic_gradient_norm": critic_health.norm,
        "nonfinite_gradients": actor_health.nonfinite + critic_health.nonfinite,
    }
    for kind, rows in kinds._asdict().items():
        metrics[f"q_{kind}_sum"] = jnp.where(rows, q, 0.0).sum()
        metrics[f"rows_{kind}"] = rows.sum(dtype=jnp.float32)
    state = AgentState(
        actor=actor,
        critic=critic,
        target=optax.incremental_update(critic, state.target, config.polyak),
        log_alpha=log_alpha,
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        alpha_optimiser=alpha_optimiser,
        step=state.step + 1,
        key=key,
    )
    return state, metrics


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
