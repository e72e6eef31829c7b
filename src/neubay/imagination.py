"""Imagination: Algorithm 2, rollouts of a policy in the worlds of the posterior.

    Rollout(h_t, m_theta, pi):
        repeat
            a_t ~ pi(h_t);  (r_{t+1}, s_{t+1}) ~ m_theta(s_t, a_t)
            d_{t+1} = f_term(s_t, a_t, s_{t+1});  cut = U(s_t, a_t) > U(zeta)
            h_{t+1} = (h_t, a_t, r_{t+1}, s_{t+1});  t <- t + 1
        until d or cut or t >= T

K rollouts run side by side, each from a history of the data, which the policy reads back first, and
each in one member. A rollout draws from a key of its own, so that its trajectory does not depend on
the batch it is computed in.

Where a rollout goes depends on its own member alone; the others only say, by U, how far it counts.
So rollouts advance a few steps in their own members, which is cheap, and then all members look at
all of these steps, in batches that are always full; what lies beyond a crossing is struck out. And
rollouts that have ended leave the batch. Cost follows the live rows.
"""

import enum
import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from neubay.config import RolloutConfig
from neubay.data.dataset import Dataset
from neubay.tape import AgentInput, AnyArray, Prefix, Tape, agent_input
from neubay.tasks import Task, Termination

Memory = Any  # a pytree; every leaf has the rollouts as its leading axis

RECALL_GROUPS = 4
"""Histories are read back in this many groups of similar length."""

BLOCK = 64
"""The most steps that rollouts advance before the members look at them."""

LOOK = 10_000
"""Members times rows of one look: enough to use each weight often, few enough to stay in cache."""

LOOKS = 8
"""Looks that a block should fill: of several, the last and partly empty one weighs little."""


@runtime_checkable
class Dynamics(Protocol):
    """The members in which k rollouts live."""

    def sample(
        self, state: Float[Array, "k s"], action: Float[Array, "k a"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        """(s', r) ~ m_theta(s, a), each rollout in its own member and from its own key."""
        ...


@runtime_checkable
class World(Protocol):
    """The posterior over worlds."""

    @property
    def size(self) -> int:
        """N, the number of members."""
        ...

    def select(self, member: Int[Array, " k"]) -> Dynamics:
        """The given members, one for each of k rollouts."""
        ...

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        """U(s, a)."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A policy as functions of explicit memory."""

    def initial(self, batch: int) -> Memory:
        """Memory before anything was seen."""
        ...

    def recall(self, history: AgentInput, length: Int[Array, " k"]) -> Memory:
        """Memory after rows 0 .. length - 1 of each history, leaves (rows, k, ...)."""
        ...

    def act(
        self, memory: Memory, inputs: AgentInput, keys: Key[Array, " k"]
    ) -> tuple[Memory, Float[Array, "k a"]]:
        """Read one row, leaves (k, ...), and choose the action there."""
        ...


class Ending(enum.IntEnum):
    """Why a rollout ended. Only a terminal state stops bootstrapping."""

    NONE = 0
    TERMINAL = 1
    """s_{t+1} is terminal."""
    UNCERTAIN = 2
    """U(s_t, a_t) crossed the threshold."""
    TIMEOUT = 3
    """t + 1 reached T."""
    HORIZON = 4
    """The fixed number of imagined steps H was reached."""
    NON_FINITE = 5
    """The world's answer was not finite; that step is not part of the rollout."""
    UNACTED = 6
    """The history was a whole episode: there was nothing to imagine."""


@dataclass(frozen=True)
class Rules:
    """What ends a rollout and what its rewards cost."""

    horizon: int
    """T, the maximum episode length in steps, those of the history included."""
    termination: Termination | None = None
    """f_term(s, a, s'); none where no state is terminal."""
    threshold: float = math.inf
    """U(zeta)."""
    max_steps: int | None = None
    """H, a fixed cap on imagined steps."""
    penalty: float = 0.0
    """lambda / mean_D(U): what a unit of U takes off the reward."""
    halt_penalty: float | None = None
    """MOReL: crossing the threshold is terminal and costs this much."""
    redraw_member: bool = False
    """MBPO: a new member at every step."""

    @classmethod
    def of(
        cls, config: RolloutConfig, task: Task, *, threshold: float, mean_uncertainty: float
    ) -> "Rules":
        """The rules of a configuration; `threshold` is U(zeta), or infinity for none."""
        return cls(
            horizon=task.horizon,
            termination=task.termination,
            threshold=threshold,
            max_steps=config.horizon,
            penalty=config.penalty / mean_uncertainty if config.penalty else 0.0,
            halt_penalty=config.halt_penalty,
            redraw_member=config.redraw_member,
        )

    @property
    def steps(self) -> int:
        """The most steps a rollout can have."""
        return self.horizon if self.max_steps is None else min(self.horizon, self.max_steps)

    @property
    def uses_uncertainty(self) -> bool:
        """Whether anything depends on U."""
        return self.penalised or self.threshold < math.inf

    @property
    def penalised(self) -> bool:
        return self.penalty > 0 or self.halt_penalty is not None


class Branches(NamedTuple):
    """K histories h_t read from the data: where rollouts branch off."""

    history: AgentInput  # rows 0 .. t - 1, padded: leaves (rows, k, ...)
    inputs: AgentInput  # the input at t, with the branching state s_t: leaves (k, ...)
    length: Int[np.ndarray, " k"]  # t
    whole: Bool[np.ndarray, " k"]  # h_t is a whole episode: the data ended there


class Rollouts(NamedTuple):
    """K imagined rollouts. `rows` are those beyond the histories, rollout after rollout:
    s_t (the branching state), ..., s_{t+L}, that is L + 1 rows for a rollout of L steps."""

    rows: Tape
    length: Int[np.ndarray, " k"]  # L, the horizon reached
    ending: Int[np.ndarray, " k"]  # an `Ending`
    uncertainty: Float[np.ndarray, " k"]  # the largest U on the way; 0 where nothing depends on U

    def record(self) -> dict[str, float]:
        """Horizons and endings as plain numbers, for a metrics file."""
        quantiles = np.quantile(self.length, (0.05, 0.25, 0.5, 0.75, 0.95, 1.0))
        record = {
            "horizon_mean": float(self.length.mean()),
            "uncertainty_max": float(self.uncertainty.max()),
        }
        for name, value in zip(("p5", "p25", "p50", "p75", "p95", "max"), quantiles, strict=True):
            record[f"horizon_{name}"] = float(value)
        for ending in list(Ending)[1:]:
            record[f"ended_{ending.name.lower()}"] = float(np.mean(self.ending == ending))
        return record


# --- Where rollouts begin ------------------------------------------------------------------------


def draw_histories(
    rng: np.random.Generator,
    histories: Prefix,
    count: int,
    start: Literal["any", "initial"] = "any",
) -> Prefix:
    """Draw h_t uniformly over every time step of every episode, or at s_0 of a random episode.

    The longest come first: reading them back then costs less.
    """
    if start == "initial":
        episode = rng.integers(len(histories.first), size=count)
        return Prefix(histories.first[episode], np.zeros_like(histories.length[episode]))
    ends = np.cumsum(histories.length + 1)  # h_t exists for every t in 0 .. length
    draw = rng.integers(ends[-1], size=count)
    episode = np.searchsorted(ends, draw, side="right")
    length = draw - (ends - histories.length - 1)[episode]
    order = np.argsort(-length, kind="stable")
    return Prefix(histories.first[episode][order], length[order])


def draw_members(rng: np.random.Generator, count: int, members: int) -> Int[np.ndarray, " k"]:
    """A member for each rollout, spread evenly: no member is used twice more than another."""
    return rng.permutation(np.resize(rng.permutation(members), count)).astype(np.int32)


def branch(dataset: Dataset, prefix: Prefix) -> Branches:
    """Read the histories, padded to the dataset's longest so that their shape does not change."""
    first, length = np.asarray(prefix.first), np.asarray(prefix.length)
    longest = int(dataset.histories.length.max()) if length.any() else 0
    row = np.arange(longest + 1)[:, None]
    tape = dataset.take(first + np.minimum(row, length))
    inputs = agent_input(tape._replace(start=np.broadcast_to(row == 0, tape.start.shape)))
    here = length, np.arange(len(length))
    episode = np.searchsorted(dataset.histories.first, first)
    return Branches(
        history=jax.tree.map(lambda leaf: leaf[:longest], inputs),
        inputs=jax.tree.map(lambda leaf: leaf[here], inputs),
        length=length.astype(np.int32),
        whole=length >= dataset.histories.length[episode],
    )


# --- Algorithm 2 ---------------------------------------------------------------------------------


class _Draws(NamedTuple):
    """What chance decides, for every step of every rollout."""

    keys: Key[Array, "steps k 2"]  # of the policy, of the world
    member: Int[Array, "steps k"]


class _Live(NamedTuple):
    """The rollouts of the current width, on their way."""

    slot: Int[Array, " w"]  # which of the K
    running: Bool[Array, " w"]
    time: Int[Array, " w"]  # t
    memory: Memory
    inputs: AgentInput


class _Record(NamedTuple):
    """Steps of the rollouts of the current width."""

    slot: Int[AnyArray, "steps w"]  # which of the K
    happened: Bool[AnyArray, "steps w"]  # it had not ended before
    state: Float[AnyArray, "steps w s"]
    action: Float[AnyArray, "steps w a"]
    reward: Float[AnyArray, "steps w"]
    next_state: Float[AnyArray, "steps w s"]
    uncertainty: Float[AnyArray, "steps w"]
    ending: Int[AnyArray, "steps w"]  # an `Ending`


def imagine(
    world: World,
    policy: Policy,
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
        policy: chooses the actions; its memory at t comes from reading the history back.
        branches: the histories h_t.
        member: the member in which each rollout lives.
        rules: what ends a rollout.
        key: decides every draw.
        widths: the batch widths that the live rollouts move through, from K down; (K,) alone
            keeps ended rollouts in the batch to the end. The trajectories are the same.
    """
    widths = widths or shrinking_widths(len(member))
    record = _imagine(world, policy, branches, member, key, rules, widths)
    return _lay_out(branches, rules, jax.tree.map(np.asarray, record))


def shrinking_widths(count: int) -> tuple[int, ...]:
    """K and smaller, down to about 8. Each is one more loop to compile, and few will do: what a
    step costs at a width that is not full is little beside the members' looks."""
    widths = [count]
    while widths[-1] >= 20:
        widths.append(-(-widths[-1] * 2 // 5))
    return tuple(widths)


@eqx.filter_jit
def _imagine(
    world: World,
    policy: Policy,
    branches: Branches,
    member: Int[AnyArray, " k"],
    key: Key[Array, ""],
    rules: Rules,
    widths: tuple[int, ...],
) -> _Record:
    draws = _draw(key, jnp.asarray(member), rules, world.size)
    live = _Live(
        slot=jnp.arange(len(member)),
        running=~jnp.asarray(branches.whole),
        time=jnp.asarray(branches.length),
        memory=_recall(policy, branches),
        inputs=branches.inputs,
    )
    records = _no_record(rules.steps + BLOCK, live.inputs)

    def run(carry: tuple, fewer: int) -> tuple:
        """Advance until no more than `fewer` rollouts are running."""
        dynamics = world.select(draws.member[0, carry[1].slot])
        return lax.while_loop(
            lambda carry: carry[1].running.sum() > fewer,
            partial(_advance, world, policy, rules, draws, dynamics),
            carry,
        )

    def narrowed(carry: tuple, width: int) -> tuple:
        """Keep those that are running, at most `width`."""
        number, live, records = carry
        front = jnp.argsort(~live.running, stable=True)[:width]
        return number, jax.tree.map(lambda leaf: leaf[front], live), records

    carry = jnp.int32(0), live, records
    for width, fewer in pairwise((*widths, 0)):
        carry = run(narrowed(carry, width) if width < len(member) else carry, fewer)
    return carry[2]


def _draw(key: Key[Array, ""], member: Int[Array, " k"], rules: Rules, members: int) -> _Draws:
    """Each rollout has a key of its own, so that it does not depend on its batch.

    Drawn ahead of the loops: generators are slow to compile, and every width has its own loop.
    """
    shape = rules.steps, len(member)
    rollout_key, member_key = jax.random.split(key)
    keys = jax.vmap(lambda key: jax.random.split(key, (rules.steps, 2)), out_axes=1)(
        jax.random.split(rollout_key, len(member))
    )
    if rules.redraw_member:
        return _Draws(keys, jax.random.randint(member_key, shape, 0, members))
    return _Draws(keys, jnp.broadcast_to(member, shape))


def _no_record(steps: int, inputs: AgentInput) -> _Record:
    (width, states), actions = inputs.state.shape, inputs.last_action.shape[-1]
    return _Record(
        slot=jnp.zeros((steps, width), jnp.int32),
        happened=jnp.zeros((steps, width), bool),
        state=jnp.zeros((steps, width, states)),
        action=jnp.zeros((steps, width, actions)),
        reward=jnp.zeros((steps, width)),
        next_state=jnp.zeros((steps, width, states)),
        uncertainty=jnp.zeros((steps, width)),
        ending=jnp.zeros((steps, width), jnp.int8),
    )


def _advance(
    world: World,
    policy: Policy,
    rules: Rules,
    draws: _Draws,
    dynamics: Dynamics,
    carry: tuple[Int[Array, ""], _Live, _Record],
) -> tuple[Int[Array, ""], _Live, _Record]:
    """A block of steps, recorded at step `number` and later, and the members' looks at it."""
    number, live, records = carry
    look = min(max(LOOK // world.size, 64), 512)
    steps = jnp.int32(BLOCK)
    if rules.uses_uncertainty:  # few steps at first: they may be in vain
        steps = jnp.clip(LOOKS * look // live.running.sum(), 1, jnp.clip(number // 4, 4, BLOCK))

    def step(carry: tuple) -> tuple:
        done, live, block = carry
        drawn = jax.tree.map(lambda leaf: leaf[number + done, live.slot], draws)
        chosen = world.select(drawn.member) if rules.redraw_member else dynamics
        live, row = _step(chosen, policy, rules, live, drawn.keys, number + done)
        block = jax.tree.map(
            lambda old, new: lax.dynamic_update_slice_in_dim(old, new[None], done, 0), block, row
        )
        return done + 1, live, block

    done, live, block = lax.while_loop(
        lambda carry: (carry[0] < steps) & carry[1].running.any(),
        step,
        (jnp.int32(0), live, _no_record(BLOCK, live.inputs)),
    )
    if rules.uses_uncertainty:
        block = _cut(world, rules, block, look)
    ended = (block.happened & (block.ending != Ending.NONE)).any(axis=0)
    records = jax.tree.map(
        lambda old, new: lax.dynamic_update_slice(old, new, (number, *(new.ndim - 1) * [0])),
        records,
        block,
    )
    return number + done, live._replace(running=live.running & ~ended), records


def _step(
    dynamics: Dynamics,
    policy: Policy,
    rules: Rules,
    live: _Live,
    keys: Key[Array, "w 2"],
    number: Int[Array, ""],
) -> tuple[_Live, _Record]:
    """The body of Algorithm 2, but for U; `number` counts imagined steps."""
    state = jnp.asarray(live.inputs.state)
    memory, action = policy.act(live.memory, live.inputs, keys[:, 0])
    next_state, reward = dynamics.sample(state, action, keys[:, 1])

    finite = jnp.isfinite(next_state).all(axis=-1) & jnp.isfinite(reward)
    reasons = {Ending.NON_FINITE: ~finite}
    if rules.termination is not None:
        reasons[Ending.TERMINAL] = rules.termination(state, action, next_state)
    reasons[Ending.TIMEOUT] = live.time + 1 >= rules.horizon
    reasons[Ending.HORIZON] = jnp.full_like(finite, number + 1 >= rules.steps)
    ending = jnp.select(
        list(reasons.values()), [jnp.int8(reason) for reason in reasons], jnp.int8(Ending.NONE)
    )
    record = _Record(
        slot=live.slot,
        happened=live.running,
        state=state,
        action=action,
        reward=reward,
        next_state=next_state,
        uncertainty=jnp.zeros_like(reward),
        ending=ending,
    )
    live = live._replace(
        running=live.running & (ending == Ending.NONE),
        time=live.time + 1,
        memory=memory,
        inputs=AgentInput(next_state, action, reward, jnp.zeros_like(finite)),
    )
    return live, record


def _cut(world: World, rules: Rules, block: _Record, look: int) -> _Record:
    """Let all members look at a block, `look` rows at a time, and end each rollout where U crosses
    the threshold. The crossing step is kept; what came after it has not happened."""
    happened = block.happened.ravel()
    order = jnp.argsort(~happened, stable=True)  # only what happened is looked at
    order = jnp.pad(order, (0, -len(order) % look))
    state, action = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (block.state, block.action))

    def look_on(carry: tuple) -> tuple:
        begin, found = carry
        rows = lax.dynamic_slice_in_dim(order, begin, look)
        uncertainty = world.uncertainty(state[rows], action[rows])
        return begin + look, lax.dynamic_update_slice_in_dim(found, uncertainty, begin, 0)

    _, found = lax.while_loop(
        lambda carry: carry[0] < happened.sum(), look_on, (jnp.int32(0), jnp.zeros(len(order)))
    )
    found = found[jnp.cumsum(happened) - 1].reshape(block.happened.shape)
    uncertainty = jnp.where(block.happened, found, 0)

    broken = (block.ending == Ending.NON_FINITE) | ~jnp.isfinite(uncertainty)
    terminal = block.ending == Ending.TERMINAL
    ending = jnp.select(
        [broken, terminal, uncertainty > rules.threshold],
        [jnp.int8(reason) for reason in (Ending.NON_FINITE, Ending.TERMINAL, Ending.UNCERTAIN)],
        block.ending,
    )
    over = block.happened & (ending != Ending.NONE)
    over_before = jnp.cumsum(over, axis=0) - over > 0
    return block._replace(
        happened=block.happened & ~over_before, uncertainty=uncertainty, ending=ending
    )


def _recall(policy: Policy, branches: Branches) -> Memory:
    """Memory at the branching points. The histories come longest first, and each group of them
    is read no further than its own longest."""
    length = jnp.asarray(branches.length)
    if not len(branches.history.start):
        return policy.initial(len(length))
    groups = math.gcd(len(length), RECALL_GROUPS)

    def grouped(leaf: Array) -> Array:  # (rows, k, ...) -> (groups, rows, k / groups, ...)
        return jnp.moveaxis(leaf.reshape(len(leaf), groups, -1, *leaf.shape[2:]), 1, 0)

    memory = lax.map(
        lambda group: policy.recall(*group),
        (jax.tree.map(grouped, branches.history), length.reshape(groups, -1)),
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), memory)


def _lay_out(branches: Branches, rules: Rules, record: _Record) -> Rollouts:
    """Records, step by step in the order of shrinking batches -> rows, rollout after rollout."""
    count = len(branches.length)
    ending = np.full(count, Ending.UNACTED, np.int8)
    number, place = np.nonzero(record.happened & (record.ending != Ending.NONE))
    ending[record.slot[number, place]] = record.ending[number, place]

    number, place = np.nonzero(record.happened & (record.ending != Ending.NON_FINITE))
    slot = record.slot[number, place]
    length = np.bincount(slot, minlength=count)
    first = np.cumsum(length + 1) - (length + 1)

    def rows(values: AnyArray, *, after: int = 0) -> np.ndarray:
        laid = np.zeros((count + len(slot), *values.shape[2:]), values.dtype)
        laid[first[slot] + number + after] = values[number, place]
        return laid

    state = rows(record.next_state, after=1)
    state[first] = branches.inputs.state
    start = np.zeros(len(state), bool)
    start[first] = branches.inputs.start
    uncertainty = rows(record.uncertainty)
    endings = rows(record.ending)
    halted = (endings == Ending.UNCERTAIN) & (rules.halt_penalty is not None)
    penalty = uncertainty * np.float32(rules.penalty) + halted * np.float32(rules.halt_penalty or 0)
    return Rollouts(
        rows=Tape(
            state=state,
            action=rows(record.action),
            reward=rows(record.reward),
            terminated=(endings == Ending.TERMINAL) | halted,
            start=start,
            real=np.zeros(len(state), bool),
            penalty=penalty if rules.penalised else None,
        ),
        length=length,
        ending=ending,
        uncertainty=np.maximum.reduceat(uncertainty, first),
    )
