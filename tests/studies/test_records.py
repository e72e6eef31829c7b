"""What the analyses of a world share."""

import numpy as np
import pytest

from helpers.known_worlds import fitted, random_walk, true_world
from neubay.data import Dataset
from neubay.errors import WorldError
from neubay.studies import calibration, compounding, spread


def test_data_of_another_size_is_refused() -> None:
    small = fitted(true_world(), random_walk([20]))
    other = Dataset.from_arrays(
        np.zeros((4, 3)), np.zeros((4, 1)), np.zeros(4), np.zeros(4, bool), name="other"
    )
    for analyse in (
        lambda: compounding.compounding({"w": small}, other),
        lambda: spread.uncertainty_spread("w", small, other),
        lambda: calibration.calibration("w", small, [random_walk([20]), other]),
    ):
        with pytest.raises(WorldError, match="2 state and 2 action dimensions, other has 3 and 1"):
            analyse()
