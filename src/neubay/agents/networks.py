"""The networks that agents share: encoder, heads, the tanh-Gaussian, and policies made of them."""

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from neubay.agents.layers import LayerNorm, Linear, Standardiser, float32, matmul
from neubay.agents.memory import Encoder, EncoderMemory, NoMemory
from neubay.config import AgentConfig
from neubay.tape import AgentInput, AnyArray, Tape, agent_input, slice_rows

LOG_SIGMA_RANGE = (-5.0, 2.0)


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator to draw weights with, seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def observe(inputs: AgentInput) -> Float[Array, "*rows into"]:
    """(s_t, a_{t-1}, r_t) as one vector, the state first."""
    return jnp.concatenate(
        [inputs.state, inputs.last_action, inputs.last_reward[..., None]], axis=-1
    )


@dataclass(frozen=True)
class Histories:
    """A batch as encoders read it: all rows, the first only to bring the memory up to date."""

    observed: Float[Array, "rows *slots into"]
    start: Bool[AnyArray, "rows *slots"]
    burn_in: int

    def features(self, encoder: "Encoder | NoMemory") -> Float[Array, "learnt *slots width"]:
        """Features of the rows that are learnt from."""
        return encoder(self.observed, self.start)[self.burn_in :]


def read(tape: Tape, burn_in: int) -> tuple[Histories, Tape]:
    """The histories of a batch, and its rows that are learnt from: those below the burn-in."""
    inputs = agent_input(tape)
    return Histories(observe(inputs), inputs.start, burn_in), slice_rows(tape, burn_in)


class Head(eqx.Module):
    """`depth` blocks Linear -> LayerNorm -> leaky ReLU, then a Linear."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    out: Linear

    def __init__(self, into: int, width: int, depth: int, out: int, *, rng: np.random.Generator):
        sizes = [into] + [width] * (depth - 1)
        self.layers = tuple(Linear(size, width, rng=rng) for size in sizes)
        self.norms = tuple(LayerNorm(width) for _ in sizes)
        self.out = Linear(width, out, rng=rng)

    def __call__(self, x: Float[Array, "*rows into"]) -> Float[Array, "*rows out"]:
        return self.after_first(self.layers[0].centred()(x))

    def after_first(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows out"]:
        """The rest of the head, from the output of its first Linear, centred."""
        x = self.norms[0].activate(x)
        for layer, norm in zip(self.layers[1:], self.norms[1:], strict=True):
            x = norm.activate(layer.centred()(x))
        return self.out(x)


class Network(eqx.Module):
    """phi, the encoder of histories, which for the Markov agent is the state itself; and what is
    computed of its features."""

    encoder: Encoder | NoMemory
    head: Head

    @staticmethod
    @abc.abstractmethod
    def make_head(
        features: int, action_size: int, config: AgentConfig, rng: np.random.Generator
    ) -> Head:
        """The head before training."""


AnyNetwork = TypeVar("AnyNetwork", bound=Network)


def untrained(
    kind: type[AnyNetwork],
    state_size: int,
    action_size: int,
    config: AgentConfig,
    *,
    rng: np.random.Generator,
    standardise: Standardiser | None = None,
) -> AnyNetwork:
    """A network before training."""
    encoder: Encoder | NoMemory = NoMemory(state_size, standardise)
    if config.memory != "none":
        encoder = Encoder(
            state_size + action_size + 1,
            config.width,
            config.memory_size,
            config.memory_layers,
            rng=rng,
            standardise=standardise,
            gated_states=state_size if config.memory == "gated" else 0,
        )
    return kind(encoder, kind.make_head(encoder.width, action_size, config, rng))


class TanhGaussian(NamedTuple):
    """a = tanh(u) with u ~ N(mean, sigma^2), the dimensions independent."""

    mean: Float[Array, "*rows a"]
    log_sigma: Float[Array, "*rows a"]

    def mode(self) -> Float[Array, "*rows a"]:
        """The action at the Gaussian's mean: what evaluation uses."""
        return jnp.tanh(self.mean)

    def sample(
        self, noise: Float[Array, "*rows a"]
    ) -> tuple[Float[Array, "*rows a"], Float[Array, "*rows"]]:
        """An action from standard normal noise, reparameterised, and its log-probability."""
        u = self.mean + jnp.exp(self.log_sigma) * noise
        return jnp.tanh(u), self._log_prob(u, noise)

    def log_prob(self, u: Float[Array, "*rows a"]) -> Float[Array, "*rows"]:
        """Log-probability of the action tanh(u), from the value before the tanh."""
        return self._log_prob(u, (u - self.mean) * jnp.exp(-self.log_sigma))

    def _log_prob(
        self, u: Float[Array, "*rows a"], noise: Float[Array, "*rows a"]
    ) -> Float[Array, "*rows"]:
        # log(1 - tanh(u)^2), in a form that stays finite, with its gradient, where tanh(u) is 1.
        log_slope = 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))
        gaussian = -0.5 * noise**2 - self.log_sigma - 0.5 * math.log(2 * math.pi)
        return (gaussian - log_slope).sum(axis=-1)


class Actor(Network):
    """pi_nu: its own encoder and one head."""

    @staticmethod
    def make_head(
        features: int, action_size: int, config: AgentConfig, rng: np.random.Generator
    ) -> Head:
        return Head(features, config.width, config.head_depth, 2 * action_size, rng=rng)

    def __call__(self, histories: Histories) -> TanhGaussian:
        """The policy at every row that is learnt from."""
        return self.distribution(histories.features(self.encoder))

    def distribution(self, features: Float[Array, "*rows width"]) -> TanhGaussian:
        mean, log_sigma = jnp.split(self.head(features), 2, axis=-1)
        return TanhGaussian(mean, jnp.clip(log_sigma, *LOG_SIGMA_RANGE))


LARGEST_ACTION = 1 - 1e-3
"""Actions are clipped to this before atanh, which is infinite at 1."""


def before_tanh(action: Float[AnyArray, "*rows a"]) -> Float[Array, "*rows a"]:
    """u of the action tanh(u)."""
    return jnp.arctanh(jnp.clip(action, -LARGEST_ACTION, LARGEST_ACTION))


def imitation(
    actor: Actor,
    histories: Histories,
    action: Float[AnyArray, "*rows a"],
    weights: Float[Array, "*rows"],
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """How badly a policy fits actions, weighted over rows, and the two parts of it.

    The mode of the policy, which is what evaluation uses, is fitted to the actions by least
    squares; sigma around it by maximum likelihood, so that samples are as spread as the data is.
    """
    policy = actor(histories)
    around_mode = TanhGaussian(lax.stop_gradient(policy.mean), policy.log_sigma)
    told = {
        "squared_error": jnp.vdot(weights, ((policy.mode() - action) ** 2).sum(axis=-1)),
        "log_likelihood": jnp.vdot(weights, around_mode.log_prob(before_tanh(action))),
    }
    return told["squared_error"] - told["log_likelihood"], told


class Critic(Network):
    """Q_omega: its own encoder and a stack of heads, each on features and action. The leaves of
    `head` have the heads as their leading axis."""

    @staticmethod
    def make_head(
        features: int, action_size: int, config: AgentConfig, rng: np.random.Generator
    ) -> Head:
        heads = [
            Head(features + action_size, config.width, config.head_depth, 1, rng=rng)
            for _ in range(config.heads)
        ]
        stacked = jax.tree.map(lambda *leaves: float32(np.stack(leaves)), *heads)
        # Values start near zero: a hundredth of the variance, no bias.
        weight, bias = np.asarray(stacked.out.weight), np.asarray(stacked.out.bias)
        out = (float32(np.float32(0.1) * weight), float32(np.zeros_like(bias)))
        return eqx.tree_at(lambda head: (head.out.weight, head.out.bias), stacked, out)


def q_value(
    head: Head, features: Float[Array, "*rows width"], action: Float[AnyArray, "*rows a"]
) -> Float[Array, "*rows"]:
    """Q(h_t, a) of one head."""
    first = head.layers[0].centred()
    of_features, of_action = jnp.split(first.weight, [features.shape[-1]])
    both = matmul(features, of_features) + first.bias + matmul(jnp.asarray(action), of_action)
    return head.after_first(both)[..., 0]


def one_hot_choice(
    choice: Int[Array, "*rows"], values: Float[Array, "*rows a"]
) -> Float[Array, "*rows a"]:
    """A discrete action as one-hot. The largest of values with a NaN among them is no choice, and
    must not look like one: it is NaN."""
    nothing = jnp.isnan(values).any(axis=-1, keepdims=True)
    return jnp.where(nothing, jnp.nan, jax.nn.one_hot(choice, values.shape[-1]))


class RecurrentPolicy(eqx.Module):
    """A network as imagination and evaluation see it: K histories side by side."""

    @property
    @abc.abstractmethod
    def encoder(self) -> Encoder | NoMemory:
        """What reads the histories."""

    @abc.abstractmethod
    def choose(
        self, features: Float[Array, "k width"], keys: Key[Array, " k"]
    ) -> Float[Array, "k a"]:
        """The action of each history, from the features at its last row."""

    def initial(self, batch: int) -> EncoderMemory:
        """The memory before anything was seen."""
        return self.encoder.initial(batch)

    def recall(self, history: AgentInput, length: Int[Array, " k"]) -> EncoderMemory:
        """The memory after rows 0 .. length - 1 of each history, leaves (rows, k, ...)."""
        return self.encoder.recall(observe(history), history.start, length)

    def act(
        self, memory: EncoderMemory, inputs: AgentInput, keys: Key[Array, " k"]
    ) -> tuple[EncoderMemory, Float[Array, "k a"]]:
        """Read one row and choose the action there; memory is reset where an episode starts.

        Every history has its own key, so that its actions do not depend on its neighbours.
        """
        memory, features = self.encoder.step(memory, observe(inputs), inputs.start)
        return memory, self.choose(features, keys)


class ActorPolicy(RecurrentPolicy):
    """A network that gives a distribution over actions."""

    actor: Network
    deterministic: bool = eqx.field(static=True)

    @property
    def encoder(self) -> Encoder | NoMemory:
        return self.actor.encoder


class GaussianPolicy(ActorPolicy):
    """The actor's mode, or a sample of its tanh-Gaussian."""

    actor: Actor

    def choose(
        self, features: Float[Array, "k width"], keys: Key[Array, " k"]
    ) -> Float[Array, "k a"]:
        policy = self.actor.distribution(features)
        if self.deterministic:
            return policy.mode()
        noise = jax.vmap(lambda key: jax.random.normal(key, policy.mean.shape[1:]))(keys)
        return policy.sample(noise)[0]
