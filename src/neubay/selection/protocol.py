"""One protocol for every candidate: the same start states, members and random keys, undiscounted.

    from s_0 of start i, in one member m_theta, until a terminal state or t = C_i:
        a_t ~ pi(h_t);  (r_{t+1}, s_{t+1}) ~ m_theta(s_t, a_t)
        cut, from the first step with U(s_t, a_t) > U(zeta) on

Unlike Algorithm 2, a rollout goes on after the cut, and what follows is a bracket. The `estimate`
takes the world's rewards there, clipped to the data's range; the `floor` takes the least that the
data's own windows of the remaining length grant, if that is lower. Nothing after a cut is free.

What a member calls noise is in part its own error, which the members' disagreement shows already.
So the noise is scaled to what the log leaves for it (`Trial.calibrated`).
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from neubay.config import EndedBy
from neubay.errors import NeubayError
from neubay.imagination import HistoryPolicy
from neubay.imagination.protocols import EndingDynamics
from neubay.policy import Policy
from neubay.runs.signals import stop_if_signalled
from neubay.selection.record import DataRecord
from neubay.tape import AgentInput
from neubay.tasks import Task, Termination
from neubay.world import WorldStep

ROLLOUTS = 240
"""Rollouts of one candidate: every start in every member."""
FEWEST_STARTS = 20
"""Start states at least, however many members there are."""
STEPS_PER_CALL = 50
"""Steps between two looks at signals."""
NOISE_SCALES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Shares of the members' noise that are tried; of equally good ones, the first."""

Predict = Any
"""A user's policy: a function from observations (k, s) to actions (k, a), or an object with a
method `predict`, as `remembering` calls it."""


@runtime_checkable
class Members(Protocol):
    """What is asked of a judge's world."""

    @property
    def size(self) -> int:
        """N, the number of members."""
        ...

    def step(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        member: Int[Array, " k"],
        keys: Key[Array, " k"],
    ) -> WorldStep:
        """(s', r) ~ m_theta(s, a) and U(s, a), each rollout in its own member."""
        ...

    def with_noise(self, scale: Float[Array, ""]) -> "Members":
        """The same members, the noise of whose steps is multiplied by this."""
        ...


@runtime_checkable
class EndingMembers(Members, Protocol):
    """Members that have learned what ends an episode."""

    def select(self, member: Int[Array, " k"]) -> EndingDynamics:
        """The given members, one for each of k rollouts."""
        ...


class Rollouts(NamedTuple):
    """What one candidate got, in every member from every start. Returns are raw."""

    estimate: Float[np.ndarray, "members starts"]
    floor: Float[np.ndarray, "members starts"]
    length: Int[np.ndarray, "members starts"]
    cut: Bool[np.ndarray, "members starts"]
    cut_time: Int[np.ndarray, "members starts"]
    """Steps before the cut; all of them where there was none."""


class Reproduced(NamedTuple):
    """The log's excerpts, and what the judge makes of the same actions from the same states."""

    recorded: Float[np.ndarray, " excerpts"]  # returns
    judged: Float[np.ndarray, "members excerpts"]
    recorded_ended: Bool[np.ndarray, " excerpts"]
    judged_ended: Bool[np.ndarray, "members excerpts"]
    steps: float  # of one in the mean, as the judge replays it

    def crps(self) -> float:
        """How well the members together foretell the recorded returns G: the continuous ranked
        probability score (Gneiting and Raftery, 2007), in its form for few members,

            mean_n |G_n - G| - mean over pairs of |G_n - G_m| / 2,

        averaged over excerpts. Lower is better; too narrow and too wide a spread both cost."""
        members = len(self.judged)
        off = np.abs(self.judged - self.recorded).mean()
        apart = np.abs(self.judged[:, None] - self.judged[None]).mean()
        return float(off - 0.5 * apart * members / (members - 1))


class Sums(NamedTuple):
    """K rollouts as far as they have come."""

    running: Bool[Array, " k"]
    time: Int[Array, " k"]  # steps taken
    cut: Bool[Array, " k"]
    cut_time: Int[Array, " k"]  # steps before the cut
    before: Float[Array, " k"]  # shifted rewards before the cut
    after: Float[Array, " k"]


class Conditions(eqx.Module):
    """What all candidates share, for K rollouts; rewards are shifted, as the agent sees them."""

    world: Members
    termination: Termination | None = eqx.field(static=True)
    ended_by: EndedBy = eqx.field(static=True)
    member: Int[Array, " k"]
    limit: Int[Array, " k"]  # C_i
    entropy: UInt32[Array, "k 2"]  # a key for each rollout
    threshold: Float[Array, ""]
    reward_low: Float[Array, ""]
    reward_high: Float[Array, ""]
    terminal_reward: Float[Array, ""] | None

    def keys(self, number: Int[Array, " k"]) -> Key[Array, " k"]:
        """A key for every draw of every rollout."""
        return jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(self.entropy), number)

    def terminal(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        next_state: Float[Array, "k s"],
        keys: Key[Array, " k"],
    ) -> Bool[Array, " k"]:
        """f_term(s, a, s'): the task's, or that of the member in which a rollout lives."""
        if self.ended_by == "rule":
            assert self.termination is not None
            return self.termination(state, action, next_state)
        if self.ended_by == "learned":
            assert isinstance(self.world, EndingMembers)
            return self.world.select(self.member).terminal(state, action, next_state, keys)
        return jnp.zeros(len(state), bool)

    def advance(
        self, sums: Sums, inputs: AgentInput, action: Float[Array, "k a"]
    ) -> tuple[Sums, AgentInput]:
        """One step of every rollout that is still running."""
        state = jnp.asarray(inputs.state)
        keys = self.keys(2 * sums.time + 1)
        next_state, reward, uncertainty = self.world.step(state, action, self.member, keys)
        finite = jnp.isfinite(next_state).all(axis=-1) & jnp.isfinite(reward)
        finite &= jnp.isfinite(uncertainty)
        next_state = jnp.where(finite[:, None], next_state, state)
        ended = finite & self.terminal(state, action, next_state, keys)
        if self.terminal_reward is not None:
            reward = jnp.where(ended, self.terminal_reward, reward)
        cut = sums.cut | ~finite | (uncertainty > self.threshold)
        reward = jnp.where(cut, jnp.clip(reward, self.reward_low, self.reward_high), reward)
        # A world whose numbers overflow has nothing to say: the rest is paid at the lowest reward.
        rest = (self.limit - sums.time).astype(jnp.float32) * self.reward_low
        reward = jnp.where(finite, reward, rest)
        paid = jnp.where(sums.running, reward, 0.0)
        here = jnp.where(finite, sums.time + 1, self.limit)
        time = jnp.where(sums.running, here, sums.time)
        after = Sums(
            running=sums.running & ~ended & finite & (time < self.limit),
            time=time,
            cut=jnp.where(sums.running, cut, sums.cut),
            cut_time=jnp.where(sums.running & ~cut, time, sums.cut_time),
            before=sums.before + jnp.where(cut, 0.0, paid),
            after=sums.after + jnp.where(cut, paid, 0.0),
        )
        return after, AgentInput(next_state, action, paid, jnp.zeros_like(finite))


@dataclass(frozen=True)
class Trial:
    """Start states, members and keys, and what the data says of rewards and of what is left."""

    conditions: Conditions
    record: DataRecord
    episode: Int[np.ndarray, " starts"]
    """Which episode each start is of."""
    task: Task
    noise: float = 1.0
    """What the members' own noise is multiplied by."""
    replayed: Reproduced | None = None
    """What `reproduce` comes to, where that is known already."""

    @classmethod
    def of(
        cls,
        world: Members,
        threshold: float,
        record: DataRecord,
        task: Task,
        *,
        seed: int,
        ended_by: EndedBy | None = None,
        episode: Int[np.ndarray, " starts"] | None = None,
        member: Int[np.ndarray, " members"] | None = None,
    ) -> "Trial":
        """Every start in every member: about `ROLLOUTS` rollouts. `ended_by` tells terminal states;
        by default the task's rule, if it has one. `episode` and `member` are the starts and the
        members; by default starts are drawn, and all members are taken."""
        usual: EndedBy = "none" if task.termination is None else "rule"
        if episode is None:
            episode = draw_starts(record, max(ROLLOUTS // world.size, FEWEST_STARTS), seed)
        member = np.arange(world.size) if member is None else member
        rng, count = np.random.default_rng([seed, 1]), len(member) * len(episode)
        low, high = (np.float32(r + record.reward_shift) for r in record.reward_range)
        terminal = record.terminal_reward
        conditions = Conditions(
            world,
            task.termination,
            ended_by or usual,
            member=jnp.asarray(np.repeat(member.astype(np.int32), len(episode))),
            limit=jnp.asarray(np.tile(record.limit[episode], len(member)).astype(np.int32)),
            entropy=jnp.asarray(rng.integers(1 << 32, size=(count, 2), dtype=np.uint32)),
            threshold=jnp.asarray(np.float32(threshold)),
            reward_low=jnp.asarray(low),
            reward_high=jnp.asarray(high),
            terminal_reward=None
            if terminal is None
            else jnp.asarray(np.float32(terminal + record.reward_shift)),
        )
        return cls(conditions, record, episode, task)

    def with_noise(self, scale: float) -> "Trial":
        """The same starts, members and keys; the members' noise is multiplied by this."""
        world = self.conditions.world.with_noise(jnp.asarray(np.float32(scale)))
        conditions = replace(self.conditions, world=world)
        return replace(self, conditions=conditions, noise=scale, replayed=None)

    def calibrated(self) -> "Trial":
        """With the share of the members' noise that foretells the log's excerpts best; all of it
        where there are none, or a single member, whose disagreement nobody knows."""
        if self.record.excerpt_state is None or self.conditions.world.size < 2:
            return self
        found = {}
        for scale in NOISE_SCALES:
            replayed = self.with_noise(scale).reproduce()
            if replayed is None:
                return self
            found[scale] = replayed
        best = min(found, key=lambda scale: found[scale].crps())
        return replace(self.with_noise(best), replayed=found[best])

    @property
    def data_returns(self) -> Float[np.ndarray, " starts"]:
        """What the data earned from the same starts."""
        return self.record.returns[self.episode]

    def roll(self, policy: Policy | Predict, *, deterministic: bool = True) -> Rollouts:
        """Judge a candidate: a policy of ours, another one with a method `predict`, or a plain
        function from observations to actions."""
        if isinstance(policy, Policy):
            chosen = replace(policy.mode, deterministic=deterministic)
            sums = self._roll_on_device(chosen)
        else:
            sums = self._roll_on_host(policy)
        return self._rollouts(jax.tree.map(np.asarray, sums))

    def reproduce(self) -> Reproduced | None:
        """Replay the log's excerpts, every one in every member; none where none are known."""
        if self.replayed is not None:
            return self.replayed
        record, members = self.record, self.conditions.world.size
        if record.excerpt_state is None or not len(record.excerpt_state):
            return None
        assert record.excerpt_action is not None
        assert record.excerpt_return is not None and record.excerpt_ended is not None
        count, steps = record.excerpt_action.shape[:2]
        rng = np.random.default_rng(self.episode)
        conditions = replace(
            self.conditions,
            member=jnp.asarray(np.repeat(np.arange(members, dtype=np.int32), count)),
            limit=jnp.asarray(np.full(members * count, steps, np.int32)),
            entropy=jnp.asarray(rng.integers(1 << 32, size=(members * count, 2), dtype=np.uint32)),
        )
        sums, inputs = _begin(record.excerpt_state, conditions, self.task.actions.size)
        actions = np.tile(record.excerpt_action.transpose(1, 0, 2), (1, members, 1))
        sums = jax.tree.map(
            np.asarray, _replay(conditions, sums, inputs, jnp.asarray(actions, jnp.float32))
        )
        raw = sums.before + sums.after - self.record.reward_shift * sums.time
        shape = (members, count)
        ended = (sums.time < steps).reshape(shape)
        taken = float(sums.time.mean())
        return Reproduced(
            record.excerpt_return, raw.reshape(shape), record.excerpt_ended, ended, taken
        )

    def _roll_on_device(self, policy: HistoryPolicy) -> Sums:
        start = self.record.start[self.episode]
        sums, inputs = _begin(start, self.conditions, self.task.actions.size)
        memory = policy.initial(len(sums.time))
        while np.asarray(sums.running).any():
            stop_if_signalled()
            sums, memory, inputs = _some_steps(self.conditions, policy, sums, memory, inputs)
        return sums

    def _roll_on_host(self, predict: Predict) -> Sums:
        start = self.record.start[self.episode]
        sums, inputs = _begin(start, self.conditions, self.task.actions.size)
        act, memory = remembering(predict), None
        while np.asarray(sums.running).any():
            stop_if_signalled()
            seen, starts = np.asarray(inputs.state), np.asarray(inputs.start)
            with _failure_reported(predict):
                actions, memory = act(seen, memory, starts)
            # Beyond the bounds is the bound, as in the environment.
            unit = np.clip(self.task.to_unit(self._checked(actions)), -1, 1)
            sums, inputs = _one_step(self.conditions, sums, inputs, jnp.asarray(unit, jnp.float32))
        return sums

    def _checked(self, actions: Any) -> np.ndarray:
        """What a user's policy returned, as one action for each observation."""
        count, size = len(self.conditions.limit), self.task.actions.size
        discrete = self.task.actions.kind == "discrete"
        shape = (count,) if discrete else (count, size)
        flat = discrete or size == 1  # one number is an action
        try:
            found = np.asarray(actions)
            got, finite = str(found.shape), bool(np.isfinite(found).all())
        except (TypeError, ValueError):  # none, words, or rows of several lengths
            found, got, finite = np.empty(0), type(actions).__name__, True
        if found.shape not in ([(count,), (count, 1)] if flat else [shape]):
            raise NeubayError(
                f"it was given {count:,} observations and returned {got}, not one action for each: "
                f"{shape}"
            )
        if not finite:
            raise NeubayError("it returned actions that are not finite")
        return found.reshape(shape)

    def _rollouts(self, sums: Sums) -> Rollouts:
        """Raw returns, the floor below what follows a cut."""
        shift, limit = self.record.reward_shift, np.asarray(self.conditions.limit)
        before = np.asarray(sums.before, np.float64) - shift * np.asarray(sums.cut_time)
        beyond = np.asarray(sums.time) - np.asarray(sums.cut_time)
        after = np.asarray(sums.after, np.float64) - shift * beyond
        ends = self.conditions.ended_by != "none"
        least = self.record.floor(limit - np.asarray(sums.cut_time), ends=ends)
        floor = before + np.where(sums.cut, np.minimum(after, least), 0.0)
        found = before + after, floor, *map(np.asarray, (sums.time, sums.cut, sums.cut_time))
        return Rollouts(*(leaf.reshape(-1, len(self.episode)) for leaf in found))


def _begin(
    start: Float[np.ndarray, "starts s"], conditions: Conditions, action_size: int
) -> tuple[Sums, AgentInput]:
    """Every start in every member, before its first step."""
    limit = np.asarray(conditions.limit)
    count = len(limit)
    everywhere = np.tile(start, (count // len(start), 1)).astype(np.float32)
    nothing = jnp.asarray(np.zeros(count, np.float32))  # from NumPy: without a program each
    none, never = (jnp.asarray(np.zeros(count, kind)) for kind in (np.int32, bool))
    sums = Sums(jnp.asarray(limit > 0), none, never, none, nothing, nothing)
    inputs = AgentInput(
        jnp.asarray(everywhere),
        jnp.asarray(np.zeros((count, action_size), np.float32)),
        nothing,
        jnp.asarray(np.ones(count, bool)),
    )
    return sums, inputs


@eqx.filter_jit
def _replay(
    conditions: Conditions,
    sums: Sums,
    inputs: AgentInput,
    actions: Float[Array, "steps k a"],
) -> Sums:
    """The given actions, one after the other."""

    def step(carry: tuple, action: Float[Array, "k a"]) -> tuple:
        sums, inputs = carry
        return conditions.advance(sums, inputs, action), None

    (sums, _), _ = lax.scan(step, (sums, inputs), actions)
    return sums


@eqx.filter_jit
def _one_step(
    conditions: Conditions, sums: Sums, inputs: AgentInput, action: Float[Array, "k a"]
) -> tuple[Sums, AgentInput]:
    return conditions.advance(sums, inputs, action)


@eqx.filter_jit
def _some_steps(
    conditions: Conditions, policy: HistoryPolicy, sums: Sums, memory: Any, inputs: AgentInput
) -> tuple[Sums, Any, AgentInput]:
    """Some steps of all rollouts, fewer where all have ended."""

    def step(carry: tuple) -> tuple:
        number, sums, memory, inputs = carry
        memory, action = policy.act(memory, inputs, conditions.keys(2 * sums.time))
        sums, inputs = conditions.advance(sums, inputs, action)
        return number + 1, sums, memory, inputs

    _, sums, memory, inputs = lax.while_loop(
        lambda carry: (carry[0] < STEPS_PER_CALL) & carry[1].running.any(),
        step,
        (jnp.int32(0), sums, memory, inputs),
    )
    return sums, memory, inputs


def draw_starts(record: DataRecord, count: int, seed: int) -> Int[np.ndarray, " starts"]:
    """Episodes spread evenly over the data's returns, each at most once: their mean return is then
    close to that of all."""
    order = np.argsort(record.returns, kind="stable")
    count = min(count, len(order))
    offset = np.random.default_rng(seed).random()
    return order[((np.arange(count) + offset) * len(order) / count).astype(np.int64)]


@contextlib.contextmanager
def _failure_reported(predict: Predict) -> Iterator[None]:
    """What a user's policy raises, whatever it is, is said to be its own."""
    try:
        yield
    except NeubayError:
        raise
    except Exception as error:
        called = ""
        if hasattr(predict, "predict"):
            called = (
                "; it is called as predict(observations, state=..., episode_start=...), and "
                "returns actions and state"
            )
        raise NeubayError(f"it failed: {type(error).__name__}: {error}{called}") from error


def remembering(predict: Predict) -> Callable[[np.ndarray, Any, np.ndarray], tuple[Any, Any]]:
    """A user's policy as a function of observations, memory and where episodes start.

    An object with a method `predict` is called as policies elsewhere are: `predict(observations,
    state=..., episode_start=...)` returns actions and state. A plain function gets observations and
    returns actions.
    """
    method = getattr(predict, "predict", None)
    if method is None:
        return lambda observations, memory, start: (predict(observations), None)
    return lambda observations, memory, start: method(
        observations, state=memory, episode_start=start
    )
