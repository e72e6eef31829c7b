"""A guard around a policy on the machine: how unsure the posterior is, what the data never held.

    guard = neubay.Guard(policy, world, fallback=clone)
    action, state, check = guard.predict(observation)                    # the first step
    action, state, check = guard.predict(observation, state, reward=r)   # every later one

Without a world the guard is light, and says so: it looks at the ranges of the data alone. With a
fall-back it goes on where a sensor or the reward is missing or not finite: the fall-back acts.
"""

import math
from collections import Counter
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from neubay.data.dataset import Ranges
from neubay.errors import NeubayError
from neubay.policy import Policy, PolicyState, load_policy, observations_of, one_or_each
from neubay.runs.messages import log
from neubay.tasks import ContinuousActions
from neubay.world import FittedWorld, load_world

Fallback = Policy | Callable[[np.ndarray], np.ndarray] | np.ndarray | float | int


class Check(NamedTuple):
    """What the guard saw at a step; one value, or one for each observation of a batch."""

    unsure: float | Float[np.ndarray, " batch"]
    """U(s, a) of the policy's action as a share of the threshold U(zeta); not a number where the
    guard has no world."""
    outside: bool | Bool[np.ndarray, " batch"]
    """The observation is outside the ranges of the data."""
    fell_back: bool | Bool[np.ndarray, " batch"]
    """The fall-back acted."""
    broken: bool | Bool[np.ndarray, " batch"]
    """The observation or the reward was missing or not finite."""


class GuardState(NamedTuple):
    """What is carried between steps."""

    policy: PolicyState
    fallback: PolicyState | None
    observation: Float[np.ndarray, "batch s"]  # the last finite one, sensor by sensor
    reward: Float[np.ndarray, " batch"]  # likewise; not a number where there was none yet
    waiting: Bool[np.ndarray, " batch"]
    """The episode's first observation was broken: its history begins with the next."""


class _Heard(NamedTuple):
    """What a policy is given for what was measured."""

    observation: Float[np.ndarray, "batch s"]
    reward: float | Float[np.ndarray, " batch"] | None
    start: bool | Bool[np.ndarray, " batch"] | None
    broken: Bool[np.ndarray, " batch"]
    known: Float[np.ndarray, " batch"]  # the last finite reward of the episode
    waiting: Bool[np.ndarray, " batch"]


class Guard:
    """A policy whose every step is checked.

    Args:
        policy: the policy to guard, or its path. Its file holds the ranges of its data.
        world: the posterior of the policy's data, or its path; none for the light form.
        fallback: acts where a limit is crossed, and where a sensor or the reward is broken: another
            policy (such as the clone) or its path, a function from observations (batch, s) to
            actions, or a constant action; all in the environment's units. What a function or a
            policy commands beyond the bounds of the actions becomes the bound. None: nothing is
            replaced, only told and counted, and what is broken is refused.
        limit: of U, as a share of the threshold; none: no limit.
        margin: by what share of its range an observation may leave the data's; none: no limit.
        zeta: the quantile of U over the world's data that is the threshold.
        ranges: of the data, where the policy's file has none.
    """

    def __init__(
        self,
        policy: Policy | str | Path,
        world: FittedWorld | str | Path | None = None,
        *,
        fallback: Fallback | str | Path | None = None,
        limit: float | None = 1.0,
        margin: float | None = 0.0,
        zeta: float = 1.0,
        ranges: Ranges | None = None,
    ) -> None:
        _refuse_odd("limit", limit)
        _refuse_odd("margin", margin)
        _refuse_odd("zeta", zeta, most=1.0, optional=False)
        self.policy, self.limit = _loaded("policy", policy, Policy, load_policy), limit
        self.fallback = _fallback_for(self.policy, fallback)
        if world is None and margin is None:
            raise NeubayError(
                "the guard has neither a world nor a margin, and would check nothing: give the "
                "policy's world (neubay.load_world), or a margin of at least 0"
            )
        ranges = ranges or self.policy.ranges
        if ranges is None and (margin is not None or world is None):
            raise NeubayError(
                f"the policy's file holds no ranges of its data (of '{self.policy.task.name}'): "
                "pass ranges=dataset.ranges, or margin=None with a world"
            )
        self._low, self._high = _widened(ranges, margin, self.policy)
        self._middle = np.zeros(self.policy.task.state_size, np.float32)
        if ranges is not None:
            self._middle += (ranges.observation_low + ranges.observation_high) / 2
        self._uncertainty = None
        if world is None:
            log("the guard has no world: it watches the ranges of the data only")
        else:
            fitted = _loaded("world", world, FittedWorld, load_world)
            self._uncertainty = _share_of_threshold(fitted, self.policy, zeta)
        self.counts: Counter[str] = Counter(steps=0, unsure=0, outside=0, broken=0, fell_back=0)
        """Steps, alarms of each kind, and how often the fall-back acted."""

    def predict(
        self,
        observation: np.ndarray,
        state: GuardState | None = None,
        episode_start: bool | Bool[np.ndarray, " batch"] | None = None,
        deterministic: bool = True,
        *,
        reward: float | Float[np.ndarray, " batch"] | None = None,
        seed: int = 0,
    ) -> tuple[np.ndarray | np.integer, GuardState, Check]:
        """The action, the state to pass in next time, and what was seen; arguments are those of
        `Policy.predict`."""
        if state is not None and not isinstance(state, GuardState):
            raise NeubayError(
                f"the state is of type {type(state).__name__}: pass what the guard's own predict "
                "returned, or None where the first episodes start"
            )
        single = np.ndim(observation) == 1
        seen = observations_of(self.policy.task, observation)
        heard = self._heard(seen, reward, episode_start, state)
        passed: dict[str, Any] = {"reward": heard.reward, "seed": seed}
        passed |= {"episode_start": heard.start, "deterministic": deterministic}
        before = None if state is None else state.policy
        chosen, after = self.policy.predict(heard.observation, before, **passed)
        actions = np.asarray(chosen)
        check = self._check(seen, heard, after.last_action)
        spare = None
        if self.fallback is not None:
            kept = None if state is None else state.fallback
            others, spare = self._fall_back(heard.observation, kept, passed)
            told = self.policy.acted(after, others).last_action
            replaced = np.asarray(check.fell_back)
            wide = replaced.reshape(-1, *[1] * (actions.ndim - 1))
            actions = np.where(wide, others, actions).astype(actions.dtype)
            # Memory is of what was done.
            acted = np.where(replaced[:, None], told, after.last_action)
            after = after._replace(last_action=acted)
            if isinstance(self.fallback, Policy) and spare is not None:
                spare = self.fallback.acted(spare, actions)  # whose bounds may be others
        following = GuardState(after, spare, heard.observation, heard.known, heard.waiting)
        if single:
            one = Check(*(np.asarray(value)[0].item() for value in check))
            return actions[0], following, one
        return actions, following, check

    def _check(
        self,
        seen: Float[np.ndarray, "batch s"],
        heard: _Heard,
        actions: Float[np.ndarray, "batch a"],
    ) -> Check:
        """What is seen of a step before anything acts, counted."""
        # False where not a number, so that a broken sensor is outside.
        inside = ((seen >= self._low) & (seen <= self._high)).all(axis=1)
        outside = np.asarray(~(inside & np.isfinite(seen).all(axis=1)))
        unsure, over = np.full(len(seen), np.nan), np.zeros(len(seen), bool)
        if self._uncertainty is not None:
            unsure = np.asarray(self._uncertainty(heard.observation, actions), np.float64)
            if self.limit is not None:
                over = np.asarray(~(unsure <= self.limit))  # also where U is not a number
        acts = (outside | over | heard.broken) & (self.fallback is not None)
        sums = {"unsure": over, "outside": outside, "broken": heard.broken, "fell_back": acts}
        self.counts.update(
            {"steps": len(seen), **{name: int(each.sum()) for name, each in sums.items()}}
        )
        return Check(unsure, outside, acts, heard.broken)

    def _heard(
        self,
        seen: Float[np.ndarray, "batch s"],
        reward: float | Float[np.ndarray, " batch"] | None,
        episode_start: bool | Bool[np.ndarray, " batch"] | None,
        state: GuardState | None,
    ) -> _Heard:
        """What the policy is given. If there is a fall-back to act on it, what is missing or not
        finite is held at its last value. Where there is none yet, the history begins later: after
        a broken first observation with the next, without any reward so far with this one."""
        batch, nothing = len(seen), np.zeros(len(seen), bool)
        start, known, last = np.ones(batch, bool), np.full(batch, np.nan), self._middle
        if state is not None:
            if len(state.waiting) != batch:
                raise NeubayError(
                    f"got {batch} observations with the state of {len(state.waiting)} episodes"
                )
            given = False if episode_start is None else episode_start
            start = one_or_each("episode_start", given, batch).astype(bool) | state.waiting
            known, last = state.reward, np.where(start[:, None], last, state.observation)
        if self.fallback is None:  # the policy refuses what is broken
            return _Heard(seen, reward, episode_start, nothing, known, nothing)
        paid = one_or_each("reward", np.nan if reward is None else reward, batch).astype(np.float64)
        lost = ~start & ~np.isfinite(paid)
        broken = ~np.isfinite(seen).all(axis=1)
        known = np.where(start, np.nan, np.where(lost, known, paid))
        begins = np.isnan(known)
        return _Heard(
            observation=np.where(np.isfinite(seen), seen, last),
            reward=np.where(begins, 0.0, known),
            start=begins,
            broken=broken | lost,
            known=known,
            waiting=begins & broken,
        )

    def _fall_back(
        self,
        observations: Float[np.ndarray, "batch s"],
        state: PolicyState | None,
        passed: dict[str, Any],
    ) -> tuple[np.ndarray, PolicyState | None]:
        """What the fall-back would do. One with a memory is asked at every step."""
        fallback, actions = self.fallback, self.policy.task.actions
        given: Any
        if isinstance(fallback, Policy):
            given, after = fallback.predict(observations, state, **passed)
        else:
            given, after = fallback(observations) if callable(fallback) else fallback, None
        returned, shape = given, (len(observations), *actions.shape)
        try:
            given = np.asarray(returned)
            finite = np.isfinite(given).all()
        except (TypeError, ValueError):  # none, words, or rows of several lengths
            raise NeubayError(
                f"the guard's fall-back returned {str(returned)[:80]!r} for {len(observations)} "
                f"observations, which are no actions: they have shape {shape}"
            ) from None
        if not finite:
            raise NeubayError("the guard's fall-back returned an action that is not finite")
        try:
            given = np.broadcast_to(given, shape)
        except ValueError:
            raise NeubayError(
                f"the guard's fall-back returned actions of shape {given.shape} for "
                f"{len(observations)} observations; they have shape {shape}"
            ) from None
        if isinstance(actions, ContinuousActions):
            given = np.clip(given, actions.low, actions.high)
        return given, after


def _refuse_odd(name: str, value: Any, most: float = np.inf, optional: bool = True) -> None:
    """A limit that is no number would switch the guard off without a word."""
    if (value is None and optional) or (
        isinstance(value, Real) and math.isfinite(value) and 0 <= float(value) <= most
    ):
        return
    wanted = "a finite number of at least 0" if most == np.inf else f"a number from 0 to {most:g}"
    none = ", or None for no limit" if optional else ""
    raise NeubayError(f"the guard's {name} is {value!r}: give {wanted}{none}")


def _loaded(what: str, given: Any, kind: type, load: Callable[[Path], Any]) -> Any:
    """A policy or a world, or what is read from its path."""
    if isinstance(given, str | Path):
        return load(Path(given))
    if not isinstance(given, kind):
        raise NeubayError(
            f"the guard's {what} is of type {type(given).__name__}: give a path, or what "
            f"neubay.{load.__name__} returns"
        )
    return given


def _fallback_for(policy: Policy, given: Any) -> Fallback | None:
    """A fall-back that fits the policy, as far as that is known before it acts."""
    if isinstance(given, str | Path):
        given = load_policy(given)
    task, actions = policy.task, policy.task.actions
    if isinstance(given, Policy):
        ours, theirs = (
            (each.task.state_size, each.task.actions.kind, each.task.actions.size)
            for each in (policy, given)
        )
        if ours != theirs:
            raise NeubayError(
                f"the guard's fall-back has {theirs[0]} states and {theirs[2]} {theirs[1]} actions,"
                f" the policy {ours[0]} and {ours[2]} {ours[1]}: they are of other data"
            )
    if given is None or isinstance(given, Policy) or callable(given):
        return given
    try:
        constant = np.broadcast_to(np.asarray(given, np.float64), actions.shape)
    except (TypeError, ValueError):
        raise NeubayError(
            f"the guard's fall-back {str(given)[:80]!r} is no action of '{task.name}', which has "
            f"shape {actions.shape}: give an action, a policy, its path, or a function, such as "
            "lambda seen: other.predict(seen)[0]"
        ) from None
    if isinstance(actions, ContinuousActions):
        beyond = ~((constant >= actions.low) & (constant <= actions.high))
    else:
        beyond = ~np.isin(constant, np.arange(actions.n))
    if beyond.any():
        bounds = (
            f"{actions.low.tolist()} to {actions.high.tolist()}"
            if isinstance(actions, ContinuousActions)
            else f"0 to {actions.n - 1}, whole numbers"
        )
        raise NeubayError(
            f"the guard's fall-back {constant.tolist()} is outside the bounds of the actions of "
            f"'{task.name}', {bounds}"
        )
    return constant


def _widened(
    ranges: Ranges | None, margin: float | None, policy: Policy
) -> tuple[float | np.ndarray, float | np.ndarray]:
    if ranges is None:
        return -np.inf, np.inf
    low, high, size = ranges.observation_low, ranges.observation_high, policy.task.state_size
    if low.shape != (size,) or high.shape != (size,) or not (low <= high).all():
        raise NeubayError(
            f"the guard's ranges are not a lowest and a highest value of each of the {size} "
            f"observations of '{policy.task.name}': take dataset.ranges of the policy's data"
        )
    if margin is None:
        return -np.inf, np.inf
    beyond = margin * (high - low)
    return low - beyond, high + beyond


def _share_of_threshold(fitted: FittedWorld, policy: Policy, zeta: float) -> Callable[..., Any]:
    """U(s, a) / U(zeta) as one program."""
    sizes = len(fitted.world.scaler.state_mean), len(fitted.world.scaler.action_mean)
    if sizes != (policy.task.state_size, policy.task.actions.size):
        raise NeubayError(
            f"the world has {sizes[0]} states and {sizes[1]} actions, the policy "
            f"{policy.task.state_size} and {policy.task.actions.size}: they are of other data"
        )
    ours, theirs = policy.dataset or {}, fitted.dataset_hash
    if ours.get("hash") and theirs and ours["hash"] != theirs:
        raise NeubayError(
            f"the world is of other data ('{fitted.dataset_name}', hash {theirs}) than the policy "
            f"('{ours.get('name')}', hash {ours['hash']}): give the world of the policy's run "
            "(neubay.load_world)"
        )
    threshold = max(fitted.threshold(zeta), float(np.finfo(np.float32).tiny))
    if not np.isfinite(threshold):
        raise NeubayError("the world's U over its data is not finite, so that it has no threshold")

    @jax.jit
    def share(state: Float[Array, "b s"], action: Float[Array, "b a"]) -> Float[Array, " b"]:
        return fitted.world.uncertainty(state, action) / threshold

    return share
