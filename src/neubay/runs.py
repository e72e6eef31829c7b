"""Files that survive: atomic writes, arrays of a pytree, provenance, stopping at a safe point."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import jax
import numpy as np
from jaxtyping import PyTree

from neubay.errors import RunError


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole under its name, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path}: not valid JSON ({error}); the file is damaged") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def save_arrays(path: Path, tree: PyTree, about: dict[str, Any]) -> None:
    """Write the array leaves of `tree`, named by their place in it, and a JSON note, atomically."""
    arrays = {f"tree{name}": np.asarray(leaf) for name, leaf in _named_leaves(tree)}
    note = np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)
    with atomic_file(path) as file:
        np.savez(file, allow_pickle=False, about=note, **arrays)


def load_arrays(path: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Read what `save_arrays` wrote into the structure of `like`, whose leaves have a shape and a
    dtype; a leaf that is missing, left over or of another shape or dtype is an error."""
    wanted = {f"tree{name}": leaf for name, leaf in _named_leaves(like)}
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            stored = {name: file[name] for name in file.files if name != "about"}
    except FileNotFoundError:
        raise RunError(f"{path}: not found") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: not a readable array file ({error}); it is damaged") from None
    strays = sorted(stored.keys() ^ wanted.keys())
    if strays:
        where = "only in the file" if strays[0] in stored else "missing in the file"
        raise RunError(f"{path}: '{strays[0]}' is {where}: it holds other arrays than expected")
    for name, leaf in wanted.items():
        got, expected = stored[name], (tuple(leaf.shape), np.dtype(leaf.dtype))
        if (got.shape, got.dtype) != expected:
            raise RunError(
                f"{path}: '{name}' is {got.dtype}{list(got.shape)}, "
                f"expected {expected[1]}{list(expected[0])}"
            )
    leaves = [stored[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), about


def read_note(path: Path) -> dict[str, Any]:
    """The JSON note of an array file, without its arrays."""
    try:
        with np.load(path, allow_pickle=False) as file:
            note = json.loads(file["about"].tobytes())
    except FileNotFoundError:
        raise RunError(f"{path}: not found") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: not a readable array file ({error}); it is damaged") from None
    if not isinstance(note, dict):
        raise RunError(f"{path}: its note is not an object; the file is damaged")
    return note


def _named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None


def provenance() -> dict[str, str]:
    """Versions of what decides the numbers, and the kind of machine."""
    packages = ("neubay", "jax", "jaxlib", "equinox", "optax", "numpy", "mujoco")
    return {
        **{name: importlib.metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "platform": platform.platform(terse=True),
    }


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], bool]]:
    """Hold SIGINT and SIGTERM back; the yielded function says whether one has arrived.

    The caller asks at points where its state is whole, saves, and raises KeyboardInterrupt.
    Outside the main thread signals cannot be held back, and none arrive: the answer is no.
    """
    arrived = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal arrived
        if arrived:  # asked twice: now, with what the last checkpoint has
            raise KeyboardInterrupt
        arrived = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
