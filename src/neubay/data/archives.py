"""HDF5 and npz files as named arrays, opened without trusting them.

Only numbers inside the file itself are ever read: no links or storage in other files, no pickled
objects, no array that claims to be far larger than the bytes it is stored in. Whatever the
libraries raise over a damaged file becomes a `DatasetError`.
"""

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from neubay.data.rows import BLOCK_ROWS, Column, ColumnNames, spans
from neubay.errors import DatasetError, TaskError, reason
from neubay.tasks import ContinuousActions, DiscreteActions

CHUNK_CACHE = 16 << 20
"""Bytes of decompressed HDF5 chunks kept per array, so that none is decompressed twice."""

UNSUSPICIOUS_SIZE = 64 << 20
HIGHEST_COMPRESSION = 1100
"""An array above the size that claims to be compressed better than deflate ever can is refused."""

ACTION_LOW, ACTION_HIGH, ACTION_COUNT = "action_low", "action_high", "action_count"
"""The action space of the data: attributes of an HDF5 file, arrays of an npz file."""

STATE_NAMES, ACTION_NAMES, REWARD_NAME = "state_names", "action_names", "reward_name"
"""What the columns are called, likewise: lists of texts, in an attribute as such or in JSON (which
may be longer)."""

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_DAMAGED = "Copy, record or download the file again"


@dataclass(frozen=True)
class Archive:
    """The arrays of a file by name; one is opened when it is asked for."""

    path: Path
    keys: list[str]
    column: Callable[[str], Column]
    task_name: str | None = None
    """The task that was recorded with the data, where one was."""
    actions: ContinuousActions | DiscreteActions | None = None
    """The action space that was recorded with the data, where one was."""
    column_names: ColumnNames | None = None
    """The names of the columns that were recorded with the data, where they were."""


def open_archive(path: Path) -> AbstractContextManager[Archive]:
    """The arrays of an HDF5 or npz file, whatever its name ends in."""
    return _open_hdf5(path) if _kind(path) == "hdf5" else _open_npz(path)


def _kind(path: Path) -> str:
    """'hdf5' or 'npz' by what the file begins with."""
    try:
        if path.is_dir():
            raise DatasetError(
                f"{path}: is a folder. Give a file, or minari:FOLDER for a Minari dataset."
            )
        if not path.exists():
            raise DatasetError(f"{path}: no such file. Check the path.")
        if not path.is_file():
            raise DatasetError(f"{path}: is not a regular file. Give an HDF5 or npz file.")
        with path.open("rb") as file:
            beginning = file.read(8)
        is_hdf5 = beginning == _HDF5_SIGNATURE or h5py.is_hdf5(path)
    except (OSError, ValueError) as problem:
        raise DatasetError(f"{path}: cannot be read: {reason(problem)}. Check the path.") from None
    if is_hdf5:
        return "hdf5"
    if beginning.startswith(b"PK"):
        return "npz"
    formats = "Give HDF5 or npz with arrays such as 'observations', 'actions', 'rewards'"
    if not beginning:
        raise DatasetError(f"{path}: is empty. {_DAMAGED}.")
    if beginning[0] == 0x80 and len(beginning) > 1 and beginning[1] <= 5:
        raise DatasetError(
            f"{path}: is a Python pickle, which can run any program when it is loaded, and is "
            f"never opened. {formats}."
        )
    if beginning.startswith(b"\x93NUMPY"):
        raise DatasetError(f"{path}: is a single array (.npy). {formats}.")
    if path.name.lower().endswith((".csv", ".csv.gz", ".tsv", ".parquet")):
        raise DatasetError(
            f"{path}: is a table. Make a dataset of it first: neubay data import {path} OUT.hdf5."
        )
    raise DatasetError(f"{path}: is neither HDF5 nor npz (or damaged at its start). {formats}.")


@contextmanager
def damage_reported(path: Path, key: str | None = None) -> Iterator[None]:
    """What a library raises over a damaged file, as a `DatasetError`.

    HDF5 and zip raise half a dozen unrelated types over damaged bytes, none of which says more
    than its text: put only calls into them inside this block.
    """
    try:
        yield
    except DatasetError:
        raise
    except Exception as problem:
        place = f"{path}: '{key}'" if key else f"{path}"
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise DatasetError(
            f"{place}: cannot be read ({reason}). If it is damaged: {_DAMAGED.lower()}."
        ) from None


def _refuse_absurd_size(path: Path, key: str, size: int, stored: int) -> None:
    if size > UNSUSPICIOUS_SIZE and size > HIGHEST_COMPRESSION * stored:
        raise DatasetError(
            f"{path}: '{key}' claims {size / 1e9:.2f} GB in {stored} stored bytes, more than any "
            f"real data can be compressed. {_DAMAGED}."
        )


# ---------------------------------------------------------------------------------- HDF5


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Archive]:
    with ExitStack() as opened:
        with damage_reported(path):
            file = h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE, locking="best-effort")
            opened.callback(_close, path, file)
            plain = opened.enter_context(path.open("rb", buffering=0))
            keys = [str(key) for key in file]
            task = file.attrs.get("task")
            recorded = recorded_actions(path, file.attrs), recorded_names(path, file.attrs)

        def column(key: str) -> Column:
            with damage_reported(path, key):
                refuse_link(path, file, key)
                return hdf5_column(path, key, file[key], plain)

        yield Archive(path, keys, column, task if isinstance(task, str) else None, *recorded)


def recorded_actions(
    path: Path, values: Mapping[str, Any]
) -> ContinuousActions | DiscreteActions | None:
    """The action space that a file names: bounds, or a number of actions; none where it does not.

    Refused, and not ignored, where it cannot be: other bounds would give other actions.
    """
    low, high, count = (values.get(name) for name in (ACTION_LOW, ACTION_HIGH, ACTION_COUNT))
    if low is None and high is None and count is None:
        return None
    try:
        if count is not None:
            return DiscreteActions(int(np.asarray(count).item()))
        low, high = (np.atleast_1d(np.asarray(bound, np.float64)) for bound in (low, high))
        return ContinuousActions(low, high)
    except (TaskError, ValueError, TypeError) as problem:
        raise DatasetError(
            f"{path}: its bounds of actions ('{ACTION_LOW}', '{ACTION_HIGH}') cannot be used: "
            f"{' '.join(str(problem).split())[:200]}. Store two vectors, low below high."
        ) from None


def recorded_names(path: Path, values: Mapping[str, Any]) -> ColumnNames | None:
    """The names of columns that a file holds; none where it holds none. Refused where they cannot
    be read: a sensor of another name would be believed."""
    given = [values.get(name) for name in (STATE_NAMES, ACTION_NAMES, REWARD_NAME)]
    if given[0] is None and given[1] is None:
        return None
    try:
        states, actions = (_texts(value) for value in given[:2])
        reward = None if given[2] is None else str(np.asarray(given[2]).item())
        return ColumnNames(states, actions, reward)
    except (ValueError, TypeError, RecursionError):
        raise DatasetError(
            f"{path}: its names of columns ('{STATE_NAMES}', '{ACTION_NAMES}') cannot be used. "
            "Store two lists of texts, one for each state and one for each action."
        ) from None


def _texts(value: Any) -> tuple[str, ...]:
    """Texts in a list or an array, or in JSON."""
    found = json.loads(value) if isinstance(value, str | bytes) else np.asarray(value).tolist()
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("not a list of texts")
    return tuple(found)


def _close(path: Path, file: h5py.File) -> None:
    with damage_reported(path):
        file.close()


def refuse_link(path: Path, group: h5py.Group, key: str) -> None:
    """Raise where a name leads out of its group, perhaps to another file."""
    if not isinstance(group.get(key, getlink=True), h5py.HardLink):
        raise DatasetError(
            f"{path}: '{key}' is a link to another place, which is never followed. "
            f"Store the array itself under '{key}'."
        )


def hdf5_column(path: Path, key: str, array: Any, plain: FileIO | None = None) -> Column:
    """An array of an open HDF5 file, refused if its values are somewhere else.

    `plain` is the same file opened without the library, for arrays that need none of it.
    """
    if not isinstance(array, h5py.Dataset):
        raise DatasetError(f"{path}: '{key}' is a group, not an array. Store one array under it.")
    if array.is_virtual or array.external:
        raise DatasetError(
            f"{path}: the values of '{key}' are in another file, which is never followed. "
            f"Store the array itself under '{key}'."
        )
    _refuse_absurd_size(path, key, array.nbytes or 0, array.id.get_storage_size())
    if plain is not None and _is_plain(array, path):
        return Column(key, _PlainValues(path, key, array, plain))
    return Column(key, _Hdf5Values(path, key, array), array.chunks[0] if array.chunks else 1)


def _is_plain(array: h5py.Dataset, path: Path) -> bool:
    """The numbers are in the file one after the other, just as they are in memory."""
    return (
        array.chunks is None
        and array.id.get_offset() is not None
        and array.dtype.kind == "f"
        and array.id.get_type().equal(h5py.h5t.py_create(array.dtype))
        and array.id.get_offset() + array.nbytes <= path.stat().st_size
    )


class _PlainValues:
    """Read past the library: a plain read takes half its time."""

    def __init__(self, path: Path, key: str, array: h5py.Dataset, file: FileIO) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype = array.dtype
        self._path, self._key, self._file = path, key, file
        self._offset = array.id.get_offset()

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(self.shape[0])
        values = np.empty((max(end - begin, 0), *self.shape[1:]), self.dtype)
        with damage_reported(self._path, self._key):
            self._file.seek(self._offset + begin * math.prod(self.shape[1:]) * self.dtype.itemsize)
            if self._file.readinto(values.data) < values.nbytes:
                raise EOFError("it ends too early")
        return values


class _Hdf5Values:
    def __init__(self, path: Path, key: str, array: h5py.Dataset) -> None:
        self.shape: tuple[int, ...] = array.shape or ()  # none where there is no value at all
        self.dtype: np.dtype = array.dtype
        self._path, self._key, self._array = path, key, array

    def __getitem__(self, rows: slice) -> np.ndarray:
        with damage_reported(self._path, self._key):
            return self._array[rows]


# ----------------------------------------------------------------------------------- npz


@contextmanager
def _open_npz(path: Path) -> Iterator[Archive]:
    with damage_reported(path):
        file = zipfile.ZipFile(path)

    def column(key: str) -> Column:
        with damage_reported(path, key):
            return Column(key, _NpzValues(path, key, file))

    with file:
        keys = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
        stored = {key: _small(column(key)) for key in keys if key in _RECORDED}
        actions, names = recorded_actions(path, stored), recorded_names(path, stored)
        yield Archive(path, keys, column, actions=actions, column_names=names)


_RECORDED = (ACTION_LOW, ACTION_HIGH, ACTION_COUNT, STATE_NAMES, ACTION_NAMES, REWARD_NAME)


def _small(column: Column) -> np.ndarray:
    """An array of a few numbers or texts, whole."""
    if not column.values.shape:
        raise DatasetError(f"'{column.key}' is a single value. Store a vector.")
    return column.read(0, min(len(column), 1 << 16))


class _NpzValues:
    """An array in a zip file, decompressed row by row as it is asked for."""

    def __init__(self, path: Path, key: str, file: zipfile.ZipFile) -> None:
        self._path, self._key, self._file = path, key, file
        self._begin()
        if self.dtype.hasobject:
            raise DatasetError(
                f"{path}: '{key}' holds pickled Python objects, which are never loaded. "
                "Store numbers as float32 and flags as bool."
            )
        if any(length < 0 for length in self.shape):
            raise ValueError(f"the header gives the shape {self.shape}")
        size = math.prod(self.shape) * self.dtype.itemsize
        member = file.getinfo(f"{key}.npy")
        _refuse_absurd_size(path, key, max(size, member.file_size), member.compress_size)

    def _begin(self) -> None:
        """Open the array before its first row: after its header."""
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        self._stream, self._next_row = self._file.open(f"{self._key}.npy"), 0
        version = np.lib.format.read_magic(self._stream)
        if version not in readers:
            raise ValueError(f"version {version} of the npy format holds no plain numbers")
        self.shape, self._column_major, self.dtype = readers[version](self._stream)

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(self.shape[0])
        with damage_reported(self._path, self._key):
            return self._whole[begin:end] if self._column_major else self._read(begin, end)

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin < self._next_row:
            self._stream.close()
            self._begin()
        for skipped, upto in spans(begin - self._next_row, BLOCK_ROWS):
            self._bytes(upto - skipped)
        data = self._bytes(end - begin)
        self._next_row = end
        return np.frombuffer(data, self.dtype).reshape(end - begin, *self.shape[1:])

    @cached_property
    def _whole(self) -> np.ndarray:
        """An array stored column by column, which has no rows to be read one by one."""
        return np.frombuffer(self._bytes(self.shape[0]), self.dtype).reshape(self.shape, order="F")

    def _bytes(self, rows: int) -> bytes:
        wanted = rows * math.prod(self.shape[1:]) * self.dtype.itemsize
        data = self._stream.read(wanted)
        if len(data) < wanted:
            raise EOFError("it ends too early")
        return data
