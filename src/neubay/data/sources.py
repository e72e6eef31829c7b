"""Sources: from what a user writes to a dataset.

    d4rl:PATH or d4rl:NAME    D4RL HDF5, by path or from the download cache
    minari:ID or minari:DIR   a Minari dataset
    neorl:PATH or neorl:NAME  NeoRL and NeoRL-2 npz, likewise
    npz:PATH, hdf5:PATH       arrays under usual names
    builtin:pendulum          the built-in dataset
    PATH                      any of the files and folders above

What a file holds is told by the names of its arrays, not by its prefix or its ending.
"""

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neubay.data.archives import Archive, open_archive
from neubay.data.dataset import Dataset
from neubay.data.layout import anonymous_task, tape_of
from neubay.data.minari_source import is_minari_folder, open_minari
from neubay.data.rows import Rows
from neubay.data.store import MEMORY_LIMIT
from neubay.errors import DatasetError, TaskError
from neubay.tasks import Task, get_task, identify

FILE_SCHEMES = ("d4rl", "neorl", "npz", "hdf5")
SCHEMES = (*FILE_SCHEMES, "minari", "builtin")

# The names that each array goes by; the first one present is taken.
NAMES: dict[str, tuple[str, ...]] = {
    "states": ("observations", "obs", "states", "observation", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "terminals": ("terminals", "terminal", "terminations", "terminated"),
    "timeouts": ("timeouts", "timeout", "truncations", "truncated"),
    "next_states": ("next_observations", "next_obs", "next_states", "next_observation"),
}
ANY_END = ("dones", "done")
"""Flags of old Gym, true at every end; taken where there are no terminals."""


@dataclass(frozen=True)
class Place:
    """Where the data of a source is."""

    kind: Literal["file", "minari", "builtin"]
    where: str

    @property
    def path(self) -> Path:
        return Path(self.where)


def load(
    spec: str | Path, task: Task | str | None = None, *, memory_limit: int = MEMORY_LIMIT
) -> Dataset:
    """Read a dataset.

    Args:
        spec: where it is, in one of the forms above.
        task: the task or the name of one. Without it: the task recorded in the file, then the
            one that the name of the dataset tells, then one with the data's sizes alone.
        memory_limit: bytes of the tape beyond which it is kept in the cache and memory-mapped.
    """
    place = locate(str(spec))
    wanted = get_task(task) if isinstance(task, str) else task
    if place.kind == "builtin":
        return _builtin(place.where, wanted)
    if place.kind == "minari":
        return _minari(place.where, wanted, memory_limit)
    with open_rows(place.path) as (rows, recorded):
        known, published = identity(place.path.name, recorded, wanted)
        tape, chosen = tape_of(
            rows, known, place.path.stem, origin=_origin(place.path), memory_limit=memory_limit
        )
    return Dataset(tape, chosen, name=place.path.stem, source=str(place.path), published=published)


def task_of(spec: str, task: Task | str | None = None) -> tuple[Task | None, str | None]:
    """The task that `load` would give a dataset, and the paper's dataset that it is.

    Looks at the data without reading it through. Where that fails, which `load` is to explain,
    only the name is asked; none where it does not tell.
    """
    wanted = get_task(task) if isinstance(task, str) else task
    try:
        place = locate(spec)
        if place.kind == "minari":
            source = open_minari(place.where)
            known, published = identity(source.name, source.recorded_task, wanted)
            return known or source.task, published
        if place.kind == "file":
            with open_rows(place.path) as (rows, recorded):
                known, published = identity(place.path.name, recorded, wanted)
                return known or anonymous_task(rows, place.path.stem), published
    except DatasetError:
        pass
    return identity(spec.split(":", 1)[-1], None, wanted)


def _minari(where: str, wanted: Task | None, memory_limit: int) -> Dataset:
    source = open_minari(where)
    known, published = identity(source.name, source.recorded_task, wanted)
    tape, chosen = source.tape(known, memory_limit)
    return Dataset(tape, chosen, name=source.name, source=str(source.folder), published=published)


def locate(spec: str) -> Place:
    """Find out what a user means."""
    from neubay.data import builtin, download

    scheme, colon, rest = spec.partition(":")
    if colon and scheme in SCHEMES:
        if not rest:
            raise DatasetError(f"'{spec}': a path or a name is missing after the colon.")
        if scheme in ("builtin", "minari"):
            return Place("builtin" if scheme == "builtin" else "minari", os.path.expanduser(rest))
        spec = rest
    elif not spec.strip():
        raise DatasetError("no dataset given: name a path, such as d4rl:PATH.hdf5.")
    elif spec in builtin.NAMES:
        return Place("builtin", spec)
    path = Path(os.path.expanduser(spec))  # Path's own raises where there is no such user
    if _exists(path):
        return Place("minari" if is_minari_folder(path) else "file", str(path))
    if spec in download.FILES:
        cached = download.cached_path(spec)
        if cached is None:
            benchmark = download.FILES[spec].benchmark
            raise DatasetError(
                f"'{spec}': not downloaded yet. Fetch it with 'neubay data download {spec}', or "
                f"give the path of a copy: {benchmark.scheme}:PATH{benchmark.suffix}."
            )
        return Place("file", str(cached))
    raise DatasetError(f"'{spec}': no such file, and no known dataset.{_suggestion(spec)}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a null in it
        return False


def _suggestion(spec: str) -> str:
    from neubay.data import builtin, download

    scheme, colon, rest = spec.partition(":")
    if colon and "/" not in scheme:
        close = difflib.get_close_matches(scheme, SCHEMES, n=1, cutoff=0.5)
        if close:
            return f" Did you mean '{close[0]}:{rest}'?"
    close = difflib.get_close_matches(spec, [*builtin.NAMES, *download.FILES], n=1, cutoff=0.7)
    if close:
        return f" Did you mean '{close[0]}'?"
    return " Check the path; 'neubay data list' shows the names."


def _builtin(name: str, task: Task | None) -> Dataset:
    from neubay.data import builtin

    if name not in builtin.NAMES:
        raise DatasetError(
            f"'builtin:{name}': no such dataset. Built in are: {', '.join(builtin.NAMES)}."
        )
    dataset = builtin.pendulum()
    if task is not None and task.name != dataset.task.name:
        raise DatasetError(
            f"'builtin:{name}': belongs to task '{dataset.task.name}', not to '{task.name}'. "
            "Leave the task out."
        )
    return dataset


def identity(
    name: str, recorded: str | None, wanted: Task | None
) -> tuple[Task | None, str | None]:
    """The task of a dataset, and the name of the paper's dataset that it is."""
    told, published = identify(name)
    if wanted is not None:
        return wanted, published if told is not None and told.name == wanted.name else None
    if recorded is not None:
        try:
            return get_task(recorded), published if told and told.name == recorded else None
        except TaskError:  # recorded where a task was registered that is not here
            pass
    return told, published


def _origin(path: Path) -> dict[str, Any]:
    """What tells one state of a file from another."""
    status = path.stat()
    return {
        "path": str(path.resolve()),
        "size": status.st_size,
        "modified": status.st_mtime_ns,
    }


# -------------------------------------------------------------------------------- layouts


@contextmanager
def open_rows(path: Path) -> Iterator[tuple[Rows, str | None]]:
    """The rows of a file, and the name of the task recorded with them."""
    with open_archive(path) as archive:
        yield rows_of(archive), archive.task_name


def rows_of(archive: Archive) -> Rows:
    """Match the arrays of a file to what they mean."""
    file = str(archive.path)
    keys = {
        field: next((name for name in names if name in archive.keys), None)
        for field, names in NAMES.items()
    }
    any_end = keys["terminals"] is None
    if any_end:
        keys["terminals"] = next((name for name in ANY_END if name in archive.keys), None)
    for field in ("states", "actions", "rewards", "terminals"):
        if keys[field] is None:
            raise DatasetError(_missing(file, archive.keys, field))
    index = "index" if any_end and "index" in archive.keys else None
    columns: dict[str, Any] = {
        field: None if key is None else archive.column(key)
        for field, key in {**keys, "first_rows": index}.items()
    }
    return Rows(file=file, terminals_mark_any_end=any_end, **columns)


def _missing(file: str, present: list[str], field: str) -> str:
    wanted = ", ".join(f"'{name}'" for name in NAMES[field])
    shown = ", ".join(f"'{name}'" for name in sorted(present)[:12]) or "nothing"
    more = ", ..." if len(present) > 12 else ""
    return (
        f"{file}: no array of {field}; looked for {wanted}. The file has {shown}{more}. Rename the "
        f"array, or pass it to Dataset.from_arrays."
    )
