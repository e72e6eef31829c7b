"""The spread of uncertainty over data."""

import numpy as np
import pytest

from helpers.known_worlds import TRUTH, ZERO, fitted, linear_world, random_walk
from neubay.studies.spread import uncertainty_spread


def test_the_spread_of_uncertainty_is_its_quantiles_in_units_of_the_mean() -> None:
    dataset = random_walk([1000])
    of = fitted(linear_world([TRUTH, 1.3 * TRUTH], 2 * [ZERO], 0.1), dataset)
    spread = uncertainty_spread("w", of)
    values = of.data_uncertainty / of.data_uncertainty.mean()
    assert spread.own and spread.data == "walk" and spread.beyond == 0
    assert spread.normalised[0] == pytest.approx(values.min())
    assert spread.normalised[-1] == pytest.approx(values.max())
    assert spread.quantile(0.5) == pytest.approx(np.median(values), rel=0.02)
    assert (np.diff(spread.normalised) >= 0).all()
    written = np.array(spread.record()["probability"])  # still apart from 1, for the logit axis
    np.testing.assert_allclose(np.log(written / (1 - written)), np.linspace(-7.6, 7.6, 200), 1e-3)
    far = random_walk([100], drift=5.0, seed=1, name="far")
    elsewhere = uncertainty_spread("w", of, far)
    assert not elsewhere.own
    assert elsewhere.unit == spread.unit
