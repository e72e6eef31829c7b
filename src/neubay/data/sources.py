"""Sources: from a path or name that a user gives to a dataset.

    d4rl:PATH or d4rl:NAME    D4RL HDF5, by path or from the download cache
    minari:ID or minari:DIR   a Minari dataset
    neorl:PATH or neorl:NAME  NeoRL and NeoRL-2 npz, likewise
    npz:PATH, hdf5:PATH       arrays under usual names
    builtin:pendulum          the built-in dataset
    PATH                      any of the files and folders above

What a file holds is decided by the names of its arrays, not by its prefix or its suffix.
"""

import difflib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from neubay.data import builtin, download
from neubay.data.archives import Archive, open_archive
from neubay.data.catalogue import FILES
from neubay.data.dataset import Dataset
from neubay.data.layout import Bound, anonymous_task, box, describe_bounds, misfit, tape_of
from neubay.data.minari_source import MinariSource, is_minari_folder, open_minari
from neubay.data.rows import Rows
from neubay.data.store import MEMORY_LIMIT
from neubay.errors import DatasetError, TaskError
from neubay.runs.messages import Tell, log
from neubay.tasks import ContinuousActions, Task, get_task, identify

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


Bounds = tuple[Bound, Bound]
"""Low and high of continuous actions."""

NO_TASK = "none"
"""In place of a task's name: the data belongs to none."""


@dataclass(frozen=True)
class Place:
    """Where the data of a source is."""

    kind: Literal["file", "minari", "builtin"]
    where: str


class Identity(NamedTuple):
    """Whose data it is."""

    task: Task | None
    published: str | None
    """The name of the paper's dataset that it is."""
    said: str | None = None
    """What its name suggested, and whether it was believed; none where the name did not decide."""


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset that was found and opened, but not read through."""

    known: Task | None
    """The task that was asked for, is recorded with the data, or that its name says."""
    published: str | None
    """The name of the paper's dataset that it is."""
    rows: Rows | None
    """What a file holds; none for Minari and the built-in dataset."""
    read: Callable[[int], Dataset]
    """Reads it, given the bytes of the tape beyond which it is memory-mapped."""
    said: str | None = None
    """What the name of the data suggested, and whether it was believed."""
    action_bounds: Bounds | None = None
    """Those that were given for data of no task."""

    @property
    def task(self) -> Task | None:
        """The task that the dataset will have, but for the horizon of one made from the data."""
        if self.known is None and self.rows is not None:
            return anonymous_task(self.rows, Path(self.rows.file).stem, self.action_bounds)
        return self.known

    def load(self, tell: Tell, memory_limit: int = MEMORY_LIMIT) -> Dataset:
        """Read it, and say what was concluded from its name, and which bounds and which T were
        assumed."""
        if self.said is not None:
            tell(self.said)
        dataset = self.read(memory_limit)
        known = self.known is not None or self.action_bounds is not None or self.rows is None
        if not known and self.rows is not None and self.rows.recorded_actions is None:
            dataset.tell_assumed_bounds(tell)
        if dataset.horizon_said is not None:
            tell(dataset.horizon_said)
        return dataset


def load(
    spec: str | Path,
    task: Task | str | None = None,
    *,
    action_bounds: Bounds | None = None,
    memory_limit: int = MEMORY_LIMIT,
    tell: Tell = log,
) -> Dataset:
    """Read a dataset.

    Args:
        spec: where it is, in one of the forms above.
        task: the task or the name of one; "none" makes one with the data's sizes alone. Unless
            given, it is the task recorded in the file, or the one that the dataset's name says
            where sizes and actions fit it, or else one with the data's sizes alone.
        action_bounds: low and high of continuous actions, one value or one per action, of data
            that belongs to no task; those recorded in the file, or else [-1, 1], if not given.
        memory_limit: bytes of the tape beyond which it is kept in the cache and memory-mapped.
        tell: is given, in a sentence, what was concluded from the name or assumed.
    """
    with open_source(locate(str(spec)), task, action_bounds) as source:
        return source.load(tell, memory_limit)


@contextmanager
def open_source(
    place: Place, task: Task | str | None = None, action_bounds: Bounds | None = None
) -> Iterator[Source]:
    """Open a dataset and find out whose it is."""
    named = task != NO_TASK  # the data may be of a task that nobody gave
    wanted = get_task(task) if isinstance(task, str) and named else task
    if not isinstance(wanted, Task):
        wanted = None
    if wanted is not None and action_bounds is not None:
        raise DatasetError(
            f"{place.where}: task '{wanted.name}' has bounds of its own. Leave out --action-low "
            "and --action-high (action_bounds), or the task."
        )
    if place.kind == "builtin":
        if action_bounds is not None or not named:
            raise DatasetError(f"'{place.where}': has a task and bounds. Leave yours out.")
        known = identity(place.where, None, wanted).task
        yield Source(known, None, None, lambda _: _builtin(place.where, wanted))
    elif place.kind == "minari":
        yield _minari_source(open_minari(place.where), wanted, action_bounds, named=named)
    else:
        with open_archive(Path(place.where)) as archive:
            yield _file_source(archive, wanted, action_bounds, named=named)


def _minari_source(
    minari: MinariSource, wanted: Task | None, bounds: Bounds | None, *, named: bool
) -> Source:
    task, given = minari.task, None
    if bounds is not None:
        if not isinstance(task.actions, ContinuousActions):
            raise DatasetError(f"{minari.folder}: has numbered actions. Leave out the bounds.")
        given = box(bounds, task.actions.size, str(minari.folder), "actions")
        task = replace(task, actions=given)
    if not named:
        task = Task(task.name, task.state_size, task.actions, task.horizon)
    minari = replace(minari, task=task)
    found = Identity(None, None)
    if named:
        found = _identity_with_bounds(
            minari.name, minari.recorded_task, wanted, given, minari.misfit
        )

    def read(memory_limit: int) -> Dataset:
        laid = minari.tape(found.task, memory_limit)
        where, names = str(minari.folder), minari.column_names
        return Dataset(
            laid.tape, laid.task, minari.name, where, found.published, names, laid.horizon_said
        )

    return Source(found.task or minari.task, found.published, None, read, found.said)


def _file_source(
    archive: Archive, wanted: Task | None, bounds: Bounds | None, *, named: bool
) -> Source:
    path, rows = archive.path, rows_of(archive)
    given, found = None, Identity(None, None)
    if bounds is not None:
        given = box(bounds, rows.actions.width, rows.file, rows.actions.key)
    if named:
        found = _identity_with_bounds(
            path.name, archive.task_name, wanted, given, lambda task: misfit(rows, task)
        )

    def read(memory_limit: int) -> Dataset:
        laid = tape_of(
            rows,
            found.task,
            path.stem,
            action_bounds=bounds,
            origin=_origin(path),
            memory_limit=memory_limit,
        )
        return Dataset(
            laid.tape,
            laid.task,
            path.stem,
            str(path),
            found.published,
            rows.column_names,
            laid.horizon_said,
        )

    return Source(found.task, found.published, rows, read, found.said, bounds)


def _identity_with_bounds(
    name: str,
    recorded: str | None,
    wanted: Task | None,
    given: ContinuousActions | None,
    unlike: Callable[[Task], str | None],
) -> Identity:
    """`identity` where bounds of actions may be given: a task of other bounds is not taken for a
    name's sake, and contradicts them where it is recorded."""

    def other(task: Task) -> str | None:
        if given is None or given == task.actions:
            return None
        if not isinstance(task.actions, ContinuousActions):
            return "bounds are given, and its actions are numbered"
        ours, theirs = (describe_bounds(box.low, box.high) for box in (given, task.actions))
        return f"the bounds given are {ours}, those of the task {theirs}"

    found = identity(name, recorded, wanted, lambda task: other(task) or unlike(task))
    if found.task is not None and (difference := other(found.task)):
        raise DatasetError(
            f"{name}: records task '{found.task.name}', but {difference}. Leave the bounds out, or "
            "give --task none."
        )
    return found


def locate(spec: str) -> Place:
    """Find the data that a user's path or name means."""
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
    if os.path.exists(path):  # also of a name that cannot be one
        return Place("minari" if is_minari_folder(path) else "file", str(path))
    if spec in FILES:
        cached = download.cached_path(spec)
        if cached is None:
            publisher = FILES[spec].publisher
            raise DatasetError(
                f"'{spec}': not downloaded yet. Fetch it with 'neubay data download {spec}', or "
                f"give the path of a copy: {publisher.scheme}:PATH{publisher.suffix}."
            )
        return Place("file", str(cached))
    raise DatasetError(f"'{spec}': no such file, and no known dataset.{_suggestion(spec)}")


def _suggestion(spec: str) -> str:
    scheme, colon, rest = spec.partition(":")
    if colon and "/" not in scheme:
        close = difflib.get_close_matches(scheme, SCHEMES, n=1, cutoff=0.5)
        if close:
            return f" Did you mean '{close[0]}:{rest}'?"
    close = difflib.get_close_matches(spec, [*builtin.NAMES, *FILES], n=1, cutoff=0.7)
    if close:
        return f" Did you mean '{close[0]}'?"
    return " Check the path; 'neubay data list' shows the names."


def _builtin(name: str, task: Task | None) -> Dataset:
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
    name: str,
    recorded: str | None,
    wanted: Task | None,
    unlike: Callable[[Task], str | None] = lambda _: None,
) -> Identity:
    """The task of a dataset: the one asked for, the one recorded with the data, or the one that
    its name suggests, unless `unlike` says why the data cannot be of it."""
    named, published = identify(name)
    if wanted is not None:
        same = named is not None and named.name == wanted.name
        return Identity(wanted, published if same else None)
    if recorded is not None:
        try:
            same = named is not None and named.name == recorded
            return Identity(get_task(recorded), published if same else None)
        except TaskError:  # a task of its own, or one that is registered elsewhere
            return Identity(None, None)
    if named is None:
        return Identity(None, None)
    reason = unlike(named)
    if reason is None:
        said = f"{name}: taken for data of task '{named.name}', as its name says; sizes and "
        return Identity(named, published, said + "actions fit (--task none: of no task)")
    said = f"{name}: not of task '{named.name}', as its name suggests: {reason}. It gets a task of "
    return Identity(None, None, said + "its own, without environment and termination rule")


def _origin(path: Path) -> dict[str, Any]:
    """What distinguishes one state of a file from another."""
    status = path.stat()
    return {
        "path": str(path.resolve()),
        "size": status.st_size,
        "modified": status.st_mtime_ns,
    }


# -------------------------------------------------------------------------------- layouts


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
    return Rows(
        file=file,
        terminals_mark_any_end=any_end,
        recorded_actions=archive.actions,
        column_names=archive.column_names,
        **columns,
    )


def _missing(file: str, present: list[str], field: str) -> str:
    wanted = ", ".join(f"'{name}'" for name in NAMES[field])
    shown = ", ".join(f"'{name}'" for name in sorted(present)[:12]) or "nothing"
    more = ", ..." if len(present) > 12 else ""
    return (
        f"{file}: no array of {field}; looked for {wanted}. The file has {shown}{more}. Rename the "
        f"array, or pass it to Dataset.from_arrays."
    )
