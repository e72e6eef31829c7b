"""What agents share in learning: how rows are weighed, targets, the optimiser, and updates."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from neubay.agents.layers import Standardiser, float32
from neubay.config import AgentConfig, known
from neubay.tape import Tape, has_successor

Metrics = dict[str, Float[Array, ""]]


# --- Rows ----------------------------------------------------------------------------------------


class Kinds(NamedTuple):
    """The transitions of a tape by origin. An episode's last row is none, and in neither, and nor
    is a row that is read without loss."""

    real: Bool[Array, "rows *slots"]
    imagined: Bool[Array, "rows *slots"]


def transition_kinds(tape: Tape) -> Kinds:
    valid, real = jnp.asarray(has_successor(tape.start)), jnp.asarray(tape.real)
    if tape.burn_in is not None:
        valid = valid & ~jnp.asarray(tape.burn_in)
    return Kinds(real=valid & real, imagined=valid & ~real)


def mixture_weights(kinds: Kinds, kappa: float | Float[Array, ""]) -> Float[Array, "rows *slots"]:
    """Weights that make a sum over rows kappa * mean(real) + (1 - kappa) * mean(imagined).

    A kind of which the tape has no row contributes nothing.
    """
    return kappa * mean_weights(kinds.real) + (1 - kappa) * mean_weights(kinds.imagined)


def mean_weights(chosen: Bool[Array, "rows *slots"]) -> Float[Array, "rows *slots"]:
    """Weights that make a sum over rows the mean over the chosen ones; all zero if none is."""
    return chosen.astype(jnp.float32) / jnp.maximum(chosen.sum(dtype=jnp.float32), 1.0)


def bootstrapped(
    tape: Tape, value: Float[Array, "rows *slots"], gamma: float
) -> Float[Array, "rows *slots"]:
    """y = r + gamma (1 - d) V(h'), from the value V(h) of every row.

    h' is the history one row on. Where that row is another episode's, y means nothing, and the
    row has no weight.
    """
    next_value = jnp.roll(value, -1, axis=0)
    reward = jnp.asarray(tape.target_reward)
    return reward + gamma * jnp.where(tape.terminated, 0.0, next_value)


# --- The optimiser -------------------------------------------------------------------------------


T = TypeVar("T")


class GradientHealth(NamedTuple):
    """What the optimiser was given."""

    norm: Float[Array, ""]  # global norm before clipping; zero where it was not finite
    nonfinite: Float[Array, ""]  # 1 if it was not finite, else 0


@cache
def network_optimiser(config: AgentConfig, *, decay: bool) -> optax.GradientTransformation:
    """Clipping and Adam, the encoder at eta_phi and the head at its own rate, each clipped by its
    own norm.

    With `decay`, both rates fall along a cosine from full to zero over the training.
    """

    def descent(rate: float | Float[Array, ""]) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(config.clip_norm),
            zero_nonfinite(),
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(
                optax.cosine_decay_schedule(rate, known(config.steps)) if decay else rate
            ),
        )

    return optax.partition(
        {"encoder": descent(config.encoder_lr), "head": descent(config.head_lr)}, _parts
    )


WARM_RATE = 1e-3
"""Learning rate of a warm start, of encoder and heads alike."""


@cache
def warm_optimiser(config: AgentConfig) -> optax.GradientTransformation:
    """What a network learns from the data with, before the training."""
    clipped = optax.clip_by_global_norm(config.clip_norm)
    return optax.chain(clipped, zero_nonfinite(), optax.adam(WARM_RATE))


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


def _parts(network: PyTree) -> PyTree:
    """The part of a network, encoder or head, that each leaf belongs to."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[0].name, network)


def init_optimiser(optimiser: optax.GradientTransformation, network: PyTree) -> optax.OptState:
    """The state before the first step. All of it is zero, in each of these optimisers, which takes
    no program to compute."""
    state = jax.eval_shape(optimiser.init, network)
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), state)


def copied(tree: T) -> T:
    """A copy that shares no memory, so that an update may overwrite both."""
    return jax.tree.map(lambda leaf: jax.device_put(np.array(leaf)), tree)


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


# --- The policy that is kept ---------------------------------------------------------------------


class Average(NamedTuple):
    """The mean of a network's weights over about the last share of the gradient steps.

    A policy changes to the last step, from one gait to another on some tasks, and which of them the
    last step hits is chance. The mean over many steps is steadier than any of them. It is a running
    mean in which step t weighs as t^(2 / share - 2) (polynomial decay: Shamir and Zhang, 2013), so
    that the mean age of what it holds is that of the last share of the steps, whenever one asks.
    """

    network: PyTree
    steps: Int[Array, ""]

    @classmethod
    def begin(cls, network: PyTree, share: float) -> "Average | None":
        return cls(copied(network), jnp.zeros((), jnp.int32)) if share else None

    def updated(self, network: PyTree, share: float) -> "Average":
        """With the weights after one more step."""
        steps, decay = self.steps + 1, 2 / share
        rate = (decay - 1) / (steps.astype(jnp.float32) + (decay - 2))
        mean = jax.tree.map(lambda old, new: old + rate * (new - old), self.network, network)
        return Average(mean, steps)


def averaged(average: Average | None, network: PyTree, share: float) -> Average | None:
    """The average after one more step, where there is one."""
    return None if average is None else average.updated(network, share)


def kept(average: Average | None, network: T) -> T:
    """The weights that are kept: the average, or those of the last step."""
    return network if average is None else average.network


# --- Updates -------------------------------------------------------------------------------------


def q_metrics(kinds: Kinds, q: Float[Array, "rows *slots"]) -> Metrics:
    """Sums of Q over the rows of each kind, and how many they are; `update` makes them means."""
    metrics = {}
    for kind, rows in kinds._asdict().items():
        metrics[f"q_{kind}_sum"] = jnp.where(rows, q, 0.0).sum()
        metrics[f"rows_{kind}"] = rows.sum(dtype=jnp.float32)
    return metrics


@dataclass(frozen=True)
class RecurrentAgent:
    """An agent's sizes and settings. What it has learned is a state of its own kind: a pytree of
    all that training changes."""

    state_size: int
    action_size: int
    config: AgentConfig

    @property
    def constants(self) -> Standardiser | None:
        """What stands in for the data's constants until they are known; none where inputs are
        taken as they are."""
        if not self.config.standardise:
            return None
        into = self.state_size + self.action_size + 1
        return Standardiser(float32(np.zeros(into)), float32(np.ones(into)))

    @property
    def burn_in(self) -> int:
        """Rows at the top of a batch that only encoders read."""
        return 0 if self.config.window is None else self.config.burn_in

    @property
    def gamma(self) -> float:
        return known(self.config.gamma)

    @property
    def kappa(self) -> float | Float[Array, ""]:
        return known(self.config.kappa)

    @property
    def value_unit(self) -> float:
        return known(self.config.value_unit)

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, constants: Standardiser | None = None) -> Any:
        """Networks before training; `constants` standardise their inputs, where the settings want
        that."""

    @abc.abstractmethod
    def policy(self, state: Any, deterministic: bool) -> Any:
        """The policy that is kept, evaluated and deployed: `initial`, `recall`, `act`."""

    def behaviour(self, state: Any) -> Any:
        """The policy that imagines: that of the last step, which explores."""
        return self.policy(state, deterministic=False)

    @abc.abstractmethod
    def gradient_step(self, state: Any, tape: Tape) -> tuple[Any, Metrics]:
        """One gradient step on one tape."""

    def warm(self, state: Any) -> Any:
        """The state at the beginning of a warm start."""
        return state

    def warmed(self, state: Any) -> Any:
        """The state at its end, where the training begins."""
        return state

    def warm_step(self, state: Any, tape: Tape) -> tuple[Any, Metrics]:
        """One gradient step of a warm start. The batch has only the data, and its rewards less
        their penalties are returns, after which nothing follows (`replay.sample_data`)."""
        raise NotImplementedError

    @abc.abstractmethod
    def tape_values(self, state: Any, tape: Tape) -> Float[Array, "rows *slots"]:
        """Q(h_t, a_t) at a tape's own actions, the mean over heads where there are several; NaN
        where there is no critic."""

    @partial(jax.jit, static_argnums=0)
    def values(self, state: Any, tapes: Tape) -> Float[Array, "batches rows *slots"]:
        """Q(h_t, a_t) at the tapes' own actions.

        A row that is no transition has no action, and its value means nothing.
        """
        return lax.map(partial(self.tape_values, state), tapes)

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, state: Any, tapes: Tape) -> tuple[Any, Metrics]:
        """One gradient step on each tape; `tapes` has leaves (batches, rows, ...).

        Returns the mean of the metrics over the steps. Where there is a critic, `q_real` and
        `q_imagined` are means over rows, and NaN if no tape had such a row. The state passed
        in must not be used again: its memory is reused.
        """
        return self._steps(self.gradient_step, state, tapes)

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def warm_update(self, state: Any, tapes: Tape) -> tuple[Any, Metrics]:
        """As `update`, on batches of the data alone that carry their discounted returns."""
        return self._steps(self.warm_step, state, tapes)

    def _steps(
        self, step: Callable[[Any, Tape], tuple[Any, Metrics]], state: Any, tapes: Tape
    ) -> tuple[Any, Metrics]:
        state, metrics = lax.scan(step, state, tapes)
        means = {name: values.mean() for name, values in metrics.items()}
        for kind in Kinds._fields:
            if f"q_{kind}_sum" in means:
                means[f"q_{kind}"] = means.pop(f"q_{kind}_sum") / means[f"rows_{kind}"]
        return state, means
