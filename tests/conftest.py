"""Shapes in the types are checked at run time under test; real data is used where there is any.

Plain `pytest` runs on several workers (pyproject.toml). The first process of a session gives them,
and all that they start, one folder for compiled programs and caches, and one thread each.
"""

import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:
    SESSION_FOLDER = tempfile.mkdtemp(prefix="neubay-tests-")
    # A program is compiled once per session. A folder that a developer names is used instead.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(SESSION_FOLDER, "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    # Not the user's: a session starts without data and worlds of earlier ones.
    os.environ["NEUBAY_CACHE"] = os.path.join(SESSION_FOLDER, "neubay")
    # Two workers with two threads each would fight for two cores. Networks are tiny here, and most
    # of the time goes into compiling: with less of LLVM's optimisation it takes a fifth, and in one
    # piece per program a fifth less again, as there is no thread to spare for more.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_multi_thread_eigen=false"
        " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
        " --xla_cpu_parallel_codegen_split_count=1",
    )
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # Nobody reads from which line an operation came, and writing it down takes time.
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"  # mixing dtypes is an error

import jax
from hypothesis import settings

from helpers.type_checks import check_types_of

check_types_of("neubay")

# Tracing makes hundreds of thousands of objects that stay; looking through them for garbage after
# every 700 took a tenth of the time. What has been imported and collected stays too.
gc.set_threshold(50_000, 20, 20)

# No deadline: the first example pays for compilation. Derandomised, so that a failure repeats.
settings.register_profile("neubay", deadline=None, derandomize=True)
settings.load_profile("neubay")


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(SESSION_FOLDER, ignore_errors=True)


MOST_MAPPINGS = 30_000
"""Of memory, in a worker. Each compiled program has dozens, and Linux allows 65,530 a process."""


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """Forget compiled programs when there are too many; those that are still needed are kept on
    disk."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; tests that ask for it are skipped where it is absent."""
    beside_the_project = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("NEUBAY_TEST_DATA", beside_the_project))
    if not folder.is_dir():
        pytest.skip("no real data here: set NEUBAY_TEST_DATA to its folder")
    return folder


# --- The quick part ------------------------------------------------------------------------------

SLOW_SECONDS = 3.0
# Fixtures that train a run, or start a browser.
LONG_FIXTURES = {"chromium", "chosen", "finished", "halfway", "learned", "reference", "summary"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for such a fixture is slow if it is the first to ask, so each is marked."""
    for item in items:
        if LONG_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the tests that take long and are not marked slow; it fails nothing."""
    seconds: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
            seconds[report.nodeid] += report.duration
    long = [(name, spent) for name, spent in seconds.most_common() if spent > SLOW_SECONDS]
    if long:
        terminalreporter.section(f"not marked slow, above {SLOW_SECONDS:g} s")
        for name, spent in long:
            terminalreporter.write_line(f"{spent:6.1f} s {name}")


# --- The table of faults -------------------------------------------------------------------------

# name -> place of its first test, times tried, result
FAULTS: dict[str, tuple[int, int, str]] = {}
BEGIN, END = "<!-- faults -->\n", "<!-- end of faults -->\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reliability",
        metavar="PAGE",
        help="write the table of the faults tried into a page (docs/reliability.md)",
    )


def count_fault(name: str, place: int, times: int, result: str) -> None:
    first, before, _ = FAULTS.get(name, (place, 0, ""))
    FAULTS[name] = (min(first, place), before + times, result)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[int, str], None]:
    """Counts how often a test tried its fault, and with what result."""

    def count(times: int, result: str) -> None:
        marker = request.node.get_closest_marker("faults")
        assert marker is not None, "only a test of a fault has something to tell"
        count_fault(marker.args[0], request.session.items.index(request.node), times, result)

    return count


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: add what it tried."""
    for name, tried in getattr(node, "workeroutput", {}).get("faults", {}).items():
        count_fault(name, *tried)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    gc.freeze()  # before pytest looks through all that is left, to warn of what is ignored here
    if "PYTEST_XDIST_WORKER" in os.environ:
        session.config.workeroutput["faults"] = FAULTS  # type: ignore[attr-defined]
        return
    page = session.config.getoption("--reliability")
    if not page or exitstatus != 0:  # a fault was not withstood: the page is left as it was
        return
    ordered = sorted(FAULTS.items(), key=lambda fault: fault[1][0])
    rows = [f"| {name} | {times:,} | {result} |" for name, (_, times, result) in ordered]
    table = "\n".join(["| fault | tried | result |", "|---|---|---|", *rows]) + "\n"
    text = Path(page).read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    Path(page).write_text(head + BEGIN + table + END + tail, encoding="utf-8")
