"""Making a run go wrong: what the tests of faults share."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neubay import experiment
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.runs.tracking import Row, Tracker

TESTS = Path(__file__).parents[1]
Tally = Callable[[int, str], None]
"""How often a fault was tried, and with what result."""


def train(
    data: Dataset,
    config: TrainConfig,
    directory: Path,
    *trackers: Tracker,
    tell: Callable[[str], None] = lambda text: None,
) -> experiment.Result:
    return experiment.run(
        data, config, directory, trackers=trackers, checkpoint_seconds=0.0, tell=tell
    )


def stop_at(step: int, signum: int = signal.SIGTERM) -> Tracker:
    """Ask the process to stop when a training has reached a step."""

    def track(row: Row) -> None:
        if row["kind"] == "train" and row["step"] == step:
            os.kill(os.getpid(), signum)

    return track


def saved(directory: Path) -> dict[str, bytes]:
    """Every file of a run but the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def truncate(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[: -min(by, path.stat().st_size)])


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(flipped(content, 4 * len(content)))


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextlib.contextmanager
def before(home: object, name: str, act: Callable[[], None]) -> Iterator[None]:
    """Do something before each call of a function."""
    original = getattr(home, name)

    def call(*arguments: object, **named: object) -> object:
        act()
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, name, call)
        yield


@contextlib.contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen]:
    """Another process that works in a directory."""
    code = (
        "import sys, time; from pathlib import Path; from neubay.runs.locks import locked\n"
        "with locked(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            yield holder
        finally:
            holder.kill()


def compiled_once(folder: Path) -> dict[str, str]:
    """An environment in which a new process need not compile again what another did."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jit"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
