"""One process at a time in a folder, and who that is."""

import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from neubay.errors import RunError
from neubay.runs.messages import Report
from neubay.runs.signals import leave_if_asked

LOCK_FILE = "lock"
"""Held by the process that works in a folder; who that is stands in it. It is never removed: the
system lets go of it when the process ends, however it ends."""
_GLANCE = 0.3  # seconds that others may hold it for a look, as `lock_holder` does
_PATIENCE = 0.5  # seconds between two looks at a lock that is waited for


@contextlib.contextmanager
def locked(directory: Path, waiting: Report | None = None) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be.

    Where another one holds it, this is an error that names it, or with `waiting` it is waited for
    and `waiting` is told so once.
    """
    if importlib.util.find_spec("fcntl") is None:  # Windows has no such locks
        yield
        return
    with _acquired(directory, waiting) as file:
        _sign(file)
        yield


def _acquired(directory: Path, waiting: Report | None) -> IO[str]:
    """The lock file of a folder, locked."""
    import fcntl

    begun, told = time.monotonic(), False
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = (directory / LOCK_FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise RunError(f"{directory}: cannot be written: {error.strerror}") from None
        with contextlib.ExitStack() as otherwise:
            otherwise.enter_context(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, directory / LOCK_FILE):
                    otherwise.pop_all()
                    return file
                continue  # the folder was removed meanwhile: its lock means nothing to others
            except BlockingIOError:
                holder = _holder(file)
            except OSError as error:
                raise RunError(f"{directory}: cannot be locked: {error.strerror}") from None
        leave_if_asked()
        if time.monotonic() - begun < _GLANCE:
            time.sleep(_GLANCE / 10)
            continue
        if waiting is None:
            raise RunError(
                f"{directory}: in use by {holder}: wait for it or stop it, "
                "or choose another directory"
            )
        if not told:
            waiting(f"{directory}: waiting for {holder}")
            told = True
        time.sleep(_PATIENCE)


def _is_at(file: IO[str], path: Path) -> bool:
    """An open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _sign(file: IO[str]) -> None:
    """Write down who holds a lock: a courtesy to others, so a full disk does not matter."""
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": platform.node(), "since": since}, file)
        file.flush()


def lock_holder(directory: Path) -> str | None:
    """Who works in a folder at this moment, in words; none if nobody does."""
    try:
        import fcntl

        with (directory / LOCK_FILE).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except (ImportError, OSError):
        pass
    return None


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        held = json.load(file)
        return f"process {held['pid']} on {held['host']}, since {held['since']}"
    except (ValueError, KeyError, TypeError):  # it has only just begun
        return "another process"
