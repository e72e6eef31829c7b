"""What agents share in learning: how rows are weighed, targets, the optimiser, and updates."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from neubay.config import AgentConfig
from neubay.tape import Tape, has_successor

Metrics = dict[str, Float[Array, ""]]


# --- Rows ----------------------------------------------------------------------------------------


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
    return chosen.astype(jnp.float32) / jnp.maximum(chosen.sum(dtype=jnp.float32), 1.0)


def bootstrapped(tape: Tape, value: Float[Array, " rows"], gamma: float) -> Float[Array, " rows"]:
    """y = r + gamma (1 - d) V(h'), from the value V(h) of every row.

    h' is the history one row on. Where that row is another episode's, y means nothing, and the
    row has no weight.
    """
    next_value = jnp.roll(value, -1)
    reward = jnp.asarray(tape.target_reward)
    return reward + gamma * jnp.where(tape.terminated, 0.0, next_value)


# --- The optimiser -------------------------------------------------------------------------------


@runtime_checkable
class Network(Protocol):
    """A network in two parts with learning rates of their own."""

    @property
    def encoder(self) -> PyTree: ...

    @property
    def head(self) -> PyTree: ...


T = TypeVar("T")


class GradientHealth(NamedTuple):
    """What the optimiser was given."""

    norm: Float[Array, ""]  # global norm before clipping; zero where it was not finite
    nonfinite: Float[Array, ""]  # 1 if it was not finite, else 0


@cache  # one object for each configuration, so that `init_optimiser` compiles once
def network_optimiser(config: AgentConfig, *, decay: bool) -> optax.GradientTransformation:
    """Clipping and Adam, the encoder at eta_phi and the head at its own rate.

    With `decay`, both rates fall along a cosine from full to zero over the training.
    """

    def descent(rate: float | Float[Array, ""]) -> optax.GradientTransformation:
        return optax.scale_by_learning_rate(
            optax.cosine_decay_schedule(rate, config.steps) if decay else rate
        )

    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        zero_nonfinite(),
        optax.scale_by_adam(),
        optax.partition(
            {"encoder": descent(config.encoder_lr), "head": descent(config.head_lr)}, _parts
        ),
    )


@cache
def alpha_optimiser(config: AgentConfig) -> optax.GradientTransformation:
    """Adam on log alpha."""
    return optax.chain(zero_nonfinite(), optax.adam(config.alpha_lr))


def zero_nonfinite() -> optax.GradientTransformationExtraArgs:
    """Zero in place of a gradient that was not `finite`, as `descend` says.

    It comes after clipping, so that one norm serves both.
    """

    def update(
        gradient: PyTree, state: PyTree, params: PyTree = None, *, finite: Bool[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        return jax.tree.map(lambda part: jnp.where(finite, part, 0.0), gradient), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _parts(network: Network) -> PyTree:
    """The part of a network that each leaf belongs to."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[0].name, network)


@partial(jax.jit, static_argnums=0)
def init_optimiser(optimiser: optax.GradientTransformation, network: PyTree) -> optax.OptState:
    return optimiser.init(network)


def descend(
    optimiser: optax.GradientTransformation,
    network: T,
    gradient: T,
    state: optax.OptState,
) -> tuple[T, optax.OptState, GradientHealth]:
    """One step of the optimiser, and what the gradient was like before it was clipped.

    A gradient with anything non-finite in it counts as zero.
    """
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm)
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes its integer counts with floats
        updates, state = optimiser.update(gradient, state, finite=finite)
    health = GradientHealth(jnp.where(finite, norm, 0.0), jnp.where(finite, 0.0, 1.0))
    return optax.apply_updates(network, updates), state, health


# --- Updates -------------------------------------------------------------------------------------


def q_metrics(kinds: Kinds, q: Float[Array, " rows"]) -> Metrics:
    """Sums of Q over the rows of each kind, and how many they are; `update` makes them means."""
    metrics = {}
    for kind, rows in kinds._asdict().items():
        metrics[f"q_{kind}_sum"] = jnp.where(rows, q, 0.0).sum()
        metrics[f"rows_{kind}"] = rows.sum(dtype=jnp.float32)
    return metrics


@dataclass(frozen=True)
class RecurrentAgent:
    """An agent's sizes and settings. What it has learned is an `AgentState` of its own kind."""

    state_size: int
    action_size: int
    config: AgentConfig

    def gradient_step(self, state: Any, tape: Tape) -> tuple[Any, Metrics]:
        """One gradient step on one tape."""
        raise NotImplementedError

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, state: Any, tapes: Tape) -> tuple[Any, Metrics]:
        """One gradient step on each tape; `tapes` has leaves (batches, rows, ...).

        Returns the mean of the metrics over the steps. Where there is a critic, `q_real` and
        `q_imagined` are means over rows, and NaN if no tape had such a row. The state passed
        in must not be used again: its memory is reused.
        """
        state, metrics = lax.scan(self.gradient_step, state, tapes)
        means = {name: values.mean() for name, values in metrics.items()}
        for kind in Kinds._fields:
            if f"q_{kind}_sum" in means:
                means[f"q_{kind}"] = means.pop(f"q_{kind}_sum") / means[f"rows_{kind}"]
        return state, means
