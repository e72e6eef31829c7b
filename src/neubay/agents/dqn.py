"""Dueling double DQN on recurrent features: the paper's agent for discrete control.

A batch is a tape, its actions are one-hot. The loss is a weighted mean over its transitions, kappa
for the real ones and 1 - kappa for the imagined ones. With h' the history one row on,

    Q(h, a) = V(h) + A(h, a) - mean over actions of A(h, .)
    y       = r + gamma (1 - d) Q_target(h', argmax over a' of Q(h', a'))
    L       = Huber(Q(h, a) - y)

Both networks run over the tape once: Q at row t serves its own loss and the choice of a' for row
t - 1. In imagination the policy is epsilon-greedy, epsilon falling with the gradient steps.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from neubay.agents.learning import (
    Metrics,
    critic_decay,
    descend,
    init_optimiser,
    mixture_weights,
    transition_kinds,
)
from neubay.agents.memory import Encoder, EncoderMemory, NoMemory
from neubay.agents.networks import Head, generator, make_encoder, observe
from neubay.config import AgentConfig
from neubay.tape import AgentInput, AnyArray, Tape, agent_input


class QNetwork(eqx.Module):
    """Q_omega(h, .): an encoder, and one head for V and the advantages."""

    encoder: Encoder | NoMemory
    head: Head

    def __init__(
        self, state_size: int, action_size: int, config: AgentConfig, *, rng: np.random.Generator
    ):
        self.encoder = make_encoder(state_size, action_size, config, rng=rng)
        self.head = Head(
            self.encoder.width, config.width, config.head_depth, 1 + action_size, rng=rng
        )

    def __call__(
        self, observed: Float[Array, "rows into"], start: Bool[AnyArray, " rows"]
    ) -> Float[Array, "rows a"]:
        """Q(h_t, .) at every row of a tape."""
        return self.values(self.encoder(observed, start))

    def values(self, features: Float[Array, "*rows width"]) -> Float[Array, "*rows a"]:
        """The dueling sum: the mean of Q over actions is V."""
        value, advantage = jnp.split(self.head(features), [1], axis=-1)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)


class EpsilonGreedy(eqx.Module):
    """A Q-network as imagination and evaluation see it: K histories side by side."""

    network: QNetwork
    epsilon: Float[Array, ""]  # probability of a uniformly random action
    deterministic: bool = eqx.field(static=True)  # never explores

    def initial(self, batch: int) -> EncoderMemory:
        """The memory before anything was seen."""
        return self.network.encoder.initial(batch)

    def recall(self, history: AgentInput, length: Int[Array, " k"]) -> EncoderMemory:
        """The memory after rows 0 .. length - 1 of each history, leaves (rows, k, ...)."""
        return self.network.encoder.recall(observe(history), history.start, length)

    def act(
        self, memory: EncoderMemory, inputs: AgentInput, keys: Key[Array, " k"]
    ) -> tuple[EncoderMemory, Float[Array, "k a"]]:
        """Read one row and choose the action there; memory is reset where an episode starts.

        Every history has a key of its own, so that its actions do not depend on its neighbours.
        """
        memory, features = self.network.encoder.step(memory, observe(inputs), inputs.start)
        q = self.network.values(features)
        actions = q.shape[-1]
        choice = q.argmax(axis=-1)
        if not self.deterministic:
            draws = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
            explore, anything = draws[:, 0] < self.epsilon, (draws[:, 1] * actions).astype(int)
            choice = jnp.where(explore, anything, choice)
        return memory, jax.nn.one_hot(choice, actions)


class AgentState(NamedTuple):
    """Everything that training changes."""

    network: QNetwork
    target: QNetwork
    optimiser: optax.OptState
    step: Int[Array, ""]


@dataclass(frozen=True)
class Agent:
    """A recurrent Q-learner: its sizes and settings. What it has learned is an `AgentState`."""

    state_size: int
    action_size: int
    config: AgentConfig

    def init(self, key: PRNGKeyArray) -> AgentState:
        network = QNetwork(self.state_size, self.action_size, self.config, rng=generator(key))
        target = jax.tree.map(jnp.copy, network)  # updates are free to overwrite both
        return AgentState(network, target, init_optimiser(network), jnp.zeros((), jnp.int32))

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

    def policy(self, state: AgentState, deterministic: bool) -> EpsilonGreedy:
        """The greedy policy, or the one that explores as much as is due at this step."""
        return EpsilonGreedy(state.network, epsilon(self.config, state.step), deterministic)

    @partial(jax.jit, static_argnums=0)
    def values(self, state: AgentState, tapes: Tape) -> Float[Array, "batches rows"]:
        """Q(h_t, a_t) at the tapes' own actions.

        A row that is no transition has no action, and its value means nothing.
        """

        def one_tape(tape: Tape) -> Float[Array, " rows"]:
            inputs = agent_input(tape)
            return (state.network(observe(inputs), inputs.start) * tape.action).sum(axis=-1)

        return lax.map(one_tape, tapes)


def epsilon(config: AgentConfig, step: Int[Array, ""]) -> Float[Array, ""]:
    """Exploration: from 1 straight down to `epsilon_final` over the first `epsilon_share` of
    all gradient steps, and constant from there on."""
    progress = step / (config.epsilon_share * config.steps)
    return 1 - (1 - config.epsilon_final) * jnp.minimum(progress, 1.0)


def _gradient_step(
    config: AgentConfig, state: AgentState, tape: Tape
) -> tuple[AgentState, Metrics]:
    inputs = agent_input(tape)
    observed, start = observe(inputs), inputs.start
    kinds = transition_kinds(tape)
    weights = mixture_weights(kinds, config.kappa)
    target_q = state.target(observed, start)

    def loss(network: QNetwork) -> tuple[Float[Array, ""], Float[Array, " rows"]]:
        q = network(observed, start)
        greedy = jax.nn.one_hot(q.argmax(axis=-1), q.shape[-1])
        # The target looks one row on; where that is another episode, the row weighs nothing.
        next_value = jnp.roll((target_q * greedy).sum(axis=-1), -1)
        target = tape.target_reward + config.gamma * jnp.where(tape.terminated, 0.0, next_value)
        taken = (q * tape.action).sum(axis=-1)
        return weights @ optax.huber_loss(taken, target, delta=config.huber), taken

    (critic_loss, q), gradient = jax.value_and_grad(loss, has_aux=True)(state.network)
    network, optimiser, health = descend(
        state.network, gradient, state.optimiser, config, critic_decay(config, state.step)
    )
    metrics = {
        "critic_loss": critic_loss,
        "epsilon": epsilon(config, state.step),
        "critic_gradient_norm": health.norm,
        "nonfinite_gradients": health.nonfinite,
    }
    for kind, rows in kinds._asdict().items():
        metrics[f"q_{kind}_sum"] = jnp.where(rows, q, 0.0).sum()
        metrics[f"rows_{kind}"] = rows.sum(dtype=jnp.float32)
    state = AgentState(
        network=network,
        target=optax.incremental_update(network, state.target, config.polyak),
        optimiser=optimiser,
        step=state.step + 1,
    )
    return state, metrics
