"""Algorithm 2: rollouts of a policy in the worlds of the posterior.

    Rollout(h_t, m_theta, pi):
        repeat
            a_t ~ pi(h_t)                                                            (act)
            (r_{t+1}, s_{t+1}) ~ m_theta(s_t, a_t)                                   (world)
            d_{t+1} = f_term(s_t, a_t, s_{t+1})                                      (terminal)
            c_{t+1} = U(s_t, a_t) > U(zeta)                                          (cut)
            h_{t+1} = (h_t, a_t, r_{t+1}, s_{t+1});  t <- t + 1                      (continue)
        until d_t or c_t or t >= T

K rollouts run side by side, each from a history of the data, which the policy reads first, and each
in one member. A rollout draws from a key of its own, so that its trajectory does not depend on the
batch it is computed in.

Where a rollout goes depends on its own member alone; the others only tell, by U, how far it counts.
So the cut of a block of steps is decided at once, after they were taken (`batch.py` says why), and
the steps beyond a cut are dropped.
"""

from functools import partial
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, Key

from neubay.imagination.batch import (
    BLOCK,
    Draws,
    Live,
    Steps,
    block_steps,
    draw,
    shrinking_widths,
    uncertainty_of,
)
from neubay.imagination.branches import Branches, recall
from neubay.imagination.layout import Rollouts, lay_out
from neubay.imagination.protocols import Dynamics, HistoryPolicy, Posterior, WideningDynamics
from neubay.imagination.rules import Ending, Rules
from neubay.tape import AgentInput, AnyArray

Carry = tuple[Int[Array, ""], Live, Steps]  # steps taken, the rollouts, all their steps


def imagine(
    world: Posterior,
    policy: HistoryPolicy,
    branches: Branches,
    member: Int[np.ndarray, " k"],
    rules: Rules,
    key: Key[Array, ""],
    *,
    widths: tuple[int, ...] | None = None,
) -> Rollouts:
    """Algorithm 2 for K branches side by side, in one call on the device.

    Args:
        world: the posterior.
        policy: chooses the actions; its memory at t comes from reading the history.
        branches: the histories h_t.
        member: the member in which each rollout lives.
        rules: what ends a rollout.
        key: decides every draw.
        widths: the batch widths that the running rollouts move through, from K down; (K,) alone
            keeps ended rollouts in the batch to the end. The trajectories are the same.
    """
    widths = widths or shrinking_widths(len(member))
    steps = steps_of_rollouts(world, policy, branches, member, key, rules, widths)
    return lay_out(branches, rules, jax.tree.map(np.asarray, steps))


@eqx.filter_jit
def steps_of_rollouts(
    world: Posterior,
    policy: HistoryPolicy,
    branches: Branches,
    member: Int[AnyArray, " k"],
    key: Key[Array, ""],
    rules: Rules,
    widths: tuple[int, ...],
) -> Steps:
    """All steps of all rollouts, block by block, at widths that shrink as rollouts end."""
    draws = draw(key, jnp.asarray(member), rules, world.size)
    live = Live(
        slot=jnp.arange(len(member)),
        running=~jnp.asarray(branches.whole),
        time=jnp.asarray(branches.length),
        memory=recall(policy, branches),
        inputs=branches.inputs,
    )
    number, record = jnp.int32(0), Steps.empty(rules.steps + BLOCK, live.inputs)
    for width, next_width in pairwise((*widths, 0)):
        live = live.first(width) if width < len(member) else live
        members = _worlds_of(world, rules, draws.at(jnp.int32(0), live.slot))
        number, live, record = lax.while_loop(
            partial(_more_run_than, next_width),
            partial(_take_block, world, policy, rules, draws, members),
            (number, live, record),
        )
    return record


def _worlds_of(world: Posterior, rules: Rules, drawn: Draws) -> Dynamics:
    """m_theta of each rollout: a member, or a world beyond it."""
    members = world.select(drawn.member)
    if not rules.widen:
        return members
    assert isinstance(members, WideningDynamics)
    return members.beyond(world.select(drawn.other), rules.widen)


def _more_run_than(count: int, carry: Carry) -> Bool[Array, ""]:
    return carry[1].running.sum() > count


def _take_block(
    world: Posterior,
    policy: HistoryPolicy,
    rules: Rules,
    draws: Draws,
    members: Dynamics,
    carry: Carry,
) -> Carry:
    """The loop of Algorithm 2 for the running rollouts: a block of steps, then their cuts."""
    number, live, record = carry

    def step(carry: Carry) -> Carry:
        done, live, block = carry
        drawn = draws.at(number + done, live.slot)
        state = jnp.asarray(live.inputs.state)
        # act: a_t ~ pi(h_t)
        memory, action = policy.act(live.memory, live.inputs, drawn.policy_key)
        # world: (r_{t+1}, s_{t+1}) ~ m_theta(s_t, a_t)
        dynamics = _worlds_of(world, rules, drawn) if rules.redraw_member else members
        next_state, reward = dynamics.sample(state, action, drawn.world_key)
        # terminal: d_{t+1} = f_term(s_t, a_t, s_{t+1}), or t + 1 >= T
        terminal = rules.terminal(dynamics, state, action, next_state, drawn.world_key)
        ending = rules.ending(terminal, next_state, reward, live.time + 1, number + done + 1)
        unknown = jnp.zeros_like(reward)  # U, until the block is full
        row = Steps(live.slot, live.running, state, action, reward, next_state, unknown, ending)
        block = block.write(done, jax.tree.map(lambda leaf: leaf[None], row))
        # continue: h_{t+1} = (h_t, a_t, r_{t+1}, s_{t+1}); t <- t + 1
        live = Live(
            slot=live.slot,
            running=live.running & (ending == Ending.NONE),
            time=live.time + 1,
            memory=memory,
            inputs=AgentInput(next_state, action, reward, jnp.zeros_like(live.running)),
        )
        return done + 1, live, block

    steps = block_steps(number, live.running.sum(), rules, world.size)
    done, live, block = lax.while_loop(
        lambda carry: (carry[0] < steps) & carry[1].running.any(),
        step,
        (jnp.int32(0), live, Steps.empty(BLOCK, live.inputs)),
    )
    if rules.uses_uncertainty:
        # cut: U(s_t, a_t) > U(zeta). The step that crosses is kept; what follows never happened.
        uncertainty = uncertainty_of(world, block)
        ending = rules.cut(jnp.asarray(block.ending), uncertainty)
        block = block._replace(uncertainty=uncertainty, ending=ending)
        ended = jnp.asarray(block.ended, jnp.int32)
        block = block._replace(happened=block.happened & (jnp.cumsum(ended, axis=0) == ended))
    # until d or c or t >= T
    live = live._replace(running=live.running & ~block.ended.any(axis=0))
    return number + done, live, record.write(number, block)
