"""Termination rules: which states end an episode in which environment.

All of them look at s' alone; `OfNextState` makes f_term(s, a, s') of such a rule.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from neubay.tasks.task import AnyArray, Termination


@dataclass(frozen=True)
class OfNextState:
    """f_term(s, a, s') of a rule that looks at s' alone."""

    rule: Callable[[Float[Array, "*batch s"]], Bool[Array, "*batch"]]

    def __call__(
        self,
        state: Float[AnyArray, "*batch s"],
        action: Float[AnyArray, "*batch a"],
        next_state: Float[AnyArray, "*batch s"],
    ) -> Bool[Array, "*batch"]:
        return self.rule(jnp.asarray(next_state))


def hopper_falls(height: int) -> Termination:
    """Hopper's rule with z at index `height`: 0, or 1 where the state begins with x.

    Everything from the angle on must stay below 100, and the whole state must be finite.
    """

    @OfNextState
    def falls(next_state: Float[Array, "*batch s"]) -> Bool[Array, "*batch"]:
        return ~(
            jnp.isfinite(next_state).all(-1)
            & (jnp.abs(next_state[..., height + 1 :]) < 100).all(-1)
            & (next_state[..., height] > 0.7)
            & (jnp.abs(next_state[..., height + 1]) < 0.2)
        )

    return falls


def walker_falls(height: int) -> Termination:
    """Walker2d's rule with z at index `height`: 0, or 1 where the state begins with x."""

    @OfNextState
    def falls(next_state: Float[Array, "*batch s"]) -> Bool[Array, "*batch"]:
        z, angle = next_state[..., height], next_state[..., height + 1]
        return ~((z > 0.8) & (z < 2.0) & (jnp.abs(angle) < 1.0))

    return falls


@OfNextState
def pen_drops(next_state: Float[Array, "*batch s"]) -> Bool[Array, "*batch"]:
    """Adroit's pen has fallen off the hand."""
    return next_state[..., 26] < 0.075


def ant_arrives(goal: tuple[float, float]) -> Termination:
    """Within 0.25 of the mean evaluation goal: the published rule of imagined rollouts.

    The environment draws a new goal each episode and counts success within 0.5 of it.
    """

    @OfNextState
    def arrives(next_state: Float[Array, "*batch s"]) -> Bool[Array, "*batch"]:
        offset = next_state[..., :2] - jnp.asarray(goal, next_state.dtype)
        return jnp.linalg.norm(offset, axis=-1) < 0.25

    return arrives


@OfNextState
def pole_falls(next_state: Float[Array, "*batch s"]) -> Bool[Array, "*batch"]:
    """CartPole: the cart has left the track, or the pole leans by more than 12 degrees."""
    position, angle = next_state[..., 0], next_state[..., 2]
    return (jnp.abs(position) > 2.4) | (jnp.abs(angle) > jnp.deg2rad(12.0))
