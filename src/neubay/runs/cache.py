"""The user's cache: where it is, and the compiled programs in it."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

CACHE_VARIABLE = "NEUBAY_CACHE"
COMPILED_BYTES = 1 << 30
"""The most that compiled programs may take; JAX removes those that were not used for longest."""


def cache_directory() -> Path:
    """Where downloads, generated data, worlds, clones and compiled programs are kept:
    `$NEUBAY_CACHE`; or `~/.cache/neubay`, where version 0.1 kept them; or the system's folder for
    such things, which on Linux is the same.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    try:
        former = Path.home() / ".cache" / "neubay"
    except RuntimeError:  # a process without a home, as in some containers
        return Path(tempfile.gettempdir()) / "neubay-cache"
    return former if former.is_dir() else user_cache_path("neubay", appauthor=False)


def kept_at(kind: str, name: str, identity: list[Any]) -> Path:
    """Where something of this identity is in the cache, or will be: a folder of its kind, the same
    whatever its name was when it was made."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_directory() / kind
    return min(folder.glob(f"*-{digest}"), default=folder / f"{name}-{digest}")


def keep_compiled_programs() -> None:
    """Let JAX keep what it compiles, so that the next run with the same shapes need not.

    It is said by JAX's own variables, which must be set before JAX is imported; a folder that a
    user has chosen there is left alone. Nothing is kept where the cache cannot be written.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_directory() / "compiled"
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(COMPILED_BYTES))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
