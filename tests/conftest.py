"""Shapes in the types are checked at run time under test; real data is used where there is any."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("MUJOCO_GL", "egl")

from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("neubay", "beartype.beartype")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; tests that ask for it are skipped where it is absent."""
    beside_the_project = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("NEUBAY_TEST_DATA", beside_the_project))
    if not folder.is_dir():
        pytest.skip("no real data here: set NEUBAY_TEST_DATA to its folder")
    return folder


# No deadline: the first example pays for compilation. Derandomised, so that a failure repeats.
settings.register_profile("neubay", deadline=None, derandomize=True)
settings.load_profile("neubay")
