"""The world: an ensemble of Gaussian members as a posterior over dynamics and rewards.

A member m_theta maps (s, a) to a Gaussian over (s', r). All of it happens in standardised units,
and the scaler that standardises is part of the ensemble:

    h_0 = standardised (s, a)
    h_l = leaky_relu(LayerNorm(W_l h_{l-1} + b_l))          (ablation: without LayerNorm)
    delta, r, log sigma = W h_L + b;    E[s'] = s + delta

The members of a pool are trained together, each on its own shuffle of the data, and the best N
on a validation split are kept. Their disagreement is the uncertainty

    U(s, a) = sqrt(mean_d var_n mu_{n,d}(s, a)).

A bandit's members (`Task.reward_only`) predict the reward alone and leave the state as it is.
"""

import math
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from neubay.config import WorldConfig

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -5.0, 0.25
Quantifier = Literal["disagreement", "aleatoric", "total"]


# --- Members -------------------------------------------------------------------------------------


class Linear(eqx.Module):
    """x W + b, initialised uniformly in +-1/sqrt(fan_in)."""

    weight: Float[Array, "fan_in fan_out"]
    bias: Float[Array, " fan_out"]

    def __init__(self, fan_in: int, fan_out: int, *, key: Key[Array, ""]):
        weight_key, bias_key = jax.random.split(key)
        bound = 1 / math.sqrt(max(fan_in, 1))
        self.weight = jax.random.uniform(weight_key, (fan_in, fan_out), minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(bias_key, (fan_out,), minval=-bound, maxval=bound)

    def __call__(self, x: Float[Array, "b fan_in"]) -> Float[Array, "b fan_out"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    """(x - mean) / std over the features, then an affine map."""

    scale: Float[Array, " width"]
    offset: Float[Array, " width"]

    def __init__(self, width: int):
        self.scale = jnp.ones(width)
        self.offset = jnp.zeros(width)

    def __call__(self, x: Float[Array, "b width"]) -> Float[Array, "b width"]:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.scale + self.offset


class Gaussian(NamedTuple):
    """Diagonal Gaussians in standardised units."""

    mean: Float[Array, "*batch d"]
    log_sigma: Float[Array, "*batch d"]


class Member(eqx.Module):
    """One m_theta in standardised units; its mean is (s' - s, r), or (r) for a bandit."""

    linears: list[Linear]
    norms: list[LayerNorm]  # as many as linears, or none of them
    head: Linear

    def __init__(self, inputs: int, outputs: int, config: WorldConfig, *, key: Key[Array, ""]):
        *keys, head_key = jax.random.split(key, config.depth + 1)
        widths = [inputs] + config.depth * [config.width]
        self.linears = [
            Linear(fan_in, fan_out, key=key)
            for fan_in, fan_out, key in zip(widths[:-1], widths[1:], keys, strict=True)
        ]
        self.norms = [LayerNorm(config.width) for _ in self.linears] if config.layer_norm else []
        self.head = Linear(config.width, 2 * outputs, key=head_key)

    def features(self, x: Float[Array, "b inputs"]) -> Float[Array, "b width"]:
        """The last hidden layer."""
        for layer, linear in enumerate(self.linears):
            x = linear(x)
            if self.norms:
                x = self.norms[layer](x)
            x = jax.nn.leaky_relu(x)
        return x

    def __call__(self, x: Float[Array, "b inputs"]) -> Gaussian:
        mean, log_sigma = jnp.split(self.head(self.features(x)), 2, axis=-1)
        return Gaussian(mean, soft_clamp(log_sigma))


def soft_clamp(log_sigma: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Clamp to [LOG_SIGMA_MIN, LOG_SIGMA_MAX] with a gradient everywhere, as in PETS."""
    log_sigma = LOG_SIGMA_MAX - jax.nn.softplus(LOG_SIGMA_MAX - log_sigma)
    return LOG_SIGMA_MIN + jax.nn.softplus(log_sigma - LOG_SIGMA_MIN)


# --- The world -----------------------------------------------------------------------------------


class Scaler(eqx.Module):
    """Standardisation of states (s and s' share it), actions and rewards."""

    state_mean: Float[Array, " s"]
    state_std: Float[Array, " s"]
    action_mean: Float[Array, " a"]
    action_std: Float[Array, " a"]
    reward_mean: Float[Array, ""]
    reward_std: Float[Array, ""]


class WorldStep(NamedTuple):
    next_state: Float[Array, "k s"]
    reward: Float[Array, " k"]
    uncertainty: Float[Array, " k"]


class World(eqx.Module):
    """The posterior: N members, stacked on the leading axis of every leaf, and their scaler."""

    members: Member
    scaler: Scaler
    reward_only: bool = eqx.field(static=True)
    quantifier: Quantifier = eqx.field(static=True)

    @property
    def size(self) -> int:
        """N, the number of members."""
        return self.members.head.bias.shape[0]

    def predict(self, state: Float[Array, "b s"], action: Float[Array, "b a"]) -> Gaussian:
        """Every member's Gaussian over (s' - s, r), standardised: leaves (N, b, d)."""
        scaler = self.scaler
        inputs = jnp.concatenate(
            [
                (state - scaler.state_mean) / scaler.state_std,
                (action - scaler.action_mean) / scaler.action_std,
            ],
            axis=-1,
        )
        return jax.vmap(lambda member: member(inputs))(self.members)

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        """U(s, a), by the world's quantifier."""
        return quantify(self.predict(state, action), self.quantifier)

    def step(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        member: Int[Array, " k"],
        key: Key[Array, ""],
    ) -> WorldStep:
        """One step of k rollouts, each in its own member: (s', r) ~ m_theta(s, a), and U(s, a).

        The rollouts' own predictions are slices of the evaluation that U needs anyway.
        """
        scaler = self.scaler
        prediction = self.predict(state, action)
        own = Gaussian(*(leaf[member, jnp.arange(len(member))] for leaf in prediction))
        sample = own.mean + jnp.exp(own.log_sigma) * jax.random.normal(key, own.mean.shape)
        return WorldStep(
            next_state=state if self.reward_only else state + sample[:, :-1] * scaler.state_std,
            reward=scaler.reward_mean + sample[:, -1] * scaler.reward_std,
            uncertainty=quantify(prediction, self.quantifier),
        )


def quantify(prediction: Gaussian, quantifier: Quantifier) -> Float[Array, " b"]:
    """U from the members' Gaussians, leaves (N, b, d), in standardised units.

    disagreement: sqrt(mean_d var_n mu), the paper's.  aleatoric: max_n ||sigma_n||_2, MOPO's.
    total: sqrt(mean_d (var_n mu + mean_n sigma^2)), by the law of total variance.
    """
    mean, log_sigma = prediction
    if quantifier == "aleatoric":
        return jnp.exp(0.5 * jax.nn.logsumexp(2 * log_sigma, axis=-1)).max(axis=0)
    variance = mean.var(axis=0)
    if quantifier == "total":
        variance = variance + jnp.exp(2 * log_sigma).mean(axis=0)
    return jnp.sqrt(variance.mean(axis=-1))
