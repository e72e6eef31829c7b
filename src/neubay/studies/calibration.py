"""Calibration, one step from real (s, a): does U tell dangerous predictions from harmless ones, and
are the predictive intervals as wide as they claim?"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from neubay import published
from neubay.data.dataset import Dataset
from neubay.errors import DatasetError, WorldError
from neubay.studies.ranks import auroc, mean, roc, spearman
from neubay.studies.records import Record, check_sizes, in_blocks, scatter_sample
from neubay.world import FittedWorld, Transitions, World, gather, quantify, split_rows

DANGER = 0.999
"""A one-step error beyond this quantile of the errors on the world's own data is dangerous."""
NOMINAL = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Probabilities of the predictive intervals whose coverage is reported."""


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
            "add it to the datasets"
        )
    for dataset in datasets:
        check_sizes(fitted, dataset)

    steps = [
        one_step(fitted.world, dataset, _sample_rows(dataset, transitions, seed))
        for dataset in datasets
    ]
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


def _sample_rows(dataset: Dataset, transitions: int, seed: int) -> Int[np.ndarray, " n"]:
    """Rows of at most so many transitions, in order."""
    rows = dataset.world_rows
    if len(rows) <= transitions:
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), transitions, replace=False)
    return np.sort(rows[chosen])


class OneStep(NamedTuple):
    """The world's predictions from real (s, a) against the recorded (r, s'), per transition."""

    uncertainty: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    member_coverage: Float[np.ndarray, "n levels"]  # share of members and dimensions
    mixture_coverage: Float[np.ndarray, "n levels"]  # share of dimensions


@eqx.filter_jit
def _one_step(
    world: World, data: Transitions
) -> tuple[
    Float[Array, " b"], Float[Array, " b"], Float[Array, "b levels"], Float[Array, "b levels"]
]:
    """The fields of `OneStep`."""
    index = jnp.arange(len(data.row))
    inputs, targets, *_ = gather(data, index, index >= 0, world.scaler, world.reward_only)
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
    return OneStep(
        *in_blocks(lambda block: _one_step(world, Transitions.copy(dataset, block)), rows)
    )


def _assessment(
    dataset: Dataset, step: OneStep, fitted: FittedWorld, level: float, seed: int
) -> Assessment:
    uncertainty, error = step.uncertainty, step.error
    dangerous = error > level
    thresholds = [(zeta, fitted.threshold(zeta)) for zeta in published.ZETAS]
    false_alarm, caught = roc(uncertainty, dangerous)
    shown = scatter_sample(len(error), seed)
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
                false_safe=mean(uncertainty[dangerous] <= threshold),
                false_alarm=mean(uncertainty[~dangerous] > threshold),
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
