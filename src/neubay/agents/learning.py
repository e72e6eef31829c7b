"""What agents share in learning: which rows count how much, and one step of the optimiser."""

from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from neubay.config import AgentConfig
from neubay.tape import Tape, has_successor

Metrics = dict[str, Float[Array, ""]]

adam = optax.scale_by_adam(eps=1e-8)


class Kinds(NamedTuple):
    """The transitions of a tape by origin. An episode's last row is none, and in neither."""

    real: Bool[Array, " rows"]
    imagined: Bool[Array, " rows"]


def transition_kinds(tape: Tape) -> Kinds:
    valid, real = jnp.asarray(has_successor(tape.start)), jnp.asarray(tape.real)
    return Kinds(real=valid & real, imagined=valid & ~real)


def mixture_weights(kinds: Kinds, kappa: float | Float[Array, ""]) -> Float[Array, " rows"]:
    """Weights that make a sum over rows kappa * mean(real) + (1 - kappa) * mean(imagined).

    A kind of which the tape has no row contributes nothing.
    """
    return kappa * mean_weights(kinds.real) + (1 - kappa) * mean_weights(kinds.imagined)


def mean_weights(chosen: Bool[Array, " rows"]) -> Float[Array, " rows"]:
    """Weights that make a sum over rows the mean over the chosen ones; all zero if none is."""
    return chosen / jnp.maximum(chosen.sum(), 1)


@jax.jit
def init_optimiser(network: PyTree) -> optax.OptState:
    return adam.init(network)


@runtime_checkable
class Network(Protocol):
    """A network in two parts with learning rates of their own."""

    @property
    def encoder(self) -> PyTree: ...

    @property
    def head(self) -> PyTree: ...


N = TypeVar("N", bound=Network)


class GradientHealth(NamedTuple):
    """What the optimiser was given."""

    norm: Float[Array, ""]  # global norm before clipping; zero where it was not finite
    nonfinite: Float[Array, ""]  # 1 if it was not finite, else 0


def descend(
    network: N,
    gradient: N,
    optimiser: optax.OptState,
    config: AgentConfig,
    decay: float | Float[Array, ""] = 1.0,
) -> tuple[N, optax.OptState, GradientHealth]:
    """One Adam step: the encoder at eta_phi, the head at its own rate, both times `decay`.

    The gradient is clipped by its global norm; one with anything non-finite in it counts as zero.
    """
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm)
    scale = jnp.minimum(1.0, config.clip_norm / norm)
    gradient = jax.tree.map(lambda part: jnp.where(finite, part * scale, 0.0), gradient)
    direction, optimiser = adam.update(gradient, optimiser)

    def moved(part: PyTree, step: PyTree, rate: float | Float[Array, ""]) -> PyTree:
        return jax.tree.map(lambda value, along: value - rate * along, part, step)

    network = eqx.tree_at(
        lambda network: (network.encoder, network.head),
        network,
        (
            moved(network.encoder, direction.encoder, config.encoder_lr * decay),
            moved(network.head, direction.head, config.head_lr * decay),
        ),
    )
    health = GradientHealth(jnp.where(finite, norm, 0.0), jnp.where(finite, 0.0, 1.0))
    return network, optimiser, health


def actor_decay(config: AgentConfig, step: Array) -> Float[Array, ""]:
    """The actor's rates fall along a cosine from full to zero over the training."""
    return 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(step / config.steps, 1.0)))


def critic_decay(config: AgentConfig, step: Array) -> float | Float[Array, ""]:
    """The critic's rates stay, unless the configuration lets them fall as well."""
    return actor_decay(config, step) if config.decay_critic else 1.0
