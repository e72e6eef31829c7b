"""Layers that the agents' networks are built of: Linear, LayerNorm, and what standardises inputs.

Weights are drawn by NumPy: a JAX generator would take longer to compile than all of them take to
draw.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from neubay.devices.choices import barrier
from neubay.tape import AnyArray


def float32(array: np.ndarray) -> Float[Array, "*shape"]:
    """A NumPy array on the device, in single precision. JAX's own conversions, `jnp.asarray` among
    them, compile a program for every shape."""
    return jax.device_put(np.array(array, np.float32))


@jax.custom_vjp
def matmul(
    x: Float[Array, "*batch into"], weight: Float[Array, "into out"]
) -> Float[Array, "*batch out"]:
    """x W. For the weight's gradient, x^T g, the transpose is laid out first: on a CPU the matmul
    that reads x against its layout takes up to three times as long, the more the smaller it is."""
    return x @ weight


def _matmul_backward(
    saved: tuple[Float[Array, "*batch into"], Float[Array, "into out"]],
    cotangent: Float[Array, "*batch out"],
) -> tuple[Float[Array, "*batch into"], Float[Array, "into out"]]:
    x, weight = saved
    rows, d_rows = (array.reshape(-1, array.shape[-1]) for array in (x, cotangent))
    return cotangent @ weight.T, barrier(rows.T) @ d_rows


matmul.defvjp(lambda x, weight: (x @ weight, (x, weight)), _matmul_backward)


class Linear(eqx.Module):
    """x W + b on the last axis; uniform +-1/sqrt(fan_in)."""

    weight: Float[Array, "*stack into out"]
    bias: Float[Array, "*stack out"]

    def __init__(self, into: int, out: int, *, rng: np.random.Generator):
        limit = 1 / math.sqrt(into)
        self.weight = float32(rng.uniform(-limit, limit, (into, out)))
        self.bias = float32(rng.uniform(-limit, limit, out))

    def __call__(self, x: Float[Array, "*batch into"]) -> Float[Array, "*batch out"]:
        return matmul(x, self.weight) + self.bias

    def centred(self) -> "Linear":
        """The same Linear with the mean over its outputs subtracted.

        That is the first half of a LayerNorm. Done to the weights instead of to every row, it
        saves a pass over the rows, forwards and backwards.
        """
        return jax.tree.map(_centred, self)


def _centred(x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
    return x - x.mean(axis=-1, keepdims=True)


class LayerNorm(eqx.Module):
    """Zero mean and unit variance over the last axis, then a trained scale and shift."""

    scale: Float[Array, "*stack features"]
    shift: Float[Array, "*stack features"]

    def __init__(self, features: int):
        self.scale = float32(np.ones(features))
        self.shift = float32(np.zeros(features))

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        return self.of_centred(_centred(x))

    def of_centred(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """The same where the mean is zero already, as after `Linear.centred`."""
        unit_variance = x * lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
        return unit_variance * self.scale + self.shift

    def activate(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """LayerNorm -> leaky ReLU of the output of a centred Linear."""
        return jax.nn.leaky_relu(self.of_centred(x))


LARGEST_INPUT = 10.0
"""Standard deviations beyond which a standardised input is not told apart: a sensor that hardly
moved in the data may move at any time, and must not drown the others."""


class Standardiser(eqx.Module):
    """(x - mean) / std of the agent's inputs (s_t, a_{t-1}, r_t), by constants of the data.

    They are part of the network, so that they travel with agent, policy file and checkpoints; they
    are not trained. Before an episode's first step there is no reward: it counts as the mean one.
    """

    mean: Float[Array, " into"]
    std: Float[Array, " into"]

    def __call__(
        self, x: Float[Array, "*rows into"], start: Bool[AnyArray, "*rows"]
    ) -> Float[Array, "*rows into"]:
        mean, std = lax.stop_gradient((self.mean, self.std))
        scaled = jnp.clip((x - mean) / std, -LARGEST_INPUT, LARGEST_INPUT)
        reward = jnp.where(jnp.asarray(start), 0.0, scaled[..., -1])
        return jnp.concatenate([scaled[..., :-1], reward[..., None]], axis=-1)
