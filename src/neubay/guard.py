"""A guard around a policy on the machine: how unsure the posterior is, what the data never held.

    guard = neubay.Guard(policy, world, fallback=clone)
    action, state, check = guard.predict(observation)                    # the first step
    action, state, check = guard.predict(observation, state, reward=r)   # every later one

Without a world the guard is light: it looks at the ranges of the data alone.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from neubay.data.dataset import Ranges
from neubay.errors import NeubayError
from neubay.policy import Policy, PolicyState
from neubay.world import FittedWorld

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


class GuardState(NamedTuple):
    """What is carried between steps."""

    policy: PolicyState
    fallback: PolicyState | None
    observation: Float[np.ndarray, "batch s"]  # the last finite one


class Guard:
    """A policy whose every step is checked.

    Args:
        policy: the policy to guard. Its file holds the ranges of its data.
        world: the posterior; none for the light form.
        fallback: acts where a limit is crossed: another policy (such as the clone), a function from
            observations (batch, s) to actions, or a constant action; all in the environment's
            units. None: nothing is replaced, only told and counted.
        limit: of U, as a share of the threshold; none: no limit.
        margin: by what share of its range an observation may leave the data's; none: no limit.
        zeta: the quantile of U over the world's data that is the threshold.
        ranges: of the data, where the policy's file has none.
    """

    def __init__(
        self,
        policy: Policy,
        world: FittedWorld | None = None,
        *,
        fallback: Fallback | None = None,
        limit: float | None = 1.0,
        margin: float | None = 0.0,
        zeta: float = 1.0,
        ranges: Ranges | None = None,
    ) -> None:
        self.policy, self.fallback, self.limit = policy, fallback, limit
        ranges = ranges or policy.ranges
        if ranges is None and (margin is not None or world is None):
            raise NeubayError(
                f"the policy's file holds no ranges of its data (of '{policy.task.name}'): pass "
                "ranges=dataset.ranges, or margin=None with a world"
            )
        self._low, self._high = _widened(ranges, margin)
        self._uncertainty = None if world is None else _share_of_threshold(world, policy, zeta)
        self.counts: Counter[str] = Counter(steps=0, unsure=0, outside=0, fell_back=0)
        """Steps, alarms of both kinds, and how often the fall-back acted."""

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
        single = np.ndim(observation) == 1
        seen = np.atleast_2d(np.asarray(observation, np.float32))
        broken = np.asarray(~np.isfinite(seen).all(axis=1))
        held = self._held(seen, broken, state)
        passed: dict[str, Any] = {"reward": reward, "seed": seed}
        passed |= {"episode_start": episode_start, "deterministic": deterministic}
        chosen, after = self.policy.predict(held, None if state is None else state.policy, **passed)
        actions = np.asarray(chosen)
        check = self._check(held, after.last_action, broken)
        spare = None
        if self.fallback is not None:
            kept = None if state is None else state.fallback
            others, spare = self._fall_back(held, kept, passed)
            replaced = np.asarray(check.fell_back).reshape(-1, *[1] * (actions.ndim - 1))
            actions = np.where(replaced, others, actions)
            acted = self.policy.task.to_unit(actions)  # memory is of what was done
            after = after._replace(last_action=acted)
            spare = None if spare is None else spare._replace(last_action=acted)
        following = GuardState(after, spare, held)
        if single:
            one = Check(*(np.asarray(value)[0].item() for value in check))
            return actions[0], following, one
        return actions, following, check

    def _check(
        self,
        observations: Float[np.ndarray, "batch s"],
        actions: Float[np.ndarray, "batch a"],
        broken: Bool[np.ndarray, " batch"],
    ) -> Check:
        """What is seen of a step before anything acts, counted."""
        beyond = (observations < self._low) | (observations > self._high)
        outside = np.asarray(broken | beyond.any(axis=1))
        unsure = np.full(len(observations), np.nan)
        if self._uncertainty is not None:
            unsure = np.asarray(self._uncertainty(observations, actions), np.float64)
        over = np.asarray(unsure > (np.inf if self.limit is None else self.limit))
        acts = (outside | over) & (self.fallback is not None)
        sums = {"unsure": over, "outside": outside, "fell_back": acts}
        self.counts.update(
            {"steps": len(observations), **{name: int(each.sum()) for name, each in sums.items()}}
        )
        return Check(unsure, outside, acts)

    def _held(
        self, seen: np.ndarray, broken: Bool[np.ndarray, " batch"], state: GuardState | None
    ) -> Float[np.ndarray, "batch s"]:
        """Observations with a value that is not finite are replaced by the last that were, if there
        is a fall-back to act on them."""
        if not broken.any() or state is None or self.fallback is None:
            return seen  # which the policy refuses where it is broken
        return np.where(broken[:, None], state.observation, seen)

    def _fall_back(
        self,
        observations: Float[np.ndarray, "batch s"],
        state: PolicyState | None,
        passed: dict[str, Any],
    ) -> tuple[np.ndarray, PolicyState | None]:
        """What the fall-back would do. One with a memory is asked at every step."""
        fallback, actions = self.fallback, self.policy.task.actions
        if isinstance(fallback, Policy):
            chosen, after = fallback.predict(observations, state, **passed)
            return np.asarray(chosen), after
        given = np.asarray(fallback(observations) if callable(fallback) else fallback)
        if not np.isfinite(given).all():
            raise NeubayError("the guard's fall-back returned an action that is not finite")
        return np.broadcast_to(given, (len(observations), *actions.shape)), None


def _widened(
    ranges: Ranges | None, margin: float | None
) -> tuple[float | np.ndarray, float | np.ndarray]:
    if ranges is None or margin is None:
        return -np.inf, np.inf
    beyond = margin * (ranges.observation_high - ranges.observation_low)
    return ranges.observation_low - beyond, ranges.observation_high + beyond


def _share_of_threshold(fitted: FittedWorld, policy: Policy, zeta: float) -> Callable[..., Any]:
    """U(s, a) / U(zeta) as one program."""
    sizes = len(fitted.world.scaler.state_mean), len(fitted.world.scaler.action_mean)
    if sizes != (policy.task.state_size, policy.task.actions.size):
        raise NeubayError(
            f"the world has {sizes[0]} states and {sizes[1]} actions, the policy "
            f"{policy.task.state_size} and {policy.task.actions.size}: they are of other data"
        )
    threshold = max(fitted.threshold(zeta), float(np.finfo(np.float32).tiny))

    @jax.jit
    def share(state: Float[Array, "b s"], action: Float[Array, "b a"]) -> Float[Array, " b"]:
        return fitted.world.uncertainty(state, action) / threshold

    return share
