"""Where tapes are: in memory or, if too large for it, in a folder of memory-mapped files."""

import json
import mmap
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from neubay.data.files import written_whole
from neubay.errors import DatasetError, refusal_reported
from neubay.runs.cache import CACHE_VARIABLE, cache_directory
from neubay.tape import Tape

MEMORY_LIMIT = 1 << 30
"""Bytes of a tape beyond which it is kept in files and memory-mapped."""

CACHE_LAYOUT = 3
"""Counted up when the meaning of the cached files changes."""

FIELDS = ("state", "action", "reward", "terminated", "start", "real")
"""The fields of a tape that data has: all but the penalty of imagined rows."""


def fields(tape: Tape) -> list[np.ndarray]:
    """The arrays of a dataset's tape, in the order of `FIELDS`."""
    return [np.asarray(getattr(tape, name)) for name in FIELDS]


def row_bytes(state_size: int, action_size: int) -> int:
    """Bytes of one row of a tape."""
    return 4 * (state_size + action_size + 1) + 3


def allocate(rows: int, state_size: int, action_size: int) -> Tape:
    """A tape whose values are yet to be filled in."""
    return Tape(
        state=np.empty((rows, state_size), dtype=np.float32),
        action=np.empty((rows, action_size), dtype=np.float32),
        reward=np.empty(rows, dtype=np.float32),
        terminated=np.empty(rows, dtype=bool),
        start=np.empty(rows, dtype=bool),
        real=np.empty(rows, dtype=bool),
    )


class MemoryWriter:
    """A tape in memory, allocated once for the rows expected and grown if there are more."""

    def __init__(self, expected_rows: int, state_size: int, action_size: int) -> None:
        self.rows = 0
        self._sizes = (state_size, action_size)
        self._arrays = fields(allocate(expected_rows, *self._sizes))

    def extend(self, rows: int) -> Tape:
        begin, self.rows = self.rows, self.rows + rows
        capacity = len(self._arrays[0])
        if self.rows > capacity:
            grown = fields(allocate(self.rows + capacity // 2, *self._sizes))
            for new, old in zip(grown, self._arrays, strict=True):
                new[:begin] = old[:begin]
            self._arrays = grown
        return Tape(*(array[begin : self.rows] for array in self._arrays))

    def tape(self) -> Tape:
        """What was taken, read-only."""
        arrays = [array[: self.rows] for array in self._arrays]
        for array in arrays:
            array.flags.writeable = False
        return Tape(*arrays)


class FolderWriter:
    """A tape as one .npy file per field, written front to back with plain writes.

    Writing through a memory map would make every page of it resident.
    """

    def __init__(self, folder: Path, state_size: int, action_size: int) -> None:
        self.rows = 0
        self._sizes = (state_size, action_size)
        self._buffer = allocate(0, *self._sizes)
        self._open_files = ExitStack()
        self._files = [
            self._open_files.enter_context((folder / f"{name}.npy").open("wb")) for name in FIELDS
        ]
        self._write_headers()

    def extend(self, rows: int) -> Tape:
        self._flush()
        self.rows += rows
        self._buffer = allocate(rows, *self._sizes)
        return self._buffer

    def __enter__(self) -> "FolderWriter":
        return self

    def __exit__(self, *_: object) -> None:
        with self._open_files:
            self._flush()
            self._write_headers()

    def _flush(self) -> None:
        for file, array in zip(self._files, fields(self._buffer), strict=False):
            file.write(array.data)

    def _write_headers(self) -> None:
        # NumPy leaves room in a header for the rows to grow: its length is always the same.
        for file, array in zip(self._files, fields(self._buffer), strict=False):
            file.seek(0)
            shape = (self.rows, *array.shape[1:])
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)


TapeWriter = MemoryWriter | FolderWriter
"""Takes a tape from its first row to its last: `extend` gives the next rows, to be filled in before
the next call, and `rows` counts those taken so far."""


# ------------------------------------------------------------- memory, or a memory map


def build_tape(
    build: Callable[[TapeWriter], None],
    *,
    rows: int,
    sizes: tuple[int, int],
    origin: dict[str, Any] | None,
    memory_limit: int,
) -> Tape:
    """The tape that `build` writes.

    Args:
        rows: how many are expected.
        sizes: of states and actions.
        origin: all that the tape depends on; another origin is another tape. With it, a tape
            larger than `memory_limit` bytes is put into the cache, or found there.
    """
    size = rows * row_bytes(*sizes)
    if origin is not None and size > memory_limit:
        return _mapped_tape(build, size, sizes, origin)
    writer = MemoryWriter(rows, *sizes)
    build(writer)
    return writer.tape()


def _mapped_tape(
    build: Callable[[TapeWriter], None], size: int, sizes: tuple[int, int], origin: dict[str, Any]
) -> Tape:
    """A memory-mapped tape from the cache, built first where it is not there."""
    text = json.dumps([CACHE_LAYOUT, origin], sort_keys=True)
    folder = cache_directory() / "tapes" / sha256(text.encode()).hexdigest()[:32]
    tape = _open(folder, sizes)
    if tape is None:
        _check_room(folder.parent, size)
        with written_whole(folder, overwrite=True) as draft:
            draft.mkdir()
            with FolderWriter(draft, *sizes) as writer:
                build(writer)
            (draft / "origin.json").write_text(text, encoding="utf-8")
        tape = _open(folder, sizes)
    if tape is None:
        raise DatasetError(f"{folder}: vanished while it was opened. Try again.")
    return tape


def _open(folder: Path, sizes: tuple[int, int]) -> Tape | None:
    """The tape in a folder of the cache; none if it is absent or damaged."""
    try:
        # Never unpickles: a memory map can only be of plain values.
        arrays = [np.lib.format.open_memmap(folder / f"{name}.npy", mode="r") for name in FIELDS]
    except (OSError, ValueError, EOFError):
        return None
    sound = all(
        len(array) == len(arrays[0])
        and (array.shape[1:], array.dtype) == (wanted.shape[1:], wanted.dtype)
        for array, wanted in zip(arrays, fields(allocate(0, *sizes)), strict=False)
    )
    if not sound:
        return None
    state, action, reward, *mapped = arrays
    flags = [np.array(flag) for flag in mapped]  # small, and always needed whole
    for flag in flags:
        flag.flags.writeable = False
    return Tape(state, action, reward, *flags)


def _check_room(folder: Path, size: int) -> None:
    """Raise where the cache cannot take `size` bytes more."""
    remedy = f"Set {CACHE_VARIABLE} to a folder on a disk with room for {size / 1e9:.1f} GB"
    with refusal_reported(
        DatasetError, f"{folder}: the cache for large datasets cannot be made", f". {remedy}."
    ):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        writable = os.access(folder, os.W_OK)
    if not writable:
        raise DatasetError(f"{folder}: the cache for large datasets cannot be written. {remedy}.")
    if free < size:
        raise DatasetError(
            f"{folder}: the cache for large datasets has {free / 1e9:.1f} GB left. {remedy}."
        )


def gather(array: np.ndarray, rows: Int[np.ndarray, "*batch"]) -> np.ndarray:
    """Any rows of an array, copied.

    From a memory map they are read with plain reads, one for each run of rows: the system maps
    up to a megabyte around every row that is touched, and counts all of it as ours.
    """
    if not (isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)):
        return array[rows]
    numbers = rows.reshape(-1)
    if not numbers.size:
        return array[rows]
    if numbers.min() < 0 or numbers.max() >= len(array):
        raise IndexError(f"rows {numbers.min()} to {numbers.max()} of a tape with {len(array)}")
    gathered = np.empty((len(numbers), *array.shape[1:]), array.dtype)
    size = array.strides[0]
    target = memoryview(gathered.reshape(-1).view(np.uint8))
    begins = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    ends = np.append(begins[1:], len(numbers))
    with open(str(array.filename), "rb", buffering=0) as file:
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            file.seek(array.offset + int(numbers[begin]) * size)
            file.readinto(target[begin * size : end * size])
    return gathered.reshape(*rows.shape, *array.shape[1:])


def release(tape: Tape) -> None:
    """Let go of the pages of a memory-mapped tape that were read so far.

    They stay in the system's file cache; the process no longer counts them as its own.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):  # no such call, as on Windows
        return
    for field in tape:
        base = getattr(field, "base", None)
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)
