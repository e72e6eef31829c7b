"""Cores of one's own, to be claimed before JAX is imported: it makes as many threads as it then has
cores. No JAX here, and nothing that imports it.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from filelock import lock_descriptor

_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
_held: list[int] = []  # descriptors of the locks, which the system frees with the process


def available() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS and Windows do not tell


def claim(count: int = 1, folder: Path | None = None) -> list[int]:
    """Pin this process, and all threads that it will have, to cores that no other one has claimed.

    A claim is a lock on a file, so that workers of any engine and any sweep on this machine leave
    each other alone, and a killed worker's core is free at once. Where too few are free, cores are
    shared. Where processes cannot be pinned, threads are limited all the same.
    """
    mine = available()
    count = min(max(count, 1), len(mine))
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = folder or Path(tempfile.gettempdir()) / f"neubay-cores-{user}"
    chosen: list[int] = []
    for core in mine:
        if len(chosen) < count and _lock(folder / str(core)):
            chosen.append(core)
    others = [core for core in mine if core not in chosen]
    first = os.getpid() % max(len(others), 1)
    chosen += (others[first:] + others[:first])[: count - len(chosen)]
    for library in _THREADS:
        os.environ[f"{library}_NUM_THREADS"] = str(count)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)
    return sorted(chosen)


def threads(count: int | None) -> dict[str, str]:
    """The environment in which JAX's programs use so many threads, whatever cores they have: a
    matrix product is cut by their number, and its last bits depend on the cut."""
    return {} if count is None else {"NPROC": str(count)}


def _lock(path: Path) -> bool:
    """Lock a file for as long as this process lives; not where another one has it, or where the
    folder cannot be written."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if lock_descriptor(descriptor, blocking=False):
            _held.append(descriptor)
            return True
        os.close(descriptor)
    return False
