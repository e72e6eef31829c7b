"""The dataset of a sweep, as its workers find it.

A worker reads it by the name or path that the user gave, where that leads to the same data. Else
the rows come as arrays: from the sweep's directory, for a dataset that was only in memory, or
through Ray, where nodes share no files.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from neubay import data
from neubay.data.dataset import Dataset
from neubay.data.rows import ColumnNames
from neubay.data.sources import SCHEMES, locate
from neubay.data.store import FIELDS
from neubay.errors import ConfigError, DatasetError, NeubayError, RunError, renamed
from neubay.runs.files import atomic, read_array
from neubay.tape import Tape
from neubay.tasks import (
    Reference,
    Task,
    action_space,
    get_task,
    is_built_in,
    list_tasks,
)
from neubay.tasks.files import read_task

Arrays = Mapping[str, np.ndarray]
FOLDER = "data"
"""In a sweep's directory: the rows of a dataset that has no file."""
_PLAIN = (
    *("name", "state_size", "horizon", "learns_termination", "reward_shift", "reward_only"),
    *("split_by_timeouts_only", "world_skips_terminals", "world_skips_timeouts", "benchmark"),
)


@dataclass(frozen=True)
class Source:
    """Where a dataset is, and which one it is; plain values only."""

    hash: str
    name: str
    source: str
    published: str | None
    task: dict[str, Any]
    """How to make its task: by name, from the text of a task file, or from sizes."""
    spec: str | None = None
    """The name or the path that the user gave; none for one that was made in Python."""
    wanted: str | None = None
    """The task that the user named."""
    bounds: tuple[Any, Any] | None = None
    """Low and high of the actions, as the user gave them."""
    names: dict[str, Any] | None = None
    """What states, actions and reward are called, where that is known."""

    @staticmethod
    def of(
        dataset: Dataset,
        spec: str | None = None,
        *,
        wanted: str | None = None,
        task_file: Path | None = None,
        bounds: tuple[Any, Any] | None = None,
    ) -> "Source":
        """Describe a dataset; a task that no other process could make is refused."""
        return Source(
            dataset.hash,
            dataset.name,
            dataset.source,
            dataset.published,
            _task_record(dataset.task, task_file),
            None if spec is None else _absolute(spec),
            wanted,
            bounds,
            None if dataset.column_names is None else dataset.column_names._asdict(),
        )

    def load(self, rows: Callable[[], Arrays] | None) -> Dataset:
        """The dataset, read by its name or else made of `rows`."""
        problem: NeubayError | None = None
        if self.spec is not None:
            task: Task | str | None = self.wanted
            if "text" in self.task:
                task = _task(self.task)
            try:
                found = data.load(
                    self.spec, task, action_bounds=self.bounds, tell=lambda text: None
                )
                if found.hash == self.hash:
                    return found
                problem = DatasetError(
                    f"{self.spec}: has hash {found.hash} here, and {self.hash} where the sweep was "
                    "begun: other data under the same name"
                )
            except NeubayError as error:
                problem = error
        if rows is None:
            raise problem or DatasetError(f"{self.name}: its rows are not here")
        return self._of_rows(rows())

    def _of_rows(self, rows: Arrays) -> Dataset:
        tape = Tape(*(rows[name] for name in FIELDS))
        names = None
        if self.names is not None:
            states, actions = (tuple(self.names[of]) for of in ("states", "actions"))
            names = ColumnNames(states, actions, self.names["reward"])
        dataset = Dataset(
            tape, _task(self.task), self.name, self.source, self.published, column_names=names
        )
        if dataset.hash != self.hash:
            raise DatasetError(
                f"{self.name}: its rows arrived with hash {dataset.hash}, not {self.hash}: damaged"
            )
        return dataset


def _absolute(spec: str) -> str:
    """The name or the path that a user gave, so that it means the same in every folder."""
    scheme, colon, rest = spec.partition(":")
    if not colon or scheme not in SCHEMES:
        scheme, rest = "", spec
    path = Path(os.path.expanduser(rest))
    if locate(spec).kind == "builtin" or not path.exists():  # a name
        return spec
    return f"{scheme}{':' if scheme else ''}{path.resolve()}"


def rows_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """The tape as plain arrays by name."""
    return {name: np.asarray(getattr(dataset.tape, name)) for name in FIELDS}


def keep(dataset: Dataset, directory: Path) -> None:
    """Put the rows of a dataset into a sweep's directory, once."""
    if (directory / FOLDER).is_dir():
        return
    with atomic(directory / FOLDER) as draft:
        draft.mkdir()
        for name, array in rows_of(dataset).items():
            np.save(draft / f"{name}.npy", array, allow_pickle=False)


def kept(directory: Path) -> dict[str, np.ndarray]:
    """What `keep` wrote."""
    with renamed(RunError, DatasetError):
        return {name: read_array(directory / FOLDER / f"{name}.npy") for name in FIELDS}


# --- Tasks ---------------------------------------------------------------------------------------


def _task_record(task: Task, task_file: Path | None) -> dict[str, Any]:
    if task_file is not None:
        try:
            text = task_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{task_file}: cannot be read: {error}") from None
        return {"text": text, "path": str(task_file.resolve())}
    if is_built_in(task):
        return {"registered": task.name}
    registered = any(task is known for known in list_tasks())
    if registered or task.make_env is not None or task.termination is not None:
        raise ConfigError(
            f"task '{task.name}': made in Python, so that other processes cannot make it; describe "
            "it in a task file (--task-file; in Python: task_file=)"
        )
    reference = None if task.reference is None else asdict(task.reference)
    plain = {name: getattr(task, name) for name in _PLAIN}
    return plain | {"actions": task.actions.record(), "reference": reference}


def _task(record: dict[str, Any]) -> Task:
    if "registered" in record:
        return get_task(record["registered"])
    if "text" in record:
        return _task_of_file(Path(record["path"]), record["text"])
    plain = record | {"actions": action_space(**record["actions"])}
    if record["reference"] is not None:
        plain["reference"] = Reference(**record["reference"])
    return Task(**plain)


def _task_of_file(path: Path, text: str) -> Task:
    """From the user's file where it is at hand, with what lies beside it; else from its text."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return read_task(path)
    with TemporaryDirectory(prefix="neubay-task-") as folder:
        copy = Path(folder) / path.name
        copy.write_text(text, encoding="utf-8")
        return read_task(copy)
