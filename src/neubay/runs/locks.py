"""One process at a time in a folder, and who that is."""

import contextlib
import datetime
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

from neubay.errors import RunError, refusal_reported
from neubay.runs.messages import Tell
from neubay.runs.signals import stop_if_signalled

LOCK_FILE = "lock"
"""Locked by the process that works in a folder, which writes into it who it is. It is never
removed: the system unlocks it when the process ends, however it ends."""
_GRACE = 0.3  # seconds: `lock_holder` and others that only look hold a lock for less
_INTERVAL = 0.5  # seconds between two attempts at a lock that is waited for


@contextlib.contextmanager
def locked(directory: Path, waiting: Tell | None = None) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be.

    Where another one holds it, this is an error that names it, or with `waiting` it is waited for
    and `waiting` is told so once.
    """
    with _acquired(directory, waiting) as file:
        _sign(file)
        yield


def _acquired(directory: Path, waiting: Tell | None) -> IO[str]:
    """The lock file of a folder, locked until it is closed."""
    begun, announced = time.monotonic(), False
    while True:
        with refusal_reported(RunError, f"{directory}: cannot be written"):
            directory.mkdir(parents=True, exist_ok=True)
            file = (directory / LOCK_FILE).open("a+", encoding="utf-8")
        with contextlib.ExitStack() as otherwise:
            otherwise.enter_context(file)
            with refusal_reported(RunError, f"{directory}: cannot be locked"):
                if lock_descriptor(file.fileno(), blocking=False):
                    if _is_at(file, directory / LOCK_FILE):
                        otherwise.pop_all()
                        return file
                    continue  # the folder was removed meanwhile: nobody else sees this lock
            holder = _holder(file)
        stop_if_signalled()
        if time.monotonic() - begun < _GRACE:
            time.sleep(_GRACE / 10)
            continue
        if waiting is None:
            raise RunError(
                f"{directory}: in use by {holder}: wait for it or stop it, "
                "or choose another directory"
            )
        if not announced:
            waiting(f"{directory}: waiting for {holder}")
            announced = True
        time.sleep(_INTERVAL)


def _is_at(file: IO[str], path: Path) -> bool:
    """An open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _sign(file: IO[str]) -> None:
    """Write down who holds a lock, for others to read; a full disk does not matter."""
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    note = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since})
    with contextlib.suppress(OSError):
        file.seek(0)
        file.truncate()
        file.write(" " + note)  # on Windows the first byte is locked, and only it
        file.flush()


def lock_holder(directory: Path) -> str | None:
    """Who works in a folder now, in words; None if nobody does."""
    with contextlib.suppress(OSError), (directory / LOCK_FILE).open(encoding="utf-8") as file:
        end = time.monotonic() + _GRACE / 10
        while not lock_descriptor(file.fileno(), blocking=False):  # closing the file unlocks it
            if time.monotonic() > end:  # longer than another look takes
                return _holder(file)
            time.sleep(_GRACE / 100)
    return None


def _holder(file: IO[str]) -> str:
    try:
        file.seek(1)
        held = json.loads("{" + file.read().removeprefix("{"))
        return f"process {held['pid']} on {held['host']}, since {held['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
        return "another process"
