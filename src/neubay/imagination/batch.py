"""Many rollouts side by side: what chance decides for them, their buffers, and batches that are
always nearly full.

U needs all N members for every step, a step itself only one. So rollouts take a block of steps in
their own members, which is cheap, and then U of the whole block is computed in batches of one size.
Rollouts that have ended leave the batch: it shrinks through a few widths, and cost follows the
rollouts that are still running.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from neubay.devices.choices import uncertainty_rows
from neubay.imagination.protocols import Memory, Posterior
from neubay.imagination.rules import Ending, Rules
from neubay.tape import AgentInput, AnyArray

BLOCK = 64
"""The most steps that rollouts take before their U is computed."""

BATCHES_PER_BLOCK = 8
"""Batches that a block should fill: of several, the last, partly empty one weighs little."""


class Draws(NamedTuple):
    """What chance decides, for every step of every rollout."""

    policy_key: Key[Array, "steps k"]
    world_key: Key[Array, "steps k"]
    member: Int[Array, "steps k"]
    other: Int[Array, "steps k"]  # another member, from which a world lies further away

    def at(self, step: Int[Array, ""], slot: Int[Array, " w"]) -> "Draws":
        """The draws of one step, leaves (w,)."""
        return Draws(*(leaf[step, slot] for leaf in self))


def draw(key: Key[Array, ""], member: Int[Array, " k"], rules: Rules, members: int) -> Draws:
    """Each rollout has a key of its own, so that it does not depend on its batch.

    Drawn ahead of the loops: generators are slow to compile, and every width has its own loop.
    """
    shape = rules.steps, len(member)
    rollout_key, member_key = jax.random.split(key)
    rollout_keys = jax.random.split(rollout_key, len(member))
    keys = jax.vmap(lambda key: jax.random.split(key, (rules.steps, 2)), out_axes=1)(rollout_keys)
    if rules.redraw_member:
        member = jax.random.randint(member_key, shape, 0, members)
    other = member
    if rules.widen and members > 1:
        apart = jax.vmap(lambda key: jax.random.randint(jax.random.fold_in(key, 0), (), 1, members))
        other = (member + apart(rollout_keys)) % members
    return Draws(
        keys[..., 0],
        keys[..., 1],
        jnp.broadcast_to(member, shape),
        jnp.broadcast_to(other, shape),
    )


class Live(NamedTuple):
    """The rollouts of the current width, at time t."""

    slot: Int[Array, " w"]  # which of the K
    running: Bool[Array, " w"]
    time: Int[Array, " w"]  # t
    memory: Memory
    inputs: AgentInput

    def first(self, width: int) -> "Live":
        """`width` rollouts, those that are running before all others."""
        order = jnp.argsort(~self.running, stable=True)[:width]
        return jax.tree.map(lambda leaf: leaf[order], self)


class Steps(NamedTuple):
    """Steps of the rollouts of the current width."""

    slot: Int[AnyArray, "steps w"]  # which of the K
    happened: Bool[AnyArray, "steps w"]  # it had not ended before
    state: Float[AnyArray, "steps w s"]
    action: Float[AnyArray, "steps w a"]
    reward: Float[AnyArray, "steps w"]
    next_state: Float[AnyArray, "steps w s"]
    uncertainty: Float[AnyArray, "steps w"]
    ending: Int[AnyArray, "steps w"]  # an `Ending`

    @staticmethod
    def empty(steps: int, inputs: AgentInput) -> "Steps":
        (width, states), actions = inputs.state.shape, inputs.last_action.shape[-1]
        return Steps(
            slot=jnp.zeros((steps, width), jnp.int32),
            happened=jnp.zeros((steps, width), bool),
            state=jnp.zeros((steps, width, states)),
            action=jnp.zeros((steps, width, actions)),
            reward=jnp.zeros((steps, width)),
            next_state=jnp.zeros((steps, width, states)),
            uncertainty=jnp.zeros((steps, width)),
            ending=jnp.zeros((steps, width), jnp.int8),
        )

    @property
    def ended(self) -> Bool[AnyArray, "steps w"]:
        """Steps that were the last of their rollout."""
        return self.happened & (self.ending != Ending.NONE)

    def write(self, at: Int[Array, ""], steps: "Steps") -> "Steps":
        """These with others written over them from step `at` on; those may be narrower."""
        return jax.tree.map(
            lambda old, new: lax.dynamic_update_slice(old, new, (at, *(new.ndim - 1) * [0])),
            self,
            steps,
        )


def shrinking_widths(count: int) -> tuple[int, ...]:
    """K and smaller, down to about 8. Each is one more loop to compile, and few will do: a step at
    a width that is not full costs little beside U."""
    widths = [count]
    while widths[-1] >= 20:
        widths.append(-(-widths[-1] * 2 // 5))
    return tuple(widths)


def block_steps(
    number: Int[Array, ""], running: Int[Array, ""], rules: Rules, members: int
) -> Int[Array, ""]:
    """How many steps to take from step `number` on before U is computed: few at first, for what
    lies beyond a cut was taken in vain, and no more than fill some batches."""
    if not rules.uses_uncertainty:
        return jnp.int32(BLOCK)
    fill = BATCHES_PER_BLOCK * uncertainty_rows(members) // running
    return jnp.clip(fill, 1, jnp.clip(number // 4, 4, BLOCK))


def uncertainty_of(world: Posterior, block: Steps) -> Float[Array, "steps w"]:
    """U(s, a) of the steps that happened, in batches of one size; 0 elsewhere."""
    rows = uncertainty_rows(world.size)
    happened = block.happened.ravel()
    order = jnp.argsort(~happened, stable=True)  # what happened comes first
    order = jnp.pad(order, (0, -len(order) % rows))
    state, action = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (block.state, block.action))

    def next_batch(carry: tuple) -> tuple:
        begin, found = carry
        chosen = lax.dynamic_slice_in_dim(order, begin, rows)
        uncertainty = world.uncertainty(state[chosen], action[chosen])
        return begin + rows, lax.dynamic_update_slice_in_dim(found, uncertainty, begin, 0)

    _, found = lax.while_loop(
        lambda carry: carry[0] < happened.sum(), next_batch, (jnp.int32(0), jnp.zeros(len(order)))
    )
    found = found[jnp.cumsum(happened) - 1].reshape(block.happened.shape)
    return jnp.where(block.happened, found, 0.0)
