"""Compounding errors: what builds up when a world is fed its own predictions.

A whole recorded trajectory (s_0:T, a_0:T-1, r_1:T) is replayed in one member m_theta,

    ŝ_0 = s_0,    (r̂_{t+1}, ŝ_{t+1}) ~ m_theta(ŝ_t, a_t),

past every threshold and terminal state, until the recording ends or float32 overflows.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from neubay import published
from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.studies.ranks import auroc, mean, spearman
from neubay.studies.records import CURVE_POINTS, Record, check_sizes, scatter_sample
from neubay.studies.trajectories import Trajectories, draw_trajectories
from neubay.world import FittedWorld, World, WorldStep

EXPLOSION = 10.0
"""An error this many times another one is an explosion."""


@eqx.filter_jit
def _replay(
    world: World,
    start: Float[Array, "k s"],
    actions: Float[Array, "steps k a"],
    member: Int[Array, " k"],
    key: Key[Array, ""],
) -> WorldStep:
    """Rollouts of recorded actions, every step of them; leaves (steps, k, ...)."""
    rollout_keys = jax.random.split(key, len(start))

    def step(
        state: Float[Array, "k s"], inputs: tuple[Int[Array, ""], Float[Array, "k a"]]
    ) -> tuple[Float[Array, "k s"], WorldStep]:
        t, action = inputs
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(rollout_keys, t)
        imagined = world.step(state, action, member, keys)
        return imagined.next_state, imagined

    return jax.lax.scan(step, start, (jnp.arange(len(actions)), actions))[1]


class Deviations(NamedTuple):
    """How imagined trajectories deviate from the recorded ones, step by step."""

    state_error: Float[np.ndarray, "steps k"]  # RMSE(ŝ_{t+1}, s_{t+1})
    state_norm: Float[np.ndarray, "steps k"]  # RMS(ŝ_{t+1})
    reward_bias: Float[np.ndarray, "steps k"]  # r̂_{t+1} - r_{t+1}
    uncertainty: Float[np.ndarray, "steps k"]  # U(ŝ_t, a_t)
    live: Bool[np.ndarray, "steps k"]  # neither beyond the recording's end nor overflowed
    overflowed: Bool[np.ndarray, " k"]  # before the recording's end


def replay_actions(world: World, recorded: Trajectories, seed: int) -> Deviations:
    """Replay recorded actions in the world, the trajectories spread evenly over its members."""
    count = len(recorded.length)
    imagined = _replay(
        world,
        jnp.asarray(recorded.state[0]),
        jnp.asarray(recorded.action),
        jnp.arange(count, dtype=jnp.int32) % world.size,
        jax.random.key(seed),
    )
    # In float64, where the squares of finite float32 numbers are finite.
    state, reward, uncertainty = (np.asarray(leaf, np.float64) for leaf in imagined)
    finite = np.isfinite(state).all(axis=-1) & np.isfinite(reward)
    finite = np.logical_and.accumulate(finite, axis=0)
    recording = np.arange(len(reward))[:, None] < recorded.length
    live = finite & recording
    with np.errstate(invalid="ignore"):  # inf - inf, where nothing is live
        error = _rms(state - recorded.state[1:])
    return Deviations(
        state_error=error,
        state_norm=_rms(state),
        reward_bias=reward - recorded.reward,
        # The members' spread can overflow a few steps before the states do: it is then beyond
        # every threshold.
        uncertainty=np.where(np.isnan(uncertainty), np.inf, uncertainty),
        live=live,
        overflowed=np.any(recording & ~finite, axis=0),
    )


def _rms(vectors: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch"]:
    return np.sqrt(np.mean(np.square(vectors), axis=-1))


def forward_fill(
    values: Float[np.ndarray, "steps k"], live: Bool[np.ndarray, "steps k"]
) -> Float[np.ndarray, "steps filled"]:
    """Let every rollout keep its last live value, so that all steps have equally many values.

    A rollout without any live step, one that overflowed at once, has no value and is left out.
    """
    length = live.sum(axis=0)
    row = np.minimum(np.arange(len(values))[:, None], length - 1)
    return np.take_along_axis(values, row, axis=0)[:, length > 0]


@dataclasses.dataclass(frozen=True)
class Band(Record):
    """Percentiles over the rollouts, forward filled, after each of some numbers of steps."""

    low: Float[np.ndarray, " points"]
    """The 5th percentile."""
    median: Float[np.ndarray, " points"]
    high: Float[np.ndarray, " points"]
    """The 95th percentile."""

    @classmethod
    def of(cls, values: Float[np.ndarray, "steps k"], live: Bool[np.ndarray, "steps k"]) -> "Band":
        return cls(*np.percentile(forward_fill(values, live), [5, 50, 95], axis=1))

    def at(self, steps: Int[np.ndarray, " points"]) -> "Band":
        return Band(self.low[steps - 1], self.median[steps - 1], self.high[steps - 1])


@dataclasses.dataclass(frozen=True)
class Cut(Record):
    """What truncation at U(zeta) would do to the replayed rollouts.

    As in imagination, the step that crosses the threshold is kept and is the last one.
    """

    zeta: float
    threshold: float
    beyond: float
    """Share of all steps with U(ŝ_t, a_t) > U(zeta)."""
    horizon_median: float
    """Steps kept of a rollout."""
    horizon_q75: float
    kept_error_p95: float
    """95th percentile of RMSE(ŝ_{t+1}, s_{t+1}) over the kept steps."""
    kept_error_max: float
    kept_severe: float
    """Share of the kept steps whose error is severe."""
    false_safe: float | None
    """Share of all severe steps with U(ŝ_t, a_t) <= U(zeta)."""


@dataclasses.dataclass(frozen=True)
class WorldErrors(Record):
    """One world's rollouts of the recorded actions. A number of steps counts from 1."""

    world: str
    trained_on: str
    layer_norm: bool
    members: int
    state_error: Band
    """RMSE(ŝ_t, s_t) in the data's own units."""
    state_norm: Band
    """RMS(ŝ_t)."""
    reward_bias: Band
    """r̂_t - r_t."""
    last_error_median: float
    """The median of the error after the longest rollout's last step."""
    last_error_p95: float
    """The same for the 95th percentile."""
    overflowed: int
    """Rollouts that overflowed float32 before their recording ended."""
    diverges_at: int | None
    """The first step after which the 95th percentile of the error is above 10 times the spread."""
    median_diverges_at: int | None
    """The same for the median."""
    spearman: float | None
    """Rank correlation of U(ŝ_t, a_t) and RMSE(ŝ_{t+1}, s_{t+1}) over all live steps."""
    severe: float
    """Share of steps with a severe error: RMSE above the spread."""
    auroc: float | None
    """Probability that a severe step has a higher U than one that is not."""
    cuts: list[Cut]
    point_uncertainty: Float[np.ndarray, " points"]
    """U(ŝ_t, a_t) of some steps drawn at random ..."""
    point_error: Float[np.ndarray, " points"]
    """... and RMSE(ŝ_{t+1}, s_{t+1}) there."""


@dataclasses.dataclass(frozen=True)
class Comparison(Record):
    """The errors without LayerNorm against those with it."""

    passes_at: int | None
    """The first step after which the 95th percentile without is above 10 times the one with."""
    median_passes_at: int | None
    """The same for medians."""
    explodes: bool
    """Without LayerNorm, the 95th percentile passes 10 times the one with it, or a rollout
    overflows."""
    median_explodes: bool
    """Without LayerNorm, the median passes 10 times the one with it."""
    largest_ratio: float
    """Of the 95th percentiles, over all steps."""


@dataclasses.dataclass(frozen=True)
class Compounding(Record):
    """One evaluation dataset, replayed in several worlds."""

    data: str
    rollouts: int
    episodes: int
    """Different ones among the replayed."""
    longest: int
    """Steps of the longest replayed trajectory."""
    spread: float
    """RMSE between two states drawn at random from the replayed trajectories: what a prediction
    that knows nothing would err by. Errors beyond it are severe; beyond 10 times it, diverged."""
    steps: Int[np.ndarray, " points"]
    """Where the bands are given."""
    data_norm: Band
    """RMS(s_t)."""
    worlds: list[WorldErrors]
    comparison: Comparison | None
    """Where there is one world with and one without LayerNorm."""


def compounding(
    worlds: Mapping[str, FittedWorld],
    dataset: Dataset,
    *,
    rollouts: int = 200,
    steps: int | None = None,
    seed: int = 0,
) -> Compounding:
    """Replay the same recorded trajectories in every world and measure how errors compound."""
    for fitted in worlds.values():
        check_sizes(fitted, dataset)
        if fitted.world.reward_only:
            raise WorldError(
                f"the world of {fitted.dataset_name} predicts rewards alone: no state error can "
                "compound; use 'neubay analyze calibration', which predicts one step"
            )
    recorded = draw_trajectories(dataset, rollouts, steps, seed)
    longest = int(recorded.length.max())
    within = np.arange(longest + 1)[:, None] <= recorded.length
    spread = math.sqrt(2 * recorded.state[within].var(axis=0, dtype=np.float64).mean())
    shown = _curve_steps(longest)
    results = [
        _world_errors(name, fitted, recorded, spread, seed) for name, fitted in worlds.items()
    ]
    return Compounding(
        data=dataset.name,
        rollouts=rollouts,
        episodes=len(np.unique(recorded.episode)),
        longest=longest,
        spread=spread,
        steps=shown,
        data_norm=Band.of(_rms(recorded.state[1:].astype(np.float64)), within[1:]).at(shown),
        worlds=[
            dataclasses.replace(
                result,
                state_error=result.state_error.at(shown),
                state_norm=result.state_norm.at(shown),
                reward_bias=result.reward_bias.at(shown),
            )
            for result in results
        ],
        comparison=_comparison(results),
    )


def _curve_steps(longest: int) -> Int[np.ndarray, " points"]:
    """Steps 1 .. longest, all of the early ones and ever fewer of the later."""
    even, early = (
        np.linspace(1, longest, CURVE_POINTS // 2),
        np.geomspace(1, longest, CURVE_POINTS // 2),
    )
    return np.unique(np.rint(np.concatenate([even, early])).astype(int))


def _world_errors(
    name: str, fitted: FittedWorld, recorded: Trajectories, spread: float, seed: int
) -> WorldErrors:
    replayed = replay_actions(fitted.world, recorded, seed)
    live = replayed.live
    if not live.any():
        raise WorldError(
            f"{name}: every rollout overflows in its first step; the world of "
            f"{fitted.dataset_name} is unusable, train it again with a lower learning rate"
        )
    error = Band.of(replayed.state_error, live)
    uncertainty, errors = replayed.uncertainty[live], replayed.state_error[live]
    severe = errors > spread
    shown = scatter_sample(len(errors), seed)
    return WorldErrors(
        world=name,
        trained_on=fitted.dataset_name,
        layer_norm=fitted.config.layer_norm,
        members=fitted.world.size,
        state_error=error,
        state_norm=Band.of(replayed.state_norm, live),
        reward_bias=Band.of(replayed.reward_bias, live),
        last_error_median=float(error.median[-1]),
        last_error_p95=float(error.high[-1]),
        overflowed=int(replayed.overflowed.sum()),
        diverges_at=_first_step(error.high > EXPLOSION * spread),
        median_diverges_at=_first_step(error.median > EXPLOSION * spread),
        spearman=spearman(uncertainty, errors),
        severe=float(severe.mean()),
        auroc=auroc(uncertainty, severe),
        cuts=[_cut(zeta, fitted.threshold(zeta), replayed, spread) for zeta in published.ZETAS],
        point_uncertainty=uncertainty[shown],
        point_error=errors[shown],
    )


def _cut(zeta: float, threshold: float, replayed: Deviations, spread: float) -> Cut:
    live = replayed.live
    beyond = replayed.uncertainty > threshold
    crossed_before = np.cumsum(beyond, axis=0) - beyond > 0
    kept = live & ~crossed_before
    severe = live & (replayed.state_error > spread)
    horizon = kept.sum(axis=0)
    return Cut(
        zeta=zeta,
        threshold=threshold,
        beyond=float(beyond[live].mean()),
        horizon_median=float(np.median(horizon)),
        horizon_q75=float(np.percentile(horizon, 75)),
        kept_error_p95=float(np.percentile(replayed.state_error[kept], 95)),
        kept_error_max=float(replayed.state_error[kept].max()),
        kept_severe=float(severe[kept].mean()),
        false_safe=mean(~beyond[severe]),
    )


def _comparison(results: Sequence[WorldErrors]) -> Comparison | None:
    normed = [result for result in results if result.layer_norm]
    plain = [result for result in results if not result.layer_norm]
    if len(normed) != 1 or len(plain) != 1:
        return None
    with_norm, without = normed[0].state_error, plain[0].state_error
    passes_at = _first_step(without.high > EXPLOSION * with_norm.high)
    median_passes_at = _first_step(without.median > EXPLOSION * with_norm.median)
    overflowed = plain[0].overflowed
    return Comparison(
        passes_at=passes_at,
        median_passes_at=median_passes_at,
        explodes=passes_at is not None or overflowed > 0,
        median_explodes=median_passes_at is not None,
        largest_ratio=float(np.max(without.high / np.maximum(with_norm.high, 1e-12))),
    )


def _first_step(condition: Bool[np.ndarray, " steps"]) -> int | None:
    return int(np.argmax(condition)) + 1 if condition.any() else None
