"""The spread of uncertainty: how U is distributed over data, in units of its mean."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from neubay.data.dataset import Dataset
from neubay.studies.records import CURVE_POINTS, Record, check_sizes
from neubay.world import FittedWorld, uncertainty_over


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
        check_sizes(fitted, dataset)
        values, data = uncertainty_over(fitted.world, dataset), dataset.name
    # Hazen's positions (k - 1/2) / n give the largest of n values a place on a logit axis.
    end = math.log(2 * len(values) - 1)
    probability = 1 / (1 + np.exp(-np.linspace(-end, end, CURVE_POINTS)))
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
