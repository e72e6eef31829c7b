"""The built-in dataset: poor data that needs no download, for `neubay train` with no argument."""

from pathlib import Path

import numpy as np

from neubay.data.collect import StickyActions, collect
from neubay.data.dataset import Dataset
from neubay.data.files import written_whole
from neubay.data.rows import ColumnNames
from neubay.data.store import FIELDS
from neubay.errors import NeubayError
from neubay.runs.cache import cache_directory
from neubay.tape import Tape
from neubay.tasks import get_task

PENDULUM = "pendulum"
NAMES = (PENDULUM,)

EPISODES = 100
SEED = 0
REPEAT = 0.8

_SOURCE = f"builtin:{PENDULUM}"
# Part of the file's name: another recipe never reads the cache of this one.
_RECIPE = f"{PENDULUM}-sticky{REPEAT}-{EPISODES}episodes-seed{SEED}-1.npz"


def pendulum() -> Dataset:
    """Pendulum-v1 under sticky random actions: 100 episodes of 200 steps, mean return near -1200.

    Held actions swing the pendulum through every angle, yet never keep it upright: the data is
    of low quality, but a world can be learnt from it. Made in seconds from a fixed seed, and
    cached. A missing or damaged cache is rebuilt; an unwritable one is ignored.
    """
    path = cache_directory() / "builtin" / _RECIPE
    cached = _read(path)
    if cached is not None:
        return cached
    dataset = _collected()
    _write(path, dataset)
    return dataset


def _collected() -> Dataset:
    task = get_task(PENDULUM)
    dataset = collect(
        task, StickyActions(task, REPEAT), episodes=EPISODES, seed=SEED, name=PENDULUM
    )
    return _named(dataset.tape)


def _named(tape: Tape) -> Dataset:
    return Dataset(
        tape=tape,
        task=get_task(PENDULUM),
        name=PENDULUM,
        source=_SOURCE,
        column_names=ColumnNames(
            states=("cos(angle)", "sin(angle)", "speed [rad/s]"), actions=("torque [N m]",)
        ),
    )


def _read(path: Path) -> Dataset | None:
    """The cached data, or none if it is absent or not what was written."""
    try:
        with np.load(path, allow_pickle=False) as file:
            recorded = str(file["hash"])
            fields = [file[name] for name in FIELDS]
    except Exception:  # whatever is wrong with the cache, its content can be made again
        return None
    for field in fields:
        field.flags.writeable = False
    dataset = _named(Tape(*fields))
    return dataset if dataset.hash == recorded else None


def _write(path: Path, dataset: Dataset) -> None:
    """Cache the data for the next time; failing to is no error."""
    fields = {name: getattr(dataset.tape, name) for name in FIELDS}
    try:
        with written_whole(path, overwrite=True) as draft:
            np.savez(draft, hash=np.array(dataset.hash), **fields)
    except NeubayError:
        return
