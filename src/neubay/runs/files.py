"""Files that survive: atomic writes, JSON, arrays of a pytree, hashes.

JAX is imported where it is used: who only looks at files does not wait for it.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from neubay.errors import RunError

Tree = Any  # a pytree; jaxtyping's name for it would import JAX


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
        flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two markers of a text file, and leave the rest of it alone."""
    try:
        old = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read as text: {error}") from None
    if old.count(begin) != 1 or old.count(end) != 1 or old.index(begin) > old.index(end):
        raise RunError(f"{path}: needs one line '{begin}' and, below it, one line '{end}'")
    head, tail = old.partition(begin)[0], old.partition(end)[2]
    with atomic_file(path) as file:
        file.write(f"{head}{begin}\n{text}\n{end}{tail}".encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not valid JSON ({error}); the file is damaged") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def save_arrays(path: Path, tree: Tree, about: dict[str, Any]) -> None:
    """Write the array leaves of `tree`, named by their place in it, and a JSON note, atomically."""
    arrays = {f"tree{name}": np.asarray(leaf) for name, leaf in _named_leaves(tree)}
    note = np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)
    with atomic_file(path) as file:
        np.savez(file, allow_pickle=False, about=note, **arrays)


def load_arrays(path: Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """Read what `save_arrays` wrote into the structure of `like`, whose leaves have a shape and a
    dtype; a leaf that is missing, left over or of another shape or dtype is an error."""
    wanted = {f"tree{name}": leaf for name, leaf in _named_leaves(like)}
    import jax

    with _arrays_in(path) as file:
        about = json.loads(file["about"].tobytes())
        stored = {name: file[name] for name in file.files if name != "about"}
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
    with _arrays_in(path) as file:
        note = json.loads(file["about"].tobytes())
    if not isinstance(note, dict):
        raise RunError(f"{path}: its note is not an object; the file is damaged")
    return note


@contextlib.contextmanager
def _arrays_in(path: Path) -> Iterator[Any]:
    """An array file, open. What NumPy and zip raise over damaged bytes, which is of a dozen types,
    becomes a `RunError`: only calls into them may stand inside."""
    try:
        # Opened here: NumPy would leave a file open that is no archive.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except FileNotFoundError:
        raise RunError(f"{path}: not found") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"{path}: not a readable array file ({reason}); it is damaged") from None


def _named_leaves(tree: Tree) -> list[tuple[str, Any]]:
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None


def tree_hash(tree: Tree) -> str:
    """Hash of the arrays of a pytree, their places, shapes and dtypes."""
    digest = hashlib.sha256()
    for name, leaf in _named_leaves(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
