"""Numbers behind the paper's pictures of the world: how unsure it is, how its errors compound,
and whether the one tells of the other.

- `uncertainty_spread`: how U is spread over data, in units of its mean.
- `compounding`: the error that builds up when the world feeds on its own predictions. A whole
  recorded trajectory (s_0:T, a_0:T-1, r_1:T) is replayed in one member m_theta,

      ŝ_0 = s_0,    (r̂_{t+1}, ŝ_{t+1}) ~ m_theta(ŝ_t, a_t),

  past every threshold and terminal state, until the recording ends or float32 overflows.
- `calibration`: one step from real (s, a). Does U tell dangerous predictions from harmless ones,
  and are the predictive intervals as wide as they claim?

Every result is a frozen dataclass whose `record()` is what the JSON files hold.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from scipy import stats

from neubay.data.dataset import Dataset
from neubay.errors import DatasetError, WorldError
from neubay.world import (
    FittedWorld,
    Transitions,
    World,
    WorldStep,
    gather,
    quantify,
    split_rows,
    uncertainty_over,
)

ZETAS = (0.9, 0.99, 0.999, 1.0)
"""The paper's truncation thresholds."""
EXPLOSION = 10.0
"""An error this many times another one is an explosion."""
DANGER = 0.999
"""A one-step error beyond this quantile of the errors on the world's own data is dangerous."""
NOMINAL = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Probabilities of the predictive intervals whose coverage is reported."""

_POINTS = 2000  # of a scatter plot, drawn at random from all
_CURVE = 200  # points of a curve


@dataclasses.dataclass(frozen=True)
class Record:
    """A result that can be written down."""

    def record(self) -> dict[str, Any]:
        """As plain numbers, lists and strings; what is not finite becomes None."""
        fields = dataclasses.fields(self)
        return {field.name: _plain(getattr(self, field.name)) for field in fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.record()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None  # 0.9999999 is not 1
    return value


@dataclasses.dataclass(frozen=True)
class WorldNote(Record):
    """Which world a result is about."""

    world: str
    trained_on: str
    dataset_hash: str
    transitions: int
    layer_norm: bool
    width: int
    depth: int
    pool: int
    members: int
    epochs: int
    seed: int
    validation_score: float
    """Mean over the kept members of their best validation score (MSE unless configured)."""
    seconds: float
    """Of training, on the machine it ran on."""


def note(name: str, fitted: FittedWorld) -> WorldNote:
    """What tells a world from others."""
    config = fitted.config
    return WorldNote(
        world=name,
        trained_on=fitted.dataset_name,
        dataset_hash=fitted.dataset_hash,
        transitions=len(fitted.data_uncertainty),
        layer_norm=config.layer_norm,
        width=config.width,
        depth=config.depth,
        pool=config.pool,
        members=config.members,
        epochs=len(fitted.history),
        seed=fitted.seed,
        validation_score=float(fitted.scores[fitted.kept].mean()),
        seconds=fitted.seconds,
    )


# --- The spread of uncertainty -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class UncertaintySpread(Record):
    """The empirical distribution of U / mean_D(U) over a dataset, D being the world's own data."""

    world: str
    trained_on: str
    data: str
    own: bool
    """The data is what the world was trained on."""
    transitions: int
    unit: float
    """mean_D(U)."""
    probability: Float[np.ndarray, " points"]
    """Points of the distribution function, evenly spaced in the logit."""
    normalised: Float[np.ndarray, " points"]
    """The quantiles of U / mean_D(U) at these probabilities."""
    beyond: float
    """Share of transitions more uncertain than any of D: U > U(zeta = 1)."""

    def quantile(self, probability: float) -> float:
        return float(np.interp(probability, self.probability, self.normalised))


def uncertainty_spread(
    name: str, fitted: FittedWorld, dataset: Dataset | None = None
) -> UncertaintySpread:
    """How U is spread over a dataset; without one, over what the world was trained on."""
    own = dataset is None or dataset.hash == fitted.dataset_hash
    if dataset is None or own:
        values, data = fitted.data_uncertainty, fitted.dataset_name
    else:
        _check_sizes(fitted, dataset)
        values, data = uncertainty_over(fitted.world, dataset), dataset.name
    # Hazen's positions (k - 1/2) / n give the largest of n values a place on a logit axis.
    end = math.log(2 * len(values) - 1)
    probability = 1 / (1 + np.exp(-np.linspace(-end, end, _CURVE)))
    return UncertaintySpread(
        world=name,
        trained_on=fitted.dataset_name,
        data=data,
        own=own,
        transitions=len(values),
        unit=fitted.mean_uncertainty,
        probability=probability,
        normalised=np.quantile(values, probability, method="hazen") / fitted.mean_uncertainty,
        beyond=float(np.mean(values > fitted.threshold(1.0))),
    )


# --- Compounding errors --------------------------------------------------------------------------


class Trajectories(NamedTuple):
    """Recorded trajectories side by side; a shorter one repeats its last row."""

    state: Float[np.ndarray, "rows k s"]  # s_0 .. s_T
    action: Float[np.ndarray, "steps k a"]  # a_0 .. a_{T-1}
    reward: Float[np.ndarray, "steps k"]  # r_1 .. r_T
    length: Int[np.ndarray, " k"]
    episode: Int[np.ndarray, " k"]


def draw_trajectories(dataset: Dataset, count: int, steps: int | None, seed: int) -> Trajectories:
    """`count` whole episodes, or the first `steps` steps of each.

    Drawn without replacement; when there are too few, all come again before one comes thrice.
    """
    first, length = dataset.bounds
    usable = np.flatnonzero(length > 0)
    longest = int(length.max(initial=0))
    if not usable.size or (steps is not None and steps > longest):
        raise DatasetError(
            f"{dataset.name}: no episode has {steps or 1} steps to replay, the longest has "
            f"{longest}; ask for fewer steps, or evaluate on other data"
        )
    rng = np.random.default_rng(seed)
    rounds = math.ceil(count / len(usable))
    episode = np.concatenate([rng.permutation(usable) for _ in range(rounds)])[:count]
    length = np.minimum(length[episode], steps or longest)
    row = np.minimum(np.arange(length.max() + 1)[:, None], length)
    tape = dataset.take(first[episode] + row)
    state, action, reward = map(np.asarray, (tape.state, tape.action, tape.reward))
    return Trajectories(state, action[:-1], reward[:-1], length, episode)


@eqx.filter_jit
def _replay(
    world: World,
    start: Float[Array, "k s"],
    actions: Float[Array, "steps k a"],
    member: Int[Array, " k"],
    key: Key[Array, ""],
) -> WorldStep:
    """Every step of the rollouts of recorded actions; leaves (steps, k, ...)."""
    rollout_keys = jax.random.split(key, len(start))

    def step(
        state: Float[Array, "k s"], now: tuple[Int[Array, ""], Float[Array, "k a"]]
    ) -> tuple[Float[Array, "k s"], WorldStep]:
        t, action = now
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(rollout_keys, t)
        imagined = world.step(state, action, member, keys)
        return imagined.next_state, imagined

    return jax.lax.scan(step, start, (jnp.arange(len(actions)), actions))[1]


class Replay(NamedTuple):
    """What imagined trajectories are like beside the recorded ones, step by step."""

    state_error: Float[np.ndarray, "steps k"]  # RMSE(ŝ_{t+1}, s_{t+1})
    state_norm: Float[np.ndarray, "steps k"]  # RMS(ŝ_{t+1})
    reward_bias: Float[np.ndarray, "steps k"]  # r̂_{t+1} - r_{t+1}
    uncertainty: Float[np.ndarray, "steps k"]  # U(ŝ_t, a_t)
    live: Bool[np.ndarray, "steps k"]  # neither beyond the recording's end nor overflowed
    overflowed: Bool[np.ndarray, " k"]  # before the recording's end


def replay(world: World, recorded: Trajectories, seed: int) -> Replay:
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
    return Replay(
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
    """Let every rollout keep its last live value, so that each step has as many values.

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
    """RMSE between two states drawn at random from the replayed trajectories: a prediction that
    far off knows nothing. Errors beyond it are severe; beyond 10 times it they have diverged."""
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
        _check_sizes(fitted, dataset)
        if fitted.world.reward_only:
            raise WorldError(
                f"the world of {fitted.dataset_name} predicts rewards alone: "
                "no state error can compound; 'neubay analyze calibration' looks at single steps"
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
        comparison=_compared(results),
    )


def _curve_steps(longest: int) -> Int[np.ndarray, " points"]:
    """Steps 1 .. longest, all of the early ones and ever fewer of the later."""
    even, early = np.linspace(1, longest, _CURVE // 2), np.geomspace(1, longest, _CURVE // 2)
    return np.unique(np.rint(np.concatenate([even, early])).astype(int))


def _world_errors(
    name: str, fitted: FittedWorld, recorded: Trajectories, spread: float, seed: int
) -> WorldErrors:
    played = replay(fitted.world, recorded, seed)
    live = played.live
    if not live.any():
        raise WorldError(
            f"{name}: every rollout overflows in its first step; the world of "
            f"{fitted.dataset_name} is unusable, train it again with a lower learning rate"
        )
    error = Band.of(played.state_error, live)
    uncertainty, errors = played.uncertainty[live], played.state_error[live]
    severe = errors > spread
    shown = np.random.default_rng(seed).permutation(len(errors))[:_POINTS]
    return WorldErrors(
        world=name,
        trained_on=fitted.dataset_name,
        layer_norm=fitted.config.layer_norm,
        members=fitted.world.size,
        state_error=error,
        state_norm=Band.of(played.state_norm, live),
        reward_bias=Band.of(played.reward_bias, live),
        last_error_median=float(error.median[-1]),
        last_error_p95=float(error.high[-1]),
        overflowed=int(played.overflowed.sum()),
        diverges_at=_first_step(error.high > EXPLOSION * spread),
        median_diverges_at=_first_step(error.median > EXPLOSION * spread),
        spearman=spearman(uncertainty, errors),
        severe=float(severe.mean()),
        auroc=auroc(uncertainty, severe),
        cuts=[_cut(zeta, fitted.threshold(zeta), played, spread) for zeta in ZETAS],
        point_uncertainty=uncertainty[shown],
        point_error=errors[shown],
    )


def _cut(zeta: float, threshold: float, played: Replay, spread: float) -> Cut:
    live = played.live
    beyond = played.uncertainty > threshold
    crossed_before = np.cumsum(beyond, axis=0) - beyond > 0
    kept = live & ~crossed_before
    severe = live & (played.state_error > spread)
    horizon = kept.sum(axis=0)
    return Cut(
        zeta=zeta,
        threshold=threshold,
        beyond=float(beyond[live].mean()),
        horizon_median=float(np.median(horizon)),
        horizon_q75=float(np.percentile(horizon, 75)),
        kept_error_p95=float(np.percentile(played.state_error[kept], 95)),
        kept_error_max=float(played.state_error[kept].max()),
        kept_severe=float(severe[kept].mean()),
        false_safe=_share(~beyond[severe]),
    )


def _compared(results: Sequence[WorldErrors]) -> Comparison | None:
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


# --- Calibration ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Separation(Record):
    """How the threshold U(zeta) divides dangerous from harmless predictions."""

    zeta: float
    threshold: float
    beyond: float
    """Share of transitions with U > U(zeta)."""
    false_safe: float | None
    """Share of the dangerous transitions with U <= U(zeta)."""
    false_alarm: float | None
    """Share of the harmless transitions with U > U(zeta)."""


@dataclasses.dataclass(frozen=True)
class Interval(Record):
    """Central predictive intervals of one probability, per output dimension.

    A target y lies in the interval of a distribution F if |2 F(y) - 1| <= nominal; shares are
    over transitions and output dimensions, for `member` also over members.
    """

    nominal: float
    member: float
    """Each member's own Gaussian."""
    mixture: float
    """All members together, with equal weights: the posterior predictive distribution."""


@dataclasses.dataclass(frozen=True)
class Assessment(Record):
    """One step from every (s, a) of some data.

    The error is that of the posterior mean, in standardised units as U is, with the reward:

        e(s, a, r, s') = sqrt(mean_d (mean_n mu_{n,d}(s, a) - y_d)^2),   y = (s' - s, r).

    A single member's error would hold a part of U by construction.
    """

    data: str
    own: bool
    """The data is what the world was trained on."""
    transitions: int
    error_median: float
    dangerous: float
    """Share of transitions with e above the danger level."""
    auroc: float | None
    """Probability that a dangerous transition has a higher U than a harmless one."""
    spearman: float | None
    """Rank correlation of U and e."""
    separations: list[Separation]
    coverage: list[Interval]
    roc_false_alarm: Float[np.ndarray, " curve"]
    """The false alarms of a threshold that falls from infinity ..."""
    roc_caught: Float[np.ndarray, " curve"]
    """... and the share of dangerous transitions beyond it; empty where AUROC is undefined."""
    point_uncertainty: Float[np.ndarray, " points"]
    """U of some transitions drawn at random ..."""
    point_error: Float[np.ndarray, " points"]
    """... and e there."""


@dataclasses.dataclass(frozen=True)
class Calibration(Record):
    """What a world's uncertainty says about its one-step errors."""

    world: str
    trained_on: str
    layer_norm: bool
    members: int
    danger_level: float
    """The 99.9th percentile of e over the world's own data, all of it: e beyond is dangerous."""
    held_out: list[Interval]
    """Coverage on the validation split of the world's own data, which no member was fitted to."""
    assessments: list[Assessment]


def calibration(
    name: str,
    fitted: FittedWorld,
    datasets: Sequence[Dataset],
    *,
    transitions: int = 100_000,
    seed: int = 0,
) -> Calibration:
    """Compare U with one-step errors on several datasets, the world's own among them.

    At most `transitions` of each are used, drawn at random.
    """
    own = [dataset for dataset in datasets if dataset.hash == fitted.dataset_hash]
    if not own:
        raise WorldError(
            f"{name}: what counts as a dangerous error is measured on the data the world was "
            f"trained on, {fitted.dataset_name} (hash {fitted.dataset_hash}), and none of "
            f"{', '.join(dataset.name for dataset in datasets) or 'no datasets'} is it; "
            "name it as well"
        )
    for dataset in datasets:
        _check_sizes(fitted, dataset)

    def some(dataset: Dataset) -> Int[np.ndarray, " n"]:
        rows = dataset.world_rows
        if len(rows) <= transitions:
            return rows
        chosen = np.random.default_rng(seed).choice(len(rows), transitions, replace=False)
        return np.sort(rows[chosen])

    steps = [one_step(fitted.world, dataset, some(dataset)) for dataset in datasets]
    level = float(np.quantile(steps[datasets.index(own[0])].error, DANGER))
    _, held_out = split_rows(own[0].world_rows, fitted.config, fitted.seed)
    return Calibration(
        world=name,
        trained_on=fitted.dataset_name,
        layer_norm=fitted.config.layer_norm,
        members=fitted.world.size,
        danger_level=level,
        held_out=_coverage(one_step(fitted.world, own[0], held_out)),
        assessments=[
            _assessment(dataset, step, fitted, level, seed)
            for dataset, step in zip(datasets, steps, strict=True)
        ],
    )


class OneStep(NamedTuple):
    """The world's predictions from real (s, a) against what came, per transition."""

    uncertainty: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    member_coverage: Float[np.ndarray, "n levels"]  # share of members and dimensions
    mixture_coverage: Float[np.ndarray, "n levels"]  # share of dimensions


_BLOCK = 1024  # transitions at once


@eqx.filter_jit
def _one_step(
    world: World, data: Transitions
) -> tuple[
    Float[Array, " b"], Float[Array, " b"], Float[Array, "b levels"], Float[Array, "b levels"]
]:
    """The fields of `OneStep`."""
    everything = jnp.arange(len(data.row))
    inputs, targets, _ = gather(data, everything, everything >= 0, world.scaler, world.reward_only)
    prediction = jax.vmap(lambda member: member(inputs))(world.members)
    mean, log_sigma = prediction
    below = jax.scipy.stats.norm.cdf(targets, mean, jnp.exp(log_sigma))
    nominal = jnp.asarray(NOMINAL)

    def covered(probability: Float[Array, "*n b d"]) -> Float[Array, "*n b levels"]:
        return (jnp.abs(2 * probability - 1)[..., None] <= nominal).mean(axis=-2)

    return (
        quantify(prediction, world.quantifier),
        jnp.sqrt(((mean.mean(axis=0) - targets) ** 2).mean(axis=-1)),
        covered(below).mean(axis=0),
        covered(below.mean(axis=0)),
    )


def one_step(world: World, dataset: Dataset, rows: Int[np.ndarray, " n"]) -> OneStep:
    """Predict every transition in `rows` of the dataset's tape."""
    if not len(rows):
        raise DatasetError(f"{dataset.name}: no transitions to predict; evaluate on other data")
    blocks = []
    for begin in range(0, len(rows), _BLOCK):
        block = rows[begin : begin + _BLOCK]
        # Padded to one shape, so that one compilation serves all blocks.
        padded = np.pad(block, (0, _BLOCK - len(block)), mode="edge")
        measured = _one_step(world, Transitions.copy(dataset, padded))
        blocks.append([np.asarray(leaf, np.float64)[: len(block)] for leaf in measured])
    return OneStep(*(np.concatenate(leaves) for leaves in zip(*blocks, strict=True)))


def _assessment(
    dataset: Dataset, step: OneStep, fitted: FittedWorld, level: float, seed: int
) -> Assessment:
    uncertainty, error = step.uncertainty, step.error
    dangerous = error > level
    thresholds = [(zeta, fitted.threshold(zeta)) for zeta in ZETAS]
    false_alarm, caught = roc(uncertainty, dangerous)
    shown = np.random.default_rng(seed).permutation(len(error))[:_POINTS]
    return Assessment(
        data=dataset.name,
        own=dataset.hash == fitted.dataset_hash,
        transitions=len(error),
        error_median=float(np.median(error)),
        dangerous=float(dangerous.mean()),
        auroc=auroc(uncertainty, dangerous),
        spearman=spearman(uncertainty, error),
        separations=[
            Separation(
                zeta=zeta,
                threshold=threshold,
                beyond=float(np.mean(uncertainty > threshold)),
                false_safe=_share(uncertainty[dangerous] <= threshold),
                false_alarm=_share(uncertainty[~dangerous] > threshold),
            )
            for zeta, threshold in thresholds
        ],
        coverage=_coverage(step),
        roc_false_alarm=false_alarm,
        roc_caught=caught,
        point_uncertainty=uncertainty[shown],
        point_error=error[shown],
    )


def _coverage(step: OneStep) -> list[Interval]:
    member, mixture = step.member_coverage.mean(axis=0), step.mixture_coverage.mean(axis=0)
    return [Interval(*map(float, shares)) for shares in zip(NOMINAL, member, mixture, strict=True)]


# --- Ranks ---------------------------------------------------------------------------------------


def spearman(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]) -> float | None:
    """Spearman's rank correlation; none where one of the two is constant."""
    if len(first) < 2 or np.all(first == first[0]) or np.all(second == second[0]):
        return None
    return float(stats.spearmanr(first, second).statistic)


def auroc(score: Float[np.ndarray, " n"], event: Bool[np.ndarray, " n"]) -> float | None:
    """P(score of an event > score of a non-event), ties counting half; none without both."""
    events = int(event.sum())
    others = len(event) - events
    if not events or not others:
        return None
    ranks = stats.rankdata(score)[event].sum()
    return float((ranks - events * (events + 1) / 2) / (events * others))


def roc(
    score: Float[np.ndarray, " n"], event: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Shares of non-events and of events above a falling threshold; empty without both."""
    events, others = np.sort(score[event]), np.sort(score[~event])
    if not len(events) or not len(others):
        return np.zeros(0), np.zeros(0)
    # Thresholds at quantiles of both kinds resolve the curve along both axes; those of the
    # non-events crowd at the top, where the false alarms are few.
    half = _CURVE // 2
    tops = 1 - np.append(np.geomspace(1 / len(others), 1, half), 0)
    kinds = (np.quantile(events, np.linspace(0, 1, half)), np.quantile(others, tops))
    thresholds = np.unique(np.concatenate([[-np.inf], *kinds]))[::-1]
    above = [
        1 - np.searchsorted(kind, thresholds, side="right") / len(kind) for kind in (others, events)
    ]
    return above[0], above[1]


def _share(condition: Bool[np.ndarray, " n"]) -> float | None:
    return float(condition.mean()) if len(condition) else None


def _check_sizes(fitted: FittedWorld, dataset: Dataset) -> None:
    scaler = fitted.world.scaler
    ours = (len(scaler.state_mean), len(scaler.action_mean))
    theirs = (dataset.tape.state.shape[-1], dataset.tape.action.shape[-1])
    if ours != theirs:
        raise WorldError(
            f"the world of {fitted.dataset_name} has {ours[0]} states and {ours[1]} actions, "
            f"{dataset.name} has {theirs[0]} and {theirs[1]}; evaluate on data of the same task"
        )
