"""Shapes in the types are checked at run time under test; real data is used where there is any."""

import os
from collections.abc import Callable
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


# --- The table of faults -------------------------------------------------------------------------

FAULTS: dict[str, tuple[int, str]] = {}  # name -> times tried, result
BEGIN, END = "<!-- faults -->\n", "<!-- end of faults -->\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reliability",
        metavar="PAGE",
        help="write the table of the faults tried into a page (docs/reliability.md)",
    )


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[int, str], None]:
    """Counts how often a test tried its fault, and with what result."""

    def count(times: int, result: str) -> None:
        marker = request.node.get_closest_marker("faults")
        assert marker is not None, "only a test of a fault has something to tell"
        before, _ = FAULTS.get(marker.args[0], (0, ""))
        FAULTS[marker.args[0]] = (before + times, result)

    return count


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    page = session.config.getoption("--reliability")
    if not page or exitstatus != 0:  # a fault was not withstood: the page is left as it was
        return
    rows = [f"| {name} | {times:,} | {result} |" for name, (times, result) in FAULTS.items()]
    table = "\n".join(["| fault | tried | result |", "|---|---|---|", *rows]) + "\n"
    text = Path(page).read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    Path(page).write_text(head + BEGIN + table + END + tail, encoding="utf-8")
