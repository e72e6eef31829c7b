"""Dueling double DQN on recurrent features: the paper's agent for discrete control.

A batch is a tape, its actions are one-hot. The loss is a weighted mean over its transitions, kappa
for the real ones and 1 - kappa for the imagined ones. With h' the history one row on,

    Q(h, a) = V(h) + A(h, a) - mean over actions of A(h, .)
    y       = r + gamma (1 - d) Q_target(h', argmax over a' of Q(h', a'))
    L       = Huber(Q(h, a) - y)

Both networks run over the tape once: Q at row t serves its own loss and the choice of a' for row
t - 1. In imagination the policy is epsilon-greedy, epsilon falling with the gradient steps.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from neubay.agents.layers import Standardiser
from neubay.agents.learning import (
    Average,
    Metrics,
    RecurrentAgent,
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
from neubay.agents.memory import Encoder, NoMemory
from neubay.agents.networks import (
    Head,
    Histories,
    Network,
    RecurrentPolicy,
    generator,
    one_hot_choice,
    read,
    untrained,
)
from neubay.config import AgentConfig, known
from neubay.tape import Tape


class QNetwork(Network):
    """Q_omega(h, .): an encoder, and one head for V and the advantages."""

    @staticmethod
    def make_head(
        features: int, action_size: int, config: AgentConfig, rng: np.random.Generator
    ) -> Head:
        return Head(features, config.width, config.head_depth, 1 + action_size, rng=rng)

    def __call__(self, histories: Histories) -> Float[Array, "rows *slots a"]:
        """Q(h_t, .) at every row that is learnt from, in units of the values."""
        return self.values(histories.features(self.encoder))

    def values(self, features: Float[Array, "*rows width"]) -> Float[Array, "*rows a"]:
        """The dueling sum: the mean of Q over actions is V."""
        value, advantage = jnp.split(self.head(features), [1], axis=-1)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)


class EpsilonGreedy(RecurrentPolicy):
    """The action with the highest Q, or now and then any action."""

    network: QNetwork
    epsilon: Float[Array, ""]  # probability of a uniformly random action
    deterministic: bool = eqx.field(static=True)  # never explores

    @property
    def encoder(self) -> Encoder | NoMemory:
        return self.network.encoder

    def choose(
        self, features: Float[Array, "k width"], keys: Key[Array, " k"]
    ) -> Float[Array, "k a"]:
        q = self.network.values(features)
        actions = q.shape[-1]
        choice = q.argmax(axis=-1)
        if not self.deterministic:
            draws = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
            explore = draws[:, 0] < self.epsilon
            choice = jnp.where(explore, (draws[:, 1] * actions).astype(choice.dtype), choice)
        return one_hot_choice(choice, q)


class AgentState(NamedTuple):
    """Everything that training changes."""

    network: QNetwork
    target: QNetwork
    optimiser: optax.OptState
    step: Int[Array, ""]
    average: Average | None = None
    """Of the network."""


class Agent(RecurrentAgent):
    """A recurrent Q-learner."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return network_optimiser(self.config, decay=self.config.decay_critic)

    def init(self, key: PRNGKeyArray, constants: Standardiser | None = None) -> AgentState:
        network = untrained(
            QNetwork,
            self.state_size,
            self.action_size,
            self.config,
            rng=generator(key),
            standardise=constants or self.constants,
        )
        return AgentState(
            network=network,
            target=copied(network),
            optimiser=init_optimiser(self.optimiser, network),
            step=jnp.zeros((), jnp.int32),
            average=Average.begin(network, self.config.average_share),
        )

    def gradient_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """One gradient step on one tape."""
        config = self.config
        histories, tape = read(tape, self.burn_in)
        kinds = transition_kinds(tape)
        weights = mixture_weights(kinds, self.kappa)
        target_q = state.target(histories)

        def loss(network: QNetwork) -> tuple[Float[Array, ""], Float[Array, "rows *slots"]]:
            q = network(histories)
            greedy = jax.nn.one_hot(q.argmax(axis=-1), q.shape[-1])
            next_q = self.value_unit * (target_q * greedy).sum(axis=-1)
            target = bootstrapped(tape, next_q, self.gamma) / self.value_unit
            taken = (q * tape.action).sum(axis=-1)
            errors = optax.huber_loss(taken, target, delta=config.huber)
            return jnp.vdot(weights, errors), taken

        (critic_loss, q), gradient = jax.value_and_grad(loss, has_aux=True)(state.network)
        network, optimiser, health = descend(
            self.optimiser, state.network, gradient, state.optimiser
        )
        metrics = {
            "critic_loss": critic_loss,
            "epsilon": epsilon(config, state.step),
            "critic_gradient_norm": health.norm,
            "nonfinite_gradients": health.nonfinite,
            **q_metrics(kinds, self.value_unit * q),
        }
        target = optax.incremental_update(network, state.target, config.polyak)
        average = averaged(state.average, network, config.average_share)
        return AgentState(network, target, optimiser, state.step + 1, average), metrics

    def warm(self, state: AgentState) -> AgentState:
        """The state at the beginning of a warm start, with an optimiser of its own."""
        return state._replace(optimiser=init_optimiser(warm_optimiser(self.config), state.network))

    def warmed(self, state: AgentState) -> AgentState:
        """The state at its end: what the network has learned, and a fresh optimiser."""
        return state._replace(
            target=copied(state.network),
            optimiser=init_optimiser(self.optimiser, state.network),
        )

    def warm_step(self, state: AgentState, tape: Tape) -> tuple[AgentState, Metrics]:
        """Q of the data's actions learns the data's discounted returns."""
        histories, tape = read(tape, self.burn_in)
        kinds = transition_kinds(tape)
        weights = mean_weights(kinds.real)
        target = jnp.asarray(tape.target_reward) / self.value_unit

        def loss(network: QNetwork) -> tuple[Float[Array, ""], Float[Array, "rows *slots"]]:
            taken = (network(histories) * tape.action).sum(axis=-1)
            errors = optax.huber_loss(taken, target, delta=self.config.huber)
            return jnp.vdot(weights, errors), taken

        (critic_loss, q), gradient = jax.value_and_grad(loss, has_aux=True)(state.network)
        network, optimiser, _ = descend(
            warm_optimiser(self.config), state.network, gradient, state.optimiser
        )
        metrics = {"critic_loss": critic_loss, **q_metrics(kinds, self.value_unit * q)}
        return state._replace(network=network, optimiser=optimiser), metrics

    def policy(self, state: AgentState, deterministic: bool) -> EpsilonGreedy:
        """The greedy policy, or the one that explores as much as is due at this step."""
        network = kept(state.average, state.network)
        return EpsilonGreedy(network, epsilon(self.config, state.step), deterministic)

    def behaviour(self, state: AgentState) -> EpsilonGreedy:
        return EpsilonGreedy(state.network, epsilon(self.config, state.step), deterministic=False)

    def tape_values(self, state: AgentState, tape: Tape) -> Float[Array, "rows *slots"]:
        histories, tape = read(tape, 0)
        return self.value_unit * (state.network(histories) * tape.action).sum(axis=-1)


def epsilon(config: AgentConfig, step: Int[Array, ""]) -> Float[Array, ""]:
    """Exploration: from 1 straight down to `epsilon_final` over the first `epsilon_share` of
    all gradient steps, and constant from there on."""
    steps = config.epsilon_share * known(config.steps)
    schedule = optax.linear_schedule(1.0, config.epsilon_final, transition_steps=steps)
    return schedule(step.astype(jnp.float32))
