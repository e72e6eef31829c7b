"""What members believe where the data says nothing: each a random function of its own.

A network that has seen one good policy goes on as if every action were that policy's, and so do all
members: they are sure where nothing was ever tried. With `world.prior` each member n is also shown
what a draw g_n of a prior says at inputs that such data does not have, its states with random
actions u:

    g_n(x) = sqrt(2 / F) A_n sin(W_n x + b_n),    x = standardised (s, u)

with one standard deviation in the unit of each output: the step could be any, and so could its
reward, about the data's mean. Where there are rows of the data they outweigh it; elsewhere members
differ by as much as steps do. Pseudo-observations of a prior are those of Hafner et al. (2018,
"Noise contrastive priors"), functions of each member's own those of Osband et al. (2018,
"Randomized prior functions").
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from neubay.world.model import Scaler
from neubay.world.transitions import Batch

FEATURES = 16
"""F, the sines of one function."""
SHARE = 2
"""There is one pseudo-observation for so many observations of a batch."""
_PLACE = (1 << 31) - 2  # in the place of an epoch, in keys: one that no training reaches


class Prior(eqx.Module):
    """One member's g_n."""

    frequency: Float[Array, "inputs features"]
    phase: Float[Array, " features"]
    amplitude: Float[Array, "features outputs"]

    def __init__(self, inputs: int, outputs: int, *, key: Key[Array, ""]):
        frequency, phase, amplitude = jax.random.split(jax.random.fold_in(key, _PLACE), 3)
        # Over the spread of the data the argument changes by about one: g_n is smooth.
        self.frequency = jax.random.normal(frequency, (inputs, FEATURES)) / math.sqrt(inputs)
        self.phase = jax.random.uniform(phase, (FEATURES,), maxval=2 * math.pi)
        scale = math.sqrt(2 / FEATURES)
        self.amplitude = scale * jax.random.normal(amplitude, (FEATURES, outputs))

    def __call__(self, x: Float[Array, "b inputs"]) -> Float[Array, "b outputs"]:
        return jnp.sin(x @ self.frequency + self.phase) @ self.amplitude


def pseudo_observations(
    prior: Prior,
    batch: Batch,
    scaler: Scaler,
    shuffle: UInt32[Array, " rounds"],
    number: Int[Array, ""],
    *,
    discrete: bool,
) -> Batch:
    """What the prior says of random actions in the first states of a batch, the `number`th of a
    shuffle."""
    count, actions = len(batch.inputs) // SHARE or 1, len(scaler.action_mean)
    key = jax.random.fold_in(jax.random.key(shuffle[0]), number)
    if discrete:
        action = jax.nn.one_hot(jax.random.randint(key, (count,), 0, actions), actions)
    else:
        action = jax.random.uniform(key, (count, actions), minval=-1, maxval=1)
    state = batch.inputs[:count, :-actions]
    inputs = jnp.concatenate([state, (action - scaler.action_mean) / scaler.action_std], axis=-1)
    return Batch(inputs, prior(inputs), batch.counts[:count])
