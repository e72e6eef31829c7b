"""Members, their ensemble, and its uncertainty.

A member m_theta maps (s, a) to a Gaussian over (s', r), in standardised units; the scaler that
standardises is part of the ensemble:

    h_0 = standardised (s, a)
    h_l = leaky_relu(LayerNorm(h_{l-1} W_l + b_l))          (ablation: without LayerNorm)
    delta, r, log sigma = h_L W + b;    E[s'] = s + delta

The members' disagreement is the uncertainty U(s, a) = sqrt(mean_d var_n mu_{n,d}(s, a)).
Beside every member there may be a head that has learned which s' are terminal (`termination.py`).
A bandit's members (`Task.reward_only`) predict the reward alone and leave the state as it is.
"""

import itertools
import math
from dataclasses import replace
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from neubay.config import WorldConfig
from neubay.devices.choices import barrier

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -5.0, 0.25
Quantifier = Literal["disagreement", "aleatoric", "total"]


class MemberLinear(eqx.Module):
    """x W + b, initialised uniformly in +-1/sqrt(fan_in)."""

    weight: Float[Array, "fan_in fan_out"]
    bias: Float[Array, " fan_out"]

    def __init__(self, uniform: Float[Array, "fan_in_and_one fan_out"]):
        """From numbers uniform in [-1, 1]: a row for each input, and one for the bias."""
        bound = 1 / math.sqrt(len(uniform) - 1)
        self.weight, self.bias = bound * uniform[:-1], bound * uniform[-1]


class Affine(eqx.Module):
    """What LayerNorm does after normalising."""

    scale: Float[Array, " width"]
    offset: Float[Array, " width"]

    def __init__(self, width: int):
        self.scale = jnp.ones(width)
        self.offset = jnp.zeros(width)


class Gaussian(NamedTuple):
    """Diagonal Gaussians in standardised units."""

    mean: Float[Array, "*batch d"]
    log_sigma: Float[Array, "*batch d"]


class Member(eqx.Module):
    """One m_theta in standardised units; its mean is (s' - s, r), or (r) for a bandit."""

    linears: list[MemberLinear]
    affines: list[Affine]  # of the LayerNorms: one for each linear, or none
    head: MemberLinear

    def __init__(self, inputs: int, outputs: int, config: WorldConfig, *, key: Key[Array, ""]):
        widths = [inputs] + config.depth * [config.width] + [2 * outputs]
        shapes = [(fan_in + 1, fan_out) for fan_in, fan_out in itertools.pairwise(widths)]
        ends = list(itertools.accumulate(rows * columns for rows, columns in shapes))
        # One draw for all layers: the generator is compiled once.
        draw = jax.random.uniform(key, ends[-1:], minval=-1, maxval=1)
        parts = jnp.split(draw, ends[:-1])
        *self.linears, self.head = (
            MemberLinear(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)
        )
        self.affines = [Affine(config.width) for _ in self.linears] if config.layer_norm else []

    def features(self, x: Float[Array, "b inputs"]) -> Float[Array, "b width"]:
        """h_L, the last hidden layer."""
        if not self.affines:
            for linear in self.linears:
                x = jax.nn.leaky_relu(x @ linear.weight + linear.bias, _SLOPE)
            return x
        for linear, affine in zip(self.linears, self.affines, strict=True):
            x = normalised_block(x, linear.weight, linear.bias, affine.scale, affine.offset)
        return x

    def __call__(self, x: Float[Array, "b inputs"]) -> Gaussian:
        outputs = self.features(x) @ self.head.weight + self.head.bias
        mean, log_sigma = jnp.split(outputs, 2, axis=-1)
        return Gaussian(mean, soft_clamp(log_sigma))


def soft_clamp(log_sigma: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Clamp to [LOG_SIGMA_MIN, LOG_SIGMA_MAX] with a gradient everywhere, as in PETS.

    PETS takes x <- max - softplus(max - x), then x <- min + softplus(x - min). Together that is
    e^x <- e^min + e^max sigmoid(x - max): a fraction of the exponentials and logarithms.
    """
    low, high = math.exp(LOG_SIGMA_MIN), math.exp(LOG_SIGMA_MAX)
    return jnp.log(low + high * jax.nn.sigmoid(log_sigma - LOG_SIGMA_MAX))


# --- Linear, LayerNorm, leaky ReLU ---------------------------------------------------------------

_SLOPE = 0.01  # of leaky ReLU below zero
_VARIANCE_FLOOR = 1e-5  # added to the variance in LayerNorm


class _Saved(NamedTuple):
    """What the gradient of a block needs of its forward pass."""

    x: Float[Array, "b fan_in"]
    weight: Float[Array, "fan_in fan_out"]
    scale: Float[Array, " fan_out"]
    normalised: Float[Array, "b fan_out"]
    inverse_std: Float[Array, "b 1"]
    output: Float[Array, "b fan_out"]


@jax.custom_vjp
def normalised_block(
    x: Float[Array, "b fan_in"],
    weight: Float[Array, "fan_in fan_out"],
    bias: Float[Array, " fan_out"],
    scale: Float[Array, " fan_out"],
    offset: Float[Array, " fan_out"],
) -> Float[Array, "b fan_out"]:
    """leaky_relu(LayerNorm(x W + b))."""
    z = x @ weight + bias
    centred = z - z.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normalised = centred * jax.lax.rsqrt(variance + _VARIANCE_FLOOR)
    return jax.nn.leaky_relu(normalised * scale + offset, _SLOPE)


# The block under differentiation is written out in passes over (b, fan_out), with barriers between
# them on a CPU: its compiler would spend more time on the normalisation than on the matrix products
# (docs/benchmarks.md).
_pass = barrier


def _block_forward(
    x: Float[Array, "b fan_in"],
    weight: Float[Array, "fan_in fan_out"],
    bias: Float[Array, " fan_out"],
    scale: Float[Array, " fan_out"],
    offset: Float[Array, " fan_out"],
) -> tuple[Float[Array, "b fan_out"], _Saved]:
    product = _pass(x @ weight)
    z = product + bias
    mean = z.mean(axis=-1, keepdims=True)
    variance = jnp.maximum((z * z).mean(axis=-1, keepdims=True) - mean * mean, 0)
    inverse_std = jax.lax.rsqrt(variance + _VARIANCE_FLOOR)
    product, mean, inverse_std = _pass((product, mean, inverse_std))
    normalised = _pass((product + bias - mean) * inverse_std)
    output = _pass(jax.nn.leaky_relu(normalised * scale + offset, _SLOPE))
    return output, _Saved(x, weight, scale, normalised, inverse_std, output)


def _block_backward(
    saved: _Saved, d_output: Float[Array, "b fan_out"]
) -> tuple[
    Float[Array, "b fan_in"],
    Float[Array, "fan_in fan_out"],
    Float[Array, " fan_out"],
    Float[Array, " fan_out"],
    Float[Array, " fan_out"],
]:
    """With z = x W + b, n = z normalised and u = n * scale + offset:

    dz = (du * scale - mean(du * scale) - n mean(du * scale * n)) / std(z).
    """
    x, weight, scale, normalised, inverse_std, output = saved
    d_u = jnp.where(output > 0, d_output, _SLOPE * d_output)
    d_u, d_u_n = _pass((d_u, d_u * normalised))
    share = inverse_std / output.shape[-1]
    mean, mean_n = _pass((share * (d_u @ scale[:, None]), share * (d_u_n @ scale[:, None])))
    d_z = _pass(d_u * (inverse_std * scale) - (mean + normalised * mean_n))
    return d_z @ weight.T, x.T @ d_z, d_z.sum(axis=0), d_u_n.sum(axis=0), d_u.sum(axis=0)


normalised_block.defvjp(_block_forward, _block_backward)


# --- What ends an episode ------------------------------------------------------------------------

HEAD_WIDTH, HEAD_DEPTH = 32, 2  # of what ends an episode


class Head(eqx.Module):
    """Whether s' is terminal. From the standardised x = (s, a, s') to a logit z(x); s' is

        terminal  <=>  z(x) > c + tau e,    e ~ Logistic(0, 1).

    With tau = 0 that is a threshold; with c = -b/a, tau = 1/a it is so with probability
    sigmoid(a z + b).
    """

    linears: list[MemberLinear]
    threshold: Float[Array, ""]  # c
    temperature: Float[Array, ""]  # tau

    def __init__(self, inputs: int, *, key: Key[Array, ""]):
        widths = [inputs] + HEAD_DEPTH * [HEAD_WIDTH] + [1]
        self.linears = [
            MemberLinear(jax.random.uniform(key, (fan_in + 1, fan_out), minval=-1, maxval=1))
            for key, (fan_in, fan_out) in zip(
                jax.random.split(key, HEAD_DEPTH + 1), itertools.pairwise(widths), strict=True
            )
        ]
        self.threshold = self.temperature = jnp.zeros(())

    def logit(self, x: Float[Array, "b inputs"]) -> Float[Array, " b"]:
        *hidden, last = self.linears
        for linear in hidden:
            x = jax.nn.leaky_relu(x @ linear.weight + linear.bias, _SLOPE)
        return (x @ last.weight + last.bias)[:, 0]

    def ends(self, x: Float[Array, "b inputs"], noise: Float[Array, " b"]) -> Bool[Array, " b"]:
        return self.logit(x) > self.threshold + self.temperature * noise


# --- The ensemble --------------------------------------------------------------------------------


class Scaler(eqx.Module):
    """Standardisation of states (s and s' share it), actions and rewards."""

    state_mean: Float[Array, " s"]
    state_std: Float[Array, " s"]
    action_mean: Float[Array, " a"]
    action_std: Float[Array, " a"]
    reward_mean: Float[Array, ""]
    reward_std: Float[Array, ""]
    change_std: Float[Array, " s"] | None = None
    """Of s' - s, where that is its unit."""

    @property
    def change_unit(self) -> Float[Array, " s"]:
        """What a member's s' - s is in units of."""
        return self.state_std if self.change_std is None else self.change_std

    def inputs(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, "b inputs"]:
        """What a member sees: the standardised (s, a)."""
        return jnp.concatenate(
            [
                (state - self.state_mean) / self.state_std,
                (action - self.action_mean) / self.action_std,
            ],
            axis=-1,
        )

    def steps(
        self,
        state: Float[Array, "b s"],
        action: Float[Array, "b a"],
        next_state: Float[Array, "b s"],
    ) -> Float[Array, "b inputs"]:
        """What a head sees: the standardised (s, a, s')."""
        after = (next_state - self.state_mean) / self.state_std
        return jnp.concatenate([self.inputs(state, action), after], axis=-1)


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
    heads: Head | None = None
    """Each member's idea of what ends an episode, where that was learned."""
    noise: Float[Array, ""] | None = None
    """What the members' sigma is multiplied by when they are sampled from; none: 1."""
    others: Member | None = None
    """For worlds that lie beyond the members: those that they are moved away from."""
    widen: float = eqx.field(static=True, default=0.0)
    """By how much of their difference."""

    def with_noise(self, scale: Float[Array, ""]) -> "World":
        """The same members, whose noise is multiplied by this."""
        return replace(self, noise=scale)

    @property
    def size(self) -> int:
        """N, the number of members."""
        return self.members.head.bias.shape[0]

    def predict(self, state: Float[Array, "b s"], action: Float[Array, "b a"]) -> Gaussian:
        """Every member's Gaussian over (s' - s, r), standardised: leaves (N, b, d)."""
        inputs = self.scaler.inputs(state, action)
        return jax.vmap(lambda member: member(inputs))(self.members)

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        """U(s, a), by the world's quantifier."""
        return quantify(self.predict(state, action), self.quantifier)

    def select(self, member: Int[Array, " k"]) -> "World":
        """The world of these members, one for each of k rollouts that `sample` advances."""
        members, heads = jax.tree.map(lambda leaf: leaf[member], (self.members, self.heads))
        return replace(self, members=members, heads=heads)

    def beyond(self, others: "World", widen: float) -> "World":
        """m + k (m - m') for each rollout's member m and its other m', of as many selected members.

        It is sqrt((1 + k)^2 + k^2) times as far from the members' mean as m, and there are
        N (N - 1) of them. Its noise and its ends are those of m.
        """
        return replace(self, others=others.members, widen=widen)

    def sample(
        self, state: Float[Array, "k s"], action: Float[Array, "k a"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        """(s', r) ~ m_theta(s, a) for as many rollouts as members, each in its own member."""
        inputs = self.scaler.inputs(state, action)[:, None]
        mean, log_sigma = jax.vmap(lambda member, x: member(x))(self.members, inputs)
        if self.others is not None:
            other = jax.vmap(lambda member, x: member(x))(self.others, inputs)
            mean = mean + self.widen * (mean - other.mean)
        return self.sample_from(Gaussian(mean[:, 0], log_sigma[:, 0]), state, keys)

    def terminal(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        next_state: Float[Array, "k s"],
        keys: Key[Array, " k"],
    ) -> Bool[Array, " k"]:
        """f_term(s, a, s') as the heads learned it, each rollout by its own member's. The keys are
        those of the same step's `sample`."""
        assert self.heads is not None
        inputs = self.scaler.steps(state, action, next_state)[:, None]
        noise = jax.vmap(lambda key: jax.random.logistic(jax.random.fold_in(key, 1), (1,)))(keys)
        return jax.vmap(Head.ends)(self.heads, inputs, noise)[:, 0]

    def step(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        member: Int[Array, " k"],
        keys: Key[Array, " k"],
    ) -> WorldStep:
        """(s', r) ~ m_theta(s, a) and U(s, a), each rollout in its own member and from its own key.

        The rollouts' own predictions are slices of the evaluation that U needs anyway.
        """
        prediction = self.predict(state, action)
        own = Gaussian(*(leaf[member, jnp.arange(len(member))] for leaf in prediction))
        next_state, reward = self.sample_from(own, state, keys)
        return WorldStep(next_state, reward, quantify(prediction, self.quantifier))

    def sample_from(
        self, own: Gaussian, state: Float[Array, "k s"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        """(s', r) drawn from standardised Gaussians over (s' - s, r)."""
        noise = jax.vmap(lambda key: jax.random.normal(key, own.mean.shape[1:]))(keys)
        noise = noise if self.noise is None else self.noise * noise
        sample = own.mean + jnp.exp(own.log_sigma) * noise
        reward = self.scaler.reward_mean + sample[:, -1] * self.scaler.reward_std
        if self.reward_only:
            return state, reward
        return state + sample[:, :-1] * self.scaler.change_unit, reward


def quantify(prediction: Gaussian, quantifier: Quantifier) -> Float[Array, " b"]:
    """U from the members' Gaussians, leaves (N, b, d), in standardised units.

    disagreement: sqrt(mean_d var_n mu), the paper's.  aleatoric: max_n ||sigma_n||_2, MOPO's.
    total: sqrt(mean_d (var_n mu + mean_n sigma^2)), by the law of total variance.
    """
    mean, log_sigma = prediction
    if quantifier == "aleatoric":
        return jnp.sqrt(jnp.exp(2 * log_sigma).sum(axis=-1)).max(axis=0)
    variance = mean.var(axis=0)
    if quantifier == "total":
        variance = variance + jnp.exp(2 * log_sigma).mean(axis=0)
    return jnp.sqrt(variance.mean(axis=-1))
