"""Calibration, of worlds whose errors can be worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from jaxtyping import Float
from scipy import stats

from helpers.known_worlds import TRUTH, ZERO, fitted, linear_world, random_walk, true_world
from neubay.errors import WorldError
from neubay.studies import calibration


def shares(intervals: Sequence[calibration.Interval], kind: str) -> Float[np.ndarray, " levels"]:
    return np.array([getattr(interval, kind) for interval in intervals])


def test_the_true_world_has_honest_intervals_and_a_timid_one_has_too_narrow_ones() -> None:
    dataset = random_walk([4000], sigma=0.5)
    nominal = np.array(calibration.NOMINAL)
    honest = calibration.calibration("w", fitted(true_world(sigma=0.5), dataset), [dataset])
    for kind in ("member", "mixture"):  # equal members are their own mixture
        np.testing.assert_allclose(
            shares(honest.assessments[0].coverage, kind), nominal, atol=0.015
        )
    timid = calibration.calibration("w", fitted(true_world(sigma=0.25), dataset), [dataset])
    half = 2 * stats.norm.cdf(stats.norm.ppf(0.5 + nominal / 2) / 2) - 1
    np.testing.assert_allclose(shares(timid.assessments[0].coverage, "member"), half, atol=0.015)
    np.testing.assert_allclose(shares(timid.held_out, "member"), half, atol=0.04)


def test_the_mixture_is_wider_than_its_members_by_their_disagreement() -> None:
    dataset = random_walk([4000], sigma=0.5)
    apart = linear_world(2 * [TRUTH], [ZERO - 0.5, ZERO + 0.5], 0.5)
    result = calibration.calibration("w", fitted(apart, dataset), [dataset])
    inside = shares(result.assessments[0].coverage, "mixture")
    # y ~ N(0, 1/2); the mixture's distribution function is the mean of the two members'.
    y = 0.5 * np.random.default_rng(0).standard_normal(200_000)
    below = (stats.norm.cdf(y, -0.5, 0.5) + stats.norm.cdf(y, 0.5, 0.5)) / 2
    expected = [(np.abs(2 * below - 1) <= level).mean() for level in calibration.NOMINAL]
    np.testing.assert_allclose(inside, expected, atol=0.015)


def test_uncertainty_that_knows_the_error_has_auroc_one_and_no_false_safe() -> None:
    """Members that disagree by what they err: both grow with |s| alone."""
    dataset = random_walk([500], sigma=0.0)
    slopes = [TRUTH + np.pad(scale * np.eye(2), ((0, 1), (0, 2))) for scale in (0.1, 0.2)]
    of = fitted(linear_world(slopes, 2 * [ZERO], 0.1), dataset)
    far = random_walk([500], drift=1.0, sigma=0.0, seed=1, name="far")
    result = calibration.calibration("w", of, [far, dataset])
    away, own = result.assessments
    assert own.own and not away.own
    assert own.dangerous == pytest.approx(1 / 500)
    # The drift itself is an error of 1 that U does not see: where all is dangerous there is no
    # AUROC; on the world's own data error and U are in one order.
    assert own.auroc == 1.0
    assert own.spearman == pytest.approx(1.0, abs=1e-3)
    assert own.separations[-1].false_safe == 1.0  # nothing of its own lies beyond zeta = 1
    assert own.separations[0].false_safe == 0.0


def test_one_step_errors_are_those_of_the_mean_of_members() -> None:
    dataset = random_walk([300], sigma=0.3)
    of = linear_world([TRUTH, TRUTH], [ZERO + 0.2, ZERO + 0.4], 0.3)
    rows = dataset.world_rows
    step = calibration.one_step(of, dataset, rows)
    tape = dataset.tape
    delta = tape.state[rows + 1] - tape.state[rows]
    target = np.concatenate([delta, tape.reward[rows][:, None]], axis=1)
    mean = np.concatenate([tape.action[rows], np.zeros((len(rows), 1))], axis=1) + 0.3
    np.testing.assert_allclose(
        step.error, np.sqrt(((mean - target) ** 2).mean(axis=1)), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(step.uncertainty, 0.1, rtol=1e-3)


def test_calibration_needs_the_worlds_own_data_and_says_which_it_is() -> None:
    dataset = random_walk([50])
    of = fitted(true_world(), dataset)
    with pytest.raises(WorldError, match=f"walk .hash {dataset.hash}., and none of other is it"):
        calibration.calibration("w", of, [random_walk([50], seed=1, name="other")])
