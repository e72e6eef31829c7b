"""Checkpoints of a training: written whole, sealed, and verified before they are used.

    000012000-0000031/             a checkpoint; names sort by age
        0000.npz, 0001.npz, ...    its arrays, in slices
        checkpoint.json            the seal: a note, and the SHA-256 of every file and of itself
    best-000008000/                the best one so far, whatever its age

A checkpoint appears under its name when everything in it is on the disk. The last two are kept: if
the last is damaged, the one before is used. What is trained is not known here: note and arrays mean
something to the caller only. No JAX either, so that looking at runs is instant.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from neubay.errors import RunError, reason, renamed
from neubay.runs.files import (
    Arrays,
    Tree,
    atomic,
    file_hash,
    filled,
    flush_to_disk,
    read_arrays,
    write_arrays,
)
from neubay.runs.messages import Tell, log
from neubay.runs.signals import Stopped, uncut

LAYOUT = 3
"""Version of a checkpoint. 1 and 2, of neubay 0.1, had other files, which are not read."""
CHECKPOINTS = "checkpoints"
"""The folder of them, in the directory of a run or of a world."""
EVERY = 30.0
"""Seconds between two checkpoints, at least."""
SHARE = 0.02
"""Of the time, what checkpoints may take: a slow one is followed by a longer pause."""
SLICE = 64_000_000
"""Bytes of a large store that are read at once."""
_SEAL = "checkpoint.json"

Snapshot = tuple[dict[str, Any], Iterable[Arrays]]
"""What a checkpoint keeps: a note, and arrays in as many slices as need be."""
Resumed = TypeVar("Resumed")


class Damaged(Exception):
    """A checkpoint is not what was written."""


class Checkpoint(NamedTuple):
    """A checkpoint whose every byte is as it was written."""

    path: Path
    note: dict[str, Any]
    log_bytes: int
    files: list[str]

    def slices(self) -> Iterator[Arrays]:
        """Its arrays, a file at a time."""
        for name in self.files:
            with renamed(RunError, Damaged):
                yield read_arrays(self.path / name)


def fill(like: Tree, arrays: Arrays) -> Tree:
    """A pytree of the structure of `like` with the leaves of a checkpoint."""
    with renamed(ValueError, Damaged):
        return filled(like, arrays)


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder of them, oldest first."""
    with contextlib.suppress(OSError):  # none yet, or none that can be read
        names = [name for name in os.listdir(folder) if re.fullmatch(r"\d+-\d+", name)]
        return [folder / name for name in sorted(names)]
    return []


class Checkpoints:
    """The checkpoints of one training.

    Args:
        folder: where they are; no other process may use it meanwhile.
        log_file: a file that grows with the training: resuming cuts it back to the length that it
            had at the checkpoint.
        every: seconds between two checkpoints, at least; with 0 there is one at every pause.
        signalled: whether the process was asked to stop, as `deferred_signals` gives it.
        tell: is given a sentence that the user should know.
    """

    def __init__(
        self,
        folder: Path,
        log_file: Path | None = None,
        *,
        every: float = EVERY,
        signalled: Callable[[], int] = lambda: 0,
        tell: Tell = log,
    ) -> None:
        self.folder, self.log_file, self.every, self.tell = folder, log_file, every, tell
        self._signalled = signalled
        self._next = time.monotonic() + every

    def resume(self, use: Callable[[Checkpoint], Resumed]) -> Resumed | None:
        """What `use` makes of the newest sound checkpoint, or None where there is no checkpoint.

        Where `use` raises `Damaged`, the one before is tried. Damaged ones are removed once a sound
        one is found.
        """
        self._tidy()
        newest_first = found(self.folder)[::-1]
        for number, path in enumerate(newest_first):
            try:
                checkpoint = verified(path)
                resumed = use(checkpoint)
            except Damaged as damage:
                self.tell(f"{path}: damaged ({damage}); it is not used")
                continue
            for damaged in newest_first[:number]:
                _discard(damaged)
            self._cut_log(checkpoint.log_bytes)
            return resumed
        if newest_first:
            raise RunError(
                f"{self.folder}: none of its {len(newest_first)} checkpoints is sound; "
                "remove that folder to train from the start, nothing else is lost"
            )
        self._cut_log(0)
        return None

    def pause(
        self, name: str, snapshot: Callable[[], Snapshot], *, last: bool = False, stop: int = 0
    ) -> None:
        """A point where everything is whole: write a checkpoint if one is due, or this is the last
        point, or a signal asks to `stop`, which is then done."""
        stop = stop or self._signalled()
        if stop or last or time.monotonic() >= self._next:
            begun = time.monotonic()
            self._write(self.folder / name, *snapshot())
            self._prune(2)
            now = time.monotonic()
            self._next = now + (max(self.every, (now - begun) / SHARE) if self.every else 0.0)
        if stop:
            raise Stopped(stop)

    def keep_best(self, name: str, snapshot: Snapshot) -> None:
        """Write a checkpoint that is kept until the next best."""
        target = self.folder / f"best-{name}"
        self._write(target, *snapshot)
        for other in self.folder.glob("best-*"):
            if other != target:
                _discard(other)

    def finish(self, kept: int) -> None:
        """Nothing will be resumed: keep the last few, and the best."""
        self._tidy()
        self._prune(kept)
        with contextlib.suppress(OSError):  # not empty, or not there
            self.folder.rmdir()

    def _tidy(self) -> None:
        """Remove what a kill left half written or half removed."""
        for path in self.folder.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)

    def _prune(self, kept: int) -> None:
        for old in found(self.folder)[::-1][kept:]:
            _discard(old)

    def _write(self, target: Path, note: dict[str, Any], slices: Iterable[Arrays]) -> None:
        slices = list(slices)
        try:
            with uncut, atomic(target) as draft:
                draft.mkdir()
                for number, arrays in enumerate(slices):
                    write_arrays(draft / f"{number:04d}.npz", arrays)
                if self._log_bytes() and self.log_file is not None:
                    flush_to_disk(self.log_file)
                seal(draft, note, self._log_bytes())
        except (OSError, ValueError) as error:  # zipfile raises the latter after the former
            size = sum(array.nbytes for part in slices for array in part.values())
            raise RunError(
                f"{target}: {size / 1e6:.1f} MB could not be written: "
                f"{reason(error)}. The checkpoints before it are "
                "untouched: make room, and give the same command to resume"
            ) from None

    def _log_bytes(self) -> int:
        if self.log_file is None or not self.log_file.exists():
            return 0
        return self.log_file.stat().st_size

    def _cut_log(self, size: int) -> None:
        """Back to its length at the checkpoint. Where it is shorter, rows of the curves are lost,
        and that is all: a checkpoint needs none of them."""
        if self.log_file is None:
            return
        if (left := self._log_bytes()) < size:
            self.tell(
                f"{self.log_file}: had {size} bytes at the checkpoint, now it has {left}: curves "
                "will have a gap, the training is as it was"
            )
        if left:
            with self.log_file.open("r+b") as file:
                whole = file.read(size).rfind(b"\n") + 1  # a row that was cut short goes too
                file.truncate(whole)


def verified(path: Path) -> Checkpoint:
    """A checkpoint, once each of its files is found to be as it was written; else `Damaged`."""
    content = unsealed(path)
    if content["layout"] != LAYOUT:
        raise RunError(
            f"{path}: a checkpoint of layout {content['layout']}, this version of neubay reads "
            f"{LAYOUT}; resume with the version that wrote it, or choose another --out"
        )
    return Checkpoint(path, content["note"], content["log_bytes"], sorted(content["files"]))


def _discard(path: Path) -> None:
    """Remove a checkpoint, which is gone at once even if the removal is cut short."""
    removed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


# --- The seal ------------------------------------------------------------------------------------


def seal(folder: Path, note: dict[str, Any], log_bytes: int = 0) -> None:
    """Write a note and the hash of every file into a folder, and its own hash with them."""
    content = {
        "layout": LAYOUT,
        "note": note,  # numbers in it may not be finite: this is not strict JSON
        "log_bytes": log_bytes,
        "files": {path.name: file_hash(path) for path in sorted(folder.glob("*.npz"))},
    }
    text = json.dumps(content | {"sha256": _digest(content)})
    (folder / _SEAL).write_text(text, encoding="utf-8")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def unsealed(folder: Path) -> dict[str, Any]:
    """The content of a seal; `Damaged` says which file is not as it was written."""
    try:
        text = (folder / _SEAL).read_text(encoding="utf-8")
        content: dict[str, Any] = json.loads(text)
        # A number has several spellings, and only one is written: damage may not hide in another.
        respelt = json.dumps(content) != text
        if content.pop("sha256") != _digest(content) or respelt:
            raise Damaged(f"{_SEAL} is not as it was written")
        files = content["files"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damaged(f"{_SEAL} cannot be read") from None
    for name, expected in files.items():
        try:
            intact = file_hash(folder / name) == expected
        except RunError:
            raise Damaged(f"{name} cannot be read") from None
        if not intact:
            raise Damaged(f"{name} is not as it was written")
    return content
